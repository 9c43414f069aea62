//! `memory.high`: usage beyond it makes allocations wait and memory move out, and refuses nothing.
//!
//! A process asks for each allocation beyond it, as at the end of a grant (`grants/high.rs`). The request is
//! granted, memory that can move is asked out, and the hook is told for how long the allocation waits.
//! The time grows with the excess, as in cgroup v2; the hook waits less if usage falls before.

#[cfg(test)]
mod tests;

use super::enforce;
use super::grants::Above;
use super::process::slots;
use super::settings::{MEMORY_HIGH, Value};
use super::{Directory, Edit, Entity, GroupId, Notice, Process, ProcessId, State, Sums};
use crate::error::Result;

/// Longest wait of one allocation, microseconds.
const LONGEST_WAIT: u64 = 1_000_000;
/// Shortest one.
const SHORTEST_WAIT: u64 = 10_000;
/// An excess of this part of `memory.high` makes an allocation wait for [`LONGEST_WAIT`].
const FULL_EXCESS: u64 = 8;

/// Returns the longest wait for an excess, microseconds.
fn wait_usec(above: &Above) -> u32 {
    let all = u128::from(LONGEST_WAIT) * u128::from(above.excess) * u128::from(FULL_EXCESS);
    let usec = all.checked_div(above.high.into()).unwrap_or(LONGEST_WAIT.into());
    let usec = usec.clamp(SHORTEST_WAIT.into(), LONGEST_WAIT.into());
    u32::try_from(usec).unwrap_or(u32::MAX)
}

impl State {
    /// Applies the process's own `memory.high` to its grants.
    pub(super) fn heed_high(&mut self, id: ProcessId) {
        let places: Vec<Option<usize>> = self.places().collect();
        for place in places {
            let uuid = place.and_then(|device| self.uuid(device));
            let Some(process) = self.processes.get(&id) else {
                return;
            };
            // The slot of unknown devices has no value of its own.
            let high = match place.is_some() && uuid.is_none() {
                true => MEMORY_HIGH.default,
                false => process.settings.get(MEMORY_HIGH, uuid),
            };
            self.grants.set_process_high(id, place, high.number());
        }
    }

    /// Has memory moved out because a process has been granted more than a `memory.high` allows, counts that
    /// unless it `is_again` for an allocation that was counted, and tells the process for how long to wait.
    pub(super) fn throttle(&mut self, id: ProcessId, slot: usize, is_again: bool, notices: &mut Vec<Notice>) {
        let above = self.grants.above(id, slot);
        let usec = above.iter().map(wait_usec).max().unwrap_or(0);
        let now = (self.devices.host.now)();
        let process = self.processes.get_mut(&id);
        if process.is_some_and(|process| process.asks.take(now)) {
            for level in &above {
                self.move_out_above(id, level, notices);
            }
        }
        if let Some(level) = above.first().filter(|_| !is_again) {
            self.count_high(id, level, notices);
        }
        if let Some(process) = self.processes.get(&id) {
            enforce::wait_above_high(process, slot, usec);
        }
    }

    /// Takes back what is not used while a process waits on one device, and ends the wait if no `memory.high`
    /// is exceeded there any more.
    pub(super) fn relax(&mut self, id: ProcessId, slot: usize) {
        let process = self.processes.get(&id);
        if process.is_some_and(|process| enforce::waits_above_high(process, slot)) {
            self.grants.take_back_unused(id, slot);
            self.end_wait(id, slot);
        }
    }

    /// Ends the waits of a process on one device if no `memory.high` is exceeded there.
    pub(super) fn end_wait(&self, id: ProcessId, slot: usize) {
        if let Some(process) = self.processes.get(&id)
            && enforce::waits_above_high(process, slot)
            && self.grants.above(id, slot).is_empty()
        {
            enforce::wait_above_high(process, slot, 0);
        }
    }

    /// Asks processes in a group that can swap to move out what exceeds its `memory.high`.
    pub(super) fn move_out_above_high(&mut self, id: GroupId, notices: &mut Vec<Notice>) {
        let places: Vec<Option<usize>> = self.places().collect();
        for device in places {
            let excess = self.grants.excess_above(id, device);
            if excess > 0 {
                self.move_out(self.within(id), (device, Some(id)), excess, notices);
            }
        }
    }

    fn move_out_above(&self, id: ProcessId, level: &Above, notices: &mut Vec<Notice>) {
        let processes = match level.group {
            Some(group) => self.within(group),
            None => self.processes.get(&id).map(AsRef::as_ref).into_iter().collect(),
        };
        self.move_out(processes, (level.device, level.group), level.excess, notices);
    }

    /// Asks for `bytes` less what the processes have been asked for already.
    fn move_out(
        &self,
        processes: Vec<&Process>,
        (device, within): (Option<usize>, Option<GroupId>),
        bytes: u64,
        notices: &mut Vec<Notice>,
    ) {
        let wanted = device.map_or_else(|| slots(self.devices.len()).collect(), |device| vec![device]);
        let pending = |process: &&Process| {
            let pending = wanted.iter().map(|slot| enforce::pending_reclaim(process, *slot));
            pending.fold(0, u64::saturating_add)
        };
        let pending = processes.iter().map(pending).fold(0, u64::saturating_add);
        let bytes = bytes.saturating_sub(pending);
        if bytes > 0 {
            let asked = self.reclaim(processes, &wanted, bytes, (within, true));
            notices.extend(asked.into_iter().map(Notice::Ring));
        }
    }

    fn count_high(&mut self, id: ProcessId, level: &Above, notices: &mut Vec<Notice>) {
        let device = level.device.filter(|slot| *slot < self.devices.len());
        let count = match level.group {
            Some(group) => {
                self.count_in_group(group, device, |sums: &mut Sums| sums.nr_high += 1, notices);
                self.groups
                    .get(&group)
                    .map_or(0, |group| group.counted(None).before.nr_high)
            }
            None => {
                let kept = self
                    .processes
                    .get_mut(&id)
                    .and_then(|process| process.kept_mut(device));
                kept.map_or(0, |kept| {
                    kept.nr_high += 1;
                    kept.nr_high
                })
            }
        };
        // Not every count is written to the journal, since a process can exceed it at will.
        if !count.is_power_of_two() && !count.is_multiple_of(64) {
            return;
        }
        match level.group {
            Some(group) => notices.extend(self.counts_changed(group)),
            None => notices.push(Notice::SettingsChanged(id)),
        }
    }

    /// Returns the bytes of each process in a group, or of all, that are beyond a `memory.high` on a device:
    /// of a group's excess a part in proportion to what the process holds. That of the group itself and
    /// those above do not count.
    pub(super) fn beyond_high(&self, within: Option<GroupId>, device: usize) -> Vec<(ProcessId, u64)> {
        let mut found = Vec::new();
        for place in [Some(device), None] {
            let uuid = place.and_then(|place| self.uuid(place));
            if place.is_some() && uuid.is_none() {
                continue;
            }
            let high = |settings: &super::Settings| {
                let high = settings.own(MEMORY_HIGH, uuid).map(Value::number);
                high.filter(|high| *high != MEMORY_HIGH.default.number())
            };
            let below = |group: &GroupId| {
                within.is_none_or(|top| *group != top && self.chain(Some(*group)).contains(&top))
            };
            for group in self.groups.values().filter(|group| below(&group.id)) {
                let Some(high) = high(&group.settings) else {
                    continue;
                };
                let held = self.current_in(Some(group.id), place);
                let excess = held.saturating_sub(high);
                for process in self.within(group.id).into_iter().filter(|_| excess > 0) {
                    let here = self.current_of(process, Some(device));
                    found.push((process.id, part(excess, here, held)));
                }
            }
            let processes = self.processes.values();
            let is_within =
                |process: &Process| within.is_none_or(|top| self.chain(process.group).contains(&top));
            for process in processes.filter(|process| is_within(process)) {
                let Some(high) = high(&process.settings) else {
                    continue;
                };
                let held = self.current_of(process, place);
                let here = self.current_of(process, Some(device));
                let excess = held.saturating_sub(high);
                found.push((process.id, part(excess, here, held)));
            }
        }
        found
    }
}

/// Returns `bytes` times `part` divided by `whole`, rounded up.
fn part(bytes: u64, part: u64, whole: u64) -> u64 {
    let share = (u128::from(bytes) * u128::from(part)).div_ceil(u128::from(whole.max(1)));
    u64::try_from(share).unwrap_or(u64::MAX)
}

impl Edit<'_> {
    /// Applies `memory.high` after a write.
    pub(super) fn apply_high(&mut self) -> Result<()> {
        let directory: Directory = self.directory();
        let device = directory.device.map(usize::from);
        self.with_state(|state, notices| match directory.whose() {
            Entity::Process(id) => {
                state.heed_high(id);
                for slot in slots(state.devices.len()) {
                    state.end_wait(id, slot);
                    let own = state.grants.above(id, slot).into_iter();
                    for level in own.filter(|level| level.group.is_none()) {
                        state.move_out_above(id, &level, notices);
                    }
                }
            }
            Entity::Group(id) => {
                state.bound_group(id, device);
                let members: Vec<ProcessId> = state.within(id).iter().map(|process| process.id).collect();
                for member in members {
                    slots(state.devices.len()).for_each(|slot| state.end_wait(member, slot));
                }
                state.move_out_above_high(id, notices);
            }
            Entity::Root => {}
        });
        Ok(())
    }
}
