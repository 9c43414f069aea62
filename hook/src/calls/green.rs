//! Handlers that create and destroy green contexts: parts of a primary context, with their own streams.
//!
//! Memory allocated while a green context is current belongs to the primary context and is freed with that.
//! A green context holds its device's primary context and may be the last holder.

use std::sync::Arc;

use gcgroup_abi::ContextKind;

use super::{context_switch, streams};
use crate::driver;
use crate::driver::cuda::{CUcontext, CUdevice, CUerror, CUgreenCtx, CUresult};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{answer, written};
use crate::hook::{self, Hook};
use crate::program::context::Context;
use crate::shared::device::LocalDevice;

/// Handles `cuGreenCtxCreate`.
pub(crate) fn create(made: *mut CUgreenCtx, device: CUdevice, next: Next<'_>) -> CUresult {
    let (Some(hook), Some(local)) = (hook::get(), LocalDevice::of(device)) else {
        return next();
    };
    hook.session.devices.learn(hook.session.control(), local);
    let turn = hook.memory.make_context(local);
    let has_primary = streams::is_active(device);
    let kinds = [ContextKind::Green, ContextKind::Primary];
    let charge = turn.charge(if has_primary { &kinds[..1] } else { &kinds })?;
    next()?;
    let Some(green) = written(made) else {
        return Ok(());
    };
    let Some(part) = enter(hook, green, local) else {
        return Ok(());
    };
    // The primary context usually takes more, and may outlive the green one.
    let owner = if has_primary { &part } else { part.base() };
    charge.settle(owner.id(), || {
        let _ = destroy(green, &|| driver::cuGreenCtxDestroy(green));
        answer(made, CUgreenCtx(std::ptr::null_mut()));
    })
}

/// Adds a new green context and returns the context that stands for it in calls.
fn enter(hook: &Hook, made: CUgreenCtx, local: LocalDevice) -> Option<Arc<Context>> {
    let mut handle = CUcontext::NULL;
    driver::cuCtxFromGreenCtx(&mut handle, made).ok()?;
    let base = primary(hook, local)?;
    hook.program.contexts.enter_part(handle, &base, made);
    hook.program.contexts.green(made)
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
    let left = part.leave_markers();
    for stream in part.streams() {
        hook.memory
            .stream_leaves(stream, part.base().id(), || left.clone());
    }
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
