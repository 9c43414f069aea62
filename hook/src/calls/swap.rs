//! Calls that use memory which can be moved, or that keep it in place.

use std::ffi::{c_uint, c_void};

use crate::driver;
use crate::driver::cuda::{
    CU_CTX_SYNC_MEMOPS, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CUcontext, CUdeviceptr, CUerror, CUresult,
};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::argument;
use crate::hook;
use crate::shared::device::LocalDevice;

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
    let _touch = index.and_then(|index| hook.compute.holds.touch(hook.session, index));
    next()
}

/// `cuPointerSetAttribute`. The driver has no `SYNC_MEMOPS` for mapped memory: there the flag of the context
/// does the same, for all of its memory.
pub(crate) fn set_attribute(
    value: *const c_void,
    attribute: c_uint,
    address: CUdeviceptr,
    next: Next<'_>,
) -> CUresult {
    let result = pin(address, next);
    if attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || result != Err(CUerror::NOT_SUPPORTED) {
        return result;
    }
    let context = hook::get().and_then(|hook| {
        let allocation = hook.swap.find(address.0)?;
        hook.program.contexts.numbered(allocation.context)
    });
    let (Some(context), Some(is_wanted)) = (context, argument(value.cast::<c_uint>())) else {
        return result;
    };
    if is_wanted == 0 {
        return Ok(());
    }
    let mut flags = 0;
    let set =
        || driver::cuCtxGetFlags(&mut flags).and_then(|()| driver::cuCtxSetFlags(flags | CU_CTX_SYNC_MEMOPS));
    match context.with_current(set) {
        Some(Ok(())) => Ok(()),
        _ => result,
    }
}

/// `cuCtxEnablePeerAccess`: the current context may use the memory of the peer's device.
pub(crate) fn enable_peer(peer: CUcontext, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(hook) = hook::get()
        && let Some((owner, user)) = device_of(peer).zip(current_device())
    {
        hook.swap.enable_peer(owner, user);
    }
    Ok(())
}

fn current_device() -> Option<LocalDevice> {
    let mut device = 0;
    driver::cuCtxGetDevice(&mut device).ok()?;
    LocalDevice::of(device)
}

fn device_of(context: CUcontext) -> Option<LocalDevice> {
    driver::cuCtxPushCurrent_v2(context).ok()?;
    let device = current_device();
    let _ = driver::cuCtxPopCurrent_v2(&mut CUcontext(std::ptr::null_mut()));
    device
}
