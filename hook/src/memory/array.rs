//! CUDA arrays, whose size only the driver knows.
//!
//! An array without memory (`CUDA_ARRAY3D_DEFERRED_MAPPING`) is made first with the same description and
//! asked for its memory requirements. If the driver cannot answer, the real array is
//! made, asked, and destroyed again if it exceeds a limit. An array with no answer either way is refused
//! where a limit is in force; elsewhere the daemon sees it in what the process holds beyond its charges.

use super::ABSURD;
use super::charge::Charge;
use super::ledger::Entry;
use super::page_counter::Sums;
use crate::driver;
use crate::driver::cuda::{
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUerror, CUmipmappedArray, CUresult,
};
use crate::shared::device::LocalDevice;
use crate::shared::target::Target;

pub(crate) const CUDA_ARRAY3D_SPARSE: u32 = 0x40;
pub(crate) const CUDA_ARRAY3D_DEFERRED_MAPPING: u32 = 0x80;

/// A type of array: how to make, query and destroy one.
pub(crate) trait Array: Copy {
    fn key(self) -> u64;
    /// Makes an array of that description.
    fn make(wanted: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Result<Self, CUerror>;
    fn ask(self, answer: &mut CUDA_ARRAY_MEMORY_REQUIREMENTS, local: LocalDevice) -> CUresult;
    fn destroy(self) -> CUresult;

    fn bytes(self, local: LocalDevice) -> Result<u64, CUerror> {
        let mut answer = CUDA_ARRAY_MEMORY_REQUIREMENTS::default();
        self.ask(&mut answer, local)?;
        Ok(answer.size as u64)
    }
}

impl Array for CUarray {
    fn key(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    fn make(wanted: &CUDA_ARRAY3D_DESCRIPTOR, _levels: u32) -> Result<Self, CUerror> {
        let mut made = Self::NULL;
        driver::cuArray3DCreate_v2(&mut made, wanted).map(|()| made)
    }

    fn ask(self, answer: &mut CUDA_ARRAY_MEMORY_REQUIREMENTS, local: LocalDevice) -> CUresult {
        driver::cuArrayGetMemoryRequirements(answer, self, local.device())
    }

    fn destroy(self) -> CUresult {
        driver::cuArrayDestroy(self)
    }
}

impl Array for CUmipmappedArray {
    fn key(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    fn make(wanted: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Result<Self, CUerror> {
        let mut made = Self::NULL;
        driver::cuMipmappedArrayCreate(&mut made, wanted, levels).map(|()| made)
    }

    fn ask(self, answer: &mut CUDA_ARRAY_MEMORY_REQUIREMENTS, local: LocalDevice) -> CUresult {
        driver::cuMipmappedArrayGetMemoryRequirements(answer, self, local.device())
    }

    fn destroy(self) -> CUresult {
        driver::cuMipmappedArrayDestroy(self)
    }
}

/// A description of an array, in any version of the structure.
pub(crate) trait Describe: Copy {
    fn full(self) -> CUDA_ARRAY3D_DESCRIPTOR;
}

impl Describe for CUDA_ARRAY3D_DESCRIPTOR {
    fn full(self) -> Self {
        self
    }
}

impl Describe for crate::driver::cuda::CUDA_ARRAY_DESCRIPTOR {
    fn full(self) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            width: self.width,
            height: self.height,
            depth: 0,
            format: self.format,
            num_channels: self.num_channels,
            flags: 0,
        }
    }
}

impl Describe for crate::driver::cuda::CUDA_ARRAY_DESCRIPTOR_v1 {
    fn full(self) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            width: self.width as usize,
            height: self.height as usize,
            depth: 0,
            format: self.format,
            num_channels: self.num_channels,
            flags: 0,
        }
    }
}

impl Describe for crate::driver::cuda::CUDA_ARRAY3D_DESCRIPTOR_v1 {
    fn full(self) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            width: self.width as usize,
            height: self.height as usize,
            depth: self.depth as usize,
            format: self.format,
            num_channels: self.num_channels,
            flags: self.flags,
        }
    }
}

/// Returns at least how many bytes the largest level of such an array takes: no format has less than half a
/// byte for an element.
pub(crate) fn least_bytes(wanted: &CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    let extents = [wanted.width, wanted.height, wanted.depth].map(|extent| extent.max(1) as u64);
    extents.into_iter().fold(1, u64::saturating_mul) / 2
}

/// Charges an array by its actual size, of which `block` makes the entry; `None` if the driver does not tell
/// and no limit is in force.
#[cold]
#[inline(never)]
pub(crate) fn fit<A: Array>(
    array: A,
    mut charge: Charge<'_>,
    sums: Sums,
    block: &dyn Fn(u64) -> Entry,
) -> Result<Option<Entry>, CUerror> {
    let block = array.bytes(block(0).local).map(block);
    let fitted = match &block {
        Err(error) if charge.memory.is_limited() => Err(*error),
        block => charge.fit(sums, block.as_ref().map_or(0, Entry::charged)),
    };
    match fitted {
        Ok(sums) => charge.keep(sums),
        Err(refused) => {
            let destroyed = array.destroy();
            let bytes = block.map_or(ABSURD, |block| block.charged());
            destroyed.map_err(|error| charge.keep_refused(bytes, error))?;
            return Err(refused);
        }
    }
    Ok(block.ok())
}

/// Asks the driver for the size of such an array, using one without memory; `None` if it does not tell.
pub(crate) fn ask<A: Array>(wanted: CUDA_ARRAY3D_DESCRIPTOR, levels: u32, target: Target) -> Option<u64> {
    let deferred = CUDA_ARRAY3D_DESCRIPTOR {
        flags: wanted.flags | CUDA_ARRAY3D_DEFERRED_MAPPING,
        ..wanted
    };
    let probe = A::make(&deferred, levels).ok()?;
    let bytes = probe.bytes(target.local);
    probe.destroy().ok()?;
    bytes.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_array_takes_more_than_any_device_has() {
        let wanted = |width, height, depth| CUDA_ARRAY3D_DESCRIPTOR {
            width,
            height,
            depth,
            format: 0x20,
            num_channels: 4,
            flags: 0,
        };
        assert_eq!(least_bytes(&wanted(1000, 0, 0)), 500);
        assert_eq!(least_bytes(&wanted(1000, 20, 4)), 40_000);
        for absurd in [wanted(1 << 40, 1 << 40, 0), wanted(usize::MAX, 1, 1)] {
            assert!(least_bytes(&absurd) > ABSURD);
        }
    }
}
