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
    pub(super) fn new(location: CUmemLocation, size: u64) -> Result<Self, CUerror> {
        let properties = CUmemAllocationProp {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            location,
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

    /// Returns whether it equals memory that would be made for `location` and `size`.
    pub(super) fn is_like(&self, location: CUmemLocation, size: u64) -> bool {
        let is_there = self.location.kind == location.kind && self.location.id == location.id;
        is_there && self.size == size
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

    /// Maps `memory` and gives `device` access; maps nothing on failure.
    pub(super) fn map_for(&self, memory: &Memory, device: CUdevice) -> CUresult {
        self.map(memory)?;
        self.allow(device).inspect_err(|_| {
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

    /// Gives access to the device and to its possible peers.
    pub(super) fn allow(&self, device: CUdevice) -> CUresult {
        allow_peers(self.address.0, self.size, device);
        set_access(self.address.0, self.size, device)
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

fn set_access(address: u64, size: u64, device: CUdevice) -> CUresult {
    let access = CUmemAccessDesc {
        location: CUmemLocation {
            kind: CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    driver::cuMemSetAccess(CUdeviceptr(address), bytes(size)?, &access, 1)
}

/// Gives access to every device that can be a peer of `device`. With plain memory the program would enable
/// peer access itself; for mapped memory there is no such call.
fn allow_peers(address: u64, size: u64, device: CUdevice) {
    let mut count = 0;
    if driver::cuDeviceGetCount(&mut count).is_err() || count < 2 {
        return;
    }
    for other in (0..count).filter(|other| *other != device) {
        let mut can = 0;
        let asked = driver::cuDeviceCanAccessPeer(&mut can, other, device);
        if asked.is_ok() && can != 0 {
            // Without access the program gets the error when it uses the memory.
            let _ = set_access(address, size, other);
        }
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
