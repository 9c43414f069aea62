//! Memory pools and stream-ordered allocation.
//!
//! A pool reserves device memory in chunks, allocates parts of them, and returns whole chunks when it is
//! trimmed or, above its release threshold, when the program synchronizes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use parking_lot::Mutex;
use simgpu::memory::{Access, Kind};
use simgpu::{Export, StreamId};

use crate::abi::{CUerror, CUmemLocation, CUmemoryPool, CUresult, Raw};
use crate::context::Context;
use crate::error::{INVALID_VALUE, OUT_OF_MEMORY};
use crate::memory;
use crate::pool_chunk::{Backing, Chunk, UNIT};
use crate::pool_share::Imported;
use crate::process::Process;

/// Bytes that a pool reserves at a time, and the smaller unit for a full card.
const CHUNK: u64 = 32 << 20;
const SMALL_CHUNK: u64 = 2 << 20;

/// The pools of a location for one allocation type.
#[derive(Clone, Copy, Default)]
pub(crate) struct LocationPools {
    pub(crate) default: Option<CUmemoryPool>,
    pub(crate) current: Option<CUmemoryPool>,
}

/// Requested properties of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) backing: Backing,
    pub(crate) location: CUmemLocation,
    /// `CUmemAllocationType`.
    pub(crate) allocation_type: u32,
    /// Maximum bytes to reserve; 0: no separate limit.
    pub(crate) max_size: u64,
}

/// A pool.
pub(crate) struct Pool {
    handle: CUmemoryPool,
    pub(crate) wish: Wish,
    pub(crate) is_default: bool,
    /// Access rights of the host and the devices.
    pub(crate) access: Mutex<Access>,
    pub(crate) sharing: Sharing,
    threshold: AtomicU64,
    reuse: [AtomicU64; 3],
    state: Mutex<State>,
}

/// Sharing of a pool with other processes.
pub(crate) enum Sharing {
    /// Not shared.
    None,
    /// Other processes can import it.
    Exported(Export),
    /// Imported from another process.
    Imported(Imported),
}

#[derive(Default)]
pub(crate) struct State {
    chunks: BTreeMap<u64, Chunk>,
    /// Blocks that a stream has yet to free; the same stream may reuse them immediately.
    freeing: Vec<Freeing>,
    reserved: Gauge,
    used: Gauge,
    /// Destroyed: freed with its last block.
    is_closed: bool,
}

/// Memory that a stream frees in its turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Freed {
    /// Number of the block.
    pub id: u64,
    pub address: u64,
    /// Number of the freeing, in a pool.
    pub number: u64,
}

pub(crate) struct Freeing {
    /// Distinguishes this freeing from others of the same block, which a stream may reuse in between.
    number: u64,
    stream: StreamId,
    address: u64,
    size: u64,
}

/// A number of bytes and its peak.
#[derive(Clone, Copy, Default)]
pub(crate) struct Gauge {
    pub(crate) current: u64,
    pub(crate) high: u64,
}

/// Number of empty chunks in all pools; while it is 0, synchronizing does no extra work.
static UNUSED: AtomicUsize = AtomicUsize::new(0);

impl Gauge {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }
}

impl Pool {
    pub(crate) fn new(handle: CUmemoryPool, wish: Wish, is_default: bool, sharing: Sharing) -> Pool {
        let reuse = [1, 1, 1].map(AtomicU64::new);
        let mut access = Access::default();
        access.set(wish.backing.device, 3);
        Pool {
            handle,
            wish,
            is_default,
            access: Mutex::new(access),
            sharing,
            threshold: AtomicU64::new(0),
            reuse,
            state: Mutex::default(),
        }
    }

    pub(crate) fn allocate(
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
        let found = state
            .chunks
            .iter_mut()
            .find_map(|(base, chunk)| Some((*base, take(chunk, size)?)));
        let (chunk, base) = match found {
            Some(found) => found,
            None => self.grow(process, &mut state, size)?,
        };
        state.used.add(size);
        if let Some(of) = state.chunks.get(&chunk) {
            let kind = Kind::Pool(self.handle);
            of.make_block(process, chunk, (base, size), kind, context.owner());
        }
        Ok(base)
    }

    /// Reserves a chunk and allocates a part of it. Returns the first address of the chunk and of the part.
    fn grow(&self, process: &'static Process, state: &mut State, size: u64) -> Result<(u64, u64), CUerror> {
        for unit in [CHUNK, SMALL_CHUNK] {
            let length = size.checked_next_multiple_of(unit).ok_or(OUT_OF_MEMORY)?;
            let max = self.wish.max_size;
            if max != 0 && state.reserved.current + length > max {
                continue;
            }
            let Some((base, mut chunk)) = Chunk::reserve(process, self.wish.backing, length) else {
                continue;
            };
            UNUSED.fetch_add(1, Relaxed);
            let at = take(&mut chunk, size);
            state.chunks.insert(base, chunk);
            state.reserved.add(length);
            return Ok((base, at.ok_or(OUT_OF_MEMORY)?));
        }
        Err(OUT_OF_MEMORY)
    }

    /// Returns how others import the block at `address`: the chunk's export and the offset in the chunk.
    pub(crate) fn export_of(&self, address: u64) -> Option<(u64, u64)> {
        let state = self.state.lock();
        let (base, chunk) = state.chunks.range(..=address).next_back()?;
        Some((chunk.export()?.serial(), address - base))
    }

    /// Records that a stream will free a block. Returns the number of the freeing.
    pub(crate) fn begin_freeing(
        &self,
        process: &Process,
        stream: StreamId,
        block: &simgpu::memory::Block,
    ) -> Result<u64, CUerror> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (address, size) = (block.base, block.size);
        let mut state = self.state.lock();
        // An earlier freeing may have ended the block meanwhile.
        let is_there = (process.space.find(address)).is_some_and(|found| found.id == block.id);
        if !is_there || state.freeing.iter().any(|freeing| freeing.address == address) {
            return Err(INVALID_VALUE);
        }
        let number = NEXT.fetch_add(1, Relaxed);
        state.freeing.push(Freeing {
            number,
            stream,
            address,
            size,
        });
        Ok(number)
    }

    /// Counts an imported block.
    pub(crate) fn count_imported(&self, size: u64) {
        self.state.lock().used.add(size);
    }

    /// Refuses further allocations. Returns whether no block is left.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.used.current == 0
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Ends the block at `address` if it `is_due`, atomically with respect to allocations. Returns whether
    /// the pool ends with it.
    fn end(&self, process: &Process, address: u64, is_due: impl FnOnce(&State) -> bool) -> bool {
        let in_pool = |block: &simgpu::memory::Block| matches!(block.kind, Kind::Pool(_));
        let mut state = self.state.lock();
        if !is_due(&state) {
            return false;
        }
        let Some(block) = process.space.remove(address, in_pool) else {
            return false;
        };
        state.freeing.retain(|freeing| freeing.address != address);
        state.used.current = state.used.current.saturating_sub(block.size);
        if matches!(self.sharing, Sharing::Imported(_)) {
            process.space.release_imported(&block);
        }
        if let Some((base, chunk)) = state.chunks.range_mut(..=address).next_back()
            && address < base + chunk.size
        {
            chunk.give(address, block.size);
            if chunk.used == 0 {
                UNUSED.fetch_add(1, Relaxed);
            }
        }
        let is_over = state.is_closed && state.used.current == 0;
        drop(state);
        if is_over {
            self.trim(process, 0);
        }
        is_over
    }

    /// Returns unused chunks to the device while more than `keep` bytes are reserved.
    pub(crate) fn trim(&self, process: &Process, keep: u64) {
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
            chunk.release(process, base);
        }
    }

    pub(crate) fn attribute(&self, attribute: u32, value: Raw) -> CUresult {
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
            9 => narrow(self.wish.allocation_type),
            10 => narrow(u32::from(matches!(self.sharing, Sharing::Exported(_)))),
            11 => value.as_out::<i32>().set(self.wish.location.id),
            12 => narrow(self.wish.location.kind),
            13 => wide(self.wish.max_size),
            14 => narrow(0),
            15 => value.as_out::<i32>().set(-1),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn set_attribute(&self, attribute: u32, value: Raw) -> CUresult {
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

/// Allocates part of a chunk, which is then no longer unused.
fn take(chunk: &mut Chunk, size: u64) -> Option<u64> {
    let was_unused = chunk.used == 0;
    let at = chunk.take(size)?;
    if was_unused {
        UNUSED.fetch_sub(1, Relaxed);
    }
    Some(at)
}

/// Returns chunks above the pools' release thresholds. Called whenever the program has synchronized.
pub(crate) fn settle(process: &'static Process) {
    if UNUSED.load(Relaxed) > 0 {
        for (_, pool) in process.pools.all() {
            pool.trim(process, pool.threshold.load(Relaxed));
        }
    }
}

/// Returns all unused chunks of a device's pools.
pub(crate) fn give_up_unused(process: &Process, index: usize) {
    for (_, pool) in process.pools.all() {
        if pool.wish.backing.charged_to() == index {
            pool.trim(process, 0);
        }
    }
}

/// Frees a block of a pool now.
pub(crate) fn free_now(process: &'static Process, address: u64) {
    let Some(block) = process.space.find(address) else {
        return;
    };
    let Kind::Pool(handle) = block.kind else { return };
    let Ok(pool) = process.pools.get(handle, INVALID_VALUE) else {
        return;
    };
    if pool.end(process, address, |_| true) {
        let _ = process.pools.remove(handle, INVALID_VALUE);
    }
}

/// Frees a block when a stream has reached its freeing, unless the stream has reused the block since.
pub(crate) fn free_in_order(process: &'static Process, freed: &Freed) {
    // The block may have ended with its pool, and another one may have its address.
    let found = process.space.find(freed.address);
    let Some(block) = found.filter(|block| block.id == freed.id) else {
        return;
    };
    match block.kind {
        Kind::Pool(handle) => {
            let Ok(pool) = process.pools.get(handle, INVALID_VALUE) else {
                return;
            };
            let is_due = |state: &State| state.freeing.iter().any(|freeing| freeing.number == freed.number);
            if pool.end(process, freed.address, is_due) {
                let _ = process.pools.remove(handle, INVALID_VALUE);
            }
        }
        Kind::Linear => drop(memory::free_block(process, freed.address, |found| {
            found.id == freed.id
        })),
        _ => (),
    }
}
