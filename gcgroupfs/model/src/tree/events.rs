//! State shown by events files, reduced to what is needed to detect changes, and the number of changes.

use super::suspension::Step;

/// State shown by the events files of one directory, each with its number of changes: a poller compares that
/// number with the one of its last read.
#[derive(Debug, Clone, Copy, Default)]
struct EventState {
    standing: Standing,
    nr_standing: u64,
    /// Sum of all counts in `memory.events`, none of which ever falls.
    counts: u64,
    nr_counts: u64,
    /// Whether `memory.notice` shows a notice.
    has_notice: bool,
    nr_notices: u64,
}

/// State shown by `gcgroup.events`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) is_populated: bool,
    pub(super) is_frozen: bool,
    pub(super) is_hook_ok: bool,
    /// Whether the lease has expired; only of a group as a whole.
    pub(super) has_expired: bool,
    /// [`Process::drain_error`](super::Process::drain_error).
    pub(super) drain_error: Option<u32>,
    pub(super) is_suspended: bool,
    /// Whether the process has left the GPU because it was idle; `None` without a rule.
    pub(super) is_away: Option<bool>,
    /// Number of suspended processes in a group and below.
    pub(super) nr_suspended: usize,
    /// The step of a suspension that is under way, and the one that has failed.
    pub(super) suspend_step: Option<Step>,
    pub(super) suspend_failed: Option<Step>,
}

/// State of all events files of a process or a group: its own directory first, then one for each device.
#[derive(Debug, Default)]
pub(super) struct Events(Box<[EventState]>);

/// Returns the number of directories with events files: its own, and one for each device.
pub(super) fn nr_places(nr_devices: usize) -> usize {
    nr_devices + 1
}

fn position(device: Option<usize>) -> usize {
    device.map_or(0, |index| index + 1)
}

impl Events {
    fn at(&self, device: Option<usize>) -> EventState {
        self.0.get(position(device)).copied().unwrap_or_default()
    }

    fn at_mut(&mut self, at: usize) -> &mut EventState {
        if self.0.len() <= at {
            let more = (self.0.len()..=at).map(|_| EventState::default());
            self.0 = self.0.iter().copied().chain(more).collect();
        }
        &mut self.0[at]
    }

    /// Returns the state of the same program that registers again: files that are open stay so, and a number
    /// that stepped back would hide the next changes from their pollers.
    pub(super) fn going_on(&self) -> Self {
        let begin = |before: &EventState| EventState {
            nr_standing: before.nr_standing + 1,
            nr_counts: before.nr_counts + 1,
            nr_notices: before.nr_notices + 1,
            ..EventState::default()
        };
        Self(self.0.iter().map(begin).collect())
    }

    /// Returns how often `gcgroup.events` has changed.
    pub(super) fn nr_standing_changes(&self, device: Option<usize>) -> u64 {
        self.at(device).nr_standing
    }

    /// Returns how often `memory.events` has changed.
    pub(super) fn nr_count_changes(&self, device: Option<usize>) -> u64 {
        self.at(device).nr_counts
    }

    /// Returns how often a notice in `memory.notice` has begun or ended.
    pub(super) fn nr_notice_changes(&self, device: Option<usize>) -> u64 {
        self.at(device).nr_notices
    }

    /// Returns whether it was frozen at the last check, by position.
    pub(super) fn was_frozen(&self, at: usize) -> bool {
        self.0
            .get(at)
            .is_some_and(|directory| directory.standing.is_frozen)
    }

    /// Returns whether it was suspended at the last check.
    pub(super) fn was_suspended(&self) -> bool {
        self.0
            .first()
            .is_some_and(|directory| directory.standing.is_suspended)
    }

    pub(super) fn set_standing(&mut self, at: usize, standing: Standing) -> bool {
        let directory = self.at_mut(at);
        let changed = directory.standing != standing;
        directory.standing = standing;
        directory.nr_standing += u64::from(changed);
        changed
    }

    pub(super) fn set_counts(&mut self, at: usize, counts: u64) -> bool {
        let directory = self.at_mut(at);
        let changed = directory.counts != counts;
        directory.counts = counts;
        directory.nr_counts += u64::from(changed);
        changed
    }

    pub(super) fn set_notice(&mut self, at: usize, has_notice: bool) -> bool {
        let directory = self.at_mut(at);
        let changed = directory.has_notice != has_notice;
        directory.has_notice = has_notice;
        directory.nr_notices += u64::from(changed);
        changed
    }

    /// Counts a change of a sum, one of whose terms has changed.
    pub(super) fn count_change(&mut self, at: usize) {
        self.at_mut(at).nr_counts += 1;
    }
}
