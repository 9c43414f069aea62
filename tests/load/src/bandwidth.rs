//! Measures plain copies and the allocation of host memory, the reference for moves of memory.

use std::ffi::{c_int, c_uint};
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::block::{Allocator, Api, Block};
use crate::driver::{self, AllocationProperties, CUdeviceptr, CUmemGenericAllocationHandle, Location};
use crate::gpu::{Gpu, Stream};
use crate::stats::{quantile, sorted};

const TURNS: u32 = 5;

/// Seconds for all blocks: medians over several repetitions.
#[derive(Debug)]
pub(crate) struct Bandwidth {
    /// Copy to page-locked memory: one copy for each block, queued on one stream, and one wait.
    pub out: f64,
    /// Copy back.
    pub into: f64,
    /// `cuMemCreate` of the same amount of host memory, where the driver has that, and `cuMemRelease`.
    pub made: Option<[f64; 2]>,
}

/// Measures with `count` blocks of `bytes` each.
///
/// # Errors
/// The driver's, for example out of memory.
pub(crate) fn measure(gpu: &Gpu, bytes: usize, count: usize) -> Result<Bandwidth> {
    let (device, host) = (Allocator::new(gpu, Api::Linear)?, Allocator::new(gpu, Api::Host)?);
    let all = |allocator: &Allocator<'_>| -> driver::Result<Vec<Block>> {
        (0..count).map(|_| allocator.allocate(bytes)).collect()
    };
    let (there, mut here) = (all(&device)?, all(&host)?);
    let pointers: Vec<CUdeviceptr> = there.iter().filter_map(Block::pointer).collect();
    let stream = Stream::new(gpu)?;
    let [mut out, mut into, mut made, mut released] = <[Vec<f64>; 4]>::default();
    for _ in 0..TURNS {
        for (seconds, is_out) in [(&mut out, true), (&mut into, false)] {
            let began = Instant::now();
            copy_all(gpu, &stream, &pointers, &mut here, is_out)?;
            seconds.push(began.elapsed().as_secs_f64());
        }
        let began = Instant::now();
        let memory: driver::Result<Vec<_>> = (0..count).map(|_| HostMemory::new(gpu, bytes)).collect();
        if let Ok(memory) = memory {
            made.push(began.elapsed().as_secs_f64());
            let began = Instant::now();
            drop(memory);
            released.push(began.elapsed().as_secs_f64());
        }
    }
    there.into_iter().try_for_each(|block| device.free(block))?;
    here.into_iter().try_for_each(|block| host.free(block))?;
    let median = |values: Vec<f64>| quantile(&sorted(values), 0.5);
    let is_made = !made.is_empty();
    Ok(Bandwidth {
        out: median(out),
        into: median(into),
        made: is_made.then(|| [median(made), median(released)]),
    })
}

/// Copies each block to its buffer, or back, and waits once.
fn copy_all(
    gpu: &Gpu,
    stream: &Stream<'_>,
    pointers: &[CUdeviceptr],
    buffers: &mut [Block],
    is_out: bool,
) -> Result<()> {
    let driver = &gpu.driver;
    let mut queue = || -> Result<()> {
        for (pointer, buffer) in pointers.iter().zip(&mut *buffers) {
            let bytes = buffer.host().context("no host memory")?;
            let (length, bytes) = (bytes.len(), bytes.as_mut_ptr());
            // SAFETY: page-locked memory, exclusively borrowed until the wait below; the driver checks the
            // device address.
            unsafe {
                match is_out {
                    true => driver.cuMemcpyDtoHAsync_v2(bytes.cast(), *pointer, length, stream.raw)?,
                    false => driver.cuMemcpyHtoDAsync_v2(*pointer, bytes.cast(), length, stream.raw)?,
                }
            }
        }
        Ok(())
    };
    let queued = queue();
    stream.synchronize()?;
    queued
}

/// Physical host memory near the device, not mapped.
#[derive(Debug)]
struct HostMemory<'g> {
    gpu: &'g Gpu,
    handle: CUmemGenericAllocationHandle,
}

impl<'g> HostMemory<'g> {
    fn new(gpu: &'g Gpu, bytes: usize) -> driver::Result<Self> {
        const CU_MEM_ALLOCATION_TYPE_PINNED: c_uint = 1;
        const CU_MEM_LOCATION_TYPE_HOST_NUMA: c_uint = 3;
        const CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: c_uint = 134;
        let (mut node, mut handle): (c_int, _) = (0, 0);
        // SAFETY: the out-pointers outlive the calls.
        unsafe {
            gpu.driver
                .cuDeviceGetAttribute(&mut node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, gpu.device)?;
            let properties = AllocationProperties {
                kind: CU_MEM_ALLOCATION_TYPE_PINNED,
                location: Location {
                    kind: CU_MEM_LOCATION_TYPE_HOST_NUMA,
                    id: node.max(0),
                },
                ..Default::default()
            };
            gpu.driver.cuMemCreate(&mut handle, bytes, &properties, 0)?;
        }
        Ok(Self { gpu, handle })
    }
}

impl Drop for HostMemory<'_> {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and not mapped.
        let _ = unsafe { self.gpu.driver.cuMemRelease(self.handle) };
    }
}
