//! `memory.swap.max` of groups. Processes are granted parts of it, as of `memory.limit`. Hooks of earlier
//! versions do not ask; they may use all that a group had left when last computed. It is computed again when
//! memory has been swapped, and when a process comes or goes. Two such processes that swap at the same moment
//! may together exceed the bound by what each is moving.

use gcgroup_abi::NO_LIMIT;

use super::edit::{CANNOT_SWAP, Target};
use super::process::{Process, slots};
use super::settings::{MEMORY_HIGH, MEMORY_LIMIT, MEMORY_SWAP_MAX};
use super::usage::swapped;
use super::{Edit, GroupId, ProcessId, State, enforce};
use crate::error::{Error, Result};

impl State {
    /// Applies a group's `memory.limit`, `memory.high` and `memory.swap.max`, on a device or as a whole.
    pub(super) fn bound_group(&mut self, id: GroupId, device: Option<usize>) {
        let Some(group) = self.groups.get(&id) else { return };
        let uuid = device.and_then(|device| self.devices.get(device));
        let uuid = uuid.map(|device| device.uuid_text.as_str());
        let settings = &group.settings;
        let bytes = |setting| settings.of_group(setting, uuid).number();
        self.grants.set_limit(id, device, bytes(MEMORY_LIMIT));
        let (high, swap_max) = (bytes(MEMORY_HIGH), bytes(MEMORY_SWAP_MAX));
        self.swap_grants.set_limit(id, device, swap_max);
        self.grants.set_group_high(id, device, high);
    }

    /// Returns the bytes that a process may still swap out from a device by the limits of the groups above.
    pub(super) fn swap_left(&self, process: &Process, device: usize) -> u64 {
        let places = [Some(device), None];
        let left = places
            .map(|place| self.swap_room(process, place))
            .into_iter()
            .min();
        let granted = self.swap_grants.granted(process.id, device).unwrap_or(0);
        let own = granted.saturating_sub(swapped(process, Some(device), &self.devices));
        left.map_or(NO_LIMIT, |left| left.saturating_add(own))
    }

    /// Returns the unused bytes of `memory.swap.max` in the groups above a process, on a device or as a
    /// whole.
    fn swap_room(&self, process: &Process, device: Option<usize>) -> u64 {
        let chain = self.chain(process.group).into_iter();
        let left = chain.map(|group| self.swap_grants.room(group, device));
        left.min().unwrap_or(NO_LIMIT)
    }

    /// Recomputes the bounds of processes that do not ask and share a limit with those of a group.
    pub(super) fn bound_swap(&mut self, group: Option<GroupId>) {
        let groups = self.chain(group).into_iter().rev();
        let mut groups = groups.filter_map(|id| self.groups.get(&id));
        if let Some(outermost) = groups.find(|group| group.settings.bounds_swap()) {
            self.bound_swap_within(outermost.id);
        }
    }

    /// Recomputes the bounds of all processes in a group that do not ask, also if there is no limit any more.
    pub(super) fn bound_swap_within(&mut self, group: GroupId) {
        let within = self.within(group).into_iter();
        let ids: Vec<ProcessId> = within
            .filter(|process| goes_by_bounds(process))
            .map(|process| process.id)
            .collect();
        ids.iter().for_each(|id| self.count_swapped(*id));
        ids.into_iter().for_each(|id| self.bound_swap_of(id));
    }

    /// Recomputes the bounds of a process, if it does not ask.
    pub(super) fn bound_swap_of(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get(&id).filter(|process| goes_by_bounds(process)) else {
            return;
        };
        let nr_devices = self.devices.len();
        let places = [None].into_iter().chain((0..nr_devices).map(Some));
        let bounds = places.map(|place| {
            let left = self.swap_room(process, place);
            swapped(process, place, &self.devices).saturating_add(left)
        });
        let bounds = bounds.collect();
        if let Some(process) = self.processes.get_mut(&id) {
            process.swap_bounds = bounds;
            enforce::setting(process, MEMORY_SWAP_MAX, &self.devices);
        }
    }

    /// Charges the groups for what a process that does not ask has swapped out; others are granted the rest.
    fn count_swapped(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let on = |slot| (slot, swapped(process, Some(slot), &self.devices));
        let swapped: Vec<_> = slots(self.devices.len()).map(on).collect();
        for (slot, bytes) in swapped {
            self.swap_grants.set_overhead(id, slot, bytes);
        }
    }
}

impl Edit<'_> {
    /// Checks a value of `memory.swap.max`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for more than 0 bytes if the process was not started with `--swap`.
    pub(super) fn check_swap_max(&self, bytes: u64) -> Result<()> {
        let Target::Process(id) = self.target()? else {
            return Ok(());
        };
        let process = self.state.processes.get(&id);
        if bytes != 0 && !process.is_some_and(|process| process.can_swap()) {
            return Err(Error::NotSupported(CANNOT_SWAP));
        }
        Ok(())
    }

    /// Applies `memory.swap.max` of a group.
    pub(super) fn bound_swap(&mut self) -> Result<()> {
        if let Target::Group(id) = self.target()? {
            self.state.bound_group(id, self.device());
            self.state.bound_swap_within(id);
            self.state.bound_swap(Some(id));
        }
        Ok(())
    }
}

/// Returns whether the process swaps and does not ask, but obeys a bound that it is told.
fn goes_by_bounds(process: &Process) -> bool {
    process.can_swap() && !process.asks_to_swap()
}
