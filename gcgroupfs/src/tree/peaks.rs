//! The most that groups have held at one moment. Nobody adds up what processes hold while they allocate, so
//! it is known of the moments in which somebody looks.
//!
//! What each process was last seen to hold is kept, and added up for each group above, so that a look at one
//! process costs no more than the depth. Such a sum is of several moments: what one process has freed since
//! it was looked at would count together with what another has allocated. So it is a hint, and before it
//! counts as a peak all of the group is looked at.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::NO_LIMIT;

use super::claims::{device_total, host_memory};
use super::grants::Grants;
use super::group::believed;
use super::process::{Process, slots};
use super::{GroupId, Notice, ProcessId, State, Tree, sums};

/// In a group of more, one process's bell is no reason to look at all of them; that is done each second.
pub(super) const MAX_LOOK: usize = 64;

/// What a process charges next, since it has asked for it and was granted it.
#[derive(Debug, Clone, Copy)]
struct Next {
    /// The device's slot.
    device: usize,
    bytes: u64,
    /// All that it may have charged there then.
    granted: u64,
}

impl Tree {
    /// Looks at what these processes hold, for the peaks of the groups that they are in, and has those
    /// written down that have grown. Nobody else can know of a peak that has passed, so call it now and then.
    pub fn look_at(&self, processes: impl IntoIterator<Item = ProcessId>) {
        // Others come in between.
        for id in processes {
            self.state.lock().see(id, None);
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
    /// Looks at what a process holds, and at all of the groups that seem to hold more with it than ever,
    /// unless they are large.
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

    /// The process is being granted what it asked for on a device, and charges it next: looks at its groups
    /// as they are then, but for large ones.
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

    /// Looks at all in a group.
    fn look(&mut self, id: GroupId) {
        self.look_up_to(&[id], 0);
    }

    /// Looks at all in the last of these groups, each of which is in the next, for the peaks of all of them.
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

    /// Notes what a process holds, and that its groups hold it.
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

    /// In a group is held `now`, and not `before` any more.
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

    /// The most that is believed to be held in a group, by place.
    fn caps(&self, id: GroupId) -> Vec<u64> {
        self.places().map(|device| self.grants.cap(id, device)).collect()
    }

    fn places(&self) -> impl Iterator<Item = Option<usize>> + use<> {
        [None].into_iter().chain((0..self.devices.len()).map(Some))
    }

    /// What a process was last seen to hold goes from one group to another.
    pub(super) fn carry(&mut self, id: ProcessId, from: Option<GroupId>, to: Option<GroupId>) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let observed = process.observed.clone();
        self.hold(from, observed.clone(), Vec::new());
        self.hold(to, Vec::new(), observed);
    }

    /// Somebody was shown that a group holds so much: its peak is not to be less.
    pub(super) fn was_shown(&mut self, id: GroupId, device: Option<usize>, bytes: u64) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.note_peak(device, bytes);
        }
    }

    /// The highest `memory.current` of a group that anybody can know of: what was seen, and what one process
    /// alone has had that has been nowhere else.
    pub(super) fn group_peak(&self, id: GroupId, device: Option<usize>) -> u64 {
        let counted = self
            .groups
            .get(&id)
            .map(|group| group.counted(device))
            .unwrap_or_default();
        let current = self.group_current(id, device);
        if counted.is_reset {
            return current.max(counted.peak);
        }
        let alone = self.within(id).into_iter().filter(|process| !process.has_moved);
        let highest = alone.map(|process| self.peak_within(process, id, device)).max();
        current.max(highest.unwrap_or(0)).max(counted.peak)
    }

    /// The peak of a process, as far as the groups from its own up to that one can have held so much.
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
        sums::peak(process, device, &self.devices).min(most)
    }

    /// `memory.current` of a group, as far as it is believed.
    pub(super) fn group_current(&self, id: GroupId, device: Option<usize>) -> u64 {
        let places: Vec<Option<usize>> = match device {
            Some(_) => vec![device],
            None => self.places().collect(),
        };
        let of = |process: &Process, place| self.current_of(process, place);
        self.believed_in(id, &places, &self.grants, &of)
            .first()
            .copied()
            .unwrap_or(0)
    }

    /// Bytes of a group on the host, as far as they are believed.
    pub(super) fn group_swapped(&self, id: GroupId, device: Option<usize>) -> u64 {
        let of = |process: &Process, place| sums::swapped(process, place, self.devices.len());
        let swapped = self.believed_in(id, &[device], &self.swap_grants, &of);
        swapped.first().map_or(0, |bytes| (*bytes).min(host_memory()))
    }

    /// What is believed to be held in a group, by place: of the processes directly in it all that `of` says,
    /// of the groups in it what they can have.
    fn believed_in(
        &self,
        id: GroupId,
        places: &[Option<usize>],
        grants: &Grants,
        of: &dyn Fn(&Process, Option<usize>) -> u64,
    ) -> Vec<u64> {
        let mut held = vec![0_u64; places.len()];
        let Some(group) = self.groups.get(&id) else {
            return held;
        };
        let mut add = |more: Vec<u64>| {
            for (sum, bytes) in held.iter_mut().zip(more) {
                *sum = sum.saturating_add(bytes);
            }
        };
        let members = group.members.iter().filter_map(|id| self.processes.get(id));
        members.for_each(|process| add(places.iter().map(|place| of(process, *place)).collect()));
        let children = group.children.values();
        children.for_each(|child| add(self.believed_in(*child, places, grants, of)));
        let caps: Vec<u64> = places.iter().map(|place| grants.cap(id, *place)).collect();
        match places.first() {
            Some(None) => believed(&held, &caps),
            _ => held
                .iter()
                .zip(caps)
                .map(|(held, cap)| (*held).min(cap))
                .collect(),
        }
    }

    /// `memory.current` of everybody together, as far as it is believed.
    pub(super) fn root_current(&self) -> u64 {
        let alone = self.processes.values().filter(|process| process.group.is_none());
        let alone = alone.map(|process| self.current_of(process, None));
        let groups = self.top.values().map(|id| self.group_current(*id, None));
        alone.chain(groups).fold(0, u64::saturating_add)
    }

    /// `memory.current` of a process, as far as it is believed of one in a group.
    fn current_of(&self, process: &Process, device: Option<usize>) -> u64 {
        let on = |slot: usize| {
            let charged = process
                .usage()
                .memory_current(slot)
                .min(self.grants.most(process.id, slot));
            charged.saturating_add(sums::overhead(process, slot, &self.devices))
        };
        sums::over_slots(device, self.devices.len(), on)
    }

    /// What a process holds, by place.
    fn held_by(&self, process: &Process, next: Option<Next>) -> Vec<u64> {
        let mut now: Vec<u64> = self
            .places()
            .map(|place| self.current_of(process, place))
            .collect();
        if let Some(next) = next {
            let charged = process.usage().devices.get(next.device);
            let charged = charged.map_or(0, |usage| usage.memory_current.load(Relaxed));
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
