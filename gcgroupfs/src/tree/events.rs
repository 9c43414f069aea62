//! What events files show, reduced to what must be compared to know that it has changed, and how often it has.

use super::process::Process;
use super::{Device, Notice, Sums};

/// What the events files of one directory show, each with the number of changes so far: a poller compares that with
/// what it was when it last read.
#[derive(Debug, Clone, Copy, Default)]
struct Directory {
    standing: Standing,
    nr_standing: u64,
    counts: Counts,
    nr_counts: u64,
}

/// `gcgroup.events`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Standing {
    is_frozen: bool,
    is_hook_ok: bool,
}

/// `memory.events`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    nr_max: u64,
    nr_oom: u64,
    nr_over_limit: u64,
    nr_reclaim: u64,
    nr_swapped: [u64; 3],
}

/// All events files of a process: its own first, then those of each device.
#[derive(Debug, Default)]
pub(super) struct Events(Vec<Directory>);

impl Events {
    fn at(&self, device: Option<usize>) -> Directory {
        self.0
            .get(device.map_or(0, |index| index + 1))
            .copied()
            .unwrap_or_default()
    }
}

impl Process {
    /// How often `gcgroup.events` has changed.
    pub(super) fn nr_standing_changes(&self, device: Option<usize>) -> u64 {
        self.events.at(device).nr_standing
    }

    /// How often `memory.events` has changed.
    pub(super) fn nr_count_changes(&self, device: Option<usize>) -> u64 {
        self.events.at(device).nr_counts
    }

    /// Counts and tells of changes since the last call.
    pub(super) fn note_events(&mut self, devices: &[Device], notices: &mut Vec<Notice>) {
        let places = [None].into_iter().chain((0..devices.len()).map(Some));
        let now: Vec<_> = places
            .map(|device| (self.standing(device, devices), self.counts(device, devices)))
            .collect();
        self.events.0.resize_with(now.len(), Directory::default);
        let mut changed = false;
        for (directory, (standing, counts)) in self.events.0.iter_mut().zip(now) {
            if directory.standing != standing {
                directory.standing = standing;
                directory.nr_standing += 1;
                changed = true;
            }
            if directory.counts != counts {
                directory.counts = counts;
                directory.nr_counts += 1;
                changed = true;
            }
        }
        if changed {
            notices.push(Notice::Events(self.id));
        }
    }

    fn standing(&self, device: Option<usize>, devices: &[Device]) -> Standing {
        Standing {
            is_frozen: self.is_frozen(device, devices.len()),
            is_hook_ok: self.is_hook_ok(),
        }
    }

    fn counts(&self, device: Option<usize>, devices: &[Device]) -> Counts {
        let Sums {
            nr_max, nr_oom, swap, ..
        } = Sums::of(self, device, devices);
        Counts {
            nr_max,
            nr_oom,
            nr_over_limit: self.nr_over_limit(device),
            nr_reclaim: self.nr_reclaim(device),
            nr_swapped: [swap.nr_in, swap.nr_out, swap.nr_fail],
        }
    }

    /// Times that somebody asked for memory to be swapped out: on the device, or, as a whole, anywhere.
    pub(super) fn nr_reclaim(&self, device: Option<usize>) -> u64 {
        match device {
            Some(device) => self.devices.get(device).map_or(0, |kept| kept.nr_reclaim),
            None => self.devices.iter().map(|kept| kept.nr_reclaim).sum::<u64>() + self.whole.nr_reclaim,
        }
    }

    /// Times a limit was set below usage: on the device, or, as a whole, anywhere.
    pub(super) fn nr_over_limit(&self, device: Option<usize>) -> u64 {
        match device {
            Some(device) => self.devices.get(device).map_or(0, |kept| kept.nr_over_limit),
            None => {
                self.devices.iter().map(|kept| kept.nr_over_limit).sum::<u64>() + self.whole.nr_over_limit
            }
        }
    }
}
