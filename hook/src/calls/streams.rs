//! Handlers that destroy contexts, and create and destroy streams, and keep `contexts` up to date.
//!
//! An object is removed before the driver destroys it, and put back if the driver fails.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::context_switch::switch;
use crate::driver;
use crate::driver::cuda::{CUcontext, CUdevice, CUresult, CUstream};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::written;
use crate::hook::{self, Hook};
use crate::program::context::Context;
use crate::shared::device::LocalDevice;
use crate::swap::allocation;

const CU_STREAM_NON_BLOCKING: u32 = 1;

/// Wraps a call that may destroy a context; `is_gone` is asked after a success and tells whether it did.
pub(super) fn leave(
    context: Option<Arc<Context>>,
    next: Next<'_>,
    is_gone: impl FnOnce() -> bool,
) -> CUresult {
    let Some((hook, context)) = hook::get().zip(context) else {
        return switch(next);
    };
    let _unsettled = hook.memory.destroying(context.local);
    let family = hook.program.contexts.family(&context);
    family.iter().for_each(|context| context.leave());
    let result = next();
    if result.is_ok() && is_gone() {
        remove(hook, &context);
    } else {
        family.iter().for_each(|context| context.stay());
    }
    hook.program.moved();
    result
}

/// Removes a destroyed context, and what it owned.
pub(super) fn remove(hook: &Hook, context: &Arc<Context>) {
    let family = hook.program.contexts.family(context);
    hook.program.contexts.remove(hook.session, context);
    for gone in family {
        hook.memory.context_uncharged(gone.id());
    }
    if context.is_part() {
        hook.memory.synchronized(None, 0);
    } else {
        hook.memory.context_gone(context.id());
        allocation::context_gone(hook.swap, context.id());
        hook.session.ring();
    }
}

/// Handles `cuCtxDestroy`.
pub(crate) fn destroy_context(handle: CUcontext, next: Next<'_>) -> CUresult {
    leave(
        hook::get().and_then(|hook| hook.program.contexts.find(handle)),
        next,
        || true,
    )
}

/// Handles `cuCtxAttach`: adds a holder, which `cuCtxDetach` removes.
pub(crate) fn attach(context: *mut CUcontext, next: Next<'_>) -> CUresult {
    next()?;
    let found = hook::get()
        .zip(written(context))
        .and_then(|(hook, handle)| hook.program.contexts.find(handle));
    if let Some(found) = found {
        found.attach();
    }
    Ok(())
}

/// Handles `cuCtxDetach`: the last holder's call destroys the context.
pub(crate) fn detach(handle: CUcontext, next: Next<'_>) -> CUresult {
    let context = hook::get().and_then(|hook| hook.program.contexts.find(handle));
    let was_last = context.as_ref().is_none_or(|context| context.detach());
    leave(context, next, || was_last)
}

pub(super) fn enter_primary(hook: &Hook, handle: CUcontext, local: LocalDevice) -> Arc<Context> {
    if let Some(primary) = hook.program.contexts.primary(local) {
        primary.store(handle.0.expose_provenance(), Relaxed);
    }
    hook.program.contexts.known(hook.session, handle, local)
}

pub(super) fn primary(device: CUdevice) -> Option<Arc<Context>> {
    let contexts = &hook::get()?.compute.program.contexts;
    let handle = contexts.primary(LocalDevice::of(device)?)?.load(Relaxed);
    contexts.find(CUcontext::numbered(handle))
}

/// Handles `cuDevicePrimaryCtxRelease`: the last release destroys the context.
pub(crate) fn release_primary(device: CUdevice, next: Next<'_>) -> CUresult {
    leave(primary(device), next, || !is_active(device))
}

/// Returns whether the device has a primary context; true if the driver does not answer.
pub(super) fn is_active(device: CUdevice) -> bool {
    let (mut flags, mut is_active) = (0, 0);
    driver::cuDevicePrimaryCtxGetState(device, &mut flags, &mut is_active).is_err() || is_active != 0
}

/// Handles `cuDevicePrimaryCtxReset`: destroys the context even if it has holders.
pub(crate) fn reset_primary(device: CUdevice, next: Next<'_>) -> CUresult {
    leave(primary(device), next, || true)
}

/// Handles `cuStreamCreate` and its variants, in the current context.
pub(crate) fn create(made: *mut CUstream, flags: u32, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(made)) = (hook::get(), written(made)) {
        enter(hook, made, flags & CU_STREAM_NON_BLOCKING != 0);
    }
    Ok(())
}

/// Handles `cuGreenCtxStreamCreate`: such streams are non-blocking.
pub(crate) fn create_green(made: *mut CUstream, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(made)) = (hook::get(), written(made)) {
        enter(hook, made, true);
    }
    Ok(())
}

fn enter(hook: &Hook, made: CUstream, needs_own: bool) {
    let mut handle = CUcontext::NULL;
    let asked = driver::cuStreamGetCtx(made, &mut handle).or_else(|_| driver::cuCtxGetCurrent(&mut handle));
    if asked.is_err() {
        return;
    }
    // A green context's stream can be created with any or no context current.
    let known = hook.program.contexts.find(handle).or_else(|| {
        let mut device = 0;
        driver::cuStreamGetDevice(made, &mut device)
            .or_else(|_| driver::cuCtxGetDevice(&mut device))
            .ok()?;
        Some(
            hook.program
                .contexts
                .known(hook.session, handle, LocalDevice::of(device)?),
        )
    });
    if let Some(context) = known {
        context.enter(made, needs_own);
    }
}

/// Handles `cuStreamDestroy`: pending work still runs, so a marker is left behind.
pub(crate) fn destroy(leaving: CUstream, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let Some(context) = hook.program.contexts.holder(leaving) else {
        return next();
    };
    let mut needs_own = false;
    hook.memory.stream_leaves(leaving, context.base().id(), || {
        let taken = context.take_out(leaving);
        needs_own = taken.0;
        taken.1
    });
    let result = next();
    match result {
        Ok(()) => hook.program.contexts.captures.forget(leaving),
        Err(_) => context.enter(leaving, needs_own),
    }
    result
}
