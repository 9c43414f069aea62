//! Stream captures: begin and end.

use crate::compute::gate;
use crate::driver::cuda::{CUresult, CUstream};
use crate::driver::interpose::Next;
use crate::driver::streams::is_capturing;
use crate::hook::{self, Hook};
use crate::sys;

/// Handles `cuStreamBeginCapture` and its variants.
pub(crate) fn begin(stream: CUstream, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let captures = &hook.program.contexts.captures;
    let tid = sys::gettid();
    gate::hold(
        hook.compute,
        || captures.begin(stream, tid),
        || captures.end(stream, tid),
    );
    // Submissions to the stream must not be counted, and only the slow path looks for captures.
    hook.program.slots.watch(hook.session, true);
    next().inspect_err(|_| {
        captures.end(stream, tid);
        is_over(hook);
    })
}

/// Wakes the helper, which returns submissions to the fast path.
fn is_over(hook: &Hook) {
    hook.session.line.wake();
}

/// Handles `cuStreamEndCapture`. An invalidated capture ends too; one that another thread must end does not.
pub(crate) fn end(stream: CUstream, next: Next<'_>) -> CUresult {
    let result = next();
    let Some(hook) = hook::get() else {
        return result;
    };
    if is_capturing(stream) != Some(true) {
        hook.program.contexts.captures.end(stream, sys::gettid());
        is_over(hook);
    }
    result
}
