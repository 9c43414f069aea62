//! Functions for pools and stream-ordered allocation.

use std::sync::Arc;

use simgpu::Tag;
use simgpu::memory::{HOST, Kind};

use crate::abi::{
    CUdevice, CUdeviceptr, CUerror, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUresult,
    CUstream, In, Out, Raw,
};
use crate::call::{Call, driver};
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::op::Op;
use crate::pool::{Freed, Pool, Sharing, Wish, give_up_unused};
use crate::pool_chunk::Backing;
use crate::price::Price;
use crate::process::Process;
use crate::share::POSIX_FILE_DESCRIPTOR;
use crate::vmm::{LOCATION_DEVICE, LOCATION_HOST, LOCATION_HOST_NUMA, LOCATION_HOST_NUMA_CURRENT};
use crate::{capture, graph_memory, null, vmm};

const LOCATION_NONE: u32 = 0;

/// `CUmemAllocationType`.
const PINNED: u32 = 1;
const MANAGED: u32 = 2;

/// Key of a location's pools: `CUmemLocationType`, id and `CUmemAllocationType`.
type Key = (u32, i32, u32);

/// Returns the key of a location, if it has pools of this allocation type.
fn key(location: CUmemLocation, allocation_type: u32) -> Result<Key, CUerror> {
    match (location.kind, allocation_type) {
        (LOCATION_DEVICE | LOCATION_HOST_NUMA, PINNED | MANAGED) => {
            Ok((location.kind, location.id, allocation_type))
        }
        (LOCATION_HOST, PINNED | MANAGED) | (LOCATION_NONE, MANAGED) => {
            Ok((location.kind, 0, allocation_type))
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Returns where a pool with these properties has its memory.
fn backing_of(process: &Process, properties: &CUmemPoolProps) -> Result<Backing, CUerror> {
    let location = properties.location;
    let is_managed = properties.alloc_type == MANAGED;
    if !matches!(properties.alloc_type, PINNED | MANAGED) {
        return Err(INVALID_VALUE);
    }
    let is_none = is_managed && location.kind == LOCATION_NONE;
    let device = match location.kind {
        LOCATION_HOST_NUMA_CURRENT => return Err(INVALID_VALUE),
        _ if is_none => HOST,
        _ => vmm::device_of(process, location).map_err(|_| INVALID_VALUE)?,
    };
    match properties.handle_types {
        0 => (),
        _ if is_managed || location.kind == LOCATION_HOST => return Err(INVALID_VALUE),
        POSIX_FILE_DESCRIPTOR if device != HOST => (),
        _ => return Err(NOT_SUPPORTED),
    }
    if is_managed && properties.max_size != 0 {
        return Err(INVALID_VALUE);
    }
    let first = || process.devices.first().map_or(HOST, |device| device.index);
    let managed_on = is_managed.then(|| if device == HOST { first() } else { device });
    Ok(Backing {
        device,
        managed_on,
        is_addressable: is_managed || device == HOST,
        is_shareable: properties.handle_types != 0,
    })
}

impl Call {
    pub(crate) fn pool(&self, handle: CUmemoryPool) -> Result<Arc<Pool>, CUerror> {
        let pool = self.process.pools.get(handle, INVALID_VALUE)?;
        if pool.is_closed() {
            Err(INVALID_VALUE)
        } else {
            Ok(pool)
        }
    }

    fn make_pool(&self, properties: &CUmemPoolProps, is_default: bool) -> Result<CUmemoryPool, CUerror> {
        let backing = backing_of(self.process, properties)?;
        let sharing = if backing.is_shareable {
            let export = self.process.member.export(Tag::Pool, backing.device, 0);
            Sharing::Exported(export.map_err(|_| OUT_OF_MEMORY)?)
        } else {
            Sharing::None
        };
        let wish = Wish {
            backing,
            location: properties.location,
            allocation_type: properties.alloc_type,
            max_size: properties.max_size as u64,
        };
        let handle = self.process.pools.reserve();
        let pool = Pool::new(handle, wish, is_default, sharing);
        self.process.pools.insert_at(handle, Arc::new(pool));
        Ok(handle)
    }

    fn default_pool(&self, key: Key) -> Result<CUmemoryPool, CUerror> {
        let mut pools_of = self.process.pools_of.lock();
        let pools = pools_of.entry(key).or_default();
        if let Some(pool) = pools.default {
            return Ok(pool);
        }
        let (kind, id, alloc_type) = key;
        let properties = CUmemPoolProps {
            alloc_type,
            handle_types: 0,
            location: CUmemLocation { kind, id },
            win32_security_attributes: 0,
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let pool = self.make_pool(&properties, true)?;
        pools.default = Some(pool);
        Ok(pool)
    }

    fn current_pool(&self, key: Key) -> Result<CUmemoryPool, CUerror> {
        let current = self
            .process
            .pools_of
            .lock()
            .get(&key)
            .and_then(|pools| pools.current);
        current.map_or_else(|| self.default_pool(key), Ok)
    }

    fn set_pool(&self, key: Key, handle: CUmemoryPool) -> CUresult {
        let pool = self.pool(handle)?;
        let is_its = crate::pool_calls::key(pool.wish.location, pool.wish.allocation_type)? == key;
        if !is_its || matches!(pool.sharing, Sharing::Imported(_)) {
            return Err(INVALID_VALUE);
        }
        self.process.pools_of.lock().entry(key).or_default().current = Some(handle);
        Ok(())
    }

    /// Returns the key of a device's pinned pools.
    fn of_device(&self, device: CUdevice) -> Result<Key, CUerror> {
        self.process.device(device)?;
        Ok((LOCATION_DEVICE, device, PINNED))
    }

    fn of_location(&self, location: In<CUmemLocation>, allocation_type: u32) -> Result<Key, CUerror> {
        let location = location.get()?;
        if location.kind != LOCATION_NONE {
            vmm::device_of(self.process, location)?;
        }
        key(location, allocation_type)
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
        None => call.current_pool(call.of_device(context.device)?)?,
    };
    let pool = call.pool(pool)?;
    let Backing {
        device,
        is_addressable,
        ..
    } = pool.wish.backing;
    if matches!(pool.sharing, Sharing::Imported(_)) {
        return Err(INVALID_VALUE);
    }
    if capture::is_capturing(&stream) {
        if is_addressable {
            return Err(NOT_SUPPORTED);
        }
        let memory = graph_memory::Memory::reserve(call.process, &context, device, bytes as u64)?;
        address.set_if(memory.address());
        return call.enqueue(&stream, Op::GraphAllocate(Arc::new(memory)));
    }
    let get = || pool.allocate(call.process, &context, stream.id, bytes as u64);
    let at = match get() {
        Err(OUT_OF_MEMORY) => {
            // First returns unused chunks of all pools, then waits for the context's work, which includes
            // pending frees.
            let device = pool.wish.backing.charged_to();
            give_up_unused(call.process, device);
            get().or_else(|_| {
                context.base().wait();
                give_up_unused(call.process, device);
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
        Kind::Pool(handle) => {
            call.process
                .pools
                .get(handle, INVALID_VALUE)?
                .begin_freeing(call.process, stream.id, &block)?
        }
        Kind::Linear => 0,
        Kind::Graph => {
            graph_memory::begin_freeing(call.process, address)?;
            return call.enqueue(&stream, Op::GraphFree(address));
        }
        _ => return Err(INVALID_VALUE),
    };
    let freed = Freed {
        id: block.id,
        address,
        number,
    };
    call.enqueue(&stream, Op::Free(freed))
}

fn create(call: Call, out: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) -> CUresult {
    let properties = properties.get()?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    out.set(call.make_pool(&properties, false)?)
}

fn set_access(call: Call, pool: CUmemoryPool, list: In<CUmemAccessDesc>, count: usize) -> CUresult {
    let pool = call.pool(pool)?;
    let own = pool.wish.backing.device;
    let mut access = pool.access.lock();
    let mut new = *access;
    for wish in list.list(count)? {
        let device = vmm::device_of(call.process, wish.location).map_err(|_| INVALID_VALUE)?;
        // The host cannot access a device's memory, and a device's access to its own pool cannot be revoked.
        let is_impossible = device == HOST && own != HOST || device == own && wish.flags != 3;
        if is_impossible || !matches!(wish.flags, 0 | 1 | 3) {
            return Err(INVALID_VALUE);
        }
        new.set(device, u64::from(wish.flags));
    }
    *access = new;
    Ok(())
}

fn destroy(call: Call, handle: CUmemoryPool) -> CUresult {
    let pool = call.pool(handle)?;
    if pool.is_default {
        return Err(INVALID_VALUE);
    }
    for pools in call.process.pools_of.lock().values_mut() {
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

driver! {
    fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: CUdevice) |call| {
        pool.set(call.default_pool(call.of_device(device)?)?)
    }
    fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, device: CUdevice) |call| {
        pool.set(call.current_pool(call.of_device(device)?)?)
    }
    fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) |call| { call.set_pool(call.of_device(device)?, pool) }
    fn cuMemGetDefaultMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: u32) |call| {
        pool.set(call.default_pool(call.of_location(location, kind)?)?)
    }
    fn cuMemGetMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: u32) |call| {
        pool.set(call.current_pool(call.of_location(location, kind)?)?)
    }
    fn cuMemSetMemPool(location: In<CUmemLocation>, kind: u32, pool: CUmemoryPool) |call| {
        call.set_pool(call.of_location(location, kind)?, pool)
    }
    fn cuMemPoolCreate(pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) |call| { create(call, pool, properties) }
    fn cuMemPoolDestroy(pool: CUmemoryPool) |call| { destroy(call, pool) }
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) |call| {
        call.pool(pool)?.trim(call.process, keep as u64);
        Ok(())
    }
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: u32, value: Raw)
    null { null::pool_attribute(attribute, value) } |call| {
        Price::PoolQuery.work(1);
        call.pool(pool)?.attribute(attribute, value)
    }
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: Raw) |call| {
        call.pool(pool)?.set_attribute(attribute, value)
    }
    fn cuMemPoolSetAccess(pool: CUmemoryPool, list: In<CUmemAccessDesc>, count: usize) |call| {
        set_access(call, pool, list, count)
    }
    fn cuMemPoolGetAccess(flags: Out<u32>, pool: CUmemoryPool, location: In<CUmemLocation>) |call| {
        let device = vmm::device_of(call.process, location.get()?)?;
        let access = call.pool(pool)?.access.lock().of(device);
        flags.set(u32::try_from(access).unwrap_or(0))
    }
    fn cuMemAllocAsync(address: Out<CUdeviceptr>, bytes: usize, stream: CUstream) twin cuMemAllocAsync_ptsz
    null { null::allocate_from_pool(address, bytes) } |call| {
        allocate(call, address, bytes, None, stream)
    }
    fn cuMemAllocFromPoolAsync(address: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream) twin cuMemAllocFromPoolAsync_ptsz
    null { null::allocate_from_pool(address, bytes) } |call| {
        allocate(call, address, bytes, Some(pool), stream)
    }
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) twin cuMemFreeAsync_ptsz null { null::free_to_pool(address) } |call| {
        free(call, address, stream)
    }
}
