//! `memory.swap.max` of groups. Processes are granted parts of it, as of `memory.limit`.

use gcgroup_abi::NO_LIMIT;

use super::edit::{CANNOT_SWAP, Target};
use super::process::Process;
use super::settings::{MEMORY_HIGH, MEMORY_LIMIT, MEMORY_SWAP_MAX};
use super::usage::swapped;
use super::{Edit, GroupId, State};
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
        }
        Ok(())
    }
}
