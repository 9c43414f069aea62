//! State of a process or a group, in one word.

use super::{OnDevice, Snapshot, Suspension, Usage};

/// State of a process or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum State {
    #[default]
    Idle,
    Running,
    /// Threads wait to submit while no GPU has work of it: for a turn or for a quota. A process that waits
    /// for its own queued work is running.
    Throttled,
    /// Memory has moved to or from the host within the last 2 seconds.
    Swapping,
    /// A limit has refused an allocation within the last 10 seconds.
    Refused,
    /// A freeze is requested and not complete.
    Freezing,
    Frozen,
    /// The process was idle and has left the GPU.
    Away,
    /// A suspension is requested and not complete.
    Suspending,
    /// Device memory has been moved to the host by the driver.
    Suspended,
    /// The hook does not answer.
    Lost,
}

impl State {
    /// Returns whether a freeze, and no suspension, is requested.
    pub fn is_frozen(self) -> bool {
        matches!(self, Self::Freezing | Self::Frozen)
    }

    /// Returns whether a suspension is requested.
    pub fn is_suspended(self) -> bool {
        matches!(self, Self::Suspending | Self::Suspended)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Throttled => "throttled",
            Self::Swapping => "swapping",
            Self::Refused => "refused",
            Self::Freezing => "freezing",
            Self::Frozen => "frozen",
            Self::Away => "away",
            Self::Suspending => "suspending",
            Self::Suspended => "suspended",
            Self::Lost => "lost",
        }
    }
}

/// Requests of the groups at and above a path that the client may see.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub freeze: bool,
    pub suspend: bool,
}

/// Changes of the counts of a process or a group.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Changes {
    /// A limit has refused an allocation within the last 10 seconds.
    pub is_refused: bool,
    /// Memory has moved within the last 2 seconds.
    pub is_moved: bool,
    /// Threads waited to submit while no GPU had work of it.
    pub is_throttled: bool,
    /// Work was submitted or done.
    pub is_working: bool,
}

impl Asked {
    pub(super) fn above(snapshot: &Snapshot, path: &str) -> Self {
        Self {
            freeze: snapshot.is_freezing(path),
            suspend: snapshot.is_suspending(path),
        }
    }
}

/// Returns the state in force: the first one that applies.
pub(super) fn state(changes: Changes, usage: &Usage, devices: &[OnDevice], asked: Asked) -> State {
    let on_devices = !devices.is_empty() && devices.iter().all(|on| on.usage.events.frozen);
    let suspension = usage.suspension(asked.suspend);
    let states = [
        (usage.events.hook.as_deref() == Some("lost"), State::Lost),
        (suspension == Suspension::Complete, State::Suspended),
        // A process is frozen on the way to a suspension.
        (suspension == Suspension::Requested, State::Suspending),
        (usage.events.away, State::Away),
        (usage.events.frozen || on_devices, State::Frozen),
        (asked.freeze, State::Freezing),
        (changes.is_refused, State::Refused),
        (changes.is_moved, State::Swapping),
        (changes.is_throttled, State::Throttled),
        (changes.is_working, State::Running),
    ];
    let found = states.into_iter().find(|(is, _)| *is);
    found.map_or(State::Idle, |(_, state)| state)
}
