//! Trial of memory that a driver may refuse, with one small piece.

use super::physical::{Access, Memory, Range, on_device};
use super::{LEAST, Swap};
use crate::driver;
use crate::driver::cuda::{
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, CUdevice, CUerror, CUmemLocation,
};
use crate::shared::device::LocalDevice;

/// Result of a trial that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Useless {
    /// The driver's error.
    Refused(CUerror),
    /// The driver does not unmap: the piece stays in use.
    Stuck,
}

impl From<CUerror> for Useless {
    fn from(error: CUerror) -> Self {
        Self::Refused(error)
    }
}

/// Makes a piece of [`LEAST`] bytes, maps it for a device and releases it.
pub(super) fn probe(location: CUmemLocation, device: CUdevice, is_rdma: bool) -> Result<(), Useless> {
    let memory = Memory::new(location, LEAST, is_rdma)?;
    let range = Range::new(LEAST)?;
    let mapped = range.map_for(&memory, Access::by(device));
    if range.unmap().is_err() {
        return Err(Useless::Stuck);
    }
    Ok(mapped?)
}

impl Swap {
    /// Makes memory of a device. Network adapters can use it directly, as memory of `cuMemAlloc`, where the
    /// driver can do that for memory that is mapped.
    pub(super) fn new_device_memory(&self, local: LocalDevice, size: u64) -> Result<Memory, CUerror> {
        let location = on_device(local.device());
        let is_rdma = || {
            let (mut is_offered, device) = (0, local.device());
            let attribute = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
            let asked = driver::cuDeviceGetAttribute(&mut is_offered, attribute, device);
            if asked.is_err() || is_offered == 0 {
                return Some(false);
            }
            match probe(location, device, true) {
                Ok(()) => Some(true),
                // The device is full: tried again at the next allocation.
                Err(Useless::Refused(CUerror::OUT_OF_MEMORY)) => None,
                Err(_) => Some(false),
            }
        };
        let known = self.rdma.get(usize::from(local.number()));
        let is_rdma = known.is_some_and(|known| match known.get() {
            Some(known) => *known,
            // No lock is held over the driver's calls.
            None => is_rdma().is_some_and(|found| *known.get_or_init(|| found)),
        });
        Memory::new(location, size, is_rdma)
    }
}
