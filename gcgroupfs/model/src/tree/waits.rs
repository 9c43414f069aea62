//! For which other processes a process waits on a device, and for how long it has waited for each.

use std::fmt::{self, Display};

use super::ProcessId;
use crate::text::{Comm, word};

/// Maximum number of processes that are remembered: the one that was waited for least makes room.
const MOST: usize = 8;

/// Thing that another process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// The turn to submit work.
    Turn,
    /// The memory turn.
    Memory,
    /// Memory that must move out, since the device is full.
    Room,
}

impl WaitsFor {
    pub fn name(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Memory => "memory",
            Self::Room => "room",
        }
    }
}

/// Process that is or was waited for.
#[derive(Debug, Clone)]
pub(super) struct Awaited {
    pub(super) id: ProcessId,
    pub(super) what: WaitsFor,
    pub(super) pid: u32,
    pub(super) comm: Comm,
    pub(super) nsec: u64,
}

/// Waits of a process on a device.
#[derive(Debug, Clone, Default)]
pub(super) struct Waits {
    pub(super) each: Vec<Awaited>,
    /// Waits that go on, and when the time of each was added last: at most one for [`WaitsFor::Room`], and
    /// one for a turn.
    pub(super) now: Vec<(ProcessId, WaitsFor, u64)>,
}

/// Line of `gcgroup.waits`.
#[derive(Debug)]
pub struct Wait<'a> {
    pub device: usize,
    pub what: WaitsFor,
    pub pid: u32,
    pub comm: &'a str,
    /// Priority in force on the device; `None`: it has ended.
    pub priority: Option<u32>,
    pub usec: u64,
    pub is_now: bool,
}

impl Display for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, device, what, usec) = (self.pid, self.device, self.what.name(), self.usec);
        write!(
            f,
            "{pid} gpu={device} for={what} usec={usec} now={}",
            u8::from(self.is_now)
        )?;
        if let Some(priority) = self.priority {
            write!(f, " priority={priority}")?;
        }
        write!(f, " comm={}", word(self.comm))
    }
}

impl Waits {
    /// Adds the time, up to `now`, of the wait that goes on for room or for a turn, and begins `next`.
    pub(super) fn go_on(&mut self, now: u64, is_for_room: bool, next: Option<Awaited>) {
        for (id, what, since) in self
            .now
            .extract_if(.., |(_, what, _)| (*what == WaitsFor::Room) == is_for_room)
        {
            let one = self.each.iter_mut().find(|one| (one.id, one.what) == (id, what));
            if let Some(one) = one {
                one.nsec = one.nsec.saturating_add(now.saturating_sub(since));
            }
        }
        let Some(next) = next else { return };
        self.now.push((next.id, next.what, now));
        if !self
            .each
            .iter()
            .any(|one| (one.id, one.what) == (next.id, next.what))
        {
            if self.each.len() >= MOST {
                let least = (0..self.each.len()).min_by_key(|at| self.each[*at].nsec);
                least.map(|at| self.each.swap_remove(at));
            }
            self.each.push(next);
        }
    }

    /// Returns whether a wait goes on.
    pub(super) fn is_any(&self) -> bool {
        !self.now.is_empty()
    }
}
