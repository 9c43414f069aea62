//! The processes that may use each device, so that the arbiter reads no other blocks.
//!
//! A process rings when it makes its first context on a device and when its last one has gone. Then, and when
//! it registers, its claims are read. A process that claims a use without ringing is found by
//! [`Tree::note_all_users`].

use std::collections::BTreeSet;

use super::{Process, ProcessId, State, Tree};

/// Processes by device, at least those that claim to use it or have used it since the last tick.
#[derive(Debug, Default)]
pub(super) struct DeviceUsers {
    devices: Vec<BTreeSet<ProcessId>>,
}

impl DeviceUsers {
    /// Returns the processes that may use a device, in the order of their numbers.
    pub(super) fn of(&self, device: usize) -> impl Iterator<Item = ProcessId> {
        self.devices.get(device).into_iter().flatten().copied()
    }

    /// Reads which of `nr_devices` devices a process uses.
    fn note(&mut self, process: &Process, nr_devices: usize) {
        self.devices.resize_with(nr_devices, BTreeSet::new);
        for (device, users) in self.devices.iter_mut().enumerate() {
            if process.concerns(device) {
                users.insert(process.id);
            } else {
                users.remove(&process.id);
            }
        }
    }

    /// Removes a process that leaves.
    pub(super) fn remove(&mut self, id: ProcessId) {
        self.devices.iter_mut().for_each(|users| {
            users.remove(&id);
        });
    }
}

impl State {
    /// Reads which devices a process uses.
    pub(super) fn note_users(&mut self, id: ProcessId) {
        if let Some(process) = self.processes.get(&id) {
            self.device_users.note(process, self.devices.len());
        }
    }
}

impl Tree {
    /// Reads which devices each process uses.
    pub fn note_all_users(&self) {
        let ids: Vec<ProcessId> = self.state.lock().processes.keys().copied().collect();
        // In parts, so that other threads get the lock in between.
        for some in ids.chunks(64) {
            let mut state = self.state.lock();
            some.iter().for_each(|id| state.note_users(*id));
        }
    }
}
