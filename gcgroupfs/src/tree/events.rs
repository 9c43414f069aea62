//! What events files show, reduced to what must be compared to know that it has changed.

use super::process::Process;
use super::{Device, Sums};

/// What all events files of a process showed at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    hook_ok: bool,
    /// Of the process, then by device: whether it stands still, and its counts.
    directories: Vec<(bool, [u64; 3])>,
}

impl Seen {
    pub(super) fn of(process: &Process, devices: &[Device]) -> Self {
        let places = [None].into_iter().chain((0..devices.len()).map(Some));
        let directories = places
            .map(|device| {
                let sums = Sums::of(process, device, devices);
                let over_limit = process.nr_over_limit(device);
                (
                    process.is_frozen(device, devices.len()),
                    [sums.nr_max, sums.nr_oom, over_limit],
                )
            })
            .collect();
        Self {
            hook_ok: process.is_hook_ok(),
            directories,
        }
    }
}

impl Process {
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
