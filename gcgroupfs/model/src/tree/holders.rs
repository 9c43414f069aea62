//! The holders: processes that hold values of settings or the groups of their jobs; and how many values they
//! may hold.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::GroupId;
use super::settings::{Hold, Holder};
use crate::error::{Error, Result};
use crate::user_counts::UserCounts;

/// Maximum number of holders of one user other than root.
const MAX_PER_UID: usize = 256;

/// Maximum number of holders.
const MAX_HOLDERS: usize = 4096;

/// Number of holders at which only root may have another.
const MAX_OTHERS: usize = 3072;

/// Maximum number of processes and groups on which one process of root holds values.
const MAX_TARGETS: usize = 256;

/// Maximum number of processes and groups on which one process of another user holds values.
const MAX_TARGETS_OF_OTHERS: usize = 64;

/// Maximum number of values that are held on one process or group.
const MAX_ON_TARGET: usize = 64;

/// Number of values held on one process or group at which only root may hold another there.
const MAX_ON_TARGET_OF_OTHERS: usize = 48;

/// The living holders.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// Numbers of the processes and groups on which each holds values.
    targets: BTreeMap<Holder, BTreeSet<u64>>,
    users: UserCounts,
    /// Groups that are held for jobs, by the pids and start times of their commands.
    jobs: BTreeSet<(u32, u64, GroupId)>,
}

fn max_targets(is_root: bool) -> usize {
    match is_root {
        true => MAX_TARGETS,
        false => MAX_TARGETS_OF_OTHERS,
    }
}

pub(super) fn max_on_target(is_root: bool) -> usize {
    match is_root {
        true => MAX_ON_TARGET,
        false => MAX_ON_TARGET_OF_OTHERS,
    }
}

pub(super) fn too_many(is_root: bool) -> Error {
    Error::TooManyHolds {
        per_user: MAX_PER_UID,
        all: MAX_HOLDERS,
        targets: max_targets(is_root),
        values: max_on_target(is_root),
    }
}

impl Holders {
    pub(super) fn add(&mut self, holder: Holder) {
        if let Entry::Vacant(entry) = self.targets.entry(holder) {
            entry.insert(BTreeSet::new());
            self.users.add(holder.uid);
        }
    }

    /// Returns whether a holder may hold values on these too.
    ///
    /// # Errors
    /// [`Error::TooManyHolds`].
    pub(super) fn admit(&self, holder: Holder, is_root: bool, targets: &BTreeSet<u64>) -> Result<()> {
        let held = self.targets.get(&holder);
        let nr_targets = held.map_or(targets.len(), |held| held.union(targets).count());
        let has_room = held.is_some()
            || (self.users.total() < MAX_HOLDERS
                && (is_root || (self.users.total() < MAX_OTHERS && self.users.of(holder.uid) < MAX_PER_UID)));
        match has_room && nr_targets <= max_targets(is_root) {
            true => Ok(()),
            false => Err(too_many(is_root)),
        }
    }

    pub(super) fn has(&self, holder: Holder) -> bool {
        self.targets.contains_key(&holder)
    }

    /// Notes the holds on a process or group that is new in the tree.
    pub(super) fn note(&mut self, holds: &[Hold], target: u64) {
        for hold in holds.iter().filter(|hold| !hold.holder.is_lease()) {
            self.add(hold.holder);
            if let Some(targets) = self.targets.get_mut(&hold.holder) {
                targets.insert(target);
            }
        }
    }

    /// Notes that a process or group is gone, with the holds on it.
    pub(super) fn drop_target(&mut self, holds: &[Hold], target: u64) {
        for hold in holds {
            if let Some(targets) = self.targets.get_mut(&hold.holder) {
                targets.remove(&target);
            }
        }
    }

    /// Notes a group that is held for a job.
    pub(super) fn note_job(&mut self, pid: u32, start_time: u64, group: GroupId) {
        self.jobs.insert((pid, start_time, group));
    }

    /// Returns the innermost group that is held for the process with this pid, of any start time if its own
    /// is unknown.
    pub(super) fn job_of(&self, pid: u32, start_time: Option<u64>) -> Option<GroupId> {
        let (first, last) = start_time.map_or((0, u64::MAX), |start_time| (start_time, start_time));
        let jobs = self
            .jobs
            .range((pid, first, GroupId::FIRST)..=(pid, last, GroupId::END));
        jobs.map(|(.., group)| *group).max()
    }

    /// Removes a process that has ended. Returns the processes and groups on which it held values, and the
    /// groups that were held for its jobs, inner ones last.
    pub(super) fn end(&mut self, pid: u32, start_time: u64) -> (BTreeSet<u64>, BTreeSet<GroupId>) {
        let [first, last] = [0, u32::MAX].map(|uid| Holder { pid, start_time, uid });
        let mut targets = BTreeSet::new();
        for (holder, its) in self.targets.extract_if(first..=last, |_, _| true) {
            targets.extend(its);
            self.users.remove(holder.uid);
        }
        let range = (pid, start_time, GroupId::FIRST)..=(pid, start_time, GroupId::END);
        let jobs = self.jobs.extract_if(range, |_| true);
        (targets, jobs.map(|(.., group)| group).collect())
    }

    /// Returns the pids and start times of all holders.
    pub(super) fn all(&self) -> BTreeSet<(u32, u64)> {
        let jobs = self.jobs.iter().map(|(pid, start_time, _)| (*pid, *start_time));
        let others = self.targets.keys().map(|holder| (holder.pid, holder.start_time));
        jobs.chain(others).collect()
    }
}
