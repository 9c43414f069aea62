//! State of a process's suspension: its steps, and what is on the host.

use gcgroup_abi::Kind;

use super::Sums;

/// A step of a suspension or of a resumption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Asks the driver whether it can move the process, and checks the bounds.
    Check,
    /// Freezes, and waits until submitted work has completed.
    Drain,
    /// Waits until the library's helper thread makes no driver calls.
    Hold,
    /// Locks the process in the driver.
    Lock,
    /// Moves its memory to the host.
    Checkpoint,
    /// Waits for room on the devices and in the groups.
    Room,
    /// Moves its memory back.
    Restore,
    /// Unlocks the process in the driver.
    Unlock,
    /// Waits until the library has asked the driver which GPUs the process has.
    Identify,
}

impl Step {
    /// Returns the name in `gcgroup.events` and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Drain => "drain",
            Self::Hold => "hold",
            Self::Lock => "lock",
            Self::Checkpoint => "checkpoint",
            Self::Room => "room",
            Self::Restore => "restore",
            Self::Unlock => "unlock",
            Self::Identify => "identify",
        }
    }
}

/// Two GPUs, by slot, that change places when a process is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The GPU that the process has used.
    pub from: usize,
    /// The GPU that it is to use.
    pub to: usize,
}

impl Exchange {
    /// Returns the slot that takes the place of a slot.
    pub fn of(self, slot: usize) -> usize {
        match slot {
            slot if slot == self.from => self.to,
            slot if slot == self.to => self.from,
            slot => slot,
        }
    }
}

/// State of a process's suspension.
#[derive(Debug, Default)]
pub(super) struct Suspension {
    /// Whether the driver may have locked the process. Stored before it is locked.
    pub(super) is_locked: bool,
    /// Bytes that are on the host, by slot; `None` unless the memory has been moved there.
    pub(super) moved: Option<Box<[(usize, u64)]>>,
    pub(super) step: Option<Step>,
    pub(super) failure: Option<(Step, String)>,
    /// GPUs that change places at the next resumption. Stored before it begins.
    pub(super) exchange: Option<Exchange>,
    /// Whether its memory is being moved back.
    pub(super) is_returning: bool,
    /// Whether its memory is back, on another GPU on which the library does not count it yet.
    pub(super) is_restored: bool,
}

impl Suspension {
    pub(super) fn is_suspended(&self) -> bool {
        self.moved.is_some()
    }

    /// Returns whether the library may already count on other GPUs than the groups are charged for.
    pub(super) fn is_moving(&self) -> bool {
        self.is_returning && self.exchange.is_some()
    }

    /// Returns whether the gates must be closed.
    pub(super) fn freezes(&self) -> bool {
        self.is_locked || matches!(self.step, Some(Step::Drain | Step::Hold))
    }

    /// Returns the step that is under way.
    pub(super) fn step(&self) -> Option<Step> {
        self.step
    }

    /// Returns the step that has failed, and why.
    pub(super) fn failure(&self) -> Option<(Step, &str)> {
        self.failure
            .as_ref()
            .map(|(step, reason)| (*step, reason.as_str()))
    }

    /// Returns the bytes on the host, of a device or of all.
    pub(super) fn moved(&self, device: Option<usize>) -> u64 {
        let all = self.moved.iter().flatten();
        all.filter(|(slot, _)| device.is_none_or(|device| device == *slot))
            .fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Counts the memory of a device, or of all, as swapped out.
    pub(super) fn apply(&self, sums: &mut Sums, device: Option<usize>) {
        if !self.is_suspended() {
            return;
        }
        (sums.charged, sums.contexts, sums.contexts_estimated) = (0, 0, 0);
        (sums.overhead, sums.swap.swappable) = (0, 0);
        sums.kinds = [0; Kind::ALL.len()];
        sums.swap.current = sums.swap.current.saturating_add(self.moved(device));
    }
}
