//! State that all parts of the hook share: the blocks of shared memory, the registration with the daemon, and
//! the program's devices.

pub(crate) mod block;
pub(crate) mod client;
pub(crate) mod counters;
pub(crate) mod device;
pub(crate) mod environment;
pub(crate) mod line;
pub(crate) mod place;
pub(crate) mod session;
