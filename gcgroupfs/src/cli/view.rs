//! One picture of the node for the commands that show it: GPUs, groups and processes, read from the socket.

#[cfg(test)]
pub(super) mod fixture;
mod format;
mod parse;
mod read;
mod tree;

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub(super) use format::{duration, size, time_left, user};
pub(super) use read::Reader;
pub(super) use tree::{Below, ancestors};

/// Version of the form of [`Snapshot`] as JSON (`gcgroupfs/doc/ls.schema.json`). Raised when a key is removed
/// or means something else; new keys do not raise it.
pub(super) const VERSION: u32 = 1;

/// GPUs, groups and processes, as far as the client may see them.
#[derive(Debug, Serialize)]
pub(super) struct Snapshot {
    pub(super) version: u32,
    /// Seconds since 1970.
    pub(super) time: f64,
    /// Time of the reading, for rates.
    #[serde(skip)]
    pub(super) at: Instant,
    /// The scheduling policy.
    pub(super) policy: String,
    pub(super) devices: Vec<Device>,
    /// In the order of their paths.
    pub(super) groups: Vec<Group>,
    /// In the order of their pids.
    pub(super) processes: Vec<Process>,
}

/// A GPU. What NVML does not tell is `None`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Device {
    pub(super) index: usize,
    pub(super) uuid: String,
    pub(super) pci: String,
    pub(super) name: String,
    pub(super) memory: DeviceMemory,
    /// Percent of NVML's last sampling period.
    pub(super) utilization: Option<u64>,
    /// Degrees Celsius.
    pub(super) temperature: Option<u64>,
    pub(super) power_mw: Option<u64>,
    /// Number of governed processes that use it.
    pub(super) governed: Option<u64>,
    /// Number of unmanaged processes that use it.
    pub(super) unmanaged: Option<u64>,
}

/// Memory of a GPU, bytes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DeviceMemory {
    pub(super) total: Option<u64>,
    pub(super) used: Option<u64>,
    pub(super) charged: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Group {
    /// Path below the mount point, as `team/a`.
    pub(super) path: String,
    /// Owner of its files.
    pub(super) uid: u32,
    pub(super) user: String,
    /// `None` without a lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<Lease>,
    #[serde(flatten)]
    pub(super) usage: Usage,
    /// The devices that its processes use or have used.
    pub(super) devices: Vec<OnDevice>,
}

/// Contents of `gcgroup.lease*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    /// Action once the lease has expired.
    pub(super) action: String,
    pub(super) expired: bool,
    /// Seconds that are left.
    pub(super) seconds: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) user: String,
    pub(super) comm: String,
    /// Path of its group, empty for the root; `None` if the client may not see it.
    pub(super) group: Option<String>,
    #[serde(flatten)]
    pub(super) usage: Usage,
    /// The devices that it uses or has used.
    pub(super) devices: Vec<OnDevice>,
}

/// A process or a group on one GPU.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OnDevice {
    pub(super) index: usize,
    #[serde(flatten)]
    pub(super) usage: Usage,
}

/// Contents of a directory's control files.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    pub(super) memory: Memory,
    pub(super) compute: Compute,
    /// Whether a suspension is requested here; `None` for a process or a group on one GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suspend: Option<bool>,
    pub(super) events: Events,
}

/// Contents of `memory.*`. Sizes are bytes; a limit that is `None` is max.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Memory {
    pub(super) current: u64,
    pub(super) peak: u64,
    pub(super) limit: Option<u64>,
    /// Bound from which on memory is reclaimed.
    pub(super) high: Option<u64>,
    /// The smallest limit that applies here: its own and those of the groups above that the client may see.
    pub(super) effective_limit: Option<u64>,
    pub(super) swap: Swap,
    /// Keys of `memory.events`.
    pub(super) events: BTreeMap<String, u64>,
    /// `None` for a process or a group on one GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pressure: Option<Pressure>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Swap {
    pub(super) current: u64,
    pub(super) max: Option<u64>,
}

/// Contents of `compute.*`.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Compute {
    /// The priority in force.
    pub(super) priority: u64,
    /// Whether a freeze is requested here.
    pub(super) freeze: bool,
    pub(super) max: Quota,
    /// Keys of `compute.stat`.
    pub(super) stat: BTreeMap<String, u64>,
    /// `None` for a process or a group on one GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pressure: Option<Pressure>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Quota {
    /// `None`: max.
    pub(super) quota_usec: Option<u64>,
    pub(super) period_usec: u64,
}

/// Contents of `compute.pressure` or `memory.pressure`.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Pressure {
    pub(super) some: Stall,
    pub(super) full: Stall,
}

/// Line of a pressure file: averages in percent, and the total.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Stall {
    pub(super) avg10: f64,
    pub(super) avg60: f64,
    pub(super) avg300: f64,
    pub(super) total_usec: u64,
}

/// Contents of `gcgroup.events`.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Events {
    pub(super) populated: bool,
    /// Whether a freeze is complete.
    pub(super) frozen: bool,
    /// Whether a suspension is complete.
    pub(super) suspended: bool,
    /// Step of a suspension or a resumption that is under way; only of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suspend_step: Option<String>,
    /// Step of a suspension or a resumption that has failed; only of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suspend_error: Option<String>,
    /// Number of suspended processes; only of a group that has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nr_suspended: Option<u64>,
    /// `ok` or `lost`; only of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hook: Option<String>,
    /// Pid of a process that has not acknowledged a freeze; only of a group that is being frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) draining: Option<u64>,
    /// Driver's error that keeps a freeze from being known to be complete; only of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) drain_error: Option<u64>,
}

/// Progress of a suspension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspension {
    None,
    /// A step has failed, and device memory has stayed where it was.
    Failed,
    /// Requested and not complete.
    Requested,
    Complete,
}

/// Steps of `suspend_step` on the way to a suspension; the others lead back.
const SUSPENDING: &[&str] = &["check", "drain", "hold", "lock", "checkpoint"];

impl Snapshot {
    /// Returns a snapshot of nothing.
    pub(super) fn empty() -> Self {
        Self {
            version: VERSION,
            time: 0.0,
            at: Instant::now(),
            policy: String::new(),
            devices: Vec::new(),
            groups: Vec::new(),
            processes: Vec::new(),
        }
    }
}

impl Usage {
    /// Returns the submissions so far.
    pub(super) fn submissions(&self) -> u64 {
        let keys = ["nr_launches", "nr_graphs", "nr_copies"];
        keys.iter().fold(0, |sum, key| sum + self.stat(key))
    }

    /// Returns a number of `compute.stat`; 0 without it.
    pub(super) fn stat(&self, key: &str) -> u64 {
        self.compute.stat.get(key).copied().unwrap_or(0)
    }

    /// Returns a number of `memory.events`; 0 without it.
    pub(super) fn event(&self, key: &str) -> u64 {
        self.memory.events.get(key).copied().unwrap_or(0)
    }

    /// Returns the allocations that a limit refused so far.
    pub(super) fn refusals(&self) -> u64 {
        self.event("oom") + self.event("group_max")
    }

    /// Returns the progress of a suspension. `is_above`: a group above requests one.
    pub(super) fn suspension(&self, is_above: bool) -> Suspension {
        let step = self.events.suspend_step.as_deref();
        // A lease's action suspends without a request in `gcgroup.suspend`.
        let is_requested =
            is_above || self.suspend == Some(true) || step.is_some_and(|step| SUSPENDING.contains(&step));
        match (self.events.suspended, &self.events.suspend_error, is_requested) {
            (true, ..) => Suspension::Complete,
            (false, Some(_), _) => Suspension::Failed,
            (false, None, true) => Suspension::Requested,
            (false, None, false) => Suspension::None,
        }
    }

    fn is_used(&self) -> bool {
        self.memory.current > 0 || self.memory.swap.current > 0 || self.submissions() > 0
    }
}
