//! Driver objects: physical memory, address ranges, and copies between them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::driver;
use crate::driver::cuda::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_STREAM_NON_BLOCKING, CUdevice, CUdeviceptr, CUerror, CUmemAccessDesc, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation, CUresult, CUstream,
};
use crate::sys::mapping::Mapping;

use super::LEAST;

/// Physical memory, released on drop.
#[derive(Debug)]
pub(super) struct Memory {
    handle: CUmemGenericAllocationHandle,
    location: CUmemLocation,
    size: u64,
}

impl Memory {
    /// Makes memory of a device, for GPUDirect RDMA if `is_rdma`, or of the host.
    pub(super) fn new(location: CUmemLocation, size: u64, is_rdma: bool) -> Result<Self, CUerror> {
        let properties = CUmemAllocationProp {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            location,
            gpu_direct_rdma_capable: is_rdma.into(),
            ..CUmemAllocationProp::NONE
        };
        let mut handle = CUmemGenericAllocationHandle(0);
        driver::cuMemCreate(&mut handle, bytes(size)?, &properties, 0)?;
        Ok(Self {
            handle,
            location,
            size,
        })
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The driver keeps mapped memory until it is unmapped; where the release fails, the memory stays in
        // use.
        let release = || driver::cuMemRelease(self.handle);
        let _ = release().or_else(|_| release());
    }
}

/// Page-locked memory of the process; unlocked where the driver refuses to lock it, which makes copies
/// slower.
#[derive(Debug)]
pub(super) struct Copied {
    memory: Mapping,
    is_locked: bool,
}

impl Copied {
    /// Allocates memory and locks it in the current context.
    pub(super) fn new(size: u64) -> Result<Self, CUerror> {
        let memory = Mapping::anonymous(bytes(size)?).map_err(|_| CUerror::OUT_OF_MEMORY)?;
        let locked = driver::cuMemHostRegister_v2(memory.address().addr(), memory.size(), PORTABLE);
        Ok(Self {
            memory,
            is_locked: locked.is_ok(),
        })
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address().addr() as u64
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        if self.is_locked {
            let _ = driver::cuMemHostUnregister(self.memory.address().addr());
        }
    }
}

/// `CU_MEMHOSTREGISTER_PORTABLE`: locked for all contexts, so that it outlives the current one.
const PORTABLE: u32 = 1;

/// Reserved addresses. Memory mapped there is unmapped before they are freed.
#[derive(Debug)]
pub(super) struct Range {
    address: CUdeviceptr,
    size: u64,
    is_mapped: AtomicBool,
    is_back: AtomicBool,
}

impl Range {
    pub(super) fn new(size: u64) -> Result<Self, CUerror> {
        let mut address = CUdeviceptr(0);
        driver::cuMemAddressReserve(&mut address, bytes(size)?, bytes(LEAST)?, CUdeviceptr(0), 0)?;
        Ok(Self {
            address,
            size,
            is_mapped: false.into(),
            is_back: false.into(),
        })
    }

    pub(super) fn address(&self) -> u64 {
        self.address.0
    }

    /// Maps `memory`, first unmapping what could not be unmapped before.
    pub(super) fn map(&self, memory: &Memory) -> CUresult {
        self.unmap()?;
        driver::cuMemMap(self.address, bytes(self.size)?, 0, memory.handle, 0)?;
        self.is_mapped.store(true, Relaxed);
        Ok(())
    }

    /// Maps `memory` and gives access to it; maps nothing on failure.
    pub(super) fn map_for(&self, memory: &Memory, access: Access) -> CUresult {
        self.map(memory)?;
        self.allow(memory, access).inspect_err(|_| {
            let _ = self.unmap();
        })
    }

    /// Unmaps the range. On failure the memory stays in use.
    pub(super) fn unmap(&self) -> CUresult {
        if self.is_mapped.load(Relaxed) {
            let unmap = || driver::cuMemUnmap(self.address, bytes(self.size)?);
            unmap().or_else(|_| unmap())?;
            self.is_mapped.store(false, Relaxed);
        }
        Ok(())
    }

    /// Gives access to the device and its peers. Memory of the host is made accessible to the processors too:
    /// the driver needs that for copies from and to memory that is not page-locked.
    pub(super) fn allow(&self, memory: &Memory, access: Access) -> CUresult {
        let list = [on_device(access.device), memory.location].map(read_write);
        let count = 1 + usize::from(memory.location.device().is_none());
        driver::cuMemSetAccess(self.address, bytes(self.size)?, &list, count)?;
        for peer in access.peers() {
            // Without access the program gets the error when it uses the memory.
            let _ = self.allow_peer(peer);
        }
        Ok(())
    }

    pub(super) fn allow_peer(&self, peer: CUdevice) -> CUresult {
        let list = [read_write(on_device(peer)); 2];
        driver::cuMemSetAccess(self.address, bytes(self.size)?, &list, 1)
    }

    /// Returns a part of the addresses, which the whole range frees.
    pub(super) fn part(&self, offset: u64, size: u64) -> Self {
        Self {
            address: CUdeviceptr(self.address.0 + offset),
            size,
            is_mapped: false.into(),
            is_back: true.into(),
        }
    }

    pub(super) fn give_back(&self) {
        if !self.is_back.swap(true, Relaxed) {
            let _ = bytes(self.size).and_then(|size| driver::cuMemAddressFree(self.address, size));
        }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn bytes(size: u64) -> Result<usize, CUerror> {
    usize::try_from(size).map_err(|_| CUerror::INVALID_VALUE)
}

/// Returns the location of a device's memory.
pub(super) fn on_device(device: CUdevice) -> CUmemLocation {
    CUmemLocation {
        kind: CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

fn read_write(location: CUmemLocation) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location,
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// Devices that may use memory: its device, and peers as a bit for each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) device: CUdevice,
    pub(super) peers: u64,
}

impl Access {
    /// Access by one device.
    pub(super) fn by(device: CUdevice) -> Self {
        Self { device, peers: 0 }
    }

    /// Returns the peers that `earlier` does not have.
    pub(super) fn peers_since(self, earlier: Self) -> impl Iterator<Item = CUdevice> {
        let peers = self.peers & !earlier.peers;
        Self { peers, ..self }.peers()
    }

    fn peers(self) -> impl Iterator<Item = CUdevice> {
        (0..).take(64).filter(move |device| self.peers >> device & 1 != 0)
    }
}

/// Why a copy failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotCopied {
    /// The copy has ended or never started.
    Ended,
    /// The copy may still be in progress: source and destination must stay allocated.
    UnderWay,
}

/// A stream of the current context for the hook's copies, independent of the program's streams.
#[derive(Debug)]
pub(super) struct Stream(CUstream);

impl Stream {
    pub(super) fn new() -> Result<Self, NotCopied> {
        let mut stream = CUstream::NULL;
        driver::cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING).map_err(|_| NotCopied::Ended)?;
        Ok(Self(stream))
    }

    /// Queues a copy.
    pub(super) fn copy(&self, to: u64, from: u64, size: u64) -> Result<(), NotCopied> {
        bytes(size)
            .and_then(|size| driver::cuMemcpyAsync(CUdeviceptr(to), CUdeviceptr(from), size, self.0))
            .map_err(|_| NotCopied::Ended)
    }

    /// Waits until the queued copies have completed.
    pub(super) fn wait(&self) -> Result<(), NotCopied> {
        driver::cuStreamSynchronize(self.0).map_err(|_| {
            // Whether the wait failed or the copy, memory in use must not be freed.
            match driver::cuStreamSynchronize(self.0).or_else(|_| driver::cuCtxSynchronize()) {
                Ok(()) => NotCopied::Ended,
                Err(_) => NotCopied::UnderWay,
            }
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = driver::cuStreamDestroy_v2(self.0);
    }
}

/// Copies `size` bytes and waits for completion.
pub(super) fn copy(to: u64, from: u64, size: u64) -> Result<(), NotCopied> {
    let stream = Stream::new()?;
    stream.copy(to, from, size)?;
    stream.wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_peers_are_listed() {
        let with = |peers| Access { device: 0, peers };
        let since = |now, earlier| with(now).peers_since(with(earlier)).collect::<Vec<_>>();
        assert_eq!(since(0b1010, 0), [1, 3]);
        assert_eq!(since(0b1010, 0b10), [3]);
        assert_eq!(since(0b1010, 0b1010), []);
        assert_eq!(since(1 << 63, 1), [63]);
    }
}
