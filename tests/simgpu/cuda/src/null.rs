//! Null mode: results of calls that must return something. Nothing is checked or stored, and threads share no
//! data: locks or contended cache lines here would hide the costs that benchmarks measure.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::abi::{CUDA_ARRAY_MEMORY_REQUIREMENTS, CUdeviceptr, Out, Raw};

/// Total memory in bytes, returned by `cuMemGetInfo`.
const TOTAL: usize = 16 << 30;

/// Granularity of virtual memory, in bytes.
pub(crate) const GRANULARITY: usize = 2 << 20;

/// Size in bytes of every array.
const ARRAY: usize = 64 << 10;

/// Bytes that every pool has reserved, independent of allocations: it never grows or shrinks.
const RESERVED: u64 = 1 << 30;
const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: u32 = 5;

/// Bytes of addresses that a thread reserves at a time.
const REGION: u64 = 64 << 30;

/// The next address, and the bytes left.
type Mine = Cell<(u64, u64)>;

/// Returns addresses that no other call receives.
#[inline]
fn take_of(mine: &Mine, bytes: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x7000_0000_0000);
    let (mut address, mut left) = mine.get();
    if left < bytes {
        left = REGION.max(bytes);
        address = NEXT.fetch_add(left, Relaxed);
    }
    mine.set((address + bytes, left - bytes));
    address
}

#[inline]
fn take(bytes: u64) -> u64 {
    thread_local! {
        static MINE: Mine = const { Cell::new((0, 0)) };
    }
    MINE.with(|mine| take_of(mine, bytes.next_multiple_of(512)))
}

/// Reserves addresses as drivers do: whole pages of device memory, apart from other allocations.
#[inline]
pub(crate) fn reserve(address: Out<CUdeviceptr>, bytes: usize) {
    thread_local! {
        static MINE: Mine = const { Cell::new((0, 0)) };
    }
    address.set_if(MINE.with(|mine| take_of(mine, bytes.next_multiple_of(GRANULARITY) as u64)));
}

#[inline]
pub(crate) fn allocate(address: Out<CUdeviceptr>, bytes: usize) {
    address.set_if(take(bytes as u64));
}

thread_local! {
    /// Address of the pool block that the thread freed last.
    static FREED: Cell<u64> = const { Cell::new(0) };
}

/// Allocates from a pool: reuses the block that the thread freed last, as pools do; for programs with blocks
/// of one size.
#[inline]
pub(crate) fn allocate_from_pool(address: Out<CUdeviceptr>, bytes: usize) {
    let freed = FREED.replace(0);
    address.set_if(if freed == 0 { take(bytes as u64) } else { freed });
}

#[inline]
pub(crate) fn free_to_pool(address: CUdeviceptr) {
    FREED.set(address);
}

/// Returns a handle that no other call receives.
#[inline]
pub(crate) fn name<T: TryFrom<u64>>(handle: Out<T>) {
    if let Ok(number) = T::try_from(take(1)) {
        handle.set_if(number);
    }
}

/// Reports a device whose memory is always free.
#[inline]
pub(crate) fn info(free: Out<usize>, total: Out<usize>) {
    free.set_if(TOTAL);
    total.set_if(TOTAL);
}

/// Returns an attribute of a new pool, except the bytes reserved.
#[inline]
pub(crate) fn pool_attribute(attribute: u32, value: Raw) {
    match attribute {
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => value.as_out::<u64>().set_if(RESERVED),
        // The attributes below 4 are ints.
        4.. => value.as_out::<u64>().set_if(0),
        _ => value.as_out::<u32>().set_if(0),
    }
}

#[inline]
pub(crate) fn requirements(out: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>) {
    out.set_if(CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: ARRAY,
        alignment: ARRAY,
        reserved: [0; 4],
    });
}
