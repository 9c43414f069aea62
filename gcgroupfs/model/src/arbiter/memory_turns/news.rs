//! Lines about memory turns in the daemon's log.

use std::fmt::{self, Display};

/// Change to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryNews {
    /// Turns begin: number of processes, bytes that they want on the device, bytes that there are.
    Begun {
        processes: usize,
        wanted: u64,
        capacity: u64,
    },
    /// Everything fits, or only one process is busy.
    Ended,
    /// Memory did not move: no turns for so many nanoseconds.
    Rests(u64),
}

impl Display for MemoryNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begun {
                processes,
                wanted,
                capacity,
            } => write!(
                f,
                "{processes} busy processes take memory turns: {wanted} bytes do not fit into {capacity}"
            ),
            Self::Ended => write!(f, "memory turns have ended"),
            Self::Rests(nsec) => write!(
                f,
                "no memory turns for {} s: processes did not make room",
                nsec / 1_000_000_000
            ),
        }
    }
}
