//! What is remembered of processes that live and are not registered now: they execute another program, or
//! have not come back after a restart. Their groups are there for them as long as they live, or a program
//! could leave a group by executing another.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::journal::Key;
use crate::process;
use crate::tree::{Saved, Tree};

#[derive(Debug)]
pub struct Remembered {
    tree: Arc<Tree>,
    processes: BTreeMap<Key, Saved>,
}

impl Remembered {
    pub fn new(tree: Arc<Tree>, processes: BTreeMap<Key, Saved>) -> Self {
        for group in processes.values().filter_map(|saved| saved.group) {
            // One that is not there cannot be held, nor let go.
            tree.hold_group(group);
        }
        Self { tree, processes }
    }

    pub fn get(&self, key: Key) -> Option<&Saved> {
        self.processes.get(&key)
    }

    /// The process of this pid, for when its start time cannot be asked for.
    pub fn find_pid(&self, pid: u32) -> Option<&Saved> {
        let of_pid = self.processes.iter().filter(|(key, _)| key.pid == pid);
        of_pid.map(|(_, saved)| saved).next_back()
    }

    /// Those for whom groups are held.
    pub fn in_groups(&self) -> Vec<Key> {
        let in_groups = self.processes.iter().filter(|(_, saved)| saved.group.is_some());
        in_groups.map(|(key, _)| *key).collect()
    }

    /// Before the process leaves its group.
    pub fn insert(&mut self, key: Key, saved: Saved) {
        if let Some(group) = saved.group {
            self.tree.hold_group(group);
        }
        let before = self.processes.insert(key, saved);
        self.let_go(before);
    }

    /// Has the process count in its group as one that may use the GPU without being registered, until it is
    /// [removed](Self::remove).
    pub fn set_ungoverned(&self, key: Key) {
        if let Some(group) = self.get(key).and_then(|saved| saved.group) {
            self.tree.set_ungoverned((key.pid, key.start_time), group);
        }
    }

    /// Forgets a process that is about to enter its group again. Returns whether it was remembered: then its
    /// group stays held.
    pub fn take(&mut self, key: Key) -> bool {
        self.processes.remove(&key).is_some()
    }

    /// After the process has entered its group again.
    pub fn remove(&mut self, key: Key) {
        self.tree.clear_ungoverned((key.pid, key.start_time));
        let before = self.processes.remove(&key);
        self.let_go(before);
    }

    /// The process registers, and may execute another program by now than when it was written down what it
    /// had counted: then that program has ended.
    pub fn comes_as(&mut self, key: Key, image: Option<(u64, u64)>) {
        if let Some(saved) = self.processes.get_mut(&key)
            && saved.is_of_another(image)
        {
            self.tree.bequeath((key.pid, key.start_time), saved);
        }
    }

    /// The process has ended. If it has not been here before, nobody has told its groups and the root what it
    /// had counted.
    pub fn ended(&mut self, key: Key) {
        let Some(mut saved) = self.processes.remove(&key) else {
            return;
        };
        self.tree.clear_ungoverned((key.pid, key.start_time));
        self.tree.bequeath((key.pid, key.start_time), &mut saved);
        self.let_go(Some(saved));
    }

    /// Forgets those that have ended, of whose end nobody else would tell. Whether there are any left.
    pub fn tend(&mut self) -> bool {
        let is_dead = |key: &&Key| !process::is_alive(key.pid, key.start_time);
        let dead: Vec<Key> = self.processes.keys().filter(is_dead).copied().collect();
        dead.into_iter().for_each(|key| self.ended(key));
        !self.processes.is_empty()
    }

    fn let_go(&self, saved: Option<Saved>) {
        if let Some(group) = saved.and_then(|saved| saved.group) {
            self.tree.release_group(group);
        }
    }
}
