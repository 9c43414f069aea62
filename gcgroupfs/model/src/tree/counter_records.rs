//! Periodic writing of processes' counts to the journal. They are in the processes' own memory and lost if a
//! process ends while no daemon runs; with the last record, the totals of its groups and the root lack only
//! what it counted after that.

use std::cmp::Reverse;

use super::process::{Process, Written};
use super::saved::by_index;
use super::{Ending, GroupId, Notice, ProcessId, State, Sums, Tree, ended};
use crate::tree::Saved;

/// Number of processes written at a time, longest wait first, so that thousands of busy ones do not occupy
/// the disk.
const MAX_AT_ONCE: usize = 64;

impl Tree {
    /// Writes the changed counts of up to 64 processes to the journal, and changed sizes of contexts; other
    /// processes follow with later calls.
    pub fn write_some_counts(&self) {
        self.write_counts(MAX_AT_ONCE);
    }

    /// Writes all changed counts, and the peaks of all groups, to the journal.
    pub fn write_all_counts(&self) {
        let all: Vec<ProcessId> = self.processes().into_iter().map(|(id, _)| id).collect();
        self.look_at(all);
        self.write_counts(usize::MAX);
    }

    fn write_counts(&self, most: usize) {
        let all: Vec<ProcessId> = self.state.lock().processes.keys().copied().collect();
        // Each process is looked at under the lock by itself, so that others get it in between.
        let waits = |id: &ProcessId| Some((self.state.lock().nr_waits(*id)?, *id));
        let mut due: Vec<(u32, ProcessId)> = all.iter().filter_map(waits).collect();
        due.sort_by_key(|(nr_waits, _)| Reverse(*nr_waits));
        let mut state = self.state.lock();
        for (place, (_, id)) in due.iter().enumerate() {
            state.note_written(*id, place < most);
        }
        let sizes = state.contexts.take_changed().then_some(Notice::RootChanged);
        drop(state);
        let processes = due.into_iter().take(most);
        let processes = processes.map(|(_, id)| Notice::SettingsChanged(id));
        self.tell(&processes.chain(sizes).collect::<Vec<_>>());
    }

    /// Writes all counts of a process to the journal, if it has any.
    pub fn write_counts_of(&self, id: ProcessId) {
        if self.saved(id).is_some_and(|saved| saved.has_counts()) {
            self.tell(&[Notice::SettingsChanged(id)]);
        }
    }

    /// Moves the counts of a program to its group and above. The process has ended without registering with
    /// this daemon, or executes another program.
    pub fn pass_to_groups(
        &self,
        (pid, start_time): (u32, u64),
        saved: &mut Saved,
        ending: impl Into<Ending>,
    ) {
        if !saved.has_program() && !saved.has_counts() {
            return;
        }
        let mut state = self.state.lock();
        saved.exited = saved.exited(state.path(saved.group), ending.into()).map(Box::new);
        if let Some(exited) = &saved.exited {
            ended::remember(&mut state.exited, (**exited).clone());
        }
        let byte_seconds = saved.byte_seconds();
        let counts = saved.take_counts();
        let mut notices = vec![Notice::Departed {
            pid,
            start_time,
            saved: Box::new(saved.clone()),
        }];
        saved.exited = None;
        let groups = state.chain(saved.group);
        for id in &groups {
            if let Some(group) = state.groups.get_mut(id) {
                group.add_byte_seconds(byte_seconds);
            }
        }
        let counts: Vec<_> = by_index(&counts, &state.devices).collect();
        for (device, sums) in counts {
            for id in &groups {
                if let Some(group) = state.groups.get_mut(id) {
                    group.counted_mut(device).before += sums;
                }
            }
            if device.is_none() {
                state.departed += sums;
            }
        }
        notices.extend(groups.into_iter().map(Notice::GroupChanged));
        notices.push(Notice::RootChanged);
        state.tie(&notices);
        drop(state);
        self.tell(&notices);
    }
}

impl State {
    /// Returns in how many rounds the process was not written; `None` if its counts have not changed.
    fn nr_waits(&self, id: ProcessId) -> Option<u32> {
        let process = self.processes.get(&id)?;
        let is_written = process.written.digest == Some(self.digest(process));
        (!is_written).then_some(process.written.nr_waits)
    }

    fn digest(&self, process: &Process) -> u64 {
        let counts = Sums::of(process, None, &self.devices).counts().digest();
        counts.wrapping_add(process.byte_seconds.minutes())
    }

    fn note_written(&mut self, id: ProcessId, is_now: bool) {
        let digest = self.processes.get(&id).map(|process| self.digest(process));
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        if is_now {
            process.written = Written { digest, nr_waits: 0 };
        } else {
            process.written.nr_waits = process.written.nr_waits.saturating_add(1);
        }
    }
}

/// Adds the counts of an ended process to the records of the groups that it was in and of the root (`None`),
/// as stored in the journal.
pub fn add_to_ancestors(dead: &Saved, mut place: impl FnMut(Option<GroupId>, &mut dyn FnMut(&mut Saved))) {
    let mut at = dead.group;
    while let Some(id) = at.take() {
        place(Some(id), &mut |above: &mut Saved| {
            for (uuid, sums) in &dead.counts {
                above.counted.entry(uuid.clone()).or_default().before += *sums;
            }
            if let Some(creation) = &mut above.creation {
                creation.byte_seconds = creation.byte_seconds.saturating_add(dead.byte_seconds());
            }
            // A group's number is higher than its parent's.
            at = above.group.filter(|outer| *outer < id);
        });
    }
    place(None, &mut |root: &mut Saved| {
        if let Some(sums) = dead.counts.get("") {
            root.counted.entry(String::new()).or_default().before += *sums;
        }
    });
}
