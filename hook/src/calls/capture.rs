//! Stream captures: begin and end.

use crate::compute::gate;
use crate::driver::cuda::{CUresult, CUstream};
use crate::driver::interpose::Next;
use crate::driver::streams::is_capturing;
use crate::hook::{self, Process};
use crate::sys;

/// Handles `cuStreamBeginCapture` and its variants.
pub(crate) fn begin(stream: CUstream, next: Next<'_>) -> CUresult {
    let Some(process) = hook::get() else {
        return next();
    };
    let captures = &process.program.contexts.captures;
    let tid = sys::gettid();
    gate::hold(
        process.compute,
        || captures.begin(stream, tid),
        || captures.end(stream, tid),
    );
    // Submissions to the stream must not be counted, and only the slow path looks for captures.
    process.program.slots.watch(process.session, true);
    next().inspect_err(|_| {
        captures.end(stream, tid);
        is_over(process);
    })
}

/// Wakes the helper, which returns submissions to the fast path.
fn is_over(process: &Process) {
    process.session.line.wake();
}

/// Handles `cuStreamEndCapture`. An invalidated capture ends too; one that another thread must end does not.
pub(crate) fn end(stream: CUstream, next: Next<'_>) -> CUresult {
    let result = next();
    let Some(process) = hook::get() else {
        return result;
    };
    if is_capturing(stream) != Some(true) {
        process.program.contexts.captures.end(stream, sys::gettid());
        process.program.current().inspect(|bound| bound.discount());
        is_over(process);
    }
    result
}
