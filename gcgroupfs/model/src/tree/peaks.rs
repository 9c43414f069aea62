//! Peaks of groups: the highest sums observed. Sums are not maintained while processes allocate, so they are
//! known only for the moments at which all processes of a group are sampled.

use std::collections::BTreeMap;

use gcgroup_abi::{NO_LIMIT, OTHER_DEVICE};

use super::claims::device_total;
use super::edit::Target;
use super::group::believed;
use super::process::{Process, slots};
use super::untrusted::UntrustedDevice;
use super::{Edit, GroupId, Notice, ProcessId, State, Sums, Tree, enforce, usage};
use crate::error::{Error, Result};

/// A group with more members is sampled once per second, not at each doorbell of one process.
pub(super) const MAX_LOOK: usize = 64;

/// Bytes that are believed to be held in groups and the root (`None`), by place.
type Believed = BTreeMap<Option<GroupId>, Vec<u64>>;

/// Returns the bytes in the first place.
fn first(all: &Believed, id: Option<GroupId>) -> u64 {
    let held = all.get(&id).and_then(|held| held.first());
    held.copied().unwrap_or(0)
}

/// Returns bytes of a process in a place.
type Bytes<'a> = &'a dyn Fn(&Process, Option<usize>) -> u64;

impl Tree {
    /// Samples these processes for the peaks of their groups and for their use of memory over time, and has
    /// grown peaks recorded. A peak between two samples is missed, so call it periodically.
    pub fn look_at(&self, processes: impl IntoIterator<Item = ProcessId>) {
        // In parts, so that other threads get the lock in between.
        for id in processes {
            self.state.lock().sample_bytes(id);
        }
        let top: Vec<GroupId> = self.state.lock().top.values().copied().collect();
        for id in top {
            self.state.lock().look(id);
        }
        let mut state = self.state.lock();
        let grown = state.groups.values_mut().filter(|group| group.has_grown);
        let notices: Vec<Notice> = grown
            .map(|group| {
                group.has_grown = false;
                Notice::GroupChanged(group.id)
            })
            .collect();
        drop(state);
        self.tell(&notices);
    }
}

impl State {
    /// Samples the groups of a process, except large ones.
    pub(super) fn observe(&mut self, id: ProcessId) {
        if let Some(outermost) = self.small_groups_of(id).last() {
            self.look(*outermost);
        }
    }

    /// Samples a process's groups, except large ones, as they will be once it has charged what it is being
    /// granted on a device.
    pub(super) fn observe_grant(&mut self, id: ProcessId, device: usize, bytes: u64) {
        let groups = self.small_groups_of(id);
        let (Some(granted), Some(outermost)) = (self.grants.granted(id, device), groups.last()) else {
            return;
        };
        let usage = self
            .processes
            .get(&id)
            .and_then(|process| process.usage().device(device));
        let charged = usage.map_or(0, UntrustedDevice::charged);
        let then = charged.saturating_add(bytes).min(granted);
        let more = then.saturating_sub(charged);
        let held = self.look(*outermost);
        let places = self.places().enumerate();
        let places: Vec<_> = places
            .filter(|(_, place)| place.is_none_or(|place| place == device))
            .collect();
        for group in groups {
            for (at, place) in &places {
                let now = held.get(&Some(group)).and_then(|held| held.get(*at));
                let then = now.copied().unwrap_or(0).saturating_add(more);
                self.was_shown(group, *place, then.min(self.cap(Some(group), *place)));
            }
        }
    }

    /// Returns the groups of a process, except large ones; the outermost last.
    fn small_groups_of(&self, id: ProcessId) -> Vec<GroupId> {
        let mut chain = self.chain(self.processes.get(&id).and_then(|process| process.group));
        let is_small = |id: &GroupId| {
            let group = self.groups.get(id);
            group.is_some_and(|group| group.nr_members <= MAX_LOOK)
        };
        chain.retain(is_small);
        chain
    }

    /// Samples all processes in a group. Returns what is held in it and in the groups below, by place.
    fn look(&mut self, id: GroupId) -> Believed {
        let places: Vec<Option<usize>> = self.places().collect();
        let held = self.held_in(Some(id), &places);
        for (group, held) in &held {
            let Some(group) = group else { continue };
            for (place, bytes) in places.iter().zip(held) {
                self.was_shown(*group, *place, *bytes);
            }
        }
        held
    }

    /// Returns the most that a group or the root (`None`) is believed to hold in a place: what the group may
    /// have, and what there is.
    fn cap(&self, id: Option<GroupId>, place: Option<usize>) -> u64 {
        let granted = id.map_or(NO_LIMIT, |id| self.grants.cap(id, place));
        granted.min(device_total(place.unwrap_or(OTHER_DEVICE), &self.devices))
    }

    pub(super) fn places(&self) -> impl Iterator<Item = Option<usize>> + use<> {
        [None].into_iter().chain((0..self.devices.len()).map(Some))
    }

    /// Samples a process's memory.
    pub(super) fn sample_bytes(&mut self, id: ProcessId) {
        let now = self.now();
        if let Some(process) = self.processes.get_mut(&id) {
            let bytes = usage::current(process, None, &self.devices);
            process.byte_seconds.sample(now, bytes);
        }
    }

    /// Raises a group's peak to a value of `memory.current`, which may have been shown to a reader.
    pub(super) fn was_shown(&mut self, id: GroupId, device: Option<usize>, bytes: u64) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.note_peak(device, bytes);
        }
    }

    /// Returns the highest known `memory.current` of a group: the highest sum observed, or the peak of a
    /// single process that has been in no other group.
    pub(super) fn group_peak(&self, id: GroupId, device: Option<usize>) -> u64 {
        let counted = self
            .groups
            .get(&id)
            .map(|group| group.counted(device))
            .unwrap_or_default();
        let current = self.current_in(Some(id), device);
        if counted.is_reset {
            return current.max(counted.peak);
        }
        let alone = self.within(id).into_iter().filter(|process| !process.has_moved);
        let highest = alone.map(|process| self.peak_within(process, id, device)).max();
        current.max(highest.unwrap_or(0)).max(counted.peak)
    }

    /// Returns a process's peak, bounded by what the groups from its own up to `id` can have held.
    fn peak_within(&self, process: &Process, id: GroupId, device: Option<usize>) -> u64 {
        let mut way = self.chain(process.group);
        let end = way.iter().position(|group| *group == id);
        way.truncate(end.map_or(way.len(), |end| end + 1));
        let cap = |device: Option<usize>| {
            let caps = way.iter().map(|group| self.grants.cap(*group, device));
            caps.min().unwrap_or(NO_LIMIT)
        };
        let most = match device {
            Some(_) => cap(device),
            None => {
                let slots = slots(self.devices.len());
                let each = slots.map(|slot| cap(Some(slot)).min(device_total(slot, &self.devices)));
                cap(None).min(each.fold(0, u64::saturating_add))
            }
        };
        usage::peak(process, device, &self.devices).min(most)
    }

    /// Returns `memory.current` of a group, or of the root (`None`), as far as it is believed: at most what
    /// its groups may have and what the devices have.
    pub(super) fn current_in(&self, id: Option<GroupId>, device: Option<usize>) -> u64 {
        let places: Vec<Option<usize>> = match device {
            Some(_) => vec![device],
            None => self.places().collect(),
        };
        first(&self.held_in(id, &places), id)
    }

    /// Returns what [`Self::current_in`] does, also of the groups below.
    fn held_in(&self, id: Option<GroupId>, places: &[Option<usize>]) -> Believed {
        let of = |process: &Process, place| self.current_of(process, place);
        let orphaned = self.orphaned.charges(places);
        self.believed_in(id, places, &|id, place| self.cap(id, place), (&of, orphaned))
    }

    /// Returns the swapped bytes of a group, or of the root (`None`), as far as they are believed.
    pub(super) fn swapped_in(&self, id: Option<GroupId>, device: Option<usize>) -> u64 {
        let cap = |id: Option<GroupId>, place| {
            let granted = id.map_or(NO_LIMIT, |id| self.swap_grants.cap(id, place));
            granted.min(self.devices.host.memory)
        };
        let of = |process: &Process, place| usage::swapped(process, place, &self.devices);
        first(&self.believed_in(id, &[device], &cap, (&of, Vec::new())), id)
    }

    /// Returns what is believed to be held in a group or the root, and in each group below: of what `of`
    /// returns for the processes directly in it, of what `of_groups` says of groups beside their processes,
    /// and of what is believed of the groups in it, at most what it can have. Groups without any of these are
    /// not visited.
    fn believed_in(
        &self,
        id: Option<GroupId>,
        places: &[Option<usize>],
        cap: &dyn Fn(Option<GroupId>, Option<usize>) -> u64,
        (of, of_groups): (Bytes<'_>, Vec<(GroupId, Vec<u64>)>),
    ) -> Believed {
        let add = |sums: &mut Vec<u64>, more: Vec<u64>| {
            sums.resize(more.len(), 0);
            for (sum, bytes) in sums.iter_mut().zip(more) {
                *sum = sum.saturating_add(bytes);
            }
        };
        let mut held: BTreeMap<Option<GroupId>, Vec<u64>> = BTreeMap::new();
        let mut add_process = |process: &Process| {
            let bytes = places.iter().map(|place| of(process, *place)).collect();
            add(held.entry(process.group).or_default(), bytes);
        };
        match id {
            None => self.processes.values().for_each(|process| add_process(process)),
            Some(id) => self.within(id).into_iter().for_each(add_process),
        }
        for (group, bytes) in of_groups {
            if id.is_none_or(|id| self.chain(Some(group)).contains(&id)) {
                add(held.entry(Some(group)).or_default(), bytes);
            }
        }
        let mut all = Believed::new();
        // A group has a higher number than the one that it is in, and the root is first.
        while let Some((group, held_here)) = held.pop_last() {
            let caps: Vec<u64> = places.iter().map(|place| cap(group, *place)).collect();
            let bytes = match places.first() {
                Some(None) => believed(&held_here, &caps),
                _ => held_here
                    .iter()
                    .zip(caps)
                    .map(|(held, cap)| (*held).min(cap))
                    .collect(),
            };
            all.insert(group, bytes.clone());
            if group == id {
                break;
            }
            let above = group.and_then(|group| self.groups.get(&group)?.parent);
            add(held.entry(above).or_default(), bytes);
        }
        all
    }

    /// Returns a process's `memory.current`, as far as that is believed in its group.
    pub(super) fn current_of(&self, process: &Process, device: Option<usize>) -> u64 {
        if process.suspension.is_suspended() {
            return 0;
        }
        let on = |slot: usize| {
            let most = self.grants.most(process.id, slot);
            let charged = process.usage().current(slot, most);
            charged.saturating_add(usage::overhead(process, slot, &self.devices))
        };
        usage::over_slots(device, self.devices.len(), on)
    }
}

impl Edit<'_> {
    /// Restarts `memory.peak` at the bytes held now.
    ///
    /// # Errors
    /// [`Error::NotFound`] at the root.
    pub fn reset_peak(&mut self) -> Result<()> {
        let device = self.device();
        match self.target()? {
            Target::Process(id) => {
                let devices = &self.state.devices;
                let process = self.state.processes.get_mut(&id).ok_or(Error::Gone)?;
                let current = Sums::of(process, device, devices).current();
                enforce::reset_peak(process, device);
                if let Some(kept) = process.kept_mut(device) {
                    kept.peak = current;
                }
                self.notices.push(Notice::SettingsChanged(id));
            }
            Target::Group(id) => {
                let current = self.state.current_in(Some(id), device);
                let group = self.state.groups.get_mut(&id).ok_or(Error::Gone)?;
                let counted = group.counted_mut(device);
                (counted.peak, counted.is_reset) = (current, true);
                self.notices.push(Notice::GroupChanged(id));
            }
        }
        Ok(())
    }
}
