//! Waits of the program, after which submitted work has completed.

use crate::compute::{progress, watch};
use crate::driver::cuda::CUresult;
use crate::driver::interpose::Next;
use crate::hook;

/// Handles `cuCtxSynchronize`: if the process has no other context on the device, except green contexts that
/// are parts of this one, all submitted work has completed.
pub(crate) fn synchronize(next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let before = hook.program.current().map(|bound| {
        hook.program.slots.fold(hook.session);
        // A wait for a green context waits for nothing else.
        let waits_for = if bound.owner() == bound.context() {
            bound.owner()
        } else {
            0
        };
        (
            bound.index(),
            hook.session.usage().kernels(bound.index()),
            waits_for,
        )
    });
    let last = hook.memory.last_ordered();
    next()?;
    if let Some((index, submitted, owner)) = before
        && hook
            .program
            .contexts
            .on(|local| hook.session.devices.index(local) == index)
            .iter()
            .all(|context| context.base().id() == owner)
    {
        progress::ended(hook.session.usage(), index, submitted);
        watch::look_if_wanted(hook.session, index);
    }
    hook.memory.context_synchronized(last);
    Ok(())
}
