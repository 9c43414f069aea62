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

/// Most of the time between two checks that counts as waiting: several times their interval. If more has
/// passed, the daemon was held up (by the disk, by the scheduler) and may not have accepted hooks that wait.
const MOST_COUNTED: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct AwaitedMembers {
    tree: Arc<Tree>,
    groups: BTreeMap<Key, GroupId>,
    left: Duration,
    checked: Instant,
}

impl AwaitedMembers {
    /// Awaits the remembered processes that are in groups.
    pub(super) fn new(tree: Arc<Tree>, records: &BTreeMap<Key, Saved>) -> Self {
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
            left: PATIENCE,
            checked: Instant::now(),
        }
    }

    /// Returns whether any process is still awaited.
    pub(super) fn is_any(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns whether the process has not registered yet.
    pub(super) fn is_awaited(&self, key: Key) -> bool {
        self.groups.contains_key(&key)
    }

    /// Stops waiting for a process that has registered.
    pub(super) fn registered(&mut self, key: Key) {
        if let Some(group) = self.groups.remove(&key) {
            self.tree.member_told(group);
        }
    }

    /// Stops waiting for processes that have ended, and for all after [`PATIENCE`]. Returns the processes
    /// given up.
    pub(super) fn tend(&mut self, now: Instant) -> Vec<Key> {
        let passed = now.saturating_duration_since(self.checked);
        self.left = self.left.saturating_sub(passed.min(MOST_COUNTED));
        self.checked = now;
        let is_over = self.left.is_zero();
        let is_gone = |key: &Key| is_over || !process::is_alive(key.pid, key.start_time);
        let gone: Vec<_> = self.groups.extract_if(.., |key, _| is_gone(key)).collect();
        for (_, group) in &gone {
            self.tree.member_told(*group);
        }
        gone.into_iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroupfs_model::tree::fixture::World;

    /// Returns this process as an awaited member of a group.
    fn awaited(world: &World) -> (AwaitedMembers, Instant) {
        let group = world.group("team");
        let pid = std::process::id();
        let start_time = process::stat(pid).unwrap().start_time;
        let mut saved = Saved::default();
        saved.group = Some(group);
        let remembered = BTreeMap::from([(Key { pid, start_time }, saved)]);
        let awaited = AwaitedMembers::new(world.tree.clone(), &remembered);
        let begun = awaited.checked;
        (awaited, begun)
    }

    #[test]
    fn process_is_given_up_after_patience() {
        let world = World::new(1);
        let (mut awaited, mut now) = awaited(&world);
        let mut checks = 0;
        while awaited.tend(now).is_empty() {
            assert!(awaited.is_any());
            now += MOST_COUNTED / 2;
            checks += 1;
        }
        assert_eq!(MOST_COUNTED / 2 * checks, PATIENCE);
        assert!(!awaited.is_any());
    }

    #[test]
    fn time_in_which_the_daemon_was_held_up_does_not_count() {
        let world = World::new(1);
        let (mut awaited, begun) = awaited(&world);
        assert!(awaited.tend(begun + 2 * PATIENCE).is_empty());
        assert!(awaited.is_any());
    }
}
