//! One allocation that can be moved: its address, and the physical memory that is there now.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use super::physical::{Memory, Range, copy};
use crate::compute::context::Context;
use crate::cuda::{CUdevice, CUerror, CUmemLocation};
use crate::device::LocalDevice;
use crate::driver;
use crate::memory::Place;
use crate::process::Process;

/// Where a block's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    Device,
    Host,
}

#[derive(Debug)]
struct Placed {
    memory: Option<Memory>,
    place: Where,
    /// Moved out because that was asked for: stays until the limit changes or the process thaws.
    stays: bool,
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(super) base: u64,
    /// Counts up, and never comes again: the order they were made in, and what the program is told as buffer's id.
    pub(super) number: u64,
    /// Bytes that were asked for, and that are there.
    pub(super) asked: u64,
    pub(super) size: u64,
    pub(super) local: LocalDevice,
    pub(super) context: u32,
    range: Range,
    is_pinned: AtomicBool,
    /// Held while it is moved or freed, and so while the driver is called: who frees a block that moves has to wait.
    placed: Mutex<Placed>,
}

/// A move that did not happen; the block is where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// There is no room where it should go.
    NoRoom,
    /// The driver refused something else.
    Driver,
}

impl From<CUerror> for Failed {
    fn from(error: CUerror) -> Self {
        if error == CUerror::OUT_OF_MEMORY {
            Self::NoRoom
        } else {
            Self::Driver
        }
    }
}

impl Block {
    /// Makes memory and maps it.
    pub(super) fn new(place: Place, number: u64, asked: u64, size: u64, to: Where) -> Result<Self, CUerror> {
        let device = place.local.device();
        let memory = Memory::new(location(device, to), size)?;
        let range = Range::new(size)?;
        range.map(&memory)?;
        if let Err(error) = range.allow(device) {
            range.unmap();
            return Err(error);
        }
        Ok(Self {
            base: range.address(),
            number,
            asked,
            size,
            local: place.local,
            context: place.context,
            range,
            is_pinned: AtomicBool::new(false),
            placed: Mutex::new(Placed {
                memory: Some(memory),
                place: to,
                stays: false,
            }),
        })
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.asked
    }

    /// Where it is; waits while it moves.
    pub(super) fn place(&self) -> Where {
        self.placed.lock().place
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.is_pinned.load(Relaxed)
    }

    pub(super) fn stays(&self) -> bool {
        self.placed.lock().stays
    }

    pub(super) fn set_stays(&self, stays: bool) {
        self.placed.lock().stays = stays;
    }

    /// Keeps it on the device from now on; whether it has to be brought back for that.
    pub(super) fn pin(&self, process: &Process) -> bool {
        let placed = self.placed.lock();
        if !self.is_pinned() && placed.place == Where::Device {
            process.take_swappable(self, process.devices.index(self.local));
        }
        self.is_pinned.store(true, Relaxed);
        placed.memory.is_some() && placed.place == Where::Host
    }

    /// Unmaps it for good and lets its memory go; where it was last.
    pub(super) fn end(&self) -> Where {
        let mut placed = self.placed.lock();
        if placed.memory.is_some() {
            self.range.unmap();
        }
        placed.memory = None;
        self.range.give_back();
        placed.place
    }

    /// Moves its bytes. Nothing may use the memory meanwhile: the caller has seen to that.
    ///
    /// At each step the bytes are whole in what is mapped or in what will be: the old memory is let go last. False if there
    /// was nothing to move: it has been freed, or is there already. `count` is called when it is there, before anybody
    /// can see that.
    pub(super) fn move_to(
        &self,
        context: &Arc<Context>,
        to: Where,
        count: impl FnOnce(),
    ) -> Result<bool, Failed> {
        let mut placed = self.placed.lock();
        let Some(old) = placed.memory.as_ref().filter(|_| placed.place != to) else {
            return Ok(false);
        };
        let device = self.local.device();
        let new = Memory::new(location(device, to), self.size)?;
        context
            .with_current(|| self.fill(&new, device))
            .ok_or(Failed::Driver)??;
        self.range.unmap();
        if let Err(error) = self
            .range
            .map(&new)
            .and_then(|()| self.range.allow(device).inspect_err(|_| self.range.unmap()))
        {
            // It was mapped there a moment ago, and nothing else has been since.
            let back = self.range.map(old).and_then(|()| self.range.allow(device));
            return Err(back.map_or(Failed::Driver, |()| error.into()));
        }
        placed.memory = Some(new);
        placed.place = to;
        count();
        Ok(true)
    }

    /// Copies all of it to memory that is mapped elsewhere for as long as that takes.
    fn fill(&self, new: &Memory, device: CUdevice) -> Result<(), CUerror> {
        let aside = Range::new(self.size)?;
        aside.map(new)?;
        let copied = aside
            .allow(device)
            .and_then(|()| copy(aside.address(), self.base, self.size));
        aside.unmap();
        copied
    }
}

fn location(device: CUdevice, to: Where) -> CUmemLocation {
    match to {
        Where::Device => CUmemLocation {
            kind: crate::cuda::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        Where::Host => {
            let mut node = 0;
            let known = driver::cuDeviceGetAttribute(
                &mut node,
                crate::cuda::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
                device,
            );
            CUmemLocation {
                kind: crate::cuda::CU_MEM_LOCATION_TYPE_HOST_NUMA,
                id: known.map_or(0, |()| node.max(0)),
            }
        }
    }
}
