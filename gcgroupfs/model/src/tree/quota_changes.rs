//! The quotas that the arbiter meters, and whose may have changed since it last asked.

use std::collections::BTreeSet;

use super::{Arbitration, GroupId, ProcessId, Quota, Remainder, State};

impl State {
    /// Notes that the quotas of the process or group of that number may have changed.
    pub(super) fn note_quotas(&mut self, entity: u64) {
        self.quota_changes.insert(entity);
    }

    /// Notes that the quotas of all processes and groups may have changed.
    pub(super) fn note_all_quotas(&mut self) {
        self.quota_changes.extend(self.processes.keys().map(|id| id.0));
        self.quota_changes.extend(self.groups.keys().map(|id| id.0));
    }
}

impl Arbitration<'_> {
    /// Returns the numbers of the processes and groups whose quotas may have changed since the last call,
    /// also of those that have gone; with `all` those of all others too.
    pub fn quota_changes(&mut self, all: bool) -> BTreeSet<u64> {
        if all {
            self.state.note_all_quotas();
        }
        std::mem::take(&mut self.state.quota_changes)
    }

    /// Returns the GPU time of processes that have left since the last call.
    pub fn take_remainders(&mut self) -> Vec<Remainder> {
        std::mem::take(&mut self.state.remainders)
    }

    /// Returns the groups whose last process has ended, and was not moved away, since the last call.
    pub fn quota_ends(&mut self) -> BTreeSet<GroupId> {
        std::mem::take(&mut self.state.quota_ends)
    }

    /// Returns the quotas of a process or group with their devices, `None` for the whole; none if it has
    /// gone.
    pub fn quotas(&self, entity: u64) -> Vec<(Option<usize>, Quota)> {
        let devices = &self.state.devices;
        let slot = |device: Option<&str>| match device {
            None => Some(None),
            // A device that is missing now may return.
            Some(uuid) => devices
                .iter()
                .position(|device| device.uuid_text == uuid)
                .map(Some),
        };
        let process = self.state.processes.get(&ProcessId(entity));
        let group = self.state.groups.get(&GroupId(entity));
        let process = process.map(|process| &process.settings);
        let settings = process.or_else(|| group.map(|group| &group.settings));
        let quotas = settings.into_iter().flat_map(|settings| settings.quotas());
        quotas
            .filter_map(|(device, quota)| Some((slot(device)?, quota)))
            .collect()
    }
}
