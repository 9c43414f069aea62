//! Primary contexts: one per device, reference counted within the process.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::abi::{CUcontext, CUdevice, CUerror, CUresult, Out};
use crate::call::{Call, driver};
use crate::context::Context;
use crate::error::{INVALID_CONTEXT, INVALID_VALUE, PRIMARY_CONTEXT_ACTIVE};

/// A device's primary context.
#[derive(Default)]
pub(crate) struct Primary {
    context: Option<Arc<Context>>,
    retained: u32,
    flags: u32,
}

/// Retains the device's primary context, creating it if there is none.
pub(crate) fn hold(call: Call, device: CUdevice) -> Result<Arc<Context>, CUerror> {
    let mut primary = call.process.device(device)?.primary.lock();
    let context = match &primary.context {
        Some(context) => Arc::clone(context),
        None => Context::make(call.process, device, primary.flags, true)?,
    };
    primary.retained += 1;
    primary.context = Some(Arc::clone(&context));
    Ok(context)
}

fn retain(call: Call, out: Out<CUcontext>, device: CUdevice) -> CUresult {
    call.process.device(device)?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    out.set(hold(call, device)?.handle)
}

/// Releases the primary context; the last release destroys it.
pub(crate) fn release(call: Call, device: CUdevice) -> CUresult {
    let mut primary = call.process.device(device)?.primary.lock();
    if primary.retained == 0 {
        return Err(INVALID_CONTEXT);
    }
    primary.retained -= 1;
    if primary.retained == 0
        && let Some(context) = primary.context.take()
    {
        context.destroy(call.process);
    }
    Ok(())
}

fn reset(call: Call, device: CUdevice) -> CUresult {
    let mut primary = call.process.device(device)?.primary.lock();
    if let Some(context) = primary.context.take() {
        context.destroy(call.process);
        // After a reset, earlier holders may still release; the next retain creates a new context.
        primary.retained = 0;
    }
    Ok(())
}

fn set_flags(call: Call, device: CUdevice, flags: u32) -> CUresult {
    let mut primary = call.process.device(device)?.primary.lock();
    primary.flags = flags;
    if let Some(context) = &primary.context {
        context.flags.store(flags, Relaxed);
    }
    Ok(())
}

driver! {
    fn cuDevicePrimaryCtxRetain(context: Out<CUcontext>, device: CUdevice) |call| { retain(call, context, device) }
    fn cuDevicePrimaryCtxRelease(device: CUdevice) |call| { release(call, device) }
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) |call| { release(call, device) }
    fn cuDevicePrimaryCtxReset(device: CUdevice) |call| { reset(call, device) }
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) |call| { reset(call, device) }
    fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: u32) |call| {
        if call.process.device(device)?.primary.lock().context.is_some() {
            return Err(PRIMARY_CONTEXT_ACTIVE);
        }
        set_flags(call, device, flags)
    }
    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: u32) |call| { set_flags(call, device, flags) }
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: Out<u32>, active: Out<i32>) |call| {
        let primary = call.process.device(device)?.primary.lock();
        flags.set(primary.flags)?;
        active.set(i32::from(primary.context.is_some()))
    }
}
