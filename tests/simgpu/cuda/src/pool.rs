//! Memory pools and allocation in the order of a stream.
//!
//! A pool reserves device memory in chunks, hands out parts of them, and gives whole chunks back when
//! it is trimmed or, above its release threshold, when the program synchronises.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use parking_lot::Mutex;
use simgpu::StreamId;
use simgpu::memory::{Kind, Ranges};

use crate::abi::{
    CUdevice, CUdeviceptr, CUerror, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUresult,
    CUstream, In, Out, Raw,
};
use crate::call::{Call, driver};
use crate::context::Context;
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::op::Op;
use crate::process::Process;
use crate::stream::Stream;
use crate::{capture, graph_memory, memory, null};

/// What a pool reserves at a time, and what it makes do with on a full card.
const CHUNK: u64 = 32 << 20;
const SMALL_CHUNK: u64 = 2 << 20;
/// Sizes are rounded up to this.
const UNIT: u64 = 512;

const LOCATION_DEVICE: u32 = 1;
const ALLOCATION_PINNED: u32 = 1;

/// The pools of a device.
#[derive(Default)]
pub(crate) struct OfDevice {
    default: Option<CUmemoryPool>,
    current: Option<CUmemoryPool>,
}

/// A pool.
pub(crate) struct Pool {
    handle: CUmemoryPool,
    /// The device as the machine numbers it.
    index: usize,
    location: CUmemLocation,
    /// Most bytes it may reserve; 0 is no limit of its own.
    max_size: u64,
    is_default: bool,
    threshold: AtomicU64,
    reuse: [AtomicU64; 3],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<u64, Chunk>,
    /// Blocks whose freeing the stream has not reached: the same stream may have them at once.
    freeing: Vec<Freeing>,
    reserved: Gauge,
    used: Gauge,
    /// Destroyed: goes with its last block.
    is_closed: bool,
}

struct Chunk {
    size: u64,
    used: u64,
    free: Ranges,
}

struct Freeing {
    /// Tells this freeing from others of the same block, which a stream may be given in between.
    number: u64,
    stream: StreamId,
    address: u64,
    size: u64,
}

/// A number of bytes, and the highest it has been.
#[derive(Clone, Copy, Default)]
pub(crate) struct Gauge {
    pub(crate) current: u64,
    pub(crate) high: u64,
}

/// Chunks with nothing in them, of all pools: while there are none, synchronising costs nothing.
static UNUSED: AtomicUsize = AtomicUsize::new(0);

impl Gauge {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }
}

impl Pool {
    fn new(
        handle: CUmemoryPool,
        index: usize,
        location: CUmemLocation,
        max_size: u64,
        is_default: bool,
    ) -> Pool {
        let reuse = [1, 1, 1].map(AtomicU64::new);
        let (threshold, state) = (AtomicU64::new(0), Mutex::default());
        Pool {
            handle,
            index,
            location,
            max_size,
            is_default,
            threshold,
            reuse,
            state,
        }
    }

    fn allocate(
        &self,
        process: &'static Process,
        context: &Context,
        stream: StreamId,
        bytes: u64,
    ) -> Result<u64, CUerror> {
        let size = bytes.max(1).checked_next_multiple_of(UNIT).ok_or(OUT_OF_MEMORY)?;
        let mut state = self.state.lock();
        if let Some(at) = state
            .freeing
            .iter()
            .position(|block| block.stream == stream && block.size == size)
        {
            return Ok(state.freeing.swap_remove(at).address);
        }
        let found = state.chunks.values_mut().find_map(|chunk| chunk.take(size));
        let base = match found {
            Some(base) => base,
            None => self.grow(process, &mut state, size)?,
        };
        state.used.add(size);
        drop(state);
        process
            .space
            .make_within(base, size, Kind::Pool(self.handle), self.index, context.domain());
        Ok(base)
    }

    fn grow(&self, process: &Process, state: &mut State, size: u64) -> Result<u64, CUerror> {
        for unit in [CHUNK, SMALL_CHUNK] {
            let length = size.checked_next_multiple_of(unit).ok_or(OUT_OF_MEMORY)?;
            let allowed = self.max_size == 0 || state.reserved.current + length <= self.max_size;
            if !allowed || !process.member.try_charge(self.index, length) {
                continue;
            }
            let Some(base) = process.space.take_linear(length) else {
                process.member.uncharge(self.index, length);
                continue;
            };
            let mut chunk = Chunk {
                size: length,
                used: 0,
                free: Ranges::new(base, length),
            };
            UNUSED.fetch_add(1, Relaxed);
            let at = chunk.take(size);
            state.chunks.insert(base, chunk);
            state.reserved.add(length);
            return at.ok_or(OUT_OF_MEMORY);
        }
        Err(OUT_OF_MEMORY)
    }

    /// Gives a block back that is a block no more.
    fn give(&self, address: u64, size: u64) -> bool {
        let mut state = self.state.lock();
        state.used.current -= size;
        if let Some((base, chunk)) = state.chunks.range_mut(..=address).next_back()
            && address < base + chunk.size
        {
            chunk.free.give(address, size);
            chunk.used -= size;
            if chunk.used == 0 {
                UNUSED.fetch_add(1, Relaxed);
            }
        }
        state.is_closed && state.used.current == 0
    }

    /// Returns unused chunks to the device while more than `keep` bytes are reserved.
    fn trim(&self, process: &Process, keep: u64) {
        let mut state = self.state.lock();
        while state.reserved.current > keep {
            let Some(base) = state
                .chunks
                .iter()
                .find(|(_, chunk)| chunk.used == 0)
                .map(|(base, _)| *base)
            else {
                return;
            };
            let Some(chunk) = state.chunks.remove(&base) else {
                return;
            };
            UNUSED.fetch_sub(1, Relaxed);
            state.reserved.current -= chunk.size;
            process.space.give_linear(base, chunk.size);
            process.member.uncharge(self.index, chunk.size);
        }
    }

    fn attribute(&self, attribute: u32, value: Raw) -> CUresult {
        let state = self.state.lock();
        let wide = |number: u64| value.as_out::<u64>().set(number);
        let narrow = |number: u32| value.as_out::<u32>().set(number);
        match attribute {
            1..=3 => narrow(u32::from(self.reuse[attribute as usize - 1].load(Relaxed) != 0)),
            4 => wide(self.threshold.load(Relaxed)),
            5 => wide(state.reserved.current),
            6 => wide(state.reserved.high),
            7 => wide(state.used.current),
            8 => wide(state.used.high),
            9 => narrow(ALLOCATION_PINNED),
            10 | 14 => narrow(0),
            11 => value.as_out::<i32>().set(self.location.id),
            12 => narrow(self.location.kind),
            13 => wide(self.max_size),
            _ => Err(INVALID_VALUE),
        }
    }

    fn set_attribute(&self, attribute: u32, value: Raw) -> CUresult {
        let mut state = self.state.lock();
        let is_zero = || Ok(value.as_in::<u64>().get()? == 0);
        match attribute {
            1..=3 => {
                self.reuse[attribute as usize - 1].store(u64::from(value.as_in::<u32>().get()?), Relaxed)
            }
            4 => self.threshold.store(value.as_in::<u64>().get()?, Relaxed),
            6 if is_zero()? => state.reserved.high = state.reserved.current,
            8 if is_zero()? => state.used.high = state.used.current,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}

impl Chunk {
    fn take(&mut self, size: u64) -> Option<u64> {
        let at = self.free.take(size, UNIT)?;
        if self.used == 0 {
            UNUSED.fetch_sub(1, Relaxed);
        }
        self.used += size;
        Some(at)
    }
}

/// Returns what pools hold above their thresholds: done whenever the program has synchronised.
pub(crate) fn settle(process: &'static Process) {
    if UNUSED.load(Relaxed) > 0 {
        for (_, pool) in process.pools.all() {
            pool.trim(process, pool.threshold.load(Relaxed));
        }
    }
}

/// Returns all that the pools of a device hold unused.
pub(crate) fn give_up_unused(process: &Process, index: usize) {
    for (_, pool) in process.pools.all() {
        if pool.index == index {
            pool.trim(process, 0);
        }
    }
}

/// Ends a block of a pool.
pub(crate) fn free_now(process: &'static Process, address: u64) {
    let in_pool = |block: &simgpu::memory::Block| matches!(block.kind, Kind::Pool(_));
    let Some(block) = process.space.remove(address, in_pool) else {
        return;
    };
    let Kind::Pool(handle) = block.kind else { return };
    let Ok(pool) = process.pools.get(handle, INVALID_VALUE) else {
        return;
    };
    pool.state
        .lock()
        .freeing
        .retain(|freeing| freeing.address != address);
    if pool.give(address, block.size) {
        pool.trim(process, 0);
        let _ = process.pools.remove(handle, INVALID_VALUE);
    }
}

/// Ends a block whose freeing a stream has reached, unless the stream has been given it anew since.
pub(crate) fn free_in_order(process: &'static Process, number: u64, address: u64) {
    let Some(block) = process.space.find(address) else {
        return;
    };
    match block.kind {
        Kind::Pool(handle) => {
            let Ok(pool) = process.pools.get(handle, INVALID_VALUE) else {
                return;
            };
            let is_due = |freeing: &Freeing| freeing.number == number;
            let due = pool.state.lock().freeing.iter().any(is_due);
            if due {
                free_now(process, address);
            }
        }
        Kind::Linear => drop(memory::free_block(process, address, |found| found.id == block.id)),
        Kind::Graph | Kind::Managed | Kind::Host | Kind::Registered | Kind::Mapped(_) => (),
    }
}

impl Call {
    fn pool(&self, handle: CUmemoryPool) -> Result<Arc<Pool>, CUerror> {
        let pool = self.process.pools.get(handle, INVALID_VALUE)?;
        if pool.state.lock().is_closed {
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
        return call.enqueue(&stream, Op::GraphFree(address));
    }
    let number = match block.kind {
        Kind::Pool(handle) => begin_freeing(call, handle, &stream, address, block.size)?,
        Kind::Linear => 0,
        Kind::Graph => {
            graph_memory::free(call.process, address);
            return Ok(());
        }
        Kind::Managed | Kind::Host | Kind::Registered | Kind::Mapped(_) => return Err(INVALID_VALUE),
    };
    call.enqueue(&stream, Op::Free(number, address))
}

fn begin_freeing(
    call: Call,
    handle: CUmemoryPool,
    stream: &Stream,
    address: u64,
    size: u64,
) -> Result<u64, CUerror> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let pool = call.process.pools.get(handle, INVALID_VALUE)?;
    let mut state = pool.state.lock();
    if state.freeing.iter().any(|freeing| freeing.address == address) {
        return Err(INVALID_VALUE);
    }
    let number = NEXT.fetch_add(1, Relaxed);
    state.freeing.push(Freeing {
        number,
        stream: stream.id,
        address,
        size,
    });
    Ok(number)
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
    let mut state = pool.state.lock();
    state.is_closed = true;
    let is_unused = state.used.current == 0;
    drop(state);
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
