//! Handlers that create and destroy green contexts: parts of a primary context, with their own streams.
//!
//! Memory allocated while a green context is current belongs to the primary context and is freed with that.
//! A green context holds its device's primary context and may be the last holder.

use std::sync::Arc;

use super::{context_switch, streams};
use crate::driver;
use crate::driver::cuda::{CUcontext, CUdevice, CUerror, CUgreenCtx, CUresult};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::written;
use crate::hook::{self, Hook};
use crate::program::context::Context;
use crate::shared::device::LocalDevice;

/// Handles `cuGreenCtxCreate`.
pub(crate) fn create(made: *mut CUgreenCtx, device: CUdevice, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(made), Some(local)) = (hook::get(), written(made), LocalDevice::of(device)) {
        enter(hook, made, local);
    }
    Ok(())
}

fn enter(hook: &Hook, made: CUgreenCtx, local: LocalDevice) {
    hook.session.devices.learn(hook.session.control(), local);
    let mut handle = CUcontext::NULL;
    let (Ok(()), Some(base)) = (driver::cuCtxFromGreenCtx(&mut handle, made), primary(hook, local)) else {
        return;
    };
    hook.program.contexts.enter_part(handle, &base, made);
}

/// Returns the device's primary context, which exists because a green context holds it.
fn primary(hook: &Hook, local: LocalDevice) -> Option<Arc<Context>> {
    if let Some(known) = streams::primary(local.device()) {
        return Some(known);
    }
    let mut handle = CUcontext::NULL;
    driver::cuDevicePrimaryCtxRetain(&mut handle, local.device()).ok()?;
    // The green context still holds it, so this release does not destroy it.
    let _ = driver::cuDevicePrimaryCtxRelease_v2(local.device());
    Some(streams::enter_primary(hook, handle, local))
}

/// Handles `cuGreenCtxDestroy`: its streams are detached, and the primary context loses a holder.
pub(crate) fn destroy(green: CUgreenCtx, next: Next<'_>) -> CUresult {
    let Some((hook, part)) = hook::get().and_then(|hook| Some((hook, hook.program.contexts.green(green)?)))
    else {
        return context_switch::switch(next);
    };
    part.leave_markers();
    let device = part.local.device();
    let destroy = || {
        part.leave();
        let result = next();
        if matches!(result, Ok(()) | Err(CUerror::CONTEXT_IS_DESTROYED)) {
            streams::remove(hook, &part);
        } else {
            part.stay();
        }
        result
    };
    streams::leave(Some(Arc::clone(part.base())), &destroy, || {
        !streams::is_active(device)
    })
}
