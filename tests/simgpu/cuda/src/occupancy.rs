//! Occupancy: number of concurrent blocks of a kernel.

use std::ffi::c_void;

use crate::abi::{CUerror, CUfunction, CUlaunchConfig, CUresult, In, Out};
use crate::call::{Call, driver};
use crate::error::INVALID_VALUE;

const MULTIPROCESSORS: i32 = 132;
const THREADS: i32 = 2048;
const BLOCKS: i32 = 32;
const SHARED: usize = 228 << 10;
const RESERVED_SHARED: usize = 1 << 10;

/// Returns the number of blocks that one multiprocessor runs concurrently.
fn blocks(call: Call, function: CUfunction, block_size: i32, shared: usize) -> Result<i32, CUerror> {
    call.code(function)?;
    if !(1..=1024).contains(&block_size) {
        return Err(INVALID_VALUE);
    }
    let warps = block_size.div_euclid(32) + i32::from(block_size % 32 != 0);
    let by_threads = THREADS / (warps * 32);
    let by_shared = i32::try_from(SHARED / (shared + RESERVED_SHARED)).unwrap_or(BLOCKS);
    Ok(by_threads.min(by_shared).min(BLOCKS))
}

fn potential(
    call: Call,
    grid: Out<i32>,
    block: Out<i32>,
    function: CUfunction,
    shared_of: Option<extern "C" fn(i32) -> usize>,
    shared: usize,
    limit: i32,
) -> CUresult {
    let largest = if limit > 0 { limit.min(1024) } else { 1024 };
    let bytes = |size: i32| shared_of.map_or(shared, |of| of(size));
    let mut best = (0, 0);
    for size in (32..=largest).step_by(32).chain([largest]) {
        let threads = blocks(call, function, size, bytes(size))? * size;
        if threads >= best.0 {
            best = (threads, size);
        }
    }
    grid.set((best.0 / best.1.max(1)).max(1) * MULTIPROCESSORS)?;
    block.set(best.1)
}

driver! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<i32>, function: CUfunction, block_size: i32, shared: usize) |call| {
        count.set(blocks(call, function, block_size, shared)?)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: Out<i32>, function: CUfunction, block_size: i32, shared: usize, _flags: u32,
    ) |call| {
        count.set(blocks(call, function, block_size, shared)?)
    }
    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, function: CUfunction, shared_of: Option<extern "C" fn(i32) -> usize>,
        shared: usize, limit: i32,
    ) |call| {
        potential(call, grid, block, function, shared_of, shared, limit)
    }
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, function: CUfunction, shared_of: Option<extern "C" fn(i32) -> usize>,
        shared: usize, limit: i32, _flags: u32,
    ) |call| {
        potential(call, grid, block, function, shared_of, shared, limit)
    }
    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: CUfunction, count: i32, _block_size: i32) |call| {
        call.code(function)?;
        let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(INVALID_VALUE)?;
        bytes.set((SHARED / count).saturating_sub(RESERVED_SHARED))
    }
    fn cuOccupancyMaxPotentialClusterSize(size: Out<i32>, function: CUfunction, _config: In<CUlaunchConfig>) |call| {
        call.code(function)?;
        size.set(8)
    }
    fn cuOccupancyMaxActiveClusters(count: Out<i32>, function: CUfunction, _config: In<CUlaunchConfig>) |call| {
        call.code(function)?;
        count.set(MULTIPROCESSORS / 8)
    }
}

const _: () = assert!(size_of::<Option<extern "C" fn(i32) -> usize>>() == size_of::<*const c_void>());
