//! Allocation by each of the driver's APIs.

use std::ffi::c_uint;
use std::ptr::with_exposed_provenance_mut;

use clap::ValueEnum;

use crate::driver::{
    ArrayDescriptor, CUarray, CUdeviceptr, CUmemoryPool, Copy2D, CopyEnd, Location, PoolProperties, Result,
};
use crate::gpu::{Gpu, Stream};
use crate::physical::{CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, Physical, Range};

/// An API to allocate memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Api {
    /// `cuMemAlloc`
    Linear,
    /// `cuMemAllocPitch`
    Pitched,
    /// `cuMemAllocManaged`
    Managed,
    /// `cuMemAllocAsync`, from the device's default pool
    Async,
    /// `cuMemAllocFromPoolAsync`, from a pool of the program
    Pool,
    /// `cuMemCreate` and `cuMemMap`
    Vmm,
    /// `cuArrayCreate`
    Array,
    /// `cuMemHostAlloc`, page-locked host memory
    Host,
}

const CU_MEM_ATTACH_GLOBAL: c_uint = 1;
const CU_AD_FORMAT_UNSIGNED_INT32: c_uint = 3;
const CU_MEMORYTYPE_HOST: c_uint = 1;
const CU_MEMORYTYPE_ARRAY: c_uint = 3;

/// Requested row length, bytes: not a multiple of any card's pitch, so that pitch and width differ.
const PITCHED_WIDTH: usize = 4000;
/// Length of an array's row, bytes.
const ARRAY_WIDTH: usize = 64 << 10;

/// Allocates by one API on one GPU; owns the stream and the pool that some APIs need.
#[derive(Debug)]
pub(crate) struct Allocator<'g> {
    pub gpu: &'g Gpu,
    pub stream: Stream<'g>,
    api: Api,
    pool: Option<CUmemoryPool>,
}

/// Allocated memory. Freed by [`Allocator::free`], or by the driver at exit.
#[derive(Debug)]
pub(crate) struct Block {
    /// Usable bytes: the request, rounded up as the API does.
    pub bytes: usize,
    pub storage: Storage,
}

/// Address of a block, and the way to free it.
#[derive(Debug)]
pub(crate) enum Storage {
    /// Freed by `cuMemFree`.
    Device(CUdeviceptr),
    /// Freed in stream order.
    Ordered(CUdeviceptr),
    Mapped {
        range: Range,
        physical: Physical,
    },
    Array {
        array: CUarray,
        width: usize,
        height: usize,
    },
    /// Address of page-locked host memory.
    Host(usize),
}

impl<'g> Allocator<'g> {
    /// Creates the stream and, if the API needs one, the pool.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(gpu: &'g Gpu, api: Api) -> Result<Self> {
        let stream = Stream::new(gpu)?;
        let pool = if api == Api::Pool {
            Some(new_pool(gpu)?)
        } else {
            None
        };
        Ok(Self {
            gpu,
            stream,
            api,
            pool,
        })
    }

    /// Allocates at least `bytes` (at least one).
    ///
    /// # Errors
    /// The driver's; nothing is left allocated then.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Block> {
        let driver = &self.gpu.driver;
        let mut pointer = 0;
        // SAFETY: in every arm, the out-pointers outlive the call, and `self` owns the stream and pool.
        unsafe {
            match self.api {
                Api::Linear => driver.cuMemAlloc_v2(&mut pointer, bytes)?,
                Api::Managed => driver.cuMemAllocManaged(&mut pointer, bytes, CU_MEM_ATTACH_GLOBAL)?,
                Api::Pitched => {
                    let (width, rows) = rows(bytes, PITCHED_WIDTH);
                    let mut pitch = 0;
                    driver.cuMemAllocPitch_v2(&mut pointer, &mut pitch, width, rows, 4)?;
                    return Ok(Block {
                        bytes: pitch * rows,
                        storage: Storage::Device(pointer),
                    });
                }
                Api::Async => {
                    driver.cuMemAllocAsync(&mut pointer, bytes, self.stream.raw)?;
                    return Ok(Block {
                        bytes,
                        storage: Storage::Ordered(pointer),
                    });
                }
                Api::Pool => {
                    let pool = self.pool.unwrap_or_default();
                    driver.cuMemAllocFromPoolAsync(&mut pointer, bytes, pool, self.stream.raw)?;
                    return Ok(Block {
                        bytes,
                        storage: Storage::Ordered(pointer),
                    });
                }
                Api::Vmm => return self.map(bytes),
                Api::Array => {
                    let (width, height) = rows(bytes.next_multiple_of(4), ARRAY_WIDTH);
                    let format = CU_AD_FORMAT_UNSIGNED_INT32;
                    let shape = ArrayDescriptor {
                        width: width / 4,
                        height,
                        format,
                        channels: 1,
                    };
                    let mut array = 0;
                    driver.cuArrayCreate_v2(&mut array, &shape)?;
                    return Ok(Block {
                        bytes: width * height,
                        storage: Storage::Array { array, width, height },
                    });
                }
                Api::Host => {
                    let mut pointer = 0;
                    driver.cuMemHostAlloc(&mut pointer, bytes, 0)?;
                    return Ok(Block {
                        bytes,
                        storage: Storage::Host(pointer),
                    });
                }
            }
        }
        Ok(Block {
            bytes,
            storage: Storage::Device(pointer),
        })
    }

    /// Frees a block. Memory of a pool has been returned to the device when this returns.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn free(&self, block: Block) -> Result<()> {
        let driver = &self.gpu.driver;
        // SAFETY: each is freed once, by the call that belongs to it: the block is consumed.
        unsafe {
            match block.storage {
                Storage::Device(pointer) => driver.cuMemFree_v2(pointer),
                Storage::Ordered(pointer) => {
                    driver.cuMemFreeAsync(pointer, self.stream.raw)?;
                    self.stream.synchronize()
                }
                Storage::Mapped { range, physical } => {
                    range.unmap(self.gpu)?;
                    physical.release(self.gpu)?;
                    range.free(self.gpu)
                }
                Storage::Array { array, .. } => driver.cuArrayDestroy(array),
                Storage::Host(pointer) => driver.cuMemFreeHost(pointer),
            }
        }
    }

    /// Copies rows between `host`, which holds as many bytes as the array, and the array.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn copy_array(&self, block: &Block, host: &mut [u8], to_device: bool) -> Result<()> {
        let Storage::Array { array, width, height } = block.storage else {
            return Ok(());
        };
        let here = CopyEnd {
            kind: CU_MEMORYTYPE_HOST,
            host: host.as_mut_ptr().addr(),
            pitch: width,
            ..CopyEnd::default()
        };
        let there = CopyEnd {
            kind: CU_MEMORYTYPE_ARRAY,
            array,
            ..CopyEnd::default()
        };
        let (from, to) = if to_device { (here, there) } else { (there, here) };
        // Copies fewer rows if the buffer is shorter.
        let height = height.min(host.len() / width);
        // SAFETY: the host side is exclusively borrowed and holds `height` rows; the array is alive.
        unsafe {
            self.gpu.driver.cuMemcpy2D_v2(&Copy2D {
                from,
                to,
                width_bytes: width,
                height,
            })
        }
    }

    fn map(&self, bytes: usize) -> Result<Block> {
        let physical = Physical::create(self.gpu, bytes)?;
        let mapped = Range::reserve(self.gpu, physical.bytes).and_then(|range| {
            let mapped = range
                .map(self.gpu, physical)
                .and_then(|()| range.give_access(self.gpu));
            mapped.inspect_err(|_| {
                let _ = range.unmap(self.gpu);
                let _ = range.free(self.gpu);
            })?;
            Ok(range)
        });
        let range = mapped.inspect_err(|_| drop(physical.release(self.gpu)))?;
        Ok(Block {
            bytes: physical.bytes,
            storage: Storage::Mapped { range, physical },
        })
    }
}

impl Drop for Allocator<'_> {
    fn drop(&mut self) {
        if let Some(pool) = self.pool {
            // SAFETY: created in `new`; the driver keeps what is still allocated from it.
            let _ = unsafe { self.gpu.driver.cuMemPoolDestroy(pool) };
        }
    }
}

impl Block {
    /// Returns the block's address for kernels and copies, if it has one.
    pub(crate) fn pointer(&self) -> Option<CUdeviceptr> {
        match self.storage {
            Storage::Device(pointer) | Storage::Ordered(pointer) => Some(pointer),
            Storage::Mapped { ref range, .. } => Some(range.pointer),
            Storage::Array { .. } | Storage::Host(_) => None,
        }
    }

    /// Returns the block's bytes if it is host memory.
    pub(crate) fn host(&mut self) -> Option<&mut [u8]> {
        let Storage::Host(pointer) = self.storage else {
            return None;
        };
        // SAFETY: page-locked memory of this size, used only by this program until `free` consumes the block.
        Some(unsafe { std::slice::from_raw_parts_mut(with_exposed_provenance_mut(pointer), self.bytes) })
    }

    /// Returns `bytes`, rounded down to whole rows for an array.
    pub(crate) fn whole_rows(&self, bytes: usize) -> usize {
        if let Storage::Array { width, .. } = self.storage {
            bytes - bytes % width
        } else {
            bytes
        }
    }
}

fn new_pool(gpu: &Gpu) -> Result<CUmemoryPool> {
    let location = Location {
        kind: CU_MEM_LOCATION_TYPE_DEVICE,
        id: gpu.device,
    };
    let properties = PoolProperties {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        location,
        ..Default::default()
    };
    let mut pool = 0;
    // SAFETY: the out-pointer and the properties outlive the call.
    unsafe { gpu.driver.cuMemPoolCreate(&mut pool, &properties) }?;
    Ok(pool)
}

/// Returns (bytes of a row, number of rows) for at least `bytes`, with rows of at most `width` bytes.
fn rows(bytes: usize, width: usize) -> (usize, usize) {
    let width = width.min(bytes);
    (width, bytes.div_ceil(width.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_at_least_the_requested_bytes() {
        assert_eq!(rows(4, ARRAY_WIDTH), (4, 1));
        assert_eq!(rows(PITCHED_WIDTH * 3 + 1, PITCHED_WIDTH), (PITCHED_WIDTH, 4));
    }
}
