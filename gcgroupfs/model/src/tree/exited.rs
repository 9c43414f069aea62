//! Record of processes that have left.

use std::collections::VecDeque;
use std::fmt::{self, Display};

use gcgroup_abi::Submission;

use super::process::Process;
use super::{Devices, Identity, Sums, Tree, usage};

/// Number of lines of `exited`.
const NR_EXITED: usize = 64;

/// Adds a process that has left. If there are too many, the user with the most loses the oldest, so that no
/// user can displace all entries of others.
pub(super) fn remember(all: &mut VecDeque<Exited>, one: Exited) {
    all.push_front(one);
    if all.len() <= NR_EXITED {
        return;
    }
    let nr_of = |uid: u32| all.iter().filter(|exited| exited.identity.uid == uid).count();
    // Among users with equally many, the one with the oldest entry.
    let most = all
        .iter()
        .map(|exited| exited.identity.uid)
        .max_by_key(|uid| nr_of(*uid));
    if let Some(oldest) = all.iter().rposition(|exited| Some(exited.identity.uid) == most) {
        all.remove(oldest);
    }
}

/// One line of `exited`.
#[derive(Debug)]
pub struct Exited {
    identity: Identity,
    /// Time of the exit, seconds since 1970.
    end: u64,
    peak: u64,
    /// `memory.current` over time, bytes times seconds.
    byte_seconds: u128,
    is_in_job: bool,
    pub(super) sums: Sums,
}

impl Exited {
    pub(super) fn new(process: &Process, devices: &Devices, (end, is_in_job): (u64, bool)) -> Self {
        Self {
            identity: process.identity.clone(),
            end,
            is_in_job,
            peak: usage::peak(process, None, devices),
            byte_seconds: process.byte_seconds.get(),
            sums: Sums::of(process, None, devices),
        }
    }
}

impl Tree {
    /// Returns the line of `exited` about a process, and whether the process was in a job.
    pub fn exit_line(&self, pid: u32, start_time: u64) -> Option<(Identity, String, bool)> {
        let state = self.state.lock();
        let mut exited = state.exited.iter();
        let found =
            exited.find(|exited| (exited.identity.pid, exited.identity.start_time) == (pid, start_time))?;
        Some((found.identity.clone(), found.to_string(), found.is_in_job))
    }
}

impl Display for Exited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (identity, sums) = (&self.identity, &self.sums);
        write!(
            f,
            "{} comm={} start={} end={} memory.peak={} memory.byte_seconds={} compute.usage_usec={} nr_alloc={} \
             nr_alloc_fail={} oom={} group_max={} nr_launches={} nr_graphs={} nr_copies={}",
            identity.pid,
            identity.comm,
            identity.started,
            self.end,
            self.peak,
            self.byte_seconds,
            sums.usage_nsec / 1000,
            sums.nr_alloc,
            sums.nr_alloc_fail,
            sums.nr_oom,
            sums.nr_group_max,
            sums.submitted(Submission::Kernel),
            sums.submitted(Submission::Graph),
            sums.submitted(Submission::Copy),
        )
    }
}
