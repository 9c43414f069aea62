//! One movable allocation of the program. It consists of blocks of at most `LARGEST` bytes under one range
//! of addresses, and each block moves by itself: frameworks allocate most of a device at once.

use std::sync::Arc;
use std::time::Instant;

use gcgroup_abi::Pressure;

use super::block::{Block, Where};
use super::physical::{Access, Memory, Range};
use super::pool::NotMade;
use super::{LARGEST, LEAST, NAP, PATIENCE, Swap};
use crate::driver;
use crate::driver::cuda::{CUdeviceptr, CUerror, CUresult, CUstream};
use crate::driver::out_pointer::answer;
use crate::driver::streams::relaxed;
use crate::driver::thread;
use crate::shared::device::LocalDevice;
use crate::shared::stall::Stalled;
use crate::shared::target::Target;

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    /// Unique number. The program sees it as part of the buffer's id.
    pub(crate) number: u64,
    /// Bytes requested (`asked`) and bytes allocated (`size`).
    pub(crate) asked: u64,
    pub(super) size: u64,
    pub(crate) local: LocalDevice,
    pub(crate) context: u32,
    range: Range,
    blocks: Vec<Arc<Block>>,
}

/// Request for an allocation.
#[derive(Debug, Clone, Copy)]
struct Asked {
    target: Target,
    number: u64,
    bytes: u64,
    access: Access,
}

impl Allocation {
    /// Maps pieces of memory one behind the other at new addresses.
    fn new(asked: Asked, memory: Vec<Memory>, to: Where) -> Result<Self, CUerror> {
        let (target, first) = (asked.target, asked.number);
        let size = memory.iter().map(Memory::size).sum();
        let range = Range::new(size)?;
        let (mut blocks, mut offset) = (Vec::with_capacity(memory.len()), 0);
        for (memory, number) in memory.into_iter().zip(first..) {
            let part = range.part(offset, memory.size());
            offset += memory.size();
            match Block::new(target, (number, size), (memory, part), asked.access, to) {
                Ok(block) => blocks.push(Arc::new(block)),
                Err(error) => {
                    blocks.iter().for_each(|block| block.cancel());
                    return Err(error);
                }
            }
        }
        Ok(Self {
            base: range.address(),
            number: first,
            asked: asked.bytes,
            size,
            local: target.local,
            context: target.context,
            range,
            blocks,
        })
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.asked
    }

    /// Returns the blocks in the order of their addresses.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.iter()
    }
}

/// Returns the sizes of the blocks of an allocation.
fn sizes(size: u64) -> impl Iterator<Item = u64> {
    let at = (0..size.div_ceil(LARGEST)).map(|number| number * LARGEST);
    at.map(move |at| (size - at).min(LARGEST))
}

/// Handles `cuMemAlloc`: returns its result, or `None` if the ordinary path should serve it.
#[inline]
pub(crate) fn alloc(swap: &Swap, target: Target, address: *mut CUdeviceptr, bytes: u64) -> Option<CUresult> {
    if !swap.is_on() || bytes < LEAST || address.is_null() {
        return None;
    }
    // A capture of the program must not be affected by the calls that take the place of one.
    relaxed(|| alloc_blocks(swap, target, address, bytes))
}

/// Kept out of line, so that ordinary allocations stay short.
#[cold]
#[inline(never)]
fn alloc_blocks(swap: &Swap, target: Target, address: *mut CUdeviceptr, bytes: u64) -> Option<CUresult> {
    let size = bytes.checked_next_multiple_of(LEAST)?;
    thread::hold();
    let number = swap.take_numbers(size.div_ceil(LARGEST));
    let access = swap.access(target.local);
    let asked = Asked {
        target,
        number,
        bytes,
        access,
    };
    let charged = swap.charge_block(target, size);
    let made = match charged {
        Ok(()) => {
            let make = || {
                // A driver can take unused memory of pools, which does not count as free.
                let is_told = size > LARGEST && !swap.memory.reserves.is_any();
                if is_told && free_memory().is_some_and(|free| free < size) {
                    return Err(CUerror::OUT_OF_MEMORY);
                }
                let memory = sizes(size).map(|size| swap.new_device_memory(target.local, size));
                Allocation::new(asked, memory.collect::<Result<_, _>>()?, Where::Device)
            };
            let made = swap.memory.pressing_movable(target.index, size, make);
            made.inspect_err(|_| swap.uncharge_block(target.index, size))
        }
        Err(_) => Err(CUerror::OUT_OF_MEMORY),
    };
    // Over the limit, or the device is full and no other process makes room: allocate in host memory, if
    // allowed.
    let made = match made {
        Err(CUerror::OUT_OF_MEMORY) => alloc_out(swap, asked, size),
        made => made,
    };
    match made {
        Ok(allocation) => {
            swap.enter_allocation(&allocation, target.index);
            let allocation = Arc::new(allocation);
            swap.enter(Arc::clone(&allocation));
            swap.allow_new_peers(&allocation, access);
            answer(address, CUdeviceptr(allocation.base));
            Some(Ok(()))
        }
        Err(CUerror::OUT_OF_MEMORY) => Some(Err(swap.refuse(target.index, bytes, charged.err()))),
        // Something else that virtual memory needs is missing.
        Err(_) => None,
    }
}

/// Returns the free bytes of the device of the current context. An allocation of several blocks that does not
/// fit is refused before one is made: until the last one failed, other processes would lack that memory.
fn free_memory() -> Option<u64> {
    let (mut free, mut total) = (0, 0);
    driver::cuMemGetInfo_v2(&mut free, &mut total).ok()?;
    u64::try_from(free).ok()
}

/// Allocates in host memory.
fn alloc_out(swap: &Swap, asked: Asked, size: u64) -> Result<Allocation, CUerror> {
    let index = asked.target.index;
    if swap.swap_room(index) < size || swap.room_on_host() < size {
        return Err(CUerror::OUT_OF_MEMORY);
    }
    let _stalled = Stalled::new(swap.usage(), Pressure::Memory);
    let began = Instant::now();
    let mut memory = Vec::new();
    for size in sizes(size) {
        match pool_memory(swap, asked.target, size, began) {
            Ok(one) => memory.push(one),
            Err(error) => {
                keep_all(swap, asked.target, memory);
                return Err(error);
            }
        }
    }
    if !swap.charge_swap(index, size) {
        keep_all(swap, asked.target, memory);
        return Err(CUerror::OUT_OF_MEMORY);
    }
    swap.leave_pool(index, size);
    let made = Allocation::new(asked, memory, Where::Host).map_err(|_| {
        swap.uncharge_swap(index, size);
        swap.uncharge_host(index, size);
        CUerror::OUT_OF_MEMORY
    });
    // The device is full: processes may have to take turns.
    swap.session.ring();
    made
}

/// Keeps memory of a failed allocation in the pool, which the helper frees when nothing needs it.
fn keep_all(swap: &Swap, target: Target, memory: Vec<Memory>) {
    for one in memory {
        swap.keep(target.local, target.index, one);
    }
    swap.session.line.wake();
}

/// Returns host memory that is counted as part of the pool. Waits for other processes and the daemon.
fn pool_memory(swap: &Swap, target: Target, size: u64, began: Instant) -> Result<Memory, CUerror> {
    loop {
        match swap.host_memory(target.local, target.index, size, began.elapsed() >= PATIENCE) {
            Ok(memory) => return Ok(memory),
            Err(NotMade::NotYet) if began.elapsed() < 2 * PATIENCE => std::thread::sleep(NAP),
            Err(_) => return Err(CUerror::OUT_OF_MEMORY),
        }
    }
}

/// Handles `cuMemFree`: returns its result if `address` is the base of an allocation.
#[inline]
pub(crate) fn free(swap: &Swap, address: u64) -> Option<CUresult> {
    if !swap.is_on() {
        return None;
    }
    // Queued work may use the memory; the driver waits in cuMemFree too.
    free_after(swap, address, |allocation| {
        let context = swap.program.contexts.numbered(allocation.context);
        context.map_or(Ok(()), |context| context.synchronize())
    })
}

/// Handles `cuMemFreeAsync`: returns its result if `address` is the base of an allocation. Unlike the driver
/// it waits for the stream, because nothing else tells when the mapping may be removed.
#[inline]
pub(crate) fn free_on(swap: &Swap, address: u64, stream: CUstream) -> Option<CUresult> {
    if !swap.is_on() {
        return None;
    }
    free_after(swap, address, |_| driver::cuStreamSynchronize(stream))
}

#[cold]
fn free_after(swap: &Swap, address: u64, wait: impl Fn(&Allocation) -> CUresult) -> Option<CUresult> {
    let allocation = swap.take(address)?;
    let waited = wait(&allocation);
    let freed = waited.and_then(|()| relaxed(|| forget(swap, &allocation)));
    if freed.is_err() {
        swap.enter(allocation);
    }
    Some(freed)
}

/// Frees the memory that was allocated in `context`, which has been destroyed.
pub(crate) fn context_gone(swap: &Swap, context: u32) {
    if !swap.is_on() {
        return;
    }
    let allocations: Vec<_> = swap.allocations.read().values().cloned().collect();
    let gone = allocations
        .into_iter()
        .filter(|allocation| allocation.context == context);
    for allocation in gone {
        if swap.take(allocation.base).is_some() {
            // Where unmapping fails, the driver keeps the addresses until the program exits.
            let _ = forget(swap, &allocation);
        }
    }
}

/// Frees all blocks. Returns the first error; the blocks that the driver does not unmap stay as they were.
fn forget(swap: &Swap, allocation: &Allocation) -> CUresult {
    let (mut index, mut result) = (None, Ok(()));
    for block in allocation.blocks() {
        match block.end(swap) {
            Ok(Some(last)) => {
                swap.leave_block(block, last);
                index = Some(last.1);
            }
            Ok(None) => {}
            Err(error) => result = result.and(Err(error)),
        }
    }
    result?;
    allocation.range.give_back();
    let index = index.unwrap_or_else(|| swap.session.devices.index(allocation.local));
    swap.leave_allocation(allocation, index);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_is_divided_into_blocks() {
        let of = |size| sizes(size).collect::<Vec<_>>();
        assert_eq!(of(LEAST), [LEAST]);
        assert_eq!(of(LARGEST), [LARGEST]);
        assert_eq!(of(2 * LARGEST + LEAST), [LARGEST, LARGEST, LEAST]);
    }
}
