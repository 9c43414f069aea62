//! Devices that appear while processes run: MIG instances can be made at any time. No device is removed,
//! since its number may be in use.

use gcgroup_abi::OTHER_DEVICE;

use super::{Device, GroupId, Notice, ProcessId, State, Tree, enforce};

/// Returns the UUID as in `ControlDevice::uuid`.
fn uuid_words(uuid: [u8; 16]) -> [u64; 2] {
    let (low, high) = uuid.split_at(8);
    [low, high].map(|half| half.try_into().map_or(0, u64::from_le_bytes))
}

impl Tree {
    /// Returns the smallest memory limit of a group and those above on the device with that UUID (as in the
    /// control block), and the bytes that they leave there; for an unknown device, of their limits for all
    /// devices together. [`NO_LIMIT`](gcgroup_abi::NO_LIMIT) without one.
    pub fn group_room(&self, group: Option<GroupId>, uuid: [u64; 2]) -> (u64, u64) {
        let state = self.state.lock();
        let is_it = |device: &&Device| uuid_words(device.uuid) == uuid;
        let slot = state.devices.iter().find(is_it).map(|device| device.index);
        state.grants.room_below(group, slot.unwrap_or(OTHER_DEVICE))
    }

    /// Returns the UUID of a device, as NVML spells it.
    pub fn uuid(&self, device: usize) -> Option<String> {
        let state = self.state.lock();
        state.devices.get(device).map(|device| device.uuid_text.clone())
    }

    /// Returns the number of devices.
    pub fn nr_devices(&self) -> usize {
        self.state.lock().devices.len()
    }

    /// Requests a search for new devices.
    pub fn ask_devices(&self) {
        self.state.lock().nr_devices_asked += 1;
        self.tell(&[Notice::DevicesAsked]);
    }

    /// Returns how often a search was requested.
    pub fn nr_devices_asked(&self) -> u64 {
        self.state.lock().nr_devices_asked
    }

    /// Adds devices that are not yet known, as far as the blocks have slots. All processes are told, and
    /// earlier settings for these devices come into force.
    pub fn add_devices(&self, found: impl IntoIterator<Item = Device>) {
        self.update(|state, notices| {
            for mut device in found {
                let is_there = state.devices.iter().any(|known| known.uuid == device.uuid);
                if is_there || state.devices.len() >= OTHER_DEVICE {
                    continue;
                }
                device.index = state.devices.len();
                state.add_device(device, notices);
            }
        });
    }
}

impl State {
    fn add_device(&mut self, device: Device, notices: &mut Vec<Notice>) {
        let slot = device.index;
        self.devices.push(device);
        for process in self.processes.values_mut() {
            process.add_device();
            enforce::prepare_device(process, &self.devices);
            // The process's own limit bounds what it is believed to have charged there.
            enforce::settings(process, &self.devices);
        }
        self.note_all_quotas();
        self.grants.add_slot(slot, &self.devices);
        self.swap_grants.add_slot(slot, &self.devices);
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        groups.into_iter().for_each(|id| self.bound_group(id, Some(slot)));
        let top: Vec<GroupId> = self.top.values().copied().collect();
        top.into_iter().for_each(|id| self.hand_down(id, notices));
        let all: Vec<ProcessId> = self.processes.keys().copied().collect();
        for id in all {
            self.heed_high(id);
            if let Some(process) = self.processes.get(&id) {
                self.prepare_contexts(process);
                enforce::settings(process, &self.devices);
                enforce::tell_device(process, &self.devices);
            }
            self.note_events(id, notices);
            notices.push(Notice::Ring(id));
        }
    }
}
