//! Keys of the lines in a state file.

use serde::{Deserialize, Serialize};

/// Subject of a line: a process, a group or the root. A process is identified, until the machine reboots, by
/// its pid in the daemon's pid namespace and its start time in clock ticks since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub pid: u32,
    pub start_time: u64,
}

impl Key {
    /// Key of the root: no process has this pid.
    pub const ROOT: Self = Self {
        pid: 0,
        start_time: 0,
    };

    /// Returns a group's key: no process has its pid.
    pub fn group(number: u64) -> Self {
        Self {
            pid: 0,
            start_time: number,
        }
    }

    /// Returns the group's number if this is a group's key.
    pub fn group_number(self) -> Option<u64> {
        Some(self.start_time).filter(|number| self.pid == 0 && *number != 0)
    }
}
