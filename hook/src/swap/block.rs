//! A part of a movable allocation: its address, and the physical memory that is mapped there now.

mod exchange;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use self::exchange::Left;
use super::Swap;
use super::physical::{Access, Copied, Memory, NotCopied, Range};
use crate::driver::cuda::CUerror;
use crate::shared::device::LocalDevice;
use crate::shared::target::Target;

/// Where the bytes of a block are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    Device,
    Host,
}

/// How long a block stays on the host although it could return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stays {
    No,
    /// Moved out on request: stays until a limit changes or the process thaws.
    Asked,
    /// Moved out for another process, at this time: returns when there is room, but not before
    /// [`Self::LEAVE`] has passed, so that the other process gets the room.
    Lent(Instant),
}

impl Stays {
    /// How long lent room is left to other processes.
    const LEAVE: Duration = Duration::from_secs(2);

    fn is_for_now(self) -> bool {
        match self {
            Self::No => false,
            Self::Asked => true,
            Self::Lent(when) => when.elapsed() < Self::LEAVE,
        }
    }
}

/// Destination of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    Device,
    /// Host memory mapped at the same addresses.
    Host,
    /// Host memory with nothing mapped at the block's addresses, which must not be used until it is back.
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
    /// Mapped at the block's addresses.
    Mapped(Memory),
    /// Intact but not mapped, because the driver refused.
    Loose(Memory),
    Aside(Copied),
    /// Freed.
    Gone,
}

impl Body {
    /// Returns whether the block's addresses have nothing mapped although the block is live.
    fn is_absent(&self) -> bool {
        matches!(self, Self::Loose(_) | Self::Aside(_))
    }
}

#[derive(Debug)]
pub(super) struct Placed {
    pub(super) body: Body,
    pub(super) place: Where,
    /// The slot of the block's device in the shared blocks, where all of it is charged.
    pub(super) index: usize,
    stays: Stays,
    /// Number of the last move out; 0 if there was none.
    departure: u64,
    /// Old memory of the last move, until it is released and uncharged.
    left: Option<Left>,
    /// A second mapping that could not be unmapped.
    stray: Option<Range>,
}

impl Placed {
    /// Returns whether the block has moved and its old memory is still allocated and charged.
    pub(super) fn is_unsettled(&self) -> bool {
        self.left.is_some()
    }

    /// Returns whether the block has moved out and its host memory is reserved and counts in the swap pool.
    pub(super) fn is_reserved(&self) -> bool {
        self.is_unsettled() && self.place == Where::Host
    }
}

/// How a block is moved to its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// No move: the block is there already, must stay or is freed.
    None,
    /// New memory, made first, is mapped in place of the old.
    Exchange,
    /// Moved by itself, because nothing is mapped at the source or at the destination.
    Alone,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) base: u64,
    /// Unique number, ascending in order of creation.
    pub(super) number: u64,
    pub(super) size: u64,
    /// Bytes of the whole allocation.
    pub(super) whole: u64,
    pub(super) local: LocalDevice,
    pub(super) context: u32,
    pub(super) range: Range,
    is_pinned: AtomicBool,
    is_ended: AtomicBool,
    /// Held while the block is moved or freed, and so over driver calls: a thread that frees a moving block
    /// waits.
    placed: Mutex<Placed>,
}

/// Why a move failed. The bytes are where they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// No room at the destination.
    NoRoom,
    /// The driver does not offer such memory at all.
    Refused,
    /// Another driver call failed.
    Driver,
    /// Memory made for the move cannot be released.
    Stuck,
}

impl Failed {
    /// Classifies the driver's error from making or mapping memory for destination `to`.
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
    /// Maps `memory` at `range`, a part of the addresses of an allocation of `whole` bytes.
    pub(super) fn new(
        target: Target,
        (number, whole): (u64, u64),
        (memory, range): (Memory, Range),
        access: Access,
        to: Where,
    ) -> Result<Self, CUerror> {
        range.map_for(&memory, access)?;
        Ok(Self {
            base: range.address(),
            number,
            size: memory.size(),
            whole,
            local: target.local,
            context: target.context,
            range,
            is_pinned: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            placed: Mutex::new(Placed {
                body: Body::Mapped(memory),
                place: to,
                index: target.index,
                stays: Stays::No,
                departure: 0,
                left: None,
                stray: None,
            }),
        })
    }

    /// Unmaps a new block that the program has not got.
    pub(super) fn cancel(&self) {
        let _ = self.range.unmap();
    }

    /// Gives a peer of the device access to the memory. Without access the program gets the error when it
    /// uses the memory.
    pub(super) fn allow(&self, peer: LocalDevice) {
        if let Body::Mapped(_) = self.placed.lock().body {
            let _ = self.range.allow_peer(peer.device());
        }
    }

    /// Returns where the block is. Waits while it moves.
    pub(super) fn place(&self) -> Where {
        self.placed.lock().place
    }

    /// Returns whether the block has been freed.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Relaxed)
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.is_pinned.load(Relaxed)
    }

    /// Returns whether nothing is mapped at the block's addresses.
    pub(super) fn is_absent(&self) -> bool {
        self.placed.lock().body.is_absent()
    }

    /// Returns whether the block must stay out for now, and whether it may later return without further
    /// notice (it is lent).
    pub(super) fn stays(&self) -> (bool, bool) {
        let stays = self.placed.lock().stays;
        (stays.is_for_now(), matches!(stays, Stays::Lent(_)))
    }

    /// Returns the key by which blocks return: blocks made on the host first, then in order of their moves
    /// out.
    pub(super) fn departure(&self) -> (u64, u64) {
        (self.placed.lock().departure, self.number)
    }

    /// Keeps the block out, if it is on the host: a request to move memory out must not be undone by its
    /// return.
    pub(super) fn stay(&self, stays: Stays) {
        let mut placed = self.placed.lock();
        if placed.place == Where::Host && placed.stays != Stays::Asked {
            placed.stays = stays;
        }
    }

    pub(super) fn set_stays(&self, stays: Stays) {
        self.placed.lock().stays = stays;
    }

    /// Pins the block to the device. Returns whether it must be brought back for that.
    pub(super) fn pin(&self, swap: &Swap) -> bool {
        let mut placed = self.placed.lock();
        // Freed while another block of the allocation could not be: its charges are gone.
        if let Body::Gone = placed.body {
            return false;
        }
        let _ = self.settle_locked(swap, &mut placed);
        if placed.place == Where::Device {
            swap.take_swappable(self, placed.index);
        }
        swap.take_movable(self, placed.index);
        self.is_pinned.store(true, Relaxed);
        placed.place == Where::Host
    }

    /// Unmaps the block for good and releases its memory. Returns where it was last and the slot that is
    /// charged; `None` if that was done before. An error leaves it as it was.
    pub(super) fn end(&self, swap: &Swap) -> Result<Option<(Where, usize)>, CUerror> {
        let mut placed = self.placed.lock();
        if let Body::Gone = placed.body {
            return Ok(None);
        }
        let _ = self.settle_locked(swap, &mut placed);
        if let Some(stray) = &placed.stray {
            stray.unmap()?;
        }
        placed.stray = None;
        self.range.unmap()?;
        self.put(swap, &mut placed, Body::Gone);
        self.is_ended.store(true, Relaxed);
        Ok(Some((placed.place, placed.index)))
    }

    /// Moves the block's charges to its device's current slot.
    pub(super) fn follow(&self, swap: &Swap) {
        let mut placed = self.placed.lock();
        let (from, to) = (placed.index, swap.session.devices.index(self.local));
        // The thread that frees a block uncharges it in the old slot.
        if from != to && !matches!(placed.body, Body::Gone) {
            swap.transfer_block(self, &placed, to);
            placed.index = to;
        }
    }

    /// Replaces the body and returns the old one.
    pub(super) fn put(&self, swap: &Swap, placed: &mut Placed, body: Body) -> Body {
        swap.count_absent(placed.body.is_absent(), body.is_absent());
        std::mem::replace(&mut placed.body, body)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Placed> {
        self.placed.lock()
    }

    /// Returns how the block can be moved to `to`.
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

    pub(super) fn arrive(&self, swap: &Swap, placed: &mut Placed, to: Goal) {
        placed.place = to.place();
        if to != Goal::Device {
            placed.departure = swap.departures.fetch_add(1, Relaxed);
        }
    }
}
