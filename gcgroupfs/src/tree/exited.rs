//! What is remembered of a process that has left.

use std::fmt::{self, Display};

use gcgroup_abi::Submission;

use super::process::Process;
use super::{Device, Identity, Sums, sums};
use crate::text;

/// One line of `exited`.
#[derive(Debug)]
pub struct Exited {
    identity: Identity,
    /// Seconds since 1970.
    end: u64,
    peak: u64,
    pub(super) sums: Sums,
}

impl Exited {
    pub(super) fn new(process: &Process, devices: &[Device], end: u64) -> Self {
        Self {
            identity: process.identity.clone(),
            end,
            peak: sums::peak(process, None, devices),
            sums: Sums::of(process, None, devices),
        }
    }
}

impl Display for Exited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            identity,
            end,
            peak,
            sums,
        } = self;
        write!(
            f,
            "{} comm={} start={} end={end} memory.peak={peak} nr_alloc={} nr_alloc_fail={} oom={} \
             nr_launches={} nr_graphs={} nr_copies={}",
            identity.pid,
            text::word(&identity.comm),
            identity.started,
            sums.nr_alloc,
            sums.nr_alloc_fail,
            sums.nr_oom,
            sums.submitted(Submission::Kernel),
            sums.submitted(Submission::Graph),
            sums.submitted(Submission::Copy),
        )
    }
}
