//! Stored records at the daemon's start and while it serves.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Server;
use crate::history::History;
use crate::host::unix_time;
use crate::journal::{Condition, Journal, Key};
use gcgroupfs_model::tree::{GroupId, Saved, Tree, add_to_ancestors};
use gcgroupfs_sys::process;

impl Server {
    /// Maintains the journal and publishes its condition in the root's files.
    pub(super) fn tend_journal(&mut self, now: Instant) {
        let is_kept = |key: Key| match key.group_number() {
            Some(number) => self.tree.has_group(GroupId(number)),
            // The record of a process whose end has not been noticed yet is needed: its counts are still to
            // be added to its groups and the root.
            None => self.registry.is_tracked(key) || is_kept(key),
        };
        self.next_journal = self.journal.tend(now, is_kept);
        show_condition(&self.tree, &self.journal);
    }
}

/// Removes the records of ended processes; their counts are added to the groups that they were in and to the
/// root, and their ends to the history. What an earlier daemon has not added there is added too.
pub fn sift(records: &mut BTreeMap<Key, Saved>, history: &History) {
    let ended = records.values_mut().filter_map(|saved| saved.exited.take());
    let mut ended: Vec<_> = ended.map(|exited| *exited).collect();
    let dead = records.extract_if(.., |key, _| !is_kept(*key));
    for dead in dead.map(|(_, dead)| dead).collect::<Vec<_>>() {
        let mut names = Vec::new();
        add_to_ancestors(&dead, |group, add| match group {
            Some(GroupId(number)) => {
                if let Some(above) = records.get_mut(&Key::group(number)) {
                    names.extend(above.creation.as_ref().map(|creation| creation.name.clone()));
                    add(above);
                }
            }
            None if dead.has_counts() => add(records.entry(Key::ROOT).or_default()),
            None => {}
        });
        names.reverse();
        ended.extend(dead.exited(names.join("/"), unix_time().into()));
    }
    history.add_missing(ended);
}

/// Returns whether a record with this key may still refer to something: a group, the root or a living
/// process.
fn is_kept(key: Key) -> bool {
    key.pid == 0 || process::is_alive(key.pid, key.start_time)
}

/// Restores the root and the groups from their records. A policy given on the command line overrides the
/// root's stored settings.
pub fn restore(tree: &Tree, journal: &Journal, records: &mut BTreeMap<Key, Saved>, has_policy: bool) {
    let mut root = records.remove(&Key::ROOT).unwrap_or_default();
    if has_policy {
        root.settings.set_policy(None);
    }
    let groups = records.extract_if(.., |key, _| key.group_number().is_some());
    let groups = groups.filter_map(|(key, saved)| Some((GroupId(key.group_number()?), saved)));
    tree.restore(root, groups.collect());
    // The root's record stores the next group number: the record of a removed group with the highest number
    // may be dropped.
    journal.append(journal.number(), Key::ROOT, &tree.saved_root());
}

pub(super) fn show_condition(tree: &Tree, journal: &Journal) {
    let Condition {
        is_degraded,
        nr_damaged,
    } = journal.condition();
    tree.set_storage(is_degraded, nr_damaged);
}
