//! One allocation that can be moved: its address, and the physical memory that is there now.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::made::Piece;
use super::physical::{Copied, Memory, NotCopied, Range};
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

/// How long a block stays on the host that could come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stays {
    No,
    /// Somebody asked for that: until a limit changes or the process thaws.
    Asked,
    /// Another process needs the room: until there is some again, but not at once, for that one has to take
    /// it first.
    Lent(Instant),
}

impl Stays {
    /// How long what was lent is left to whom it was lent to.
    const LEAVE: Duration = Duration::from_secs(2);

    fn is_for_now(self) -> bool {
        match self {
            Self::No => false,
            Self::Asked => true,
            Self::Lent(when) => when.elapsed() < Self::LEAVE,
        }
    }
}

/// Where a block is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    Device,
    /// The host's memory, mapped at the same addresses.
    Host,
    /// The host's memory, with nothing at its addresses: nobody may use them until it is back.
    Aside,
}

impl Goal {
    pub(super) fn place(self) -> Where {
        match self {
            Self::Device => Where::Device,
            Self::Host | Self::Aside => Where::Host,
        }
    }
}

#[derive(Debug)]
pub(super) enum Body {
    /// Mapped at its addresses.
    Mapped(Memory),
    /// Whole, and not mapped, since the driver would not.
    Loose(Memory),
    Aside(Copied),
    /// Freed.
    Gone,
}

impl Body {
    /// Whether there is nothing at its addresses that should be there.
    fn is_absent(&self) -> bool {
        matches!(self, Self::Loose(_) | Self::Aside(_))
    }
}

#[derive(Debug)]
pub(super) struct Placed {
    pub(super) body: Body,
    pub(super) place: Where,
    /// The device's slot in the blocks, where all of it is charged.
    pub(super) index: usize,
    stays: Stays,
    /// The number of its last move out; zero: it was made where it is.
    departure: u64,
    /// What its last move left, until that is let go and counted.
    left: Option<Left>,
    /// Addresses where it is mapped as well, since they could not be unmapped.
    stray: Option<Range>,
}

impl Placed {
    /// Whether it has moved and what it left is still there and charged.
    pub(super) fn is_unsettled(&self) -> bool {
        self.left.is_some()
    }
}

#[derive(Debug)]
struct Left {
    memory: Memory,
    aside: Range,
}

/// How a block gets to its goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It is there, or must stay, or is gone.
    None,
    /// Other memory takes the place of what is mapped, which is to be made first.
    Exchange,
    /// Neither here nor there is anything mapped: each by itself.
    Alone,
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(super) base: u64,
    /// Counts up, and never comes again: the order they were made in, and what the program is told as
    /// buffer's id.
    pub(super) number: u64,
    /// Bytes that were asked for, and that are there.
    pub(super) asked: u64,
    pub(super) size: u64,
    pub(crate) local: LocalDevice,
    pub(super) context: u32,
    pub(super) range: Range,
    is_pinned: AtomicBool,
    /// Held while it is moved or freed, and so while the driver is called: who frees a block that moves has
    /// to wait.
    placed: Mutex<Placed>,
}

/// A move that did not happen; the bytes are where they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// There is no room where it should go.
    NoRoom,
    /// The driver has no such memory for any block.
    Refused,
    /// The driver refused something else.
    Driver,
    /// And what was made for it cannot be let go.
    Stuck,
}

impl Failed {
    /// What the driver's answer means, when something is made or mapped for that goal.
    pub(super) fn of(error: CUerror, to: Goal) -> Self {
        match error {
            CUerror::OUT_OF_MEMORY => Self::NoRoom,
            CUerror::INVALID_VALUE
            | CUerror::INVALID_DEVICE
            | CUerror::NOT_PERMITTED
            | CUerror::NOT_SUPPORTED
                if to == Goal::Host =>
            {
                Self::Refused
            }
            _ => Self::Driver,
        }
    }
}

impl From<NotCopied> for Failed {
    fn from(error: NotCopied) -> Self {
        match error {
            NotCopied::Ended => Self::Driver,
            NotCopied::UnderWay => Self::Stuck,
        }
    }
}

impl Block {
    /// Maps memory.
    pub(super) fn new(
        place: Place,
        number: u64,
        asked: u64,
        memory: Memory,
        to: Where,
    ) -> Result<Self, CUerror> {
        let (device, size) = (place.local.device(), memory.size());
        let range = Range::new(size)?;
        range.map_for(&memory, device)?;
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
                body: Body::Mapped(memory),
                place: to,
                index: place.index,
                stays: Stays::No,
                departure: 0,
                left: None,
                stray: None,
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

    /// Whether nothing is at its addresses.
    pub(super) fn is_absent(&self) -> bool {
        self.placed.lock().body.is_absent()
    }

    /// Whether it is to stay out, and whether it may come back before long without anybody's telling.
    pub(super) fn stays(&self) -> (bool, bool) {
        let stays = self.placed.lock().stays;
        (stays.is_for_now(), matches!(stays, Stays::Lent(_)))
    }

    /// What is less left earlier; what was made on the host, first of all.
    pub(super) fn departure(&self) -> (u64, u64) {
        (self.placed.lock().departure, self.number)
    }

    /// Others are asked for: if it is out, it does not take their room.
    pub(super) fn stay(&self) {
        let mut placed = self.placed.lock();
        if placed.place == Where::Host && placed.stays == Stays::No {
            placed.stays = Stays::Asked;
        }
    }

    pub(super) fn set_stays(&self, stays: Stays) {
        self.placed.lock().stays = stays;
    }

    /// Keeps it on the device from now on; whether it has to be brought back for that.
    pub(super) fn pin(&self, process: &Process) -> bool {
        let mut placed = self.placed.lock();
        let _ = self.settle_locked(process, &mut placed);
        if !self.is_pinned() && placed.place == Where::Device {
            process.take_swappable(self, placed.index);
        }
        self.is_pinned.store(true, Relaxed);
        !matches!(placed.body, Body::Gone) && placed.place == Where::Host
    }

    /// Unmaps it for good and lets its memory go; where it was last, and where it is charged. An error leaves
    /// it as it was.
    pub(super) fn end(&self, process: &Process) -> Result<(Where, usize), CUerror> {
        let mut placed = self.placed.lock();
        let _ = self.settle_locked(process, &mut placed);
        if let Some(stray) = &placed.stray {
            stray.unmap()?;
        }
        placed.stray = None;
        self.range.unmap()?;
        self.put(process, &mut placed, Body::Gone);
        self.range.give_back();
        Ok((placed.place, placed.index))
    }

    /// Brings its charges to the slot that its device has now, if that is another.
    pub(super) fn follow(&self, process: &Process) {
        let mut placed = self.placed.lock();
        let (from, to) = (placed.index, process.devices.index(self.local));
        // What was freed its owner takes off where it was.
        if from != to && !matches!(placed.body, Body::Gone) {
            process.transfer_block(self, &placed, to);
            placed.index = to;
        }
    }

    /// Changes what the bytes are in; what they were in before is let go.
    pub(super) fn put(&self, process: &Process, placed: &mut Placed, body: Body) -> Body {
        process
            .swap
            .count_absent(placed.body.is_absent(), body.is_absent());
        std::mem::replace(&mut placed.body, body)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Placed> {
        self.placed.lock()
    }

    /// How it gets there.
    pub(super) fn way(&self, to: Goal) -> Way {
        let placed = self.placed.lock();
        let is_there = placed.place == to.place() || to != Goal::Device && self.is_pinned();
        match (&placed.body, to) {
            (Body::Gone, _) => Way::None,
            (Body::Loose(_), _) => Way::Alone,
            _ if is_there => Way::None,
            (Body::Aside(_), _) | (_, Goal::Aside) => Way::Alone,
            (Body::Mapped(_), _) => Way::Exchange,
        }
    }

    /// Whether it may be exchanged now for what was made for a device of that slot.
    pub(super) fn may_go(&self, placed: &Placed, index: usize, to: Goal) -> bool {
        let is_free = to == Goal::Device || !self.is_pinned();
        let is_whole = matches!(placed.body, Body::Mapped(_)) && !placed.is_unsettled();
        is_free && is_whole && placed.place != to.place() && placed.index == index
    }

    /// Has other memory, with the same bytes in it, mapped in the place of the old, which is kept until it is
    /// settled. Nothing may use the memory meanwhile: the caller has seen to that. An error leaves the old
    /// where it was, or whole and loose.
    pub(super) fn exchange(
        &self,
        process: &Process,
        placed: &mut Placed,
        piece: Piece,
        to: Goal,
    ) -> Result<(), (Failed, Piece)> {
        let device = self.local.device();
        if self.range.unmap().is_err() {
            return Err((Failed::Driver, piece));
        }
        let mapped = self.range.map_for(&piece.memory, device);
        let Body::Mapped(old) = self.put(process, placed, Body::Gone) else {
            return Err((Failed::Driver, piece));
        };
        if let Err(error) = mapped {
            // It was mapped there a moment ago, and nothing else has been since.
            let old = match self.range.map_for(&old, device) {
                Ok(()) => Body::Mapped(old),
                Err(_) => Body::Loose(old),
            };
            self.put(process, placed, old);
            return Err((Failed::of(error, to), piece));
        }
        let Piece { memory, aside, .. } = piece;
        self.put(process, placed, Body::Mapped(memory));
        placed.left = Some(Left { memory: old, aside });
        self.arrive(process, placed, to);
        Ok(())
    }

    pub(super) fn arrive(&self, process: &Process, placed: &mut Placed, to: Goal) {
        placed.place = to.place();
        if to != Goal::Device {
            placed.departure = process.swap.departures.fetch_add(1, Relaxed);
        }
    }

    /// Lets go what its last move left, and counts the move.
    pub(super) fn settle(&self, process: &Process) -> Result<(), Failed> {
        self.settle_locked(process, &mut self.placed.lock())
    }

    /// What it left is let go before it is uncharged.
    fn settle_locked(&self, process: &Process, placed: &mut Placed) -> Result<(), Failed> {
        let Some(Left { memory, aside }) = placed.left.take() else {
            return Ok(());
        };
        let unmapped = aside.unmap();
        if unmapped.is_err() {
            placed.stray = Some(aside);
        }
        match placed.place {
            Where::Host => drop(memory),
            Where::Device => process.enter_supply(self.local, placed.index, memory),
        }
        process.moved_block(self, placed.index, placed.place);
        unmapped.map_err(|_| Failed::Stuck)
    }
}

pub(super) fn location(device: CUdevice, to: Goal) -> CUmemLocation {
    match to {
        Goal::Device => CUmemLocation {
            kind: crate::cuda::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        Goal::Host | Goal::Aside => {
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
