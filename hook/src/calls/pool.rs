//! Allocation from memory pools, which are charged by their reserved size.
//!
//! If a pool grows by more than predicted and that does not fit, the allocation is freed again and charged
//! anew, as one that makes the pool grow. The pool stays larger until the stream has reached that free; until
//! then it is charged, even beyond a limit, and calls that find the limit exceeded are refused.

use std::sync::Arc;

use gcgroup_abi::Kind;

use crate::driver;
use crate::driver::cuda::{
    CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEMPOOL_ATTR_ALLOCATION_TYPE,
    CU_MEMPOOL_ATTR_LOCATION_ID, CU_MEMPOOL_ATTR_LOCATION_TYPE, CUdeviceptr, CUerror, CUmemLocation,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{argument, written};
use crate::driver::streams;
use crate::hook::{self, Hook};
use crate::memory::account::Want;
use crate::memory::graph;
use crate::memory::ledger::Entry;
use crate::memory::page_counter::Unsettled;
use crate::memory::reserve::{Backing, Reserve};
use crate::memory::stream::Stream;
use crate::program::no_target;
use crate::shared::device::LocalDevice;
use crate::swap::allocation;

/// Returns the current pool of the stream's device, from which allocations on the stream come.
fn current_pool(hook: &Hook, stream: CUstream) -> Result<Arc<Reserve>, CUerror> {
    let local = match hook.program.contexts.device_of(stream) {
        Some(local) => local,
        None => match hook.program.target() {
            Some(target) => target.local,
            None => hook.program.contexts.holder(stream).ok_or_else(no_target)?.local,
        },
    };
    let pools = &hook.memory.reserves;
    pools.current(local, || {
        let mut handle = CUmemoryPool::NULL;
        driver::cuDeviceGetMemPool(&mut handle, local.device())?;
        let known = pools.find(handle);
        Ok(known.unwrap_or_else(|| {
            pools.enter(handle, local, hook.session.devices.index(local), Backing::Device)
        }))
    })
}

/// `cuDeviceSetMemPool`, `cuMemSetMemPool`: change a device's current pool.
pub(crate) fn set_current(next: Next<'_>) -> CUresult {
    let result = next();
    hook::get().inspect(|hook| hook.memory.reserves.forget_current());
    result
}

/// Returns the pool of a handle. For a pool that was not created here, the driver tells the device, or it is
/// a device's default pool.
fn pool_of(hook: &Hook, handle: CUmemoryPool) -> Result<Arc<Reserve>, CUerror> {
    if let Some(pool) = hook.memory.reserves.find(handle) {
        return Ok(pool);
    }
    let (location, kind) = match described(handle) {
        Some((location, kind)) => (location.device().and_then(LocalDevice::of), kind),
        None => (Some(default_of(handle)?), CU_MEM_ALLOCATION_TYPE_PINNED),
    };
    let local = match location {
        Some(local) => local,
        None => hook.program.target().ok_or_else(no_target)?.local,
    };
    let backing = match (kind, location) {
        (CU_MEM_ALLOCATION_TYPE_MANAGED, _) => Backing::Managed,
        (_, Some(_)) => Backing::Device,
        (_, None) => Backing::Elsewhere,
    };
    let index = hook.session.devices.learn(hook.session.control(), local);
    Ok(hook.memory.reserves.enter(handle, local, index, backing))
}

/// Returns where a pool's memory is, and its allocation type; drivers since CUDA 13 tell.
fn described(pool: CUmemoryPool) -> Option<(CUmemLocation, u32)> {
    let attribute = |which| {
        let mut value = 0;
        driver::cuMemPoolGetAttribute(pool, which, &mut value).ok()?;
        u32::try_from(value).ok()
    };
    let location = CUmemLocation {
        kind: attribute(CU_MEMPOOL_ATTR_LOCATION_TYPE)?,
        id: attribute(CU_MEMPOOL_ATTR_LOCATION_ID)?.cast_signed(),
    };
    Some((location, attribute(CU_MEMPOOL_ATTR_ALLOCATION_TYPE)?))
}

/// Returns the device whose default pool it is.
fn default_of(pool: CUmemoryPool) -> Result<LocalDevice, CUerror> {
    let mut count = 0;
    driver::cuDeviceGetCount(&mut count)?;
    for local in (0..count).filter_map(LocalDevice::of) {
        let mut default = CUmemoryPool::NULL;
        driver::cuDeviceGetDefaultMemPool(&mut default, local.device())?;
        if default == pool {
            return Ok(local);
        }
    }
    Err(CUerror::INVALID_VALUE)
}

/// Returns whether calls on the stream are captured into a graph; their allocations belong to the graph. The
/// driver is asked only while a capture is in progress.
fn is_capturing(hook: &Hook, stream: CUstream) -> bool {
    let is_capturing = hook.program.contexts.captures.is_any() && streams::is_capturing(stream) == Some(true);
    if is_capturing {
        graph::begin_use();
    }
    is_capturing
}

/// `cuMemAllocAsync`: allocates from the device's current pool.
pub(crate) fn alloc(address: *mut CUdeviceptr, bytes: usize, stream: CUstream, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    if is_capturing(hook, stream) {
        return next();
    }
    match current_pool(hook, stream) {
        Ok(pool) => alloc_from(hook, &pool, address, bytes as u64, stream, next),
        Err(error) => hook.memory.without_charge(error, next),
    }
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) fn alloc_from_pool(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
    next: Next<'_>,
) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    if is_capturing(hook, stream) {
        return next();
    }
    match pool_of(hook, pool) {
        Ok(pool) if pool.backing == Backing::Elsewhere => next(),
        Ok(pool) => alloc_from(hook, &pool, address, bytes as u64, stream, next),
        Err(error) => hook.memory.without_charge(error, next),
    }
}

fn alloc_from(
    hook: &Hook,
    pool: &Reserve,
    address: *mut CUdeviceptr,
    bytes: u64,
    stream: CUstream,
    next: Next<'_>,
) -> CUresult {
    if bytes >= crate::memory::ABSURD {
        // Left to the driver to refuse, since sums with such a size could overflow.
        return next().inspect_err(|_| hook.memory.count_failure(pool.index()));
    }
    let on = Stream::of(hook.program, stream.0.addr());
    let mut is_last = false;
    loop {
        let held = pool.charge(hook.memory, || Want::Block(bytes, on))?;
        let own = hook.program.slots.counts(hook.session.usage(), pool.index());
        let unsettled = Unsettled::of_thread(hook.session.usage(), own, pool.index());
        let result = hook
            .memory
            .pressing(pool.index(), held.begun.growth.max(bytes), next);
        let made = result.ok().and_then(|()| written(address));
        let settled = pool.settle_within(hook.memory, held);
        drop(unsettled);
        let Some(address) = made else {
            pool.account.lock().end(bytes, None);
            hook.memory.count_failure(pool.index());
            return result;
        };
        let Err(full) = settled else {
            let entry = Entry::new(Kind::Pool, bytes, pool.local, pool.index(), pool.id());
            hook.memory.remember(&hook.memory.blocks, address.0, entry);
            return Ok(());
        };
        driver::cuMemFreeAsync(address, stream)?;
        pool.account.lock().mistaken(bytes, hook.memory.ordered(on));
        // The helper trims the pool when the stream has reached that free.
        hook.session.line.wake();
        if is_last {
            hook.memory.release();
            return Err(hook.memory.refused_by(pool.index(), bytes, full));
        }
        is_last = true;
    }
}

/// `cuMemFreeAsync`: the pool keeps its reserved size. Also frees linear memory, which is uncharged.
pub(crate) fn free(address: CUdeviceptr, stream: CUstream, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    if !is_capturing(hook, stream)
        && let Some(result) = allocation::free_on(hook.swap, address.0, stream)
    {
        return result;
    }
    hook.memory
        .free_on(&hook.memory.blocks, address.0, Some(stream.0.addr()), next)
        .result
}

/// `cuMemPoolCreate`. Pools of host memory are ignored. The device of managed memory may be that of the first
/// allocation, so [`pool_of`] finds it.
pub(crate) fn create(made: *mut CUmemoryPool, wanted: *const CUmemPoolProps, next: Next<'_>) -> CUresult {
    next()?;
    let (Some(hook), Some(made)) = (hook::get(), written(made)) else {
        return Ok(());
    };
    let wanted = argument(wanted).filter(|wanted| wanted.kind == CU_MEM_ALLOCATION_TYPE_PINNED);
    if let Some(local) = wanted.and_then(|wanted| LocalDevice::of(wanted.location.device()?)) {
        let index = hook.session.devices.learn(hook.session.control(), local);
        hook.memory.reserves.enter(made, local, index, Backing::Device);
    }
    Ok(())
}

/// `cuMemPoolImportFromShareableHandle`: charged to the process that created it.
pub(crate) fn import(made: *mut CUmemoryPool, next: Next<'_>) -> CUresult {
    next()?;
    let (Some(hook), Some(made)) = (hook::get(), written(made)) else {
        return Ok(());
    };
    if let Some(target) = hook.program.target() {
        let (local, index) = (target.local, target.index);
        hook.memory.reserves.enter(made, local, index, Backing::Elsewhere);
        hook.memory.share_pool(made);
    }
    Ok(())
}

/// `cuMemPoolExportToShareableHandle`.
pub(crate) fn export(pool: CUmemoryPool, next: Next<'_>) -> CUresult {
    // Before the call, as in `cuIpcGetMemHandle`.
    if let Some(hook) = hook::get() {
        hook.memory.share_pool(pool);
    }
    next()
}

/// `cuMemPoolDestroy`: the pool exists until its last allocation is freed.
pub(crate) fn destroy(handle: CUmemoryPool, next: Next<'_>) -> CUresult {
    let found = hook::get().and_then(|hook| Some((hook, hook.memory.reserves.find(handle)?)));
    let Some((hook, pool)) = found else {
        return next();
    };
    // Before the call, since the driver may reuse the handle at once. If it was a device's current pool, the
    // default becomes current.
    pool.account.lock().destroying();
    let result = next();
    pool.account.lock().destroyed(result.is_ok());
    hook.memory.reserves.forget_current();
    hook.memory.reserves.end_if_over(hook.memory, &pool);
    result
}

/// `cuMemPoolTrimTo`, `cuMemPoolSetAttribute`: may change the reserved size now and at the next waits.
pub(crate) fn change(handle: CUmemoryPool, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(hook) = hook::get()
        && let Some(pool) = hook.memory.reserves.find(handle)
    {
        let _ = pool.settle(hook.memory, None);
        pool.account.lock().may_keep_less();
    }
    Ok(())
}

/// `cuStreamSynchronize`: pools may shrink in it.
pub(crate) fn synchronize(stream: CUstream, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let last = hook.memory.last_ordered();
    next()?;
    hook.memory.synchronized(Some(stream.0.addr()), last);
    Ok(())
}

/// Calls that wait for a whole context or for an event, so that it is not known which streams have completed.
pub(crate) fn synchronize_all(next: Next<'_>) -> CUresult {
    next()?;
    if let Some(hook) = hook::get() {
        hook.memory.synchronized(None, 0);
    }
    Ok(())
}
