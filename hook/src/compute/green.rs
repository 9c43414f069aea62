//! Handlers that create and destroy green contexts: parts of a primary context, with their own streams.
//!
//! Memory allocated while a green context is current belongs to the primary context and is freed with that.
//! A green context holds its device's primary context and may be the last holder.

use std::sync::Arc;

use super::context::Context;
use super::{slots, streams};
use crate::driver;
use crate::driver::cuda::{CUcontext, CUdevice, CUerror, CUgreenCtx, CUresult};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::written;
use crate::process::{self, Process};
use crate::shared::device::LocalDevice;

/// Handles `cuGreenCtxCreate`.
pub(crate) fn create(made: *mut CUgreenCtx, device: CUdevice, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(process), Some(made), Some(local)) = (process::get(), written(made), LocalDevice::of(device))
    {
        enter(process, made, local);
    }
    Ok(())
}

fn enter(process: &Process, made: CUgreenCtx, local: LocalDevice) {
    process.devices.learn(process.control(), local);
    let mut handle = CUcontext::NULL;
    let (Ok(()), Some(base)) = (
        driver::cuCtxFromGreenCtx(&mut handle, made),
        primary(process, local),
    ) else {
        return;
    };
    process.contexts.enter_part(handle, &base, made);
}

/// Returns the device's primary context, which exists because a green context holds it.
fn primary(process: &Process, local: LocalDevice) -> Option<Arc<Context>> {
    if let Some(known) = streams::primary(local.device()) {
        return Some(known);
    }
    let mut handle = CUcontext::NULL;
    driver::cuDevicePrimaryCtxRetain(&mut handle, local.device()).ok()?;
    // The green context still holds it, so this release does not destroy it.
    let _ = driver::cuDevicePrimaryCtxRelease_v2(local.device());
    Some(streams::enter_primary(process, handle, local))
}

/// Handles `cuGreenCtxDestroy`: its streams are detached, and the primary context loses a holder.
pub(crate) fn destroy(green: CUgreenCtx, next: Next<'_>) -> CUresult {
    let Some((process, part)) =
        process::get().and_then(|process| Some((process, process.contexts.green(green)?)))
    else {
        return slots::switch(next);
    };
    part.leave_marks();
    let device = part.local.device();
    let destroy = || {
        part.leave();
        let result = next();
        if matches!(result, Ok(()) | Err(CUerror::CONTEXT_IS_DESTROYED)) {
            process.contexts.remove(process, &part);
        } else {
            part.stay();
        }
        result
    };
    streams::leave(Some(Arc::clone(part.base())), &destroy, || {
        !streams::is_active(device)
    })
}

#[cfg(test)]
mod tests {
    use super::super::context::Passed;
    use super::*;
    use gcgroup_abi::NO_LIMIT;
    use std::sync::atomic::Ordering::Relaxed;

    fn context(number: usize) -> CUcontext {
        CUcontext(std::ptr::without_provenance_mut(number))
    }

    fn green(number: usize) -> CUgreenCtx {
        CUgreenCtx(std::ptr::without_provenance_mut(number))
    }

    #[test]
    fn green_context_is_a_part_and_goes_with_its_primary() {
        let process = Process::of_test(NO_LIMIT);
        let contexts = &process.contexts;
        let local = LocalDevice::of(0).unwrap();
        let base = contexts.known(process, context(16), local);
        contexts.enter_part(context(32), &base, green(48));
        contexts.enter_part(context(64), &base, green(80));
        let part = contexts.green(green(48)).unwrap();
        assert_eq!(part.base().id(), base.id());
        assert_eq!(contexts.find(context(32)).unwrap().id(), part.id());
        assert_eq!(contexts.family(&base).len(), 3);
        assert_eq!(contexts.family(&part).len(), 1);
        let told = process.usage().devices[process.devices.index(local)]
            .nr_contexts
            .load(Relaxed);
        assert_eq!(told, 1, "only the primary context counts");
        contexts.remove(process, &part);
        assert_eq!(contexts.family(&base).len(), 2);
        assert!(contexts.green(green(48)).is_none());
        contexts.remove(process, &base);
        assert!(contexts.on(|_| true).is_empty());
        assert_eq!(part.mark(&mut Vec::new()), Passed::Yes);
    }
}
