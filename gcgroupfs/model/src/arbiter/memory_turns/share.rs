//! Input and result of a look at the movable memory on one GPU.

use crate::arbiter::Settings;
use crate::arbiter::place::Place;
use crate::arbiter::policy::{Time, Weigh};

/// Movable memory of a process on a device. A claim of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holding {
    /// Bytes, wherever they are, as far as its limits let them be on the device.
    pub all: u64,
    /// Bytes on the device.
    pub resident: u64,
    /// Whether threads wait for memory to be moved.
    pub is_moving: bool,
}

impl Holding {
    /// Returns whether the process takes part in memory turns. A frozen one of which nothing is on the device
    /// needs no room there.
    pub(in crate::arbiter) fn takes_part(&self, is_frozen: bool) -> bool {
        self.all > 0 && !(is_frozen && self.resident == 0)
    }
}

/// A process with movable memory as it is observed.
#[derive(Debug, Clone, Copy)]
pub(in crate::arbiter) struct Holder<Id> {
    pub id: Id,
    pub place: Place,
    /// Whether it has work for the GPU.
    pub is_busy: bool,
    pub holding: Holding,
}

/// Role of a process in memory turns; the number that `compute.stat` shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MemoryTurn {
    #[default]
    None = 0,
    /// The process has the turn.
    Owner = 1,
    /// The process waits for its turn.
    Waiting = 2,
}

/// Decision about a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    pub turn: MemoryTurn,
    /// Whether its submissions are held.
    pub is_parked: bool,
    /// `resident_limit` of its control block: bytes, [`NO_LIMIT`](gcgroup_abi::NO_LIMIT), or 0 where all
    /// memory fits.
    pub resident_limit: u64,
}

/// Input of one look.
#[derive(Debug)]
pub(in crate::arbiter) struct Look<'a, Id> {
    pub now: Time,
    pub holders: &'a [Holder<Id>],
    /// Bytes of the device that movable memory can have.
    pub capacity: u64,
    /// Weights of the policy.
    pub weigh: Weigh,
    pub settings: &'a Settings,
}
