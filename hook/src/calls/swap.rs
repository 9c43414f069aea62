//! Calls that use memory which can be moved, or that keep it in place.

use crate::driver::cuda::{CUdeviceptr, CUresult};
use crate::driver::interpose::Next;
use crate::hook;

/// Handles a call after which the memory must not move (such as an export): brings the block back to the
/// device and keeps it there.
pub(crate) fn pin(address: CUdeviceptr, next: Next<'_>) -> CUresult {
    if let Some(process) = hook::get() {
        process.swap.pin(address.0);
    }
    next()
}

/// Handles a call that uses memory and is not a submission: waits while memory moves.
pub(crate) fn touch(next: Next<'_>) -> CUresult {
    let Some(process) = hook::get().filter(|process| process.swap.is_on()) else {
        return next();
    };
    let index = process.program.bind().map(|bound| bound.index());
    let _touch = index.and_then(|index| process.compute.holds.touch(process.session.usage(), index));
    next()
}
