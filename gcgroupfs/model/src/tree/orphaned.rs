//! Shared memory of processes that have ended: it exists as long as a descriptor or another process holds it,
//! and a process that holds a descriptor need not use the GPU.
//!
//! A group stays charged for all that a process which has shared memory held there at its end, until the
//! daemon has measured what is left of it. So a series of short-lived processes cannot exceed the limit of
//! their group. A group that is removed leaves its charge to the group above.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{GroupId, Ledger, ProcessId, State, Tree};

/// A process that has shared memory and has ended.
#[derive(Debug, Clone, Copy)]
pub struct EndedOwner {
    pub id: ProcessId,
    pub pid: u32,
    pub device: usize,
    /// The most bytes that may be left of what it held.
    pub bytes: u64,
    group: GroupId,
}

#[derive(Debug, Default)]
pub(super) struct Orphaned {
    /// Processes of which nothing has been measured since they ended.
    owners: Vec<EndedOwner>,
    /// The most bytes that are left of other processes of a group, on a device.
    left: BTreeMap<(GroupId, usize), u64>,
    /// Bytes that a group is charged for both.
    charged: BTreeMap<(GroupId, usize), u64>,
    /// When the look began that is under way, and the last one that had a result.
    looked: [Duration; 2],
    /// Number of processes that have ever registered.
    pub(super) nr_joined: u64,
}

impl Orphaned {
    /// Returns the bytes by place that each group is charged, apart from its child groups; in the place
    /// `None` those on all devices.
    pub(super) fn charges(&self, places: &[Option<usize>]) -> Vec<(GroupId, Vec<u64>)> {
        let by_place = |((group, device), bytes): (&(GroupId, usize), &u64)| {
            let is_there = |place: &Option<usize>| place.is_none_or(|place| place == *device);
            let at = |place| if is_there(place) { *bytes } else { 0 };
            (*group, places.iter().map(at).collect())
        };
        self.charged.iter().map(by_place).collect()
    }

    pub(super) fn is_any_in(&self, group: GroupId) -> bool {
        let mut all = self.charged.range((group, 0)..=(group, usize::MAX));
        all.next().is_some()
    }

    /// Returns whether a refusal at that time is to wait for a look, because groups for which `concerns`
    /// holds are charged for what may be gone.
    pub(super) fn is_look_awaited(&self, since: Duration, concerns: impl Fn(GroupId) -> bool) -> bool {
        let [_, measured] = self.looked;
        let is_unmeasured = self.owners.iter().any(|owner| concerns(owner.group));
        is_unmeasured || measured <= since && self.charged.keys().any(|(group, _)| concerns(*group))
    }
}

impl Tree {
    /// Returns whether any group is charged for ended processes.
    pub fn has_orphaned(&self) -> bool {
        !self.state.lock().orphaned.charged.is_empty()
    }

    /// Returns the number of registrations so far.
    pub fn nr_joined(&self) -> u64 {
        self.state.lock().orphaned.nr_joined
    }

    /// Begins a look: returns the processes whose shared memory is to be measured.
    pub fn ended_owners(&self) -> Vec<EndedOwner> {
        let mut state = self.state.lock();
        state.orphaned.looked[0] = (state.devices.host.uptime)();
        state.orphaned.owners.clone()
    }

    /// Stores a measurement of a device: the bytes that no process owns, how many of them each ended process
    /// may have left, and those for which running processes are charged.
    pub fn set_orphaned(
        &self,
        device: usize,
        unowned: u64,
        ended: &[(ProcessId, u64)],
        running: &[(ProcessId, u64)],
    ) {
        self.update(|state, notices| {
            state.orphaned.looked[1] = state.orphaned.looked[0];
            let Orphaned {
                owners,
                left,
                charged,
                ..
            } = &mut state.orphaned;
            owners.retain(|owner| {
                let share = ended
                    .iter()
                    .find(|(id, _)| *id == owner.id && owner.device == device);
                if let Some((_, bytes)) = share {
                    let sum = left.entry((owner.group, device)).or_default();
                    *sum = sum.saturating_add(*bytes);
                }
                share.is_none()
            });
            left.retain(|(_, on), bytes| {
                if *on == device {
                    *bytes = (*bytes).min(unowned);
                }
                *bytes != 0
            });
            let groups = left.keys().chain(charged.keys());
            let groups: BTreeSet<GroupId> = groups
                .filter(|(_, on)| *on == device)
                .map(|(group, _)| *group)
                .collect();
            for group in groups {
                let bytes = state.orphaned_in((group, device), unowned, running);
                state.charge_orphaned(group, device, bytes);
                state.reap(Some(group), notices);
            }
        });
    }
}

impl State {
    /// Charges the group of an ending process for what it has shared. Called before it is uncharged.
    pub(super) fn keep_shared(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let (Some(group), usage) = (process.group, process.usage()) else {
            return;
        };
        let owner = |device: usize| {
            let (freed, _) = usage.shared(device);
            let held = Ledger::of(usage, device).filter(|_| usage.shares_memory());
            let held = held.map_or(0, |ledger| ledger.allocations());
            let most = self.current_of(process, Some(device));
            EndedOwner {
                id,
                pid: process.identity.pid,
                device,
                bytes: held.saturating_add(freed).min(most),
                group,
            }
        };
        let owners: Vec<_> = (0..self.devices.len()).map(owner).collect();
        for owner in owners.into_iter().filter(|owner| owner.bytes != 0) {
            let charged = self.orphaned.charged.get(&(group, owner.device));
            let charged = charged.copied().unwrap_or(0);
            self.charge_orphaned(group, owner.device, charged.saturating_add(owner.bytes));
            self.orphaned.owners.push(owner);
        }
    }

    /// Moves what a group is charged, which is about to be removed, to the group above.
    pub(super) fn pass_orphaned(&mut self, group: GroupId) {
        let above = self.groups.get(&group).and_then(|group| group.parent);
        let Orphaned { owners, left, .. } = &mut self.orphaned;
        owners.retain_mut(|owner| {
            let is_it = owner.group == group;
            owner.group = above.filter(|_| is_it).unwrap_or(owner.group);
            !is_it || above.is_some()
        });
        for device in 0..self.devices.len() {
            if let Some(bytes) = left.remove(&(group, device))
                && let Some(above) = above
            {
                let sum = left.entry((above, device)).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        for device in 0..self.devices.len() {
            let Some(bytes) = self.orphaned.charged.get(&(group, device)).copied() else {
                continue;
            };
            if let Some(above) = above {
                let charged = self.orphaned.charged.get(&(above, device)).copied();
                self.charge_orphaned(above, device, charged.unwrap_or(0).saturating_add(bytes));
            }
            self.charge_orphaned(group, device, 0);
        }
    }

    /// Returns what a group is to be charged: together with what running processes in it are charged, no more
    /// than what no process owns, and what has not been measured.
    fn orphaned_in(
        &self,
        (group, device): (GroupId, usize),
        unowned: u64,
        running: &[(ProcessId, u64)],
    ) -> u64 {
        let is_in_group = |(id, _): &&(ProcessId, u64)| {
            let process = self.processes.get(id);
            process.is_some_and(|process| self.chain(process.group).contains(&group))
        };
        let running = running.iter().filter(is_in_group);
        let running = running.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let left = self.orphaned.left.get(&(group, device)).copied();
        let owners = self.orphaned.owners.iter();
        owners
            .filter(|owner| (owner.group, owner.device) == (group, device))
            .fold(
                left.unwrap_or(0).min(unowned.saturating_sub(running)),
                |sum, owner| sum.saturating_add(owner.bytes),
            )
    }

    fn charge_orphaned(&mut self, group: GroupId, device: usize, bytes: u64) {
        let charged = &mut self.orphaned.charged;
        let before = match bytes {
            0 => charged.remove(&(group, device)),
            _ => charged.insert((group, device), bytes),
        };
        let before = before.unwrap_or(0);
        self.grants.charge_group(group, device, before, bytes);
    }
}
