//! Requests of processes for a larger grant: answered at once under the tree's lock.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::NO_LIMIT;

use super::claims::device_total;
use super::enforce::SwapAnswer;
use super::grants::{GrantResult, Resource};
use super::process::{Process, slots};
use super::protection::{Source, choose};
use super::untrusted::GrantRequest;
use super::{GroupId, Notice, ProcessId, State, Sums, Tree, enforce};

impl Tree {
    /// Notes that a process of the group is alive and has not registered with this daemon. Its charge is
    /// unknown, so requests in the group are not answered before [`member_told`](Self::member_told).
    pub fn await_member(&self, group: GroupId) {
        let mut state = self.state.lock();
        state.grants.await_member(group);
        state.swap_grants.await_member(group);
    }

    /// Undoes [`await_member`](Self::await_member): the process has registered or ended, or is not waited for
    /// any longer.
    pub fn member_told(&self, group: GroupId) {
        self.update(|state, notices| {
            state.grants.told(group);
            state.swap_grants.told(group);
            for id in std::mem::take(&mut state.asking) {
                state.answer_requests(id, notices);
            }
        });
    }
}

impl State {
    /// Answers the requests of a process to the groups above, on all devices.
    pub(super) fn answer_requests(&mut self, id: ProcessId, notices: &mut Vec<Notice>) {
        let process = self.processes.get(&id);
        if process.is_some_and(|process| process.suspension.is_moving()) {
            // Answered when the groups are charged for the GPUs on which it counts.
            self.asking.insert(id);
            return;
        }
        for device in slots(self.devices.len()) {
            let Some(process) = self.processes.get(&id) else {
                return;
            };
            let Some(request) = Resource::Memory.asked(process, device) else {
                self.relax(id, device);
                continue;
            };
            let GrantRequest {
                number,
                bytes,
                below_high,
                is_again,
            } = request;
            let result = self.grants.request(id, device, (bytes, below_high));
            if result == GrantResult::Unknown {
                self.asking.insert(id);
                continue;
            }
            if let GrantResult::Refused(refusal) = result
                && self.is_estimate_awaited(id, (device, number), refusal.group)
            {
                // The process rings while it waits.
                continue;
            }
            let is_granted = matches!(result, GrantResult::Granted | GrantResult::GrantedAbove);
            // Before the process is told and charges.
            if is_granted {
                self.observe_grant(id, device, bytes);
            }
            match result {
                GrantResult::GrantedAbove => self.throttle(id, device, is_again, notices),
                _ => self.end_wait(id, device),
            }
            let Some(process) = self.processes.get(&id) else {
                return;
            };
            enforce::answer(process, device, number, is_granted);
            notices.push(Notice::Answered { id, device });
            if let GrantResult::Refused(refusal) = result {
                self.note_group_refusal(id, device, request, refusal);
            }
        }
        self.grants.look(id);
        self.answer_swap_requests(id, notices);
    }

    /// Answers a process's requests for memory to swap out, on all devices. No thread waits on a futex for
    /// these answers.
    fn answer_swap_requests(&mut self, id: ProcessId, notices: &mut Vec<Notice>) {
        for device in slots(self.devices.len()) {
            let Some(process) = self.processes.get(&id) else {
                return;
            };
            let Some(request) = Resource::Swap.asked(process, device) else {
                continue;
            };
            let number = request.number;
            let answer = match self.swap_grants.request(id, device, (request.bytes, false)) {
                GrantResult::Unknown => {
                    self.asking.insert(id);
                    continue;
                }
                GrantResult::Granted | GrantResult::GrantedAbove => SwapAnswer::Granted,
                GrantResult::Refused(refusal) if self.recall(refusal.group, id, notices) => {
                    SwapAnswer::Recalled
                }
                GrantResult::Refused(_) | GrantResult::TooHigh => SwapAnswer::Refused,
            };
            if let Some(process) = self.processes.get(&id) {
                enforce::answer_swap(process, device, number, answer);
            }
        }
        self.swap_grants.look(id);
    }

    /// Asks the other processes of a group to release their swap pools. Returns whether any claims to have
    /// one.
    fn recall(&self, group: GroupId, asker: ProcessId, notices: &mut Vec<Notice>) -> bool {
        let mut is_any = false;
        for process in self.within(group) {
            if process.id != asker && process.usage().has_swap_pool() {
                enforce::recall(process);
                notices.push(Notice::Ring(process.id));
                is_any = true;
            }
        }
        is_any
    }

    /// Applies the limits above to a process that has just registered. `is_trusted`: its claims are believed
    /// for now.
    pub(super) fn govern(&mut self, id: ProcessId, is_trusted: bool) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        self.grants.join(id, process.group, process.blocks.clone());
        self.swap_grants.join(id, process.group, process.blocks.clone());
        if is_trusted {
            self.grants.trust(id);
            self.swap_grants.trust(id);
        }
        for (device, control) in (0..self.devices.len()).zip(&process.control().devices) {
            let overhead = control.memory_overhead.load(Relaxed);
            self.grants.set_overhead(id, device, overhead);
        }
        self.heed_high(id);
    }

    /// Counts an event of a group as a whole, and on `device` if given, there, above and at the root.
    pub(super) fn count_in_group(
        &mut self,
        id: GroupId,
        device: Option<usize>,
        count: impl Fn(&mut Sums),
        notices: &mut Vec<Notice>,
    ) {
        self.each_above(Some(id), |group| {
            let mut places = vec![None];
            places.extend(device.map(Some));
            for device in places {
                count(&mut group.counted_mut(device).before);
                group.events.count_change(device.map_or(0, |device| device + 1));
            }
            notices.push(Notice::GroupEvents(group.id));
        });
        count(&mut self.departed);
        self.nr_count_changes += 1;
        notices.push(Notice::RootEvents);
    }

    /// Returns the notices that have the counts of a group, of those above and of the root written to the
    /// journal.
    pub(super) fn counts_changed(&self, id: GroupId) -> impl Iterator<Item = Notice> + use<> {
        let groups = self.chain(Some(id)).into_iter().map(Notice::GroupChanged);
        groups.chain([Notice::RootChanged])
    }

    /// Applies a group's `memory.limit`, as a whole or on a device. Processes that can swap are asked to move
    /// out the excess.
    pub(super) fn limit_group(
        &mut self,
        id: GroupId,
        device: Option<usize>,
        limit: u64,
        notices: &mut Vec<Notice>,
    ) {
        // The peak so far must not be bounded by the new limit.
        for above in self.chain(Some(id)) {
            for place in [None, device] {
                let peak = self.group_peak(above, place);
                self.was_shown(above, place, peak);
            }
        }
        self.grants.set_limit(id, device, limit);
        self.make_room(id, notices);
    }

    /// Asks processes that can swap to move out what exceeds the limits and `memory.high` of a group, and
    /// rings all where a limit is exceeded: their memory pools release what they do not use.
    pub(super) fn make_room(&mut self, id: GroupId, notices: &mut Vec<Notice>) {
        let all: Vec<usize> = slots(self.devices.len()).collect();
        for device in all.iter().copied().map(Some).chain([None]) {
            let excess = self.grants.excess(id, device);
            if excess > 0 {
                let wanted = device.map_or_else(|| all.clone(), |device| vec![device]);
                self.reclaim(self.within(id), &wanted, excess, (Some(id), true));
                let members = self.within(id).into_iter();
                notices.extend(members.map(|process| Notice::Ring(process.id)));
            }
        }
        self.move_out_above_high(id, notices);
    }

    /// Asks for `bytes` to be swapped out from the devices of the slots `wanted`, in the order of [`choose`].
    /// Returns the processes asked. `within`: the group for which it is done, which does not protect its
    /// own memory from it; for a process that does it for itself there is none. `is_lent`: the memory
    /// returns when there is room.
    pub(super) fn reclaim(
        &self,
        mut processes: Vec<&Process>,
        wanted: &[usize],
        bytes: u64,
        (within, is_lent): (Option<GroupId>, bool),
    ) -> Vec<ProcessId> {
        processes.retain(|process| process.can_swap());
        if processes.is_empty() {
            return Vec::new();
        }
        let mut sources = Vec::new();
        for device in wanted {
            let protected = within.map(|group| self.protected(Some(group), *device));
            let protected = protected.unwrap_or_default();
            let of = |process: &&Process| {
                let usage = process.usage().device(*device);
                let movable = usage.map_or(0, |usage| usage.swappable(device_total(*device, &self.devices)));
                Source {
                    id: process.id,
                    device: *device,
                    priority: process.priority(Some(*device), self.uuid(*device)),
                    held: self.current_of(process, Some(*device)).max(movable),
                    movable,
                    protected: protected.get(&process.id).copied().unwrap_or_default(),
                }
            };
            sources.extend(processes.iter().map(of));
        }
        let chosen = match bytes {
            // Also covers memory that is being moved in now.
            NO_LIMIT => {
                let free = sources.iter().filter(|source| source.protected.min == 0);
                let free = free.map(|source| (*source, NO_LIMIT));
                let rest: Vec<_> = sources
                    .iter()
                    .filter(|source| source.protected.min != 0)
                    .copied()
                    .collect();
                free.chain(choose(&rest, NO_LIMIT)).collect()
            }
            bytes => choose(&sources, bytes),
        };
        let (mut asked, mut are_asked) = (Vec::new(), HashSet::new());
        for (source, bytes) in chosen {
            if let Some(process) = self.processes.get(&source.id) {
                enforce::reclaim(process, source.device, bytes, is_lent);
            }
            if are_asked.insert(source.id) {
                asked.push(source.id);
            }
        }
        asked
    }
}
