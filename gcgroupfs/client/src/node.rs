//! One picture of a node for the programs that show it: GPUs, groups and processes, read from the socket.

mod activity;
mod files;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod host;
mod moving;
mod parse;
mod read;
mod state;
mod tree;
mod users;
mod waits;

use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use self::activity::{Activities, Activity, POINTS, Rates, Target};
pub use self::files::{FILES, Files, Keys, value};
pub use self::host::Host;
pub use self::moving::{Moving, Whereabouts};
pub use self::parse::{devices, read_devices};
pub use self::read::Reader;
pub use self::state::State;
pub use self::tree::{Below, ancestors};
pub use self::waits::Wait;

/// File whose values for a GPU are in [`Device::files`].
pub const DEVICE_STAT: &str = "devices.stat";

/// Version of the form of [`Snapshot`] as JSON (`gcgroupfs/doc/ls.schema.json`). Raised when a key is removed
/// or means something else; new keys do not raise it.
pub const VERSION: u32 = 1;

/// GPUs, groups and processes, as far as the client may see them.
#[derive(Debug, Clone, Serialize)]
pub struct Snapshot {
    pub version: u32,
    /// Seconds since 1970.
    pub time: f64,
    /// Time of the reading, for rates.
    #[serde(skip)]
    pub at: Instant,
    /// The scheduling policy.
    pub policy: String,
    pub devices: Vec<Device>,
    /// In the order of their paths.
    pub groups: Vec<Group>,
    /// In the order of their pids.
    pub processes: Vec<Process>,
}

/// A GPU. What NVML does not tell is `None`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Device {
    pub index: usize,
    pub uuid: String,
    pub pci: String,
    pub name: String,
    pub memory: DeviceMemory,
    /// Percent of NVML's last sampling period.
    pub utilization: Option<u64>,
    /// Degrees Celsius.
    pub temperature: Option<u64>,
    pub power_mw: Option<u64>,
    /// Number of governed processes that use it.
    pub governed: Option<u64>,
    /// Number of unmanaged processes that use it.
    pub unmanaged: Option<u64>,
    /// Contents of the control files that the values are parsed from.
    #[serde(skip)]
    pub files: Files,
}

/// Memory of a GPU, bytes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DeviceMemory {
    pub total: Option<u64>,
    pub used: Option<u64>,
    pub charged: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Group {
    /// Path below the mount point, as `team/a`.
    pub path: String,
    /// Owner of its files.
    pub uid: u32,
    pub user: String,
    /// `None` without a lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// `None` unless computed by [`Activities::rate`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
    #[serde(flatten)]
    pub usage: Usage,
    /// The devices that its processes use or have used.
    pub devices: Vec<OnDevice>,
}

/// Contents of `gcgroup.lease*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Action once the lease has expired.
    pub action: String,
    pub expired: bool,
    /// Seconds that are left.
    pub seconds: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    pub uid: u32,
    pub user: String,
    pub comm: String,
    /// Path of its group, empty for the root; `None` if the client may not see it.
    pub group: Option<String>,
    /// `None` unless asked for, and where the kernel tells nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// Processes that it waits or has waited for.
    #[serde(default)]
    pub waits: Vec<Wait>,
    /// `None` unless computed by [`Activities::rate`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
    #[serde(flatten)]
    pub usage: Usage,
    /// The devices that it uses or has used.
    pub devices: Vec<OnDevice>,
}

/// A process or a group on one GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OnDevice {
    pub index: usize,
    #[serde(flatten)]
    pub usage: Usage,
}

/// Contents of a directory's control files.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub memory: Memory,
    pub compute: Compute,
    /// Whether a suspension is requested here; `None` for a process or a group on one GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    pub events: Events,
    /// Contents of the control files that the values are parsed from.
    #[serde(skip)]
    pub files: Files,
}

/// Contents of `memory.*`. Sizes are bytes; a limit that is `None` is max.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    pub current: u64,
    pub peak: u64,
    pub limit: Option<u64>,
    /// Bound from which on memory is reclaimed.
    pub high: Option<u64>,
    /// The smallest limit that applies here: its own and those of the groups above that the client may see.
    pub effective_limit: Option<u64>,
    pub swap: Swap,
    /// Keys of `memory.events`.
    pub events: Keys,
    /// `None` for a process or a group on one GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure: Option<Pressure>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Swap {
    pub current: u64,
    pub max: Option<u64>,
}

/// Contents of `compute.*`.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Compute {
    /// The priority in force.
    pub priority: u64,
    /// Whether a freeze is requested here.
    pub freeze: bool,
    pub max: Quota,
    /// Keys of `compute.stat`.
    pub stat: Keys,
    /// `None` for a process or a group on one GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure: Option<Pressure>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// `None`: max.
    pub quota_usec: Option<u64>,
    pub period_usec: u64,
}

/// Contents of `compute.pressure` or `memory.pressure`.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Pressure {
    pub some: Stall,
    pub full: Stall,
}

/// Line of a pressure file: averages in percent, and the total.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Stall {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total_usec: u64,
}

/// Contents of `gcgroup.events`.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Events {
    pub populated: bool,
    /// Whether a freeze is complete.
    pub frozen: bool,
    /// Whether a suspension is complete.
    pub suspended: bool,
    /// Whether it was idle and has left the GPU; only of a process.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub away: bool,
    /// Step of a suspension or a resumption that is under way; only of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend_step: Option<String>,
    /// Step of a suspension or a resumption that has failed; only of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend_error: Option<String>,
    /// Number of suspended processes; only of a group that has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nr_suspended: Option<u64>,
    /// `ok` or `lost`; only of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    /// Pid of a process that has not acknowledged a freeze; only of a group that is being frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining: Option<u64>,
    /// Driver's error that keeps a freeze from being known to be complete; only of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_error: Option<u64>,
}

/// Progress of a suspension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspension {
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
    pub fn empty() -> Self {
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
    pub fn submissions(&self) -> u64 {
        let keys = ["nr_launches", "nr_graphs", "nr_copies"];
        keys.iter().fold(0, |sum, key| sum + self.stat(key))
    }

    /// Returns a number of `compute.stat`; 0 without it.
    pub fn stat(&self, key: &str) -> u64 {
        self.compute.stat.get(key).unwrap_or(0)
    }

    /// Returns a number of `memory.events`; 0 without it.
    pub fn event(&self, key: &str) -> u64 {
        self.memory.events.get(key).unwrap_or(0)
    }

    /// Returns the allocations that a limit refused so far.
    pub fn refusals(&self) -> u64 {
        self.event("oom") + self.event("group_max")
    }

    /// Returns the progress of a suspension. `is_above`: a group above requests one.
    pub fn suspension(&self, is_above: bool) -> Suspension {
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
