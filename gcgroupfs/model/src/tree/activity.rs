//! Figures about a process for the log: counts that grow with refusals and moves, and whether it is frozen.

use super::process::Process;
use super::settings::MEMORY_LIMIT;
use super::{Identity, ProcessId, State, Sums, Tree};

/// Figures of a process on a device, or as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceActivity {
    /// Number of allocations refused because of a limit of the process or of a group.
    pub nr_refused: u64,
    /// Number of allocations moved to the host.
    pub nr_out: u64,
    /// Number of allocations moved to the device.
    pub nr_in: u64,
    /// Whether it is frozen, and not away.
    pub is_frozen: bool,
    /// The lowest limit in bytes, of the process and the groups above it; `NO_LIMIT` if there is none.
    pub limit: u64,
    /// Bytes held.
    pub current: u64,
}

/// Figures of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    pub identity: Identity,
    /// Path of its group from the root; empty for the root.
    pub group: String,
    pub is_suspended: bool,
    /// Whether it has left the GPU because it was idle.
    pub is_away: bool,
    pub whole: DeviceActivity,
    /// By device.
    pub devices: Vec<DeviceActivity>,
}

impl Tree {
    /// Returns the figures of a process, or `None` if it has left.
    pub fn activity(&self, id: ProcessId) -> Option<Activity> {
        let state = self.state.lock();
        let process = state.processes.get(&id)?;
        let on = |device| state.activity(process, device);
        Some(Activity {
            identity: process.identity.clone(),
            group: state.path(process.group),
            is_suspended: process.suspension.is_suspended(),
            is_away: process.has_left(&state.devices),
            whole: on(None),
            devices: (0..state.devices.len()).map(|device| on(Some(device))).collect(),
        })
    }
}

impl State {
    fn activity(&self, process: &Process, device: Option<usize>) -> DeviceActivity {
        let sums = Sums::of(process, device, &self.devices);
        DeviceActivity {
            nr_refused: sums.nr_oom.saturating_add(sums.nr_group_max),
            nr_out: sums.swap.nr_out,
            nr_in: sums.swap.nr_in,
            is_frozen: process.is_frozen(device, self.devices.len()) && !process.idle.is_away(),
            limit: self.lowest_limit(process, device),
            current: sums.current(),
        }
    }

    /// Returns the lowest `memory.limit` for a process on a device, or as a whole: its own and those of the
    /// groups above it, bytes.
    fn lowest_limit(&self, process: &Process, device: Option<usize>) -> u64 {
        let uuid = device.and_then(|device| self.devices.get(device));
        let places = [None, uuid.map(|device| device.uuid_text.as_str())];
        let of_groups = self.chain(process.group).into_iter().flat_map(|id| {
            let settings = self.groups.get(&id).map(|group| &group.settings);
            settings
                .into_iter()
                .flat_map(|settings| places.map(|place| settings.of_group(MEMORY_LIMIT, place).number()))
        });
        let own = places.map(|place| process.settings.get(MEMORY_LIMIT, place).number());
        own.into_iter().chain(of_groups).min().unwrap_or(u64::MAX)
    }
}
