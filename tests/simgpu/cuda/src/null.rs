//! Null mode: what calls answer that must answer something. Nothing is checked, nothing is kept, and no
//! thread meets another: what is measured beside it would hide behind a lock here, or behind a cache line
//! that all want.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::abi::{CUDA_ARRAY_MEMORY_REQUIREMENTS, CUdeviceptr, Out, Raw};

/// What `cuMemGetInfo` says.
const TOTAL: usize = 16 << 30;

/// What virtual memory comes in.
pub(crate) const GRANULARITY: usize = 2 << 20;

/// What every array takes.
const ARRAY: usize = 64 << 10;

/// What every pool has reserved, whatever is allocated and freed: it has room, and neither grows nor shrinks.
const RESERVED: u64 = 1 << 30;
const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: u32 = 5;

/// Addresses that a thread takes for itself at once.
const REGION: u64 = 64 << 30;

/// The next address, and what is left.
type Mine = Cell<(u64, u64)>;

/// Addresses that no other call is given.
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

/// Reserves addresses as drivers do: of whole pages of device memory, and not in between of what is
/// allocated.
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
    /// What the thread freed last of a pool's.
    static FREED: Cell<u64> = const { Cell::new(0) };
}

/// From a pool: what the thread freed last, as pools do, for programs of which all blocks are of a size.
#[inline]
pub(crate) fn allocate_from_pool(address: Out<CUdeviceptr>, bytes: usize) {
    let freed = FREED.replace(0);
    address.set_if(if freed == 0 { take(bytes as u64) } else { freed });
}

#[inline]
pub(crate) fn free_to_pool(address: CUdeviceptr) {
    FREED.set(address);
}

/// A handle that no other call is given.
#[inline]
pub(crate) fn name<T: TryFrom<u64>>(handle: Out<T>) {
    if let Ok(number) = T::try_from(take(1)) {
        handle.set_if(number);
    }
}

/// A card that is empty and stays so.
#[inline]
pub(crate) fn info(free: Out<usize>, total: Out<usize>) {
    free.set_if(TOTAL);
    total.set_if(TOTAL);
}

/// As a new pool has them, but for what it has reserved.
#[inline]
pub(crate) fn pool_attribute(attribute: u32, value: Raw) {
    match attribute {
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => value.as_out::<u64>().set_if(RESERVED),
        // Those before are ints.
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
