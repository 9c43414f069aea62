//! Identity of a process.

use serde::{Deserialize, Serialize};

use super::Owner;
use crate::text::Comm;

/// Identity of a process, as reported by the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    pub pid: u32,
    /// Clock ticks since boot (field 22 of /proc/PID/stat); together with the pid unique until reboot.
    pub start_time: u64,
    /// The program in memory: addresses of its start and of its stack, if the kernel tells.
    pub image: Option<(u64, u64)>,
    /// Time of registration in seconds since 1970, for display.
    pub started: u64,
    pub uid: u32,
    pub gid: u32,
    pub comm: Comm,
    /// The command line, as [`command_line`](crate::text::command_line) returns it; empty if it is not known.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub args: Box<str>,
}

impl Identity {
    /// Returns whether `other` is the same program of the same process, whose counts go on.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.image.is_some()
            && (self.pid, self.start_time, self.image) == (other.pid, other.start_time, other.image)
    }

    pub fn owner(&self) -> Owner {
        Owner {
            uid: self.uid,
            gid: self.gid,
        }
    }
}
