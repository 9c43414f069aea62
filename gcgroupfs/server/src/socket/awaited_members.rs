//! Processes that were in groups when the last daemon ended and have not registered with this one yet. Until
//! they do, their charges are unknown, so nothing is granted in their groups, for at most [`PATIENCE`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::journal::Key;
use gcgroupfs_model::tree::{GroupId, Saved, Tree};
use gcgroupfs_sys::process;

/// Maximum wait for such a process. A hook that has lost its daemon looks for another at least every 500 ms;
/// one that does not is stopped, and what it holds counts when it registers. Shorter than a hook's wait for a
/// grant.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct AwaitedMembers {
    tree: Arc<Tree>,
    groups: BTreeMap<Key, GroupId>,
    until: Instant,
}

impl AwaitedMembers {
    /// Awaits the remembered processes that are in groups.
    pub fn new(tree: Arc<Tree>, records: &BTreeMap<Key, Saved>) -> Self {
        let groups = records
            .iter()
            .filter_map(|(key, saved)| Some((*key, saved.group?)));
        let groups: BTreeMap<_, _> = groups.collect();
        for (key, group) in &groups {
            tree.await_member(*group);
            // Its gates may have opened while no daemon ran.
            tree.set_ungoverned((key.pid, key.start_time), *group);
        }
        Self {
            tree,
            groups,
            until: Instant::now() + PATIENCE,
        }
    }

    /// Returns whether any process is still awaited.
    pub fn is_any(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns whether the process has not registered yet.
    pub fn is_awaited(&self, key: Key) -> bool {
        self.groups.contains_key(&key)
    }

    /// Stops waiting for a process that has registered.
    pub fn registered(&mut self, key: Key) {
        if let Some(group) = self.groups.remove(&key) {
            self.tree.member_told(group);
        }
    }

    /// Stops waiting for processes that have ended, and for all after [`PATIENCE`]. Returns the processes
    /// given up.
    pub fn tend(&mut self, now: Instant) -> Vec<Key> {
        let is_over = now >= self.until;
        let is_gone = |key: &Key| is_over || !process::is_alive(key.pid, key.start_time);
        let gone: Vec<_> = self.groups.extract_if(.., |key, _| is_gone(key)).collect();
        for (_, group) in &gone {
            self.tree.member_told(*group);
        }
        gone.into_iter().map(|(key, _)| key).collect()
    }
}
