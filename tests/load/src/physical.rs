//! Virtual memory management: physical memory, and address ranges that it is mapped at.

use std::ffi::c_uint;

use crate::driver::{
    Access, AllocationProperties, CUdeviceptr, CUmemGenericAllocationHandle, Location, Result,
};
use crate::gpu::Gpu;

pub(crate) const CU_MEM_ALLOCATION_TYPE_PINNED: c_uint = 1;
pub(crate) const CU_MEM_LOCATION_TYPE_DEVICE: c_uint = 1;
const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_uint = 3;

/// Physical memory of a GPU; must be released once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Physical {
    handle: CUmemGenericAllocationHandle,
    /// The request, rounded up to the granularity.
    pub bytes: usize,
}

impl Physical {
    /// Creates at least `bytes` of physical memory.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn create(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let driver = &gpu.driver;
        let properties = AllocationProperties {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            location: location(gpu),
            ..Default::default()
        };
        let (mut granularity, mut handle) = (0, 0);
        // SAFETY: the out-pointers outlive the calls.
        unsafe { driver.cuMemGetAllocationGranularity(&mut granularity, &properties, 0) }?;
        let bytes = bytes.next_multiple_of(granularity.max(1));
        // SAFETY: as above.
        unsafe { driver.cuMemCreate(&mut handle, bytes, &properties, 0) }?;
        Ok(Self { handle, bytes })
    }

    /// Releases the memory, which is freed when it is no longer mapped.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn release(self, gpu: &Gpu) -> Result<()> {
        // SAFETY: passes only numbers, which the driver looks up.
        unsafe { gpu.driver.cuMemRelease(self.handle) }
    }
}

/// A reserved address range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub pointer: CUdeviceptr,
    bytes: usize,
}

impl Range {
    /// Reserves `bytes` of addresses.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn reserve(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let mut pointer = 0;
        // SAFETY: the out-pointer outlives the call.
        unsafe { gpu.driver.cuMemAddressReserve(&mut pointer, bytes, 0, 0, 0) }?;
        Ok(Self { pointer, bytes })
    }

    /// Maps physical memory of the range's size.
    ///
    /// # Errors
    /// The driver's; nothing is mapped then.
    pub(crate) fn map(self, gpu: &Gpu, physical: Physical) -> Result<()> {
        // SAFETY: passes only numbers, which the driver looks up.
        unsafe {
            gpu.driver
                .cuMemMap(self.pointer, self.bytes, 0, physical.handle, 0)
        }
    }

    /// Gives the GPU read and write access to the mapped memory.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn give_access(self, gpu: &Gpu) -> Result<()> {
        let access = Access {
            location: location(gpu),
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the descriptor outlives the call; its count is 1.
        unsafe { gpu.driver.cuMemSetAccess(self.pointer, self.bytes, &access, 1) }
    }

    /// Unmaps the memory.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn unmap(self, gpu: &Gpu) -> Result<()> {
        // SAFETY: the caller guarantees that the memory is not in use.
        unsafe { gpu.driver.cuMemUnmap(self.pointer, self.bytes) }
    }

    /// Frees the address range.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn free(self, gpu: &Gpu) -> Result<()> {
        // SAFETY: passes only numbers, which the driver looks up.
        unsafe { gpu.driver.cuMemAddressFree(self.pointer, self.bytes) }
    }
}

fn location(gpu: &Gpu) -> Location {
    Location {
        kind: CU_MEM_LOCATION_TYPE_DEVICE,
        id: gpu.device,
    }
}
