//! What the lines of a state file are about.

use serde::{Deserialize, Serialize};

/// What a line is about. A process for as long as the machine is up: its pid (as the daemon sees it) and its
/// start time in clock ticks since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub pid: u32,
    pub start_time: u64,
}

impl Key {
    /// What is asked of everybody: no process has this pid.
    pub const ROOT: Self = Self {
        pid: 0,
        start_time: 0,
    };

    /// Of a group: no process has this pid either.
    pub fn group(number: u64) -> Self {
        Self {
            pid: 0,
            start_time: number,
        }
    }

    /// The number of the group, if it is one's.
    pub fn group_number(self) -> Option<u64> {
        Some(self.start_time).filter(|number| self.pid == 0 && *number != 0)
    }
}
