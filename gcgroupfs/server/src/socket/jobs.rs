//! Jobs: commands that were started with a transient group of their own (`gcgroupfs run`), which holds them
//! and their descendants.
//!
//! The group is held while the command's process lives. Children that it leaves behind find the group by its
//! path, which they have in their environment, also after it has been removed ([`Tree::revive`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use gcgroupfs_model::tree::{GroupId, Job, Tree};

use crate::journal::Key;

#[derive(Debug)]
pub(super) struct Jobs {
    tree: Arc<Tree>,
    jobs: BTreeMap<GroupId, Job>,
}

impl Jobs {
    /// Takes over the jobs of an earlier daemon.
    pub(super) fn new(tree: Arc<Tree>) -> Self {
        Self {
            jobs: tree.job_groups().into_iter().collect(),
            tree,
        }
    }

    pub(super) fn add(&mut self, group: GroupId, job: Job) {
        self.jobs.insert(group, job);
    }

    /// Returns the processes of all jobs that have not ended.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.jobs.values().map(key).collect()
    }

    /// Returns the innermost job of a process.
    pub(super) fn find(&self, wanted: Key) -> Option<(GroupId, &Job)> {
        let mut jobs = self.jobs.iter().rev().map(|(group, job)| (*group, job));
        jobs.find(|(_, job)| key(job) == wanted)
    }

    /// Returns the innermost job of the process with this pid, for use when its start time cannot be read.
    pub(super) fn find_pid(&self, pid: u32) -> Option<(GroupId, &Job)> {
        let mut jobs = self.jobs.iter().rev().map(|(group, job)| (*group, job));
        jobs.find(|(_, job)| job.pid == pid)
    }

    /// Handles the end of a process.
    pub(super) fn ended(&mut self, ended: Key) {
        let over: Vec<GroupId> = self
            .jobs
            .extract_if(.., |_, job| key(job) == ended)
            .map(|(group, _)| group)
            .collect();
        // Inner groups first: an outer one is not removed before them.
        over.into_iter().rev().for_each(|group| self.tree.end_job(group));
    }
}

fn key(job: &Job) -> Key {
    Key {
        pid: job.pid,
        start_time: job.start_time,
    }
}
