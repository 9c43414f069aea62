//! Record of processes that have ended: what each used, and how it ended.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use gcgroup_abi::Submission;
use serde::{Deserialize, Serialize};

use super::creation::is_default;
use super::sums::Numbers;
use super::{Identity, Sums};
use crate::text::word;

/// When and how a process has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ending {
    /// Seconds since 1970.
    pub time: u64,
    /// `exit:STATUS`, `signal:NUMBER` or `exec`; empty if it is not known.
    pub how: String,
    /// Reason for which the daemon has killed the process; empty if the daemon has not.
    pub by: String,
}

impl From<u64> for Ending {
    fn from(time: u64) -> Self {
        Self {
            time,
            ..Self::default()
        }
    }
}

/// Refused allocations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// Seconds since 1970.
    pub time: u64,
    pub count: u64,
    /// Index of the GPU.
    pub gpu: usize,
    /// Bytes of the last one, as the process claims; 0 if unknown.
    pub bytes: u64,
    /// Source of the refusal: `process`, `gpu`, the path of a group, or `memory` if there was no more.
    pub by: String,
    /// The limit and the bytes charged against it.
    pub limit: u64,
    pub used: u64,
}

/// A program of a process that has ended, or several of one user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exited {
    #[serde(flatten)]
    pub identity: Identity,
    /// Path of its group; empty for the root.
    #[serde(skip_serializing_if = "is_default")]
    pub group: String,
    /// Time of the end, seconds since 1970.
    pub end: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub how: String,
    #[serde(skip_serializing_if = "is_default")]
    pub by: String,
    /// Number of further programs in this record: the oldest ones of a user are added up.
    #[serde(skip_serializing_if = "is_default")]
    pub others: u64,
    pub peak: u64,
    /// `memory.current` over time, bytes times seconds.
    pub byte_seconds: u128,
    /// GPU time by UUID of the GPU, nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub gpus: BTreeMap<String, u64>,
    /// Estimated energy of the GPUs in its GPU time.
    pub energy_nanojoules: u64,
    /// Time for which a thread waited for memory.
    pub memory_wait_usec: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub refusals: Vec<Refusal>,
    #[serde(skip_serializing_if = "is_default")]
    pub is_in_job: bool,
    pub sums: Sums,
}

impl Exited {
    /// Returns whether both are records of one program.
    pub fn is_same(&self, other: &Self) -> bool {
        let key = |one: &Self| {
            let identity = &one.identity;
            (
                identity.pid,
                identity.start_time,
                identity.image,
                identity.started,
            )
        };
        key(self) == key(other)
    }

    /// Removes what is shown to the user of the process and to root only.
    pub fn withhold(&mut self) {
        self.identity.args = Box::default();
        self.group.clear();
        self.by.clear();
        self.refusals.clear();
    }

    /// Adds the figures of another record of the same user. What differs is left empty.
    pub fn add(&mut self, other: &Self) {
        let (own, its) = (&mut self.identity, &other.identity);
        if own.comm != its.comm {
            own.comm = "".into();
        }
        if self.group != other.group {
            self.group.clear();
        }
        (own.pid, own.start_time, own.image, own.args) = (0, 0, None, Box::default());
        own.started = own.started.min(its.started);
        self.end = self.end.max(other.end);
        self.how.clear();
        self.by.clear();
        self.refusals.clear();
        self.others = self.others.saturating_add(other.others).saturating_add(1);
        self.peak = self.peak.max(other.peak);
        self.byte_seconds = self.byte_seconds.saturating_add(other.byte_seconds);
        for (uuid, nsec) in &other.gpus {
            let sum = self.gpus.entry(uuid.clone()).or_default();
            *sum = sum.saturating_add(*nsec);
        }
        self.energy_nanojoules = self.energy_nanojoules.saturating_add(other.energy_nanojoules);
        self.memory_wait_usec = self.memory_wait_usec.saturating_add(other.memory_wait_usec);
        self.sums.combine(&other.sums, u64::saturating_add);
    }
}

/// Facts about the program that a process executes, for the record of its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Program {
    pub(super) identity: Identity,
    /// `memory.current` over time, bytes times seconds.
    pub(super) byte_seconds: u128,
    pub(super) energy_nanojoules: u64,
    pub(super) memory_wait_usec: u64,
    pub(super) peak: u64,
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
        )?;
        match self.how.as_str() {
            "" => Ok(()),
            how => write!(f, " how={}", word(how)),
        }
    }
}
