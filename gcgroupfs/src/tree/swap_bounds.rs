//! How much of a group's `memory.swap.max` each of its processes may use: all that the group has left, as it was last
//! looked. It is looked again when something has been swapped, and when somebody comes or goes; two processes that swap
//! at the same moment may go beyond it by what each has in hand.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::NO_LIMIT;

use super::process::{Process, slots};
use super::{GroupId, ProcessId, State, enforce};

impl State {
    /// Looks again how much the processes may swap out that share a bound with those in a group.
    pub(super) fn bound_swap(&mut self, group: Option<GroupId>) {
        let groups = self.chain(group).into_iter().rev();
        let mut groups = groups.filter_map(|id| self.groups.get(&id));
        if let Some(outermost) = groups.find(|group| group.settings.bounds_swap()) {
            self.bound_swap_within(outermost.id);
        }
    }

    /// As above, of all in a group, whether or not anything bounds them any more.
    pub(super) fn bound_swap_within(&mut self, group: GroupId) {
        let ids: Vec<ProcessId> = self.within(group).iter().map(|process| process.id).collect();
        let mut left = HashMap::new();
        for id in ids {
            self.bound_swap_of(id, &mut left);
        }
    }

    /// As above, of a process; `left` remembers what groups have left.
    pub(super) fn bound_swap_of(&mut self, id: ProcessId, left: &mut HashMap<(GroupId, Option<usize>), u64>) {
        let Some(process) = self.processes.get(&id).filter(|process| process.can_swap()) else {
            return;
        };
        let groups = self.chain(process.group);
        let places = [None].into_iter().chain((0..self.devices.len()).map(Some));
        let bounds = places.map(|place| {
            let bound = |group: &GroupId| {
                let left = *left
                    .entry((*group, place))
                    .or_insert_with(|| self.swap_left(*group, place));
                swapped(process, place, self.devices.len()).saturating_add(left)
            };
            groups.iter().map(bound).min().unwrap_or(NO_LIMIT)
        });
        let bounds = bounds.collect();
        if let Some(process) = self.processes.get_mut(&id) {
            process.swap_bounds = bounds;
            enforce::swap_max(process, &self.devices);
        }
    }

    /// Bytes that a group's processes may yet swap out together.
    fn swap_left(&self, id: GroupId, device: Option<usize>) -> u64 {
        let uuid = device.and_then(|device| self.devices.get(device));
        let uuid = uuid.map(|device| device.uuid_text.as_str());
        let group = self.groups.get(&id);
        let most = group.map_or(NO_LIMIT, |group| group.settings.group_swap_max(uuid));
        if most == NO_LIMIT {
            return NO_LIMIT;
        }
        let nr_devices = self.devices.len();
        let all = self.within(id);
        let all = all.iter().map(|process| swapped(process, device, nr_devices));
        most.saturating_sub(all.fold(0, u64::saturating_add))
    }
}

/// Bytes that a process says it has in host memory.
fn swapped(process: &Process, device: Option<usize>, nr_devices: usize) -> u64 {
    let on = |slot: usize| {
        let usage = process.usage().devices.get(slot);
        usage.map_or(0, |usage| usage.swap_current.load(Relaxed))
    };
    match device {
        Some(device) => on(device),
        None => slots(nr_devices).map(on).fold(0, u64::saturating_add),
    }
}
