//! The most that groups have held at one moment. Nobody adds up what processes hold while they allocate, so it is known of
//! the moments in which somebody looks.
//!
//! What each process was last seen to hold is kept, and added up for each group above, so that a look at one process costs
//! no more than the depth. Such a sum is of several moments: what one process has freed since it was looked at would count
//! together with what another has allocated. So it is a hint, and before it counts as a peak all of the group is looked at.

use std::sync::atomic::Ordering::Relaxed;

use super::process::Process;
use super::{Device, GroupId, Notice, ProcessId, State, Tree, sums};

/// In a group of more, one process's bell is no reason to look at all of them; that is done each second.
const MAX_LOOK: usize = 64;

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
    /// Looks at what these processes hold, for the peaks of the groups that they are in, and has those written down
    /// that have grown. Nobody else can know of a peak that has passed, so call it now and then.
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
    /// Looks at what a process holds, and at all of the groups that seem to hold more with it than ever, unless they are
    /// large.
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

    /// The process is being granted what it asked for on a device, and charges it next: looks at its groups as they are then,
    /// but for large ones.
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
        let Self {
            processes,
            groups,
            devices,
            ..
        } = self;
        let Some(process) = processes.get_mut(&id) else {
            return;
        };
        let mut at = process.group;
        if at.is_none() {
            process.observed.clear();
            return;
        }
        let now = held(process, devices, next);
        let before = std::mem::replace(&mut process.observed, now.clone());
        while let Some(group) = at.and_then(|id| groups.get_mut(&id)) {
            group.hold(&before, &now);
            at = group.parent;
        }
    }

    /// What a process was last seen to hold goes from some groups to others.
    pub(super) fn carry(&mut self, id: ProcessId, left: &[GroupId], entered: &[GroupId]) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        for id in left {
            if let Some(group) = self.groups.get_mut(id) {
                group.hold(&process.observed, &[]);
            }
        }
        for id in entered {
            if let Some(group) = self.groups.get_mut(id) {
                group.hold(&[], &process.observed);
            }
        }
    }

    /// Somebody was shown that a group holds so much: its peak is not to be less.
    pub(super) fn was_shown(&mut self, id: GroupId, device: Option<usize>, bytes: u64) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.note_peak(device, bytes);
        }
    }

    /// The highest `memory.current` of a group that anybody can know of: what was seen, and what one process alone
    /// has had that has been nowhere else.
    pub(super) fn group_peak(&self, id: GroupId, device: Option<usize>) -> u64 {
        let counted = self
            .groups
            .get(&id)
            .map(|group| group.counted(device))
            .unwrap_or_default();
        let (mut current, mut highest) = (0_u64, 0);
        for process in self.within(id) {
            current = current.saturating_add(sums::current(process, device, &self.devices));
            if !process.has_moved && !counted.is_reset {
                highest = sums::peak(process, device, &self.devices).max(highest);
            }
        }
        current.max(highest).max(counted.peak)
    }
}

/// What a process holds, by place.
fn held(process: &Process, devices: &[Device], next: Option<Next>) -> Vec<u64> {
    let places = [None].into_iter().chain((0..devices.len()).map(Some));
    let mut now: Vec<u64> = places
        .map(|device| sums::current(process, device, devices))
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
