//! Which limit has refused an allocation, for people to read. The hook counts refusals; the daemon notes the
//! limit when it sees a count grow.

#[cfg(test)]
mod tests;

use gcgroup_abi::OTHER_DEVICE;

use super::kill::{KillCause, Killer};
use super::process::{Process, slots};
use super::refused::{Cause, OomGroup, ProcessRefusals, Refused};
use super::settings::{MEMORY_LIMIT, MEMORY_OOM_GROUP};
use super::untrusted::GrantRequest;
use super::{Directory, GroupId, Notice, ProcessId, State, Sums, usage};
use crate::tree::grants::Refusal;

/// Nanoseconds within which a process gives up after a refusal: its hook waits for 5 s at most. What it
/// counts later has another cause.
const GIVES_UP_WITHIN: u64 = 10_000_000_000;

impl ProcessRefusals {
    /// Takes the counts of a usage block that may be older than this daemon as noted.
    pub(super) fn begin(&mut self, process: &Process, nr_devices: usize) {
        for slot in slots(nr_devices) {
            self.slot_mut(slot).seen = counts(process, slot).0;
        }
        self.seen_whole = process.usage().nr_oom();
    }
}

/// Returns the counts of a slot and the bytes of the last refusal.
fn counts(process: &Process, slot: usize) -> ([u64; 3], u64) {
    let usage = process.usage();
    let counts = usage.device(slot).map_or([0; 3], |device| device.refusals());
    (counts, usage.refused_bytes())
}

impl State {
    /// Notes the refusals that a process has counted since the last call.
    pub(super) fn note_refusals(&mut self, id: ProcessId, notices: &mut Vec<Notice>) {
        let (mut doomed, mut by_groups) = (None, Vec::new());
        let (now, nr_devices) = ((self.devices.host.now)(), self.devices.len());
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let mut refusals = std::mem::take(&mut process.refusals);
        let process = &*process;
        for slot in slots(nr_devices) {
            let (counts, bytes) = counts(process, slot);
            let before = std::mem::replace(&mut refusals.slot_mut(slot).seen, counts);
            let grown = [0, 1, 2].map(|which: usize| counts[which].wrapping_sub(before[which]));
            // A failure is counted after its cause.
            if grown[0] == 0 {
                refusals.slot_mut(slot).seen = before;
                continue;
            }
            let whole = process.usage().nr_oom();
            let by_whole = whole.wrapping_sub(std::mem::replace(&mut refusals.seen_whole, whole));
            let limit = |device: Option<usize>| {
                let device = device.and_then(|index| self.devices.get(index));
                let uuid = device.map(|device| device.uuid_text.as_str());
                process.settings.get(MEMORY_LIMIT, uuid).number()
            };
            let current = |device| usage::current(process, device, &self.devices);
            let refused = Refused {
                at: now,
                count: grown[0],
                device: slot,
                bytes,
                cause: Cause::Memory,
                limit: 0,
                used: 0,
            };
            let by_device = Refused {
                count: grown[1],
                cause: Cause::Device,
                limit: limit(Some(slot)),
                used: current(Some(slot)),
                ..refused
            };
            let by_whole = Refused {
                count: by_whole,
                cause: Cause::Process,
                limit: limit(None),
                used: current(None),
                ..refused
            };
            // What the process counts is a claim; that a group has refused it something is not.
            let by_group = refusals.slot_mut(slot).give_up(grown[2]);
            let by_group = by_group.map(|refused| Refused { at: now, ..refused });
            by_groups.extend(by_group);
            if grown[2] != 0 {
                let marked = refusals.oom_group.take();
                doomed = marked
                    .filter(|mark| now.saturating_sub(mark.at) < GIVES_UP_WITHIN)
                    .or(doomed);
            }
            let mut is_known = grown[2] != 0;
            for refused in [Some(by_device), Some(by_whole), by_group].into_iter().flatten() {
                if refused.count != 0 {
                    is_known = true;
                    refusals.last.note(refused);
                }
            }
            if !is_known {
                refusals.last.note(Refused { bytes: 0, ..refused });
            }
        }
        if let Some(process) = self.processes.get_mut(&id) {
            process.refusals = refusals;
        }
        for refused in by_groups.into_iter().filter(|refused| refused.count != 0) {
            self.count_group_refusals(refused, notices);
        }
        if let Some(doomed) = doomed {
            self.kill_oom_group(id, doomed, notices);
        }
    }

    /// Notes refused allocations in the group whose limit refused them, and counts them there and above.
    fn count_group_refusals(&mut self, refused: Refused, notices: &mut Vec<Notice>) {
        let Cause::Group(id, device) = refused.cause else {
            return;
        };
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        group.refusals.note(refused);
        let device = device.filter(|device| *device != OTHER_DEVICE);
        let nr_refused = |state: &Self| {
            state
                .groups
                .get(&id)
                .map_or(0, |group| group.counted(None).before.nr_oom)
        };
        let before = nr_refused(self);
        let count = |sums: &mut Sums| {
            sums.nr_max = sums.nr_max.saturating_add(refused.count);
            sums.nr_oom = sums.nr_oom.saturating_add(refused.count);
        };
        self.count_in_group(id, device, count, notices);
        let now = nr_refused(self);
        // Not every count is written to the journal, since a process can provoke refusals at will.
        if before.checked_ilog2() != now.checked_ilog2() || before / 64 != now / 64 {
            notices.extend(self.counts_changed(id));
        }
    }

    /// Returns the outermost group with `memory.oom.group` from the process up to the group whose limit
    /// refuses it something.
    fn oom_group(&self, id: ProcessId, limited: GroupId) -> Option<GroupId> {
        let chain = self.chain(self.processes.get(&id).and_then(|process| process.group));
        let last = chain.iter().position(|group| *group == limited)?;
        let mut within = chain.iter().take(last + 1);
        within.rfind(|group| self.is_oom_unit(**group)).copied()
    }

    fn is_oom_unit(&self, id: GroupId) -> bool {
        let group = self.groups.get(&id);
        group.is_some_and(|group| group.settings.of_group(MEMORY_OOM_GROUP, None).is_on())
    }

    /// Kills a group as a unit because a process has given up, unless that has left it since.
    fn kill_oom_group(&mut self, id: ProcessId, doomed: OomGroup, notices: &mut Vec<Notice>) {
        let OomGroup { group, device, .. } = doomed;
        let chain = self.chain(self.processes.get(&id).and_then(|process| process.group));
        if !chain.contains(&group) || !self.is_oom_unit(group) {
            return;
        }
        let device = device.filter(|slot| *slot < self.devices.len());
        self.count_in_group(group, device, |sums| sums.nr_oom_group_kill += 1, notices);
        notices.extend(self.counts_changed(group));
        if let Some(unit) = self.groups.get(&group) {
            let killer = Killer {
                uid: unit.access.owner.uid,
                cause: KillCause::OomGroup,
            };
            notices.push(Notice::KillAsked(Directory::group(group), killer));
        }
    }

    /// Notes that a group refused to grant `bytes` on a device to a process, in case the process gives up. A
    /// request to return memory below `memory.high` fails no allocation.
    pub(super) fn note_group_refusal(
        &mut self,
        id: ProcessId,
        slot: usize,
        request: GrantRequest,
        refusal: Refusal,
    ) {
        let (Refusal { group, device }, bytes) = (refusal, request.bytes);
        let uuid = device.and_then(|index| self.devices.get(index));
        let uuid = uuid.map(|device| device.uuid_text.as_str());
        let Some(limit) = self.groups.get(&group) else {
            return;
        };
        let refused = Refused {
            at: (self.devices.host.now)(),
            count: 1,
            device: slot,
            bytes,
            cause: Cause::Group(group, device),
            limit: limit.settings.of_group(MEMORY_LIMIT, uuid).number(),
            used: self.current_in(Some(group), device),
        };
        // As of now: a later write does not concern this refusal.
        let oom_group = self.oom_group(id, refusal.group);
        if let Some(process) = self.processes.get_mut(&id) {
            process.refusals.refuse(refused);
            if !request.below_high {
                let at = refused.at;
                process.refusals.oom_group = oom_group.map(|group| OomGroup { group, device, at });
            }
        }
    }
}
