//! Functions of the driver that create, destroy, select and configure contexts.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::{Context, LIMITS, drop_top, push, replace, top};
use crate::abi::{CUcontext, CUdevice, CUerror, CUresult, Out, Raw};
use crate::call::{Call, driver};
use crate::error::{INVALID_CONTEXT, INVALID_VALUE, UNSUPPORTED_LIMIT};

fn push_any(call: Call, context: CUcontext) -> CUresult {
    let context = call.context_of(context)?;
    context.begin_use()?;
    push(context);
    Ok(())
}

fn set(call: Call, context: CUcontext) -> CUresult {
    if context == 0 {
        replace(None);
        return Ok(());
    }
    let context = call.context_of(context)?;
    if top().is_some_and(|top| Arc::ptr_eq(&top, &context)) {
        return Ok(());
    }
    context.begin_use()?;
    replace(Some(context));
    Ok(())
}

fn create(call: Call, out: Out<CUcontext>, flags: u32, device: CUdevice) -> CUresult {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let context = Context::make(call.process, device, flags, false)?;
    out.set_if(context.handle);
    push(context);
    Ok(())
}

fn destroy(call: Call, handle: CUcontext) -> CUresult {
    let context = call.context_of(handle)?;
    if context.is_primary || context.is_part() {
        return Err(INVALID_CONTEXT);
    }
    context.destroy(call.process);
    if top().is_some_and(|top| top.handle == handle) {
        replace(None);
    }
    Ok(())
}

driver! {
    fn cuCtxCreate(context: Out<CUcontext>, flags: u32, device: CUdevice) |call| { create(call, context, flags, device) }
    fn cuCtxCreate_v2(context: Out<CUcontext>, flags: u32, device: CUdevice) |call| { create(call, context, flags, device) }
    fn cuCtxCreate_v3(context: Out<CUcontext>, _params: Raw, _count: i32, flags: u32, device: CUdevice) |call| {
        create(call, context, flags, device)
    }
    fn cuCtxCreate_v4(context: Out<CUcontext>, _params: Raw, flags: u32, device: CUdevice) |call| {
        create(call, context, flags, device)
    }
    fn cuGLCtxCreate(context: Out<CUcontext>, flags: u32, device: CUdevice) |call| { create(call, context, flags, device) }
    fn cuGLCtxCreate_v2(context: Out<CUcontext>, flags: u32, device: CUdevice) |call| { create(call, context, flags, device) }
    fn cuCtxDestroy(context: CUcontext) |call| { destroy(call, context) }
    fn cuCtxDestroy_v2(context: CUcontext) |call| { destroy(call, context) }
    fn cuCtxAttach(context: Out<CUcontext>, _flags: u32) |call| { context.set(call.context()?.handle) }
    fn cuCtxDetach(_context: CUcontext) |call| { call.context().map(|_| ()) }

    fn cuCtxPushCurrent(context: CUcontext) |call| { push_any(call, context) }
    fn cuCtxPushCurrent_v2(context: CUcontext) |call| { push_any(call, context) }
    fn cuCtxPopCurrent(context: Out<CUcontext>) |_| { pop(context) }
    fn cuCtxPopCurrent_v2(context: Out<CUcontext>) |_| { pop(context) }
    fn cuCtxSetCurrent(context: CUcontext) |call| { set(call, context) }
    fn cuCtxGetCurrent(context: Out<CUcontext>) |_| { context.set(top().map_or(0, |context| context.handle)) }
    fn cuCtxGetDevice(device: Out<CUdevice>) |call| { device.set(call.context()?.device) }
    fn cuCtxGetDevice_v2(device: Out<CUdevice>, context: CUcontext) |call| {
        let context = if context == 0 { call.context()? } else { call.context_of(context)? };
        device.set(context.device)
    }
    fn cuCtxGetFlags(flags: Out<u32>) |call| { flags.set(call.context()?.flags.load(Relaxed)) }
    fn cuCtxSetFlags(flags: u32) |call| {
        call.context()?.flags.store(flags, Relaxed);
        Ok(())
    }
    fn cuCtxGetId(context: CUcontext, id: Out<u64>) |call| {
        let context = if context == 0 { call.context()? } else { call.context_of(context)? };
        id.set(context.domain() >> 4 & 0xffff_ffff)
    }
    fn cuCtxGetApiVersion(context: CUcontext, version: Out<u32>) |call| {
        let context = if context == 0 { call.context()? } else { call.context_of(context)? };
        version.set(context.api_version)
    }
    fn cuCtxSynchronize() null {} |call| { synchronize(call, &*call.context()?) }
    fn cuCtxSynchronize_v2(context: CUcontext) null {} |call| {
        let context = if context == 0 { call.context()? } else { call.context_of(context)? };
        synchronize(call, &context)
    }
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |call| {
        call.context()?;
        least.set_if(0);
        greatest.set_if(-5);
        Ok(())
    }
    fn cuCtxGetLimit(value: Out<usize>, limit: u32) |call| {
        let context = call.context()?;
        let now = supported(&context, limit)?.load(Relaxed);
        value.set(usize::try_from(now).unwrap_or(usize::MAX))
    }
    fn cuCtxSetLimit(limit: u32, value: usize) |call| {
        let context = call.context()?;
        let set = supported(&context, limit)?;
        context.base().resize(call.process, limit, value as u64)?;
        set.store(value as u64, Relaxed);
        Ok(())
    }
    fn cuCtxGetCacheConfig(config: Out<u32>) |call| { call.context()?; config.set(0) }
    fn cuCtxSetCacheConfig(_config: u32) |call| { call.context().map(|_| ()) }
    fn cuCtxGetSharedMemConfig(config: Out<u32>) |call| { call.context()?; config.set(1) }
    fn cuCtxSetSharedMemConfig(_config: u32) |call| { call.context().map(|_| ()) }
    fn cuCtxResetPersistingL2Cache() |call| { call.context().map(|_| ()) }
}

fn pop(out: Out<CUcontext>) -> CUresult {
    let popped = drop_top().ok_or(INVALID_CONTEXT)?;
    out.set_if(popped.handle);
    Ok(())
}

fn synchronize(call: Call, context: &Context) -> CUresult {
    crate::capture::check_context(context)?;
    context.wait();
    crate::pool::settle(call.process);
    context.check_fault()
}

fn supported(context: &Context, limit: u32) -> Result<&AtomicU64, CUerror> {
    let index = usize::try_from(limit).unwrap_or(usize::MAX);
    match LIMITS.get(index) {
        Some(1..) => Ok(&context.limits[index]),
        _ => Err(UNSUPPORTED_LIMIT),
    }
}
