//! What a program does with pools, and its allocations in the order of a stream.

use std::sync::Arc;

use simgpu::memory::Kind;

use crate::abi::{
    CUdevice, CUdeviceptr, CUerror, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUresult,
    CUstream, In, Out, Raw,
};
use crate::call::{Call, driver};
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::op::Op;
use crate::pool::{ALLOCATION_PINNED, Pool, give_up_unused};
use crate::{capture, graph_memory, null};

const LOCATION_DEVICE: u32 = 1;

impl Call {
    fn pool(&self, handle: CUmemoryPool) -> Result<Arc<Pool>, CUerror> {
        let pool = self.process.pools.get(handle, INVALID_VALUE)?;
        if pool.is_closed() {
            Err(INVALID_VALUE)
        } else {
            Ok(pool)
        }
    }

    fn default_pool(&self, device: CUdevice) -> Result<CUmemoryPool, CUerror> {
        let one = self.process.device(device)?;
        let mut pools = one.pools.lock();
        if let Some(pool) = pools.default {
            return Ok(pool);
        }
        let handle = self.process.pools.reserve();
        let location = CUmemLocation {
            kind: LOCATION_DEVICE,
            id: device,
        };
        self.process
            .pools
            .insert_at(handle, Arc::new(Pool::new(handle, one.index, location, 0, true)));
        pools.default = Some(handle);
        Ok(handle)
    }

    fn current_pool(&self, device: CUdevice) -> Result<CUmemoryPool, CUerror> {
        let current = self.process.device(device)?.pools.lock().current;
        current.map_or_else(|| self.default_pool(device), Ok)
    }

    fn set_pool(&self, device: CUdevice, handle: CUmemoryPool) -> CUresult {
        let pool = self.pool(handle)?;
        let one = self.process.device(device)?;
        if pool.index != one.index {
            return Err(INVALID_VALUE);
        }
        one.pools.lock().current = Some(handle);
        Ok(())
    }
}

fn allocate(
    call: Call,
    address: Out<CUdeviceptr>,
    bytes: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
) -> CUresult {
    let stream = call.stream(stream)?;
    let context = call.context_of(stream.context)?;
    if address.is_null() || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let pool = match pool {
        Some(pool) => pool,
        None => call.current_pool(context.device)?,
    };
    let pool = call.pool(pool)?;
    if capture::is_capturing(&stream) {
        let memory = graph_memory::Memory::reserve(call.process, &context, pool.index, bytes as u64)?;
        address.set_if(memory.address());
        return call.enqueue(&stream, Op::GraphAllocate(Arc::new(memory)));
    }
    let get = || pool.allocate(call.process, &context, stream.id, bytes as u64);
    let at = match get() {
        Err(OUT_OF_MEMORY) => {
            // What other pools keep unused, and then what streams are still to free, comes first.
            give_up_unused(call.process, pool.index);
            get().or_else(|_| {
                context.engine.wait_domain(context.domain());
                give_up_unused(call.process, pool.index);
                get()
            })?
        }
        other => other?,
    };
    address.set_if(at);
    Ok(())
}

fn free(call: Call, address: CUdeviceptr, stream: CUstream) -> CUresult {
    let stream = call.stream(stream)?;
    if address == 0 {
        return Ok(());
    }
    let block = call
        .process
        .space
        .find(address)
        .filter(|block| block.base == address)
        .ok_or(INVALID_VALUE)?;
    if capture::is_capturing(&stream) {
        return call.enqueue(&stream, graph_memory::free_op(call, address)?);
    }
    let number = match block.kind {
        Kind::Pool(handle) => call
            .process
            .pools
            .get(handle, INVALID_VALUE)?
            .begin_freeing(stream.id, address, block.size)?,
        Kind::Linear => 0,
        Kind::Graph => {
            graph_memory::begin_freeing(call.process, address)?;
            return call.enqueue(&stream, Op::GraphFree(address));
        }
        _ => return Err(INVALID_VALUE),
    };
    call.enqueue(&stream, Op::Free(number, address))
}

fn create(call: Call, out: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) -> CUresult {
    let properties = properties.get()?;
    if properties.alloc_type != ALLOCATION_PINNED || out.is_null() {
        return Err(INVALID_VALUE);
    }
    if properties.location.kind != LOCATION_DEVICE || properties.handle_types != 0 {
        return Err(NOT_SUPPORTED);
    }
    let index = call
        .process
        .device(properties.location.id)
        .map_err(|_| INVALID_VALUE)?
        .index;
    let handle = call.process.pools.reserve();
    let pool = Pool::new(
        handle,
        index,
        properties.location,
        properties.max_size as u64,
        false,
    );
    call.process.pools.insert_at(handle, Arc::new(pool));
    out.set(handle)
}

fn destroy(call: Call, handle: CUmemoryPool) -> CUresult {
    let pool = call.pool(handle)?;
    if pool.is_default {
        return Err(INVALID_VALUE);
    }
    for one in &call.process.devices {
        let mut pools = one.pools.lock();
        if pools.current == Some(handle) {
            pools.current = None;
        }
    }
    let is_unused = pool.close();
    pool.trim(call.process, 0);
    if is_unused {
        call.process.pools.remove(handle, INVALID_VALUE)?;
    }
    Ok(())
}

fn at_location(location: In<CUmemLocation>) -> Result<CUdevice, CUerror> {
    let location = location.get()?;
    if location.kind == LOCATION_DEVICE {
        Ok(location.id)
    } else {
        Err(NOT_SUPPORTED)
    }
}

driver! {
    fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: CUdevice) |call| { pool.set(call.default_pool(device)?) }
    fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, device: CUdevice) |call| { pool.set(call.current_pool(device)?) }
    fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) |call| { call.set_pool(device, pool) }
    fn cuMemGetDefaultMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, _kind: u32) |call| {
        pool.set(call.default_pool(at_location(location)?)?)
    }
    fn cuMemGetMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, _kind: u32) |call| {
        pool.set(call.current_pool(at_location(location)?)?)
    }
    fn cuMemSetMemPool(location: In<CUmemLocation>, _kind: u32, pool: CUmemoryPool) |call| {
        call.set_pool(at_location(location)?, pool)
    }
    fn cuMemPoolCreate(pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) |call| { create(call, pool, properties) }
    fn cuMemPoolDestroy(pool: CUmemoryPool) |call| { destroy(call, pool) }
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) |call| {
        call.pool(pool)?.trim(call.process, keep as u64);
        Ok(())
    }
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: u32, value: Raw) |call| {
        call.pool(pool)?.attribute(attribute, value)
    }
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: Raw) |call| {
        call.pool(pool)?.set_attribute(attribute, value)
    }
    fn cuMemPoolSetAccess(pool: CUmemoryPool, _access: In<CUmemAccessDesc>, _count: usize) |call| { call.pool(pool).map(|_| ()) }
    fn cuMemPoolGetAccess(flags: Out<u32>, pool: CUmemoryPool, _location: In<CUmemLocation>) |call| {
        call.pool(pool)?;
        flags.set(3)
    }
    fn cuMemAllocAsync(address: Out<CUdeviceptr>, bytes: usize, stream: CUstream) twin cuMemAllocAsync_ptsz
    null { null::allocate(address, bytes) } |call| {
        allocate(call, address, bytes, None, stream)
    }
    fn cuMemAllocFromPoolAsync(address: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream) twin cuMemAllocFromPoolAsync_ptsz
    null { null::allocate(address, bytes) } |call| {
        allocate(call, address, bytes, Some(pool), stream)
    }
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) twin cuMemFreeAsync_ptsz null {} |call| {
        free(call, address, stream)
    }
}
