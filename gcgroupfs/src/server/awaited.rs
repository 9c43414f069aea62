//! Processes that were in groups when the last daemon ended, and have not registered with this one yet. What
//! they have charged nobody knows before they do; so in their groups nothing is granted meanwhile, for a
//! while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::journal::Key;
use crate::process;
use crate::tree::{GroupId, Saved, Tree};

/// A hook that has lost its daemon looks for another every 500 ms at least. One that does not, because it is
/// stopped, is waited for no longer; what it holds counts when it comes. Less than a hook waits for an
/// answer.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Awaited {
    tree: Arc<Tree>,
    groups: BTreeMap<Key, GroupId>,
    until: Instant,
}

impl Awaited {
    /// Waits for those of the remembered that are in groups.
    pub fn new(tree: Arc<Tree>, remembered: &BTreeMap<Key, Saved>) -> Self {
        let groups = remembered
            .iter()
            .filter_map(|(key, saved)| Some((*key, saved.group?)));
        let groups: BTreeMap<_, _> = groups.collect();
        for (key, group) in &groups {
            tree.await_member(*group);
            // Its gates may have opened while there was no daemon.
            tree.set_ungoverned((key.pid, key.start_time), *group);
        }
        Self {
            tree,
            groups,
            until: Instant::now() + PATIENCE,
        }
    }

    /// Whether there is anybody left.
    pub fn is_any(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Whether the process has not come back yet.
    pub fn is_awaited(&self, key: Key) -> bool {
        self.groups.contains_key(&key)
    }

    /// The process has registered.
    pub fn came(&mut self, key: Key) {
        if let Some(group) = self.groups.remove(&key) {
            self.tree.member_told(group);
        }
    }

    /// Gives up those that have ended, and in the end all. Returns who has been given up.
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
