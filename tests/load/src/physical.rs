//! The program's own virtual memory: physical memory, and the addresses that it is mapped at.

use std::ffi::c_uint;

use crate::driver::{
    Access, AllocationProperties, CUdeviceptr, CUmemGenericAllocationHandle, Location, Result,
};
use crate::gpu::Gpu;

pub const CU_MEM_ALLOCATION_TYPE_PINNED: c_uint = 1;
pub const CU_MEM_LOCATION_TYPE_DEVICE: c_uint = 1;
const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_uint = 3;

/// Physical memory of a GPU; whoever has it may release it, once.
#[derive(Debug, Clone, Copy)]
pub struct Physical {
    handle: CUmemGenericAllocationHandle,
    /// As many as were asked for, rounded up to whole pages.
    pub bytes: usize,
}

impl Physical {
    /// # Errors
    /// The driver's.
    pub fn create(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let driver = &gpu.driver;
        let properties = AllocationProperties {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            location: location(gpu),
            ..Default::default()
        };
        let (mut granularity, mut handle) = (0, 0);
        // SAFETY: places that outlive the calls.
        unsafe { driver.cuMemGetAllocationGranularity(&mut granularity, &properties, 0) }?;
        let bytes = bytes.next_multiple_of(granularity.max(1));
        // SAFETY: as above.
        unsafe { driver.cuMemCreate(&mut handle, bytes, &properties, 0) }?;
        Ok(Self { handle, bytes })
    }

    /// It goes when it is mapped nowhere any more.
    ///
    /// # Errors
    /// The driver's.
    pub fn release(self, gpu: &Gpu) -> Result<()> {
        // SAFETY: numbers alone, which the driver looks up.
        unsafe { gpu.driver.cuMemRelease(self.handle) }
    }
}

/// Addresses for as many bytes.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    pub pointer: CUdeviceptr,
    bytes: usize,
}

impl Range {
    /// # Errors
    /// The driver's.
    pub fn reserve(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let mut pointer = 0;
        // SAFETY: a place that outlives the call.
        unsafe { gpu.driver.cuMemAddressReserve(&mut pointer, bytes, 0, 0, 0) }?;
        Ok(Self { pointer, bytes })
    }

    /// # Errors
    /// The driver's; nothing is mapped then.
    pub fn map(self, gpu: &Gpu, physical: Physical) -> Result<()> {
        // SAFETY: numbers alone, which the driver looks up.
        unsafe {
            gpu.driver
                .cuMemMap(self.pointer, self.bytes, 0, physical.handle, 0)
        }
    }

    /// Lets the GPU read and write what is mapped.
    ///
    /// # Errors
    /// The driver's.
    pub fn give_access(self, gpu: &Gpu) -> Result<()> {
        let access = Access {
            location: location(gpu),
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: a place that outlives the call, one element as is said.
        unsafe { gpu.driver.cuMemSetAccess(self.pointer, self.bytes, &access, 1) }
    }

    /// # Errors
    /// The driver's.
    pub fn unmap(self, gpu: &Gpu) -> Result<()> {
        // SAFETY: the caller's word that nobody uses it any more, as for any of these.
        unsafe { gpu.driver.cuMemUnmap(self.pointer, self.bytes) }
    }

    /// # Errors
    /// The driver's.
    pub fn free(self, gpu: &Gpu) -> Result<()> {
        // SAFETY: numbers alone, which the driver looks up.
        unsafe { gpu.driver.cuMemAddressFree(self.pointer, self.bytes) }
    }
}

fn location(gpu: &Gpu) -> Location {
    Location {
        kind: CU_MEM_LOCATION_TYPE_DEVICE,
        id: gpu.device,
    }
}
