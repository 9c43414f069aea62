//! Records of living processes that are not registered now: they are executing another program, or have not
//! registered again after a restart. Their groups are held while they live; otherwise a program could leave a
//! group by executing another.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::host::unix_time;
use crate::journal::Key;
use gcgroupfs_model::tree::{Ending, Saved, Tree};
use gcgroupfs_sys::process;

#[derive(Debug)]
pub(super) struct Unregistered {
    tree: Arc<Tree>,
    processes: BTreeMap<Key, Saved>,
}

impl Unregistered {
    pub(super) fn new(tree: Arc<Tree>, processes: BTreeMap<Key, Saved>) -> Self {
        for group in processes.values().filter_map(|saved| saved.group) {
            // A group that does not exist can be neither held nor released.
            tree.hold_group(group);
        }
        Self { tree, processes }
    }

    pub(super) fn get(&self, key: Key) -> Option<&Saved> {
        self.processes.get(&key)
    }

    /// Returns the record of the process with this pid, for use when its start time cannot be read.
    pub(super) fn find_pid(&self, pid: u32) -> Option<&Saved> {
        let key = |start_time| Key { pid, start_time };
        let of_pid = self.processes.range(key(0)..=key(u64::MAX));
        of_pid.map(|(_, saved)| saved).next_back()
    }

    /// Returns the processes for which groups are held.
    pub(super) fn in_groups(&self) -> Vec<Key> {
        let in_groups = self.processes.iter().filter(|(_, saved)| saved.group.is_some());
        in_groups.map(|(key, _)| *key).collect()
    }

    /// Remembers a process and holds its group. Called before the process leaves the group.
    pub(super) fn insert(&mut self, key: Key, saved: Saved) {
        if let Some(group) = saved.group {
            self.tree.hold_group(group);
        }
        let before = self.processes.insert(key, saved);
        self.let_go(before);
    }

    /// Counts the process in its group as one that may use the GPU without being registered, until it is
    /// [removed](Self::remove).
    pub(super) fn set_ungoverned(&self, key: Key) {
        if let Some(group) = self.get(key).and_then(|saved| saved.group) {
            self.tree.set_ungoverned((key.pid, key.start_time), group);
        }
    }

    /// Drops the record of a process that is about to enter its group again. Returns whether there was one:
    /// then its group stays held.
    pub(super) fn take(&mut self, key: Key) -> bool {
        self.processes.remove(&key).is_some()
    }

    /// Drops the record of a process and releases its group. Called after the process has entered the group
    /// again.
    pub(super) fn remove(&mut self, key: Key) {
        self.tree.clear_ungoverned((key.pid, key.start_time));
        let before = self.processes.remove(&key);
        self.let_go(before);
    }

    /// Handles the registration of a process. If it executes another program than when its counts were
    /// recorded, that program has ended, and its counts are added to its groups and the root.
    pub(super) fn settle_counts(&mut self, key: Key, image: Option<(u64, u64)>) {
        if let Some(saved) = self.processes.get_mut(&key)
            && saved.is_of_another(image)
        {
            let ending = Ending {
                time: unix_time(),
                how: "exec".to_owned(),
                by: String::new(),
            };
            self.tree.pass_to_groups((key.pid, key.start_time), saved, ending);
        }
    }

    /// Handles the end of a process: its recorded counts, if not yet shown elsewhere, are added to its groups
    /// and the root.
    pub(super) fn ended(&mut self, key: Key, ending: Ending) {
        let Some(mut saved) = self.processes.remove(&key) else {
            return;
        };
        self.tree.clear_ungoverned((key.pid, key.start_time));
        self.tree
            .pass_to_groups((key.pid, key.start_time), &mut saved, ending);
        self.let_go(Some(saved));
    }

    /// Removes the processes that have ended, whose end is not reported otherwise. Returns whether any are
    /// left.
    pub(super) fn tend(&mut self) -> bool {
        let is_dead = |key: &&Key| !process::is_alive(key.pid, key.start_time);
        let dead: Vec<Key> = self.processes.keys().filter(is_dead).copied().collect();
        dead.into_iter()
            .for_each(|key| self.ended(key, unix_time().into()));
        !self.processes.is_empty()
    }

    fn let_go(&self, saved: Option<Saved>) {
        if let Some(group) = saved.and_then(|saved| saved.group) {
            self.tree.release_group(group);
        }
    }
}
