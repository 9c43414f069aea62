//! Jobs: commands that were started with a transient group of their own (`gcgroupfs run`), which holds them
//! and their descendants.
//!
//! The group is held while the command's process lives, or its connection is open: descendants inherit the
//! connection, so the group outlives a command that leaves children behind. After a restart of the daemon
//! only the process counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use gcgroupfs_model::tree::{GroupId, Job, Tree};

use crate::journal::Key;

#[derive(Debug)]
pub(super) struct Jobs {
    tree: Arc<Tree>,
    jobs: BTreeMap<GroupId, Held>,
}

#[derive(Debug)]
struct Held {
    job: Job,
    is_alive: bool,
    /// Number of its connection.
    connection: Option<u64>,
}

impl Jobs {
    /// Takes over the jobs of an earlier daemon.
    pub(super) fn new(tree: Arc<Tree>) -> Self {
        let jobs = tree.job_groups().into_iter();
        let jobs = jobs.map(|(group, job)| {
            let held = Held {
                job,
                is_alive: true,
                connection: None,
            };
            (group, held)
        });
        Self {
            jobs: jobs.collect(),
            tree,
        }
    }

    pub(super) fn add(&mut self, group: GroupId, job: Job, connection: u64) {
        let held = Held {
            job,
            is_alive: true,
            connection: Some(connection),
        };
        self.jobs.insert(group, held);
    }

    /// Returns the processes of all jobs that have not ended.
    pub(super) fn keys(&self) -> Vec<Key> {
        let living = self.jobs.values().filter(|held| held.is_alive);
        living.map(|held| key(&held.job)).collect()
    }

    /// Returns the innermost job of a process.
    pub(super) fn find(&self, wanted: Key) -> Option<(GroupId, &Job)> {
        let jobs = self.jobs.iter().rev();
        let mut jobs = jobs.map(|(group, held)| (*group, &held.job));
        jobs.find(|(_, job)| key(job) == wanted)
    }

    /// Returns the innermost job of the process with this pid, for use when its start time cannot be read.
    pub(super) fn find_pid(&self, pid: u32) -> Option<(GroupId, &Job)> {
        let living = self.jobs.iter().rev().filter(|(_, held)| held.is_alive);
        let mut jobs = living.map(|(group, held)| (*group, &held.job));
        jobs.find(|(_, job)| job.pid == pid)
    }

    /// Returns the job with the group of that path.
    pub(super) fn find_path(&self, path: &str) -> Option<&Job> {
        let mut jobs = self.jobs.iter();
        let is_it = |group: &GroupId| self.tree.path(Some(*group)) == path;
        jobs.find_map(|(group, held)| is_it(group).then_some(&held.job))
    }

    /// Handles the end of a process.
    pub(super) fn ended(&mut self, ended: Key) {
        for held in self.jobs.values_mut().filter(|held| key(&held.job) == ended) {
            held.is_alive = false;
        }
        self.release();
    }

    /// Handles the end of a connection.
    pub(super) fn closed(&mut self, connection: u64) {
        for held in self.jobs.values_mut() {
            held.connection = held.connection.filter(|held| *held != connection);
        }
        self.release();
    }

    fn release(&mut self) {
        let is_over = |held: &Held| !held.is_alive && held.connection.is_none();
        // Inner groups first: an outer one is not removed before them.
        let mut over: Vec<GroupId> = Vec::new();
        self.jobs.retain(|group, held| {
            if is_over(held) {
                over.push(*group);
            }
            !is_over(held)
        });
        over.into_iter().rev().for_each(|group| self.tree.end_job(group));
    }
}

fn key(job: &Job) -> Key {
    Key {
        pid: job.pid,
        start_time: job.start_time,
    }
}
