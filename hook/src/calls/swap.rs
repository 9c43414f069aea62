//! Calls that use memory which can be moved, or that keep it in place.

use crate::driver::cuda::{CUdeviceptr, CUresult};
use crate::driver::interpose::Next;
use crate::hook;

/// Handles a call after which the memory must not move (such as an export): brings the block back to the
/// device and keeps it there.
pub(crate) fn pin(address: CUdeviceptr, next: Next<'_>) -> CUresult {
    if let Some(hook) = hook::get() {
        hook.swap.pin(address.0);
    }
    next()
}

/// Handles a call that uses memory and is not a submission: waits while memory moves.
pub(crate) fn touch(next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get().filter(|hook| hook.swap.is_on()) else {
        return next();
    };
    let index = hook.program.bind().map(|bound| bound.index());
    let _touch = index.and_then(|index| hook.compute.holds.touch(index));
    next()
}
