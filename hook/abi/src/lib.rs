//! Interface between the daemon and a hooked process.
//!
//! * [`Control`]: written by the daemon, mapped read-only by the process.
//! * [`Usage`]: written by the process, read by the daemon, which trusts nothing in it and writes only one
//!   word for each device, [`UsageDevice::memory_granted`].
//! * [`message`]: messages on the registration socket.
//! * [`Bridge`]: passed from the preload library to the hook, inside one process.
//!
//! Every shared field is an atomic integer of fixed width; there are no pointers that the other side follows,
//! no `bool`s and no enums. Fields are grouped by their writer. A zero-filled block is not published: magic
//! and version are stored last and checked first.
//!
//! The documentation of each atomic field says after "Ordering:" how both sides access it and what that
//! guarantees; a file named there is a model in `hook/abi/models/src`. A field that is read alone is accessed
//! `Relaxed`. Stronger orderings are used where several fields must be read together: publication of a block,
//! gate and freeze generation, entry and exit counters, busy times ([`UsageDevice::busy`]), charge and grant,
//! requests for a grant, a thread's own counts, and the flags of the doorbell. `hook/abi/models` checks these
//! protocols.
#![cfg_attr(not(loom), no_std)]

mod bell;
mod bridge;
mod busy;
mod charge;
mod context;
mod control;
pub mod environment;
mod freeze;
pub mod map;
pub mod message;
#[cfg(test)]
mod orderings;
mod preload_order;
pub mod size;
mod stall;
mod usage;

/// Atomics of both blocks; a model checker's if built for a model.
#[cfg(not(loom))]
mod sync {
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[cfg(loom)]
pub mod sync;

pub use bridge::{Bridge, Entrance, Local, Resolve, START_SYMBOL};
pub use charge::{Short, lower_grant, most_unused, try_charge_granted, uncharge};
pub use context::{ContextKind, DEFAULT_CONTEXT};
pub use control::{
    BELL_AT_BEGIN, BELL_AT_END, Control, ControlDevice, Gate, HIGH_ALONE, HIGH_IN_FORCE, KEEPS_PAGES,
    VISIBLE_LIMIT, VISIBLE_SWAP, WANTED_AGAIN, WANTED_BELOW_HIGH,
};
pub use preload_order::preload_order;
pub use stall::{Pressure, Stall, StallClock};
pub use usage::{Allocations, Kind, Submission, Thread, UNKNOWN_COST, Usage, UsageDevice};

/// First word of a published block. Stored last: a reader that sees it sees the rest.
pub const MAGIC: u64 = u64::from_le_bytes(*b"gcgroup\x01");

/// Version of the blocks. Increases when a field moves, changes meaning or is removed, not when a reserved
/// word is used.
pub const VERSION: u32 = 4;

/// Number of devices in a block. A device has the same index in every block of one daemon.
pub const MAX_DEVICES: usize = 64;

/// Index of the last device slot, for all devices that the daemon does not know. It always exists.
pub const OTHER_DEVICE: usize = MAX_DEVICES - 1;

/// Number of slots for submitting threads; further threads share the counters of their device.
pub const MAX_THREADS: usize = 256;

/// Value of "no limit", bytes; read and written as `max`.
pub const NO_LIMIT: u64 = u64::MAX;

/// Default priority of a process (0 to 15; 0 is the highest).
pub const DEFAULT_PRIORITY: u32 = 8;

/// Default path of the daemon's socket (`--socket`, `GCGROUP_SOCKET`).
pub const DEFAULT_SOCKET: &str = "/run/gcgroupfs/gcgroup.sock";

/// File beside the socket that says that CUDA is refused to new processes while no daemon answers.
pub const REQUIRED_FILE: &str = "required";
