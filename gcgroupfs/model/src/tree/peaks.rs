//! Peaks of groups: the highest sums observed. Sums are not maintained while processes allocate, so they are
//! known only for the moments at which they are sampled.
//!
//! The last sample of each process is stored and summed for each group above, so sampling one process costs
//! no more than the depth. Such a sum mixes several moments: memory freed by one process since its sample
//! would count together with what another has allocated. So it is only a hint, and before it counts as a peak
//! all of the group is sampled.

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

/// A charge that a process is about to make, after a grant.
#[derive(Debug, Clone, Copy)]
struct Next {
    /// The device's slot.
    device: usize,
    bytes: u64,
    /// Total that it may have charged there then, in bytes.
    granted: u64,
}

impl Tree {
    /// Samples these processes for the peaks of their groups and for their use of memory over time, and has
    /// grown peaks recorded. A peak between two samples is missed, so call it periodically.
    pub fn look_at(&self, processes: impl IntoIterator<Item = ProcessId>) {
        // In parts, so that other threads get the lock in between.
        for id in processes {
            let mut state = self.state.lock();
            state.see(id, None);
            state.sample_bytes(id);
        }
        for id in self.growing() {
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

    fn growing(&self) -> Vec<GroupId> {
        let state = self.state.lock();
        let groups = state.groups.values().filter(|group| group.seems_higher());
        groups.map(|group| group.id).collect()
    }
}

impl State {
    /// Samples a process, and all of the groups whose sum seems to exceed their peak, unless they are large.
    pub(super) fn observe(&mut self, id: ProcessId) {
        self.see(id, None);
        let chain = self.chain(self.processes.get(&id).and_then(|process| process.group));
        let is_due = |id: &GroupId| {
            let group = self.groups.get(id);
            group.is_some_and(|group| group.nr_members <= MAX_LOOK && group.seems_higher())
        };
        if let Some(outermost) = chain.iter().rposition(is_due) {
            self.look_up_to(&chain, outermost);
        }
    }

    /// Samples a process's groups, except large ones, as they will be once it has charged what it is being
    /// granted on a device.
    pub(super) fn observe_grant(&mut self, id: ProcessId, device: usize, bytes: u64) {
        let Some(granted) = self.grants.granted(id, device) else {
            return;
        };
        let chain = self.chain(self.processes.get(&id).and_then(|process| process.group));
        let is_small = |id: &GroupId| {
            let group = self.groups.get(id);
            group.is_some_and(|group| group.nr_members <= MAX_LOOK)
        };
        let Some(outermost) = chain.iter().rposition(is_small) else {
            return;
        };
        self.see_within(&chain, outermost);
        self.see(
            id,
            Some(Next {
                device,
                bytes,
                granted,
            }),
        );
        self.note_peaks(&chain, outermost);
    }

    /// Samples all processes in a group.
    fn look(&mut self, id: GroupId) {
        self.look_up_to(&[id], 0);
    }

    /// Samples all processes in `chain[last]` for the peaks of all groups up to it; each group lies in the
    /// next.
    fn look_up_to(&mut self, chain: &[GroupId], last: usize) {
        self.see_within(chain, last);
        self.note_peaks(chain, last);
    }

    fn see_within(&mut self, chain: &[GroupId], last: usize) {
        let Some(outermost) = chain.get(last) else { return };
        let members: Vec<ProcessId> = self.within(*outermost).iter().map(|process| process.id).collect();
        members.into_iter().for_each(|id| self.see(id, None));
    }

    fn note_peaks(&mut self, chain: &[GroupId], last: usize) {
        for id in chain.iter().take(last + 1) {
            if let Some(group) = self.groups.get_mut(id) {
                group.note_peaks();
            }
        }
    }

    /// Stores a process's sample and updates its groups' sums.
    fn see(&mut self, id: ProcessId, next: Option<Next>) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let (group, now) = match process.group {
            Some(group) => (Some(group), self.held_by(process, next)),
            None => (None, Vec::new()),
        };
        let process = self.processes.get_mut(&id).map(|process| &mut process.observed);
        let before = process.map(|observed| std::mem::replace(observed, now.clone()));
        self.hold(group, before.unwrap_or_default(), now);
    }

    /// Replaces `before` by `now` in the sums of a group and those above.
    fn hold(&mut self, from: Option<GroupId>, before: Vec<u64>, now: Vec<u64>) {
        let (mut at, mut before, mut now) = (from, before, now);
        while let Some(id) = at {
            let caps = self.caps(id);
            let Some(group) = self.groups.get_mut(&id) else {
                return;
            };
            (before, now) = group.hold(&before, &now, &caps);
            at = group.parent;
        }
    }

    /// Returns the most that a group is believed to hold, by place.
    fn caps(&self, id: GroupId) -> Vec<u64> {
        self.places().map(|place| self.cap(Some(id), place)).collect()
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

    /// Moves a process's last sample from one group to another.
    pub(super) fn carry(&mut self, id: ProcessId, from: Option<GroupId>, to: Option<GroupId>) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let observed = process.observed.clone();
        self.hold(from, observed.clone(), Vec::new());
        self.hold(to, Vec::new(), observed);
    }

    /// Raises a group's peak to a value of `memory.current` that was shown to a reader.
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
        let of = |process: &Process, place| self.current_of(process, place);
        let current = self.believed_in(id, &places, &|id, place| self.cap(id, place), &of);
        current.first().copied().unwrap_or(0)
    }

    /// Returns the swapped bytes of a group, or of the root (`None`), as far as they are believed.
    pub(super) fn swapped_in(&self, id: Option<GroupId>, device: Option<usize>) -> u64 {
        let cap = |id: Option<GroupId>, place| {
            let granted = id.map_or(NO_LIMIT, |id| self.swap_grants.cap(id, place));
            granted.min(self.devices.host.memory)
        };
        let of = |process: &Process, place| usage::swapped(process, place, &self.devices);
        let swapped = self.believed_in(id, &[device], &cap, &of);
        swapped.first().copied().unwrap_or(0)
    }

    /// Returns what is believed to be held in a group or the root, by place: of what `of` returns for the
    /// processes directly in it, and of what is believed of the groups in it, at most what it can have.
    /// Groups without processes are not visited.
    fn believed_in(
        &self,
        id: Option<GroupId>,
        places: &[Option<usize>],
        cap: &dyn Fn(Option<GroupId>, Option<usize>) -> u64,
        of: &dyn Fn(&Process, Option<usize>) -> u64,
    ) -> Vec<u64> {
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
            if group == id {
                return bytes;
            }
            let above = group.and_then(|group| self.groups.get(&group)?.parent);
            add(held.entry(above).or_default(), bytes);
        }
        vec![0; places.len()]
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

    /// Returns what a process holds, by place.
    fn held_by(&self, process: &Process, next: Option<Next>) -> Vec<u64> {
        let mut now: Vec<u64> = self
            .places()
            .map(|place| self.current_of(process, place))
            .collect();
        if let Some(next) = next {
            let usage = process.usage().device(next.device);
            let charged = usage.map_or(0, UntrustedDevice::charged);
            let then = charged.saturating_add(next.bytes).min(next.granted);
            let more = then.saturating_sub(charged);
            let places = now.iter_mut().enumerate();
            for (_, bytes) in places.filter(|(at, _)| *at == 0 || *at == next.device + 1) {
                *bytes = bytes.saturating_add(more);
            }
        }
        now
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
