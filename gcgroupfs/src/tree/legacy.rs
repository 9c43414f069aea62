//! What processes have counted, written down now and then: it is in their own memory, and a process that ends while no daemon
//! runs takes that along. The totals of its groups and of the root are not to fall for that, but for what it counted last of
//! all.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::process::Process;
use super::{Device, GroupId, Notice, ProcessId, State, Sums, Tree};
use crate::tree::Saved;

/// How many are written down at a time, so that thousands of busy processes do not keep the disk busy: who has waited longest.
const MAX_AT_ONCE: usize = 64;

/// What of a process's counts is on file.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Written {
    /// All of them added up, each of which only grows. Of a process that has just come, nobody knows.
    digest: Option<u64>,
    /// How often others were written in its place.
    nr_waits: u32,
}

impl Tree {
    /// Has those written down whose counts have changed since they were: some now, others the next time.
    pub fn write_some_counts(&self) {
        self.write_counts(MAX_AT_ONCE);
    }

    /// Has all of them written down, and the peaks of all groups.
    pub fn write_all_counts(&self) {
        let all: Vec<ProcessId> = self.processes().into_iter().map(|(id, _)| id).collect();
        self.look_at(all);
        self.write_counts(usize::MAX);
    }

    fn write_counts(&self, most: usize) {
        let all: Vec<ProcessId> = self.state.lock().processes.keys().copied().collect();
        // Others come in between.
        let waits = |id: &ProcessId| Some((self.state.lock().nr_waits(*id)?, *id));
        let mut due: Vec<(u32, ProcessId)> = all.iter().filter_map(waits).collect();
        due.sort_by_key(|(nr_waits, _)| Reverse(*nr_waits));
        let mut state = self.state.lock();
        for (place, (_, id)) in due.iter().enumerate() {
            state.note_written(*id, place < most);
        }
        drop(state);
        let notices: Vec<Notice> = due
            .into_iter()
            .take(most)
            .map(|(_, id)| Notice::SettingsChanged(id))
            .collect();
        self.tell(&notices);
    }

    /// Has all written down that a process has counted, if that is anything.
    pub fn write_counts_of(&self, id: ProcessId) {
        if self.saved(id).is_some_and(|saved| saved.has_counts()) {
            self.tell(&[Notice::SettingsChanged(id)]);
        }
    }

    /// A process has ended that never registered with this daemon, or executes another program: what it had counted stays
    /// in its group and above, and nothing of that with it.
    pub fn bequeath(&self, (pid, start_time): (u32, u64), saved: &mut Saved) {
        let counts = saved.take_counts();
        if counts.is_empty() {
            return;
        }
        let mut notices = vec![Notice::Departed {
            pid,
            start_time,
            saved: Box::new(saved.clone()),
        }];
        let mut state = self.state.lock();
        let groups = state.chain(saved.group);
        for (device, sums) in super::saved::by_index(&counts, &state.devices.clone()) {
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
    /// How often the process has waited to be written down; nothing if there is nothing new.
    fn nr_waits(&self, id: ProcessId) -> Option<u32> {
        let process = self.processes.get(&id)?;
        let is_written = process.written.digest == Some(self.digest(process));
        (!is_written).then_some(process.written.nr_waits)
    }

    fn digest(&self, process: &Process) -> u64 {
        Sums::of(process, None, &self.devices).counts().digest()
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

/// What is to stay of a process if it ends, by the devices' UUIDs; of it as a whole by an empty one. The root has that alone.
pub(super) fn counts(process: &Process, devices: &[Device]) -> BTreeMap<String, Sums> {
    let nr_devices = process.group.map_or(0, |_| devices.len());
    let places = [None].into_iter().chain((0..nr_devices).map(Some));
    let counts = places.map(|device| (device, Sums::of(process, device, devices).departed()));
    super::saved::by_uuid(counts, devices)
}

/// Leaves what a process has counted that has ended to the groups that it was in and to the root, which is none, as they are
/// on file.
pub fn leave_behind(dead: &Saved, mut place: impl FnMut(Option<GroupId>, &mut dyn FnMut(&mut Saved))) {
    let mut at = dead.group;
    while let Some(id) = at.take() {
        place(Some(id), &mut |above: &mut Saved| {
            for (uuid, sums) in &dead.counts {
                above.counted.entry(uuid.clone()).or_default().before += *sums;
            }
            // A group's number is higher than that of the one it is in.
            at = above.group.filter(|outer| *outer < id);
        });
    }
    place(None, &mut |root: &mut Saved| {
        if let Some(sums) = dead.counts.get("") {
            root.counted.entry(String::new()).or_default().before += *sums;
        }
    });
}
