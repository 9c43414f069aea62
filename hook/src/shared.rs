//! State that all parts of the hook share: the blocks of shared memory, the registration with the daemon, and
//! the program's devices.

pub(crate) mod allowed;
pub(crate) mod block;
pub(crate) mod client;
pub(crate) mod counters;
pub(crate) mod device;
pub(crate) mod environment;
pub(crate) mod line;
mod packet_socket;
pub(crate) mod patience;
mod promise;
pub(crate) mod session;
pub(crate) mod stall;
pub(crate) mod target;

/// Interval at which a thread that waits for the daemon checks its word even if not woken: its block may have
/// been replaced.
pub(crate) const RECHECK: std::time::Duration = std::time::Duration::from_millis(100);
