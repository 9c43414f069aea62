//! Handlers that make contexts. Each is charged before the driver is called, and again destroyed if a limit
//! has no room for what it takes beyond that (`memory::context`).

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::ContextKind;

use super::{context_switch, streams};
use crate::driver;
use crate::driver::cuda::{CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CUcontext, CUdevice, CUresult};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{answer, written};
use crate::hook::{self, Hook};
use crate::shared::device::LocalDevice;

/// Publishes whether a context that is about to be made on a device is shared with other processes by MPS.
fn note_mps(hook: &Hook, local: LocalDevice) {
    let mut is_shared = 0;
    let asked = driver::cuDeviceGetAttribute(&mut is_shared, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, local.device());
    if asked.is_ok() && is_shared != 0 {
        hook.session.usage().uses_mps.store(1, Relaxed);
    }
}

/// Handles `cuCtxCreate` and its variants: the context is current afterwards.
pub(crate) fn create(made: *mut CUcontext, device: CUdevice, next: Next<'_>) -> CUresult {
    let (Some(hook), Some(local)) = (hook::get(), LocalDevice::of(device)) else {
        return context_switch::switch(next);
    };
    hook.session.devices.learn(hook.session.control(), local);
    note_mps(hook, local);
    let turn = hook.memory.make_context(local);
    let kinds = [ContextKind::Created];
    let charge = turn.charge(&kinds)?;
    charge.make(&|| context_switch::switch(next))?;
    let Some(handle) = written(made) else {
        return Ok(());
    };
    let context = hook.program.contexts.known(hook.session, handle, local);
    charge.settle(context.id(), || {
        let _ = streams::leave(Some(context), &|| driver::cuCtxDestroy_v2(handle), || true);
        answer(made, CUcontext::NULL);
    })
}

/// Handles `cuDevicePrimaryCtxRetain`: the first one makes the context.
pub(crate) fn retain_primary(made: *mut CUcontext, device: CUdevice, next: Next<'_>) -> CUresult {
    let (Some(hook), Some(local)) = (hook::get(), LocalDevice::of(device)) else {
        return next();
    };
    hook.session.devices.learn(hook.session.control(), local);
    let enter = || written(made).map(|handle| streams::enter_primary(hook, handle, local));
    if streams::is_active(device) {
        next()?;
        enter();
        return Ok(());
    }
    note_mps(hook, local);
    let turn = hook.memory.make_context(local);
    // Another thread may have made it meanwhile.
    let kinds: &[_] = if streams::is_active(device) {
        &[]
    } else {
        &[ContextKind::Primary]
    };
    let charge = turn.charge(kinds)?;
    charge.make(next)?;
    match enter().filter(|_| !kinds.is_empty()) {
        None => Ok(()),
        Some(context) => charge.settle(context.id(), || {
            let release = || driver::cuDevicePrimaryCtxRelease_v2(device);
            let _ = streams::leave(Some(context), &release, || !streams::is_active(device));
            answer(made, CUcontext::NULL);
        }),
    }
}
