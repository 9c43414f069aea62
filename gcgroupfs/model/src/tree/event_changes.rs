//! Changes of what events files show: found by comparison, counted, and reported to pollers.

use super::events::{Standing, nr_places};
use super::peaks::MAX_LOOK;
use super::process::Process;
use super::{Devices, Directory, Entity, Group, GroupId, Notice, ProcessId, State, Sums, all_counters};

/// Changes in a process's events files, by position.
#[derive(Debug, Default)]
struct Changes {
    any: bool,
    counts: Vec<usize>,
    froze: Vec<usize>,
    thawed: Vec<usize>,
    /// Whether the process was suspended, and is now.
    suspended: (bool, bool),
}

impl State {
    /// Counts and reports the changes since the last call, for the process and all groups that it is in.
    pub(super) fn note_events(&mut self, id: ProcessId, notices: &mut Vec<Notice>) {
        self.note_refusals(id, notices);
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let changes = process.note_events(&self.devices);
        let group = process.group;
        self.observe(id);
        if !changes.any {
            return;
        }
        notices.push(Notice::Events(id));
        if !changes.counts.is_empty() {
            self.nr_count_changes += 1;
            notices.push(Notice::RootEvents);
        }
        let nr_devices = self.devices.len();
        self.each_above(group, |group| {
            group.nr_frozen.resize(nr_places(nr_devices), 0);
            changes.froze.iter().for_each(|at| group.nr_frozen[*at] += 1);
            for at in &changes.thawed {
                group.nr_frozen[*at] = group.nr_frozen[*at].saturating_sub(1);
            }
            let (was, is) = changes.suspended;
            let nr_suspended = group.nr_suspended + usize::from(is);
            group.nr_suspended = nr_suspended.saturating_sub(usize::from(was));
            changes
                .counts
                .iter()
                .for_each(|at| group.events.count_change(*at));
            if group.note_standing(nr_devices) || !changes.counts.is_empty() {
                notices.push(Notice::GroupEvents(group.id));
            }
        });
    }

    /// Counts and reports the changes of a process, or of all processes in a group unless it is large.
    /// Returns whether there were any.
    pub(super) fn note_events_below(&mut self, directory: Directory, notices: &mut Vec<Notice>) -> bool {
        let ids = match directory.whose() {
            Entity::Root => Vec::new(),
            Entity::Process(id) => vec![id],
            Entity::Group(id) => match self.groups.get(&id) {
                Some(group) if group.nr_members <= MAX_LOOK => {
                    self.within(id).iter().map(|process| process.id).collect()
                }
                _ => Vec::new(),
            },
        };
        let before = notices.len();
        for id in ids {
            self.note_events(id, notices);
        }
        notices.len() != before
    }

    /// Adds a process to the counts of these groups, or removes it.
    pub(super) fn count_member(
        &mut self,
        id: ProcessId,
        groups: &[GroupId],
        enters: bool,
        notices: &mut Vec<Notice>,
    ) {
        let nr_devices = self.devices.len();
        let Self {
            processes,
            groups: all,
            ..
        } = self;
        let Some(process) = processes.get(&id) else { return };
        for id in groups {
            let Some(group) = all.get_mut(id) else { continue };
            group.nr_frozen.resize(nr_places(nr_devices), 0);
            let count = |number: &mut usize, by: bool| match enters {
                true => *number += usize::from(by),
                false => *number = number.saturating_sub(usize::from(by)),
            };
            count(&mut group.nr_members, true);
            count(&mut group.nr_suspended, process.events.was_suspended());
            for (at, number) in group.nr_frozen.iter_mut().enumerate() {
                count(number, process.events.was_frozen(at));
            }
            if group.note_standing(nr_devices) {
                notices.push(Notice::GroupEvents(group.id));
            }
        }
    }

    /// Calls `visit` with the group and each group above it.
    pub(super) fn each_above(&mut self, from: Option<GroupId>, mut visit: impl FnMut(&mut Group)) {
        let mut at = from;
        while let Some(group) = at.and_then(|id| self.groups.get_mut(&id)) {
            visit(group);
            at = group.parent;
        }
    }
}

impl Process {
    fn note_events(&mut self, devices: &Devices) -> Changes {
        let places = [None].into_iter().chain((0..devices.len()).map(Some));
        let was_suspended = self.events.was_suspended();
        let mut changes = Changes {
            suspended: (was_suspended, self.suspension.is_suspended()),
            ..Changes::default()
        };
        for (at, device) in places.enumerate() {
            let (standing, counts) = (self.standing(device, devices), self.counts(device, devices));
            let was_frozen = self.events.was_frozen(at);
            if self.events.set_standing(at, standing) {
                changes.any = true;
                match (was_frozen, standing.is_frozen) {
                    (false, true) => changes.froze.push(at),
                    (true, false) => changes.thawed.push(at),
                    _ => {}
                }
            }
            let has_notice = self.notice_target(device, devices) > 0;
            changes.any |= self.events.set_notice(at, has_notice);
            if self.events.set_counts(at, counts) {
                changes.any = true;
                changes.counts.push(at);
            }
        }
        changes
    }

    /// Returns the bytes that the process is told to free on a device, or on all, at most what they have.
    pub(super) fn notice_target(&self, device: Option<usize>, devices: &Devices) -> u64 {
        let slots = device.map_or(0..devices.len(), |device| device..device + 1);
        let target = |slot: usize| {
            let (usage, device) = (self.usage().device(slot)?, devices.get(slot)?);
            Some(usage.notice_target(device.total))
        };
        slots.filter_map(target).fold(0, u64::saturating_add)
    }

    fn standing(&self, device: Option<usize>, devices: &Devices) -> Standing {
        Standing {
            is_populated: true,
            is_frozen: self.is_frozen(device, devices.len()),
            is_hook_ok: self.is_hook_ok(),
            has_expired: false,
            drain_error: self.drain_error(device, devices.len()),
            is_suspended: self.suspension.is_suspended(),
            is_away: self.idle_rule().map(|_| self.has_left(devices)),
            nr_suspended: 0,
            suspend_step: self.suspension.step(),
            suspend_failed: self.suspension.failure().map(|(step, _)| step),
        }
    }

    fn counts(&self, device: Option<usize>, devices: &Devices) -> u64 {
        let mut sums = Sums::of(self, device, devices);
        let counters = all_counters().filter(|counter| counter.file() == Some("memory.events"));
        counters.fold(0, |sum: u64, counter| {
            sum.wrapping_add(*(counter.number)(&mut sums))
        })
    }
}
