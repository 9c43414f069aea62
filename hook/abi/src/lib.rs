//! What the daemon and a hooked process agree on, and nothing else.
//!
//! * [`Control`]: written by the daemon, mapped read-only by the process.
//! * [`Usage`]: written by the process, read by the daemon, which believes none of it and writes but one word for
//!   each device, [`UsageDevice::memory_granted`].
//! * [`message`]: what passes over the registration socket.
//! * [`Bridge`]: what the preload library and the hook hand each other, inside one process.
//!
//! Every shared field is an atomic integer of fixed width; there are no pointers that the other side
//! follows, no `bool`s and no enums. Fields are grouped by who writes them. A zero-filled block is one
//! that nobody has published: magic and version are stored last and checked first.
//! Except for those two, for what is charged against what is granted, and for what threads keep of that ([`Stocks`]), no two
//! fields need to be read together, so every access is `Relaxed`.
#![cfg_attr(not(loom), no_std)]

mod bell;
mod bridge;
mod busy;
mod charge;
mod control;
mod freeze;
pub mod map;
pub mod message;
mod stock;
mod usage;

/// The atomics of both blocks; those of a model checker where a model is built.
#[cfg(not(loom))]
mod sync {
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[cfg(loom)]
pub mod sync;

pub use bridge::{Bridge, Entrance, Local, Resolve, START_SYMBOL};
pub use charge::{Refused, Short, charge_ungranted, lower_grant, try_charge, try_charge_granted, uncharge};
pub use control::{BELL_AT_BEGIN, BELL_AT_END, Control, ControlDevice, Gate};
pub use stock::{Kept, MOST_STOCK, Stock, Stocks};
pub use usage::{Allocations, Kind, Submission, Thread, Usage, UsageDevice};

/// First word of a published block. Stored last, so that seeing it means seeing the rest.
pub const MAGIC: u64 = u64::from_le_bytes(*b"gcgroup\x01");

/// Bumped when a field moves, changes meaning or goes away. Taking a reserved word does not.
pub const VERSION: u32 = 3;

/// Devices a block has room for. A device keeps its index in every block of one daemon.
pub const MAX_DEVICES: usize = 64;

/// The last device slot: everything on devices that the daemon does not know. It always exists.
pub const OTHER_DEVICE: usize = MAX_DEVICES - 1;

/// Slots for submitting threads; further threads share the counters of their device.
pub const MAX_THREADS: usize = 256;

/// "No limit", in bytes; what `max` reads and writes.
pub const NO_LIMIT: u64 = u64::MAX;

/// The priority of a process that nobody has given one (0 to 15, lower is more important).
pub const DEFAULT_PRIORITY: u32 = 8;

/// Where the daemon listens unless told otherwise (`--socket`, `GCGROUP_SOCKET`).
pub const DEFAULT_SOCKET: &str = "/run/gcgroupfs/gcgroup.sock";
