//! One device's part of a control block.

use crate::sync::{AtomicU32, AtomicU64};
#[cfg(not(loom))]
use core::mem::{offset_of, size_of};

use crate::ContextKind;

/// State of a gate: what a submission does there. In state 0 a submission passes without reading anything
/// else.
#[repr(u32)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Gate {
    /// Submissions pass.
    #[default]
    Run = 0,
    /// Submissions pass, and the process publishes when it is busy.
    Track = 1,
    /// Queued work is kept within the in-flight window; submissions wait for admission.
    Arbitrate = 2,
    /// Submissions wait; queued work is drained and the drain is published.
    Frozen = 3,
    /// Another process has its turn: submissions wait for at most `patience_usec`, then one batch passes.
    Throttled = 4,
}

impl Gate {
    /// Decodes a gate word. An unknown word (of a newer daemon) is [`Gate::Run`], so that no program is
    /// stopped by mistake.
    #[must_use]
    pub fn from_word(word: u32) -> Self {
        match word {
            1 => Self::Track,
            2 => Self::Arbitrate,
            3 => Self::Frozen,
            4 => Self::Throttled,
            _ => Self::Run,
        }
    }
}

/// Flag in `wants_bell`: the daemon sleeps and wants to be rung when work starts (`busy_since` becomes
/// nonzero).
pub const BELL_AT_BEGIN: u32 = 1;
/// Flag in `wants_bell`: other processes wait for the device, and the daemon wants to be rung when work ends.
pub const BELL_AT_END: u32 = 2;

/// Flag in `high`: `memory.high` of the process or of a group above is in force on the device, so that the
/// grant ends there.
pub const HIGH_IN_FORCE: u32 = 1;
/// Flag in `high`: no group above limits memory on the device. A charge beyond the grant that no daemon
/// answers is made all the same.
pub const HIGH_ALONE: u32 = 2;
/// Bit in `grant_wanted`: the request is refused if usage would exceed `memory.high`. Only set while
/// [`HIGH_IN_FORCE`] is.
pub const WANTED_BELOW_HIGH: u64 = 1 << 63;
/// Bit in `grant_wanted`: the request is for an allocation that was granted beyond `memory.high` before, and
/// is not counted again. Only set while [`HIGH_IN_FORCE`] is.
pub const WANTED_AGAIN: u64 = 1 << 62;

/// `memory_visible`: the limits that apply, or the device's memory without one. Also the value of daemons
/// that do not know the setting.
pub const VISIBLE_LIMIT: u64 = 0;
/// `memory_visible`: as [`VISIBLE_LIMIT`], and the host memory that the process may swap to.
pub const VISIBLE_SWAP: u64 = u64::MAX;

/// Settings of one process on one device: one cache line for submissions, one for allocations, the rest for
/// rare use.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct ControlDevice {
    /// A [`Gate`] word; threads wait on it with `FUTEX_WAIT`.
    ///
    /// Ordering: the daemon stores `Release`. The hook's helper loads `Acquire`, which orders
    /// [`ControlDevice::freeze_state`]; a submitting thread loads `Relaxed` behind a full barrier, its own or
    /// the draining thread's (`freeze.rs`).
    pub gate: AtomicU32,
    /// Counts the changes of `gate` to and from [`Gate::Frozen`].
    ///
    /// Ordering: the daemon adds `Release` after it has stored `gate`; the hook loads `Acquire`: a reader of
    /// a freeze's generation sees its closed gate. Only the daemon adds, so it loads `Relaxed`.
    pub freeze_generation: AtomicU32,
    /// Effective `compute.priority` on this device.
    ///
    /// Ordering: the daemon stores and loads `Relaxed`; it is the only reader.
    pub priority: AtomicU32,
    /// Size of the in-flight window, microseconds, while the gate is [`Gate::Arbitrate`] or
    /// [`Gate::Throttled`].
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it. A
    /// submission may still use the size from before the last `gate`.
    pub window_usec: AtomicU32,
    /// Longest wait, microseconds, while the gate is [`Gate::Throttled`].
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it. A
    /// waiting thread may still use the time from before the last `gate`.
    pub patience_usec: AtomicU32,
    /// Events for which the daemon wants to be rung: [`BELL_AT_BEGIN`], [`BELL_AT_END`].
    ///
    /// Ordering: the daemon stores `Relaxed` and fences `SeqCst`, the hook fences `SeqCst` and loads
    /// `Relaxed`: at least one side sees the other's store (`bell.rs`).
    pub wants_bell: AtomicU32,
    /// Counts the writes of `memory.reclaim` for this device.
    ///
    /// Ordering: the daemon adds `Release` after `reclaim_bytes` and `reclaim_is_lent`; the hook loads
    /// `Acquire`: both are at least as new as the number.
    pub reclaim_generation: AtomicU32,
    /// Nonzero: all pending requests were made for processes of higher priority; the memory returns when
    /// there is room.
    ///
    /// Ordering: `Relaxed`, ordered by `reclaim_generation`.
    pub reclaim_is_lent: AtomicU32,
    /// Bytes to be swapped out, summed over all writes that the process has not handled; [`crate::NO_LIMIT`]:
    /// everything.
    ///
    /// Ordering: `Relaxed`, ordered by `reclaim_generation`.
    pub reclaim_bytes: AtomicU64,
    /// Bytes of movable memory that may be on the device, because its busy processes take turns
    /// ([`crate::NO_LIMIT`]: all, it is the process's turn); 0: there are no turns.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub resident_limit: AtomicU64,
    /// Bytes of host memory that the groups above have left beyond what they have granted
    /// (`memory.swap.max`); [`crate::NO_LIMIT`]: they have no limit. It is a hint only.
    ///
    /// Ordering: as `group_room`.
    pub swap_group_room: AtomicU64,
    /// Memory that the device is reported to have, bytes; [`VISIBLE_LIMIT`] or [`VISIBLE_SWAP`].
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub memory_visible: AtomicU64,
    /// The device's UUID in the driver's format (16 bytes, little-endian halves); 0: no device in this slot.
    ///
    /// Ordering: the daemon stores `Relaxed` before it publishes the slot by `Release` of `magic` or
    /// `nr_devices`; the hook loads `Relaxed` after `Acquire` of those.
    pub uuid: [AtomicU64; 2],
    /// Limit of the bytes charged by the process on this device.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it. A
    /// charge respects the limit that it has loaded (`charge.rs`).
    pub memory_limit: AtomicU64,
    /// Memory of the device, bytes; 0 if unknown.
    ///
    /// Ordering: as `uuid`.
    pub memory_total: AtomicU64,
    /// Bytes that the process holds beyond its ledger (contexts, modules), as measured by the daemon.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub memory_overhead: AtomicU64,
    /// Counts the resets of `memory.peak` on this device.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it. The
    /// hook compares it with its own again under a lock.
    pub peak_generation: AtomicU32,
    /// Nonzero: the hook measures for how long the device has work also while the gate is [`Gate::Run`], if
    /// it can (`measures_time` of the usage block).
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub measures_time: AtomicU32,
    /// GPU time charged to the process on this device, nanoseconds, computed by the daemon from the
    /// `busy_nsec` of all its processes.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub usage_nsec: AtomicU64,
    /// Limit of the process's bytes on this device that may be swapped out.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub memory_swap_max: AtomicU64,
    /// The last `grant_request` of the usage block that has been answered; threads that are short of
    /// memory wait on it with `FUTEX_WAIT`.
    ///
    /// Ordering: the daemon stores `Release` after the grant and `grant_refused`; the hook loads `Acquire`:
    /// both are at least as new as the answer (`charge.rs`).
    pub grant_answer: AtomicU32,
    /// The last `grant_request` that was refused.
    ///
    /// Ordering: `Relaxed`, ordered by `grant_answer`.
    pub grant_refused: AtomicU32,
    /// The last `pressure_request` that was answered because no process can make room.
    ///
    /// Ordering: the daemon stores `Release` after `pressure_refused`; the hook loads `Acquire`: it is at
    /// least as new as the answer.
    pub pressure_answer: AtomicU32,
    /// The last `pressure_request` that was refused.
    ///
    /// Ordering: `Relaxed`, ordered by `pressure_answer`.
    pub pressure_refused: AtomicU32,
    /// Smallest limit of the groups above, for this device and for all devices together, bytes;
    /// [`crate::NO_LIMIT`]: none.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub group_limit: AtomicU64,
    /// Bytes that those groups have left beyond what this process may charge, with what others may charge and
    /// have not; [`crate::NO_LIMIT`]: they have no limit.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it. It is
    /// a hint only.
    pub group_room: AtomicU64,
    /// The last `swap_request` of the usage block that has been answered.
    ///
    /// Ordering: the daemon stores `Release` after the grant, `swap_refused` and `swap_recalled`; the hook
    /// loads `Acquire`: all three are at least as new as the answer.
    pub swap_answer: AtomicU32,
    /// The last `swap_request` that was refused.
    ///
    /// Ordering: `Relaxed`, ordered by `swap_answer`.
    pub swap_refused: AtomicU32,
    /// The last `swap_request` that was refused while other processes have been asked to free pool memory:
    /// there may be room soon.
    ///
    /// Ordering: `Relaxed`, ordered by `swap_answer`.
    pub swap_recalled: AtomicU32,
    /// Counts the requests to free pool memory (`swap_pool`), because other processes have no room for
    /// theirs.
    ///
    /// Ordering: `Relaxed` (daemon adds, hook compares), a count that no other data depends on.
    pub swap_recall: AtomicU32,
    /// Bytes that a new context is expected to take, by [`ContextKind`].
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub context_estimate: [AtomicU64; ContextKind::COUNT],
    /// Bytes that contexts take beyond what is charged for them, a signed number.
    ///
    /// Ordering: `Relaxed`, ordered by `context_answer`.
    pub context_missing: AtomicU64,
    /// The last `context_request` of the usage block that has been answered; its thread waits on it with
    /// `FUTEX_WAIT`.
    ///
    /// Ordering: the daemon stores `Release` after `context_missing`; the hook loads `Acquire`: it is at
    /// least as new as the answer.
    pub context_answer: AtomicU32,
    /// Flags about `memory.high`: [`HIGH_IN_FORCE`], [`HIGH_ALONE`].
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub high: AtomicU32,
    /// Longest time for which an allocation that has just been granted waits, because `memory.high` of the
    /// process or of a group above is exceeded, microseconds; 0: it is not. The daemon resets it to 0 when
    /// usage has fallen.
    ///
    /// Ordering: `Relaxed`, ordered by `grant_answer`; a waiting thread that sees a reset late waits longer.
    pub high_wait_usec: AtomicU32,
    /// Number of other processes that had work on the device at the daemon's last look: the time from the
    /// start of a kernel to its end includes theirs.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub nr_others: AtomicU32,
    /// When all submitted work is to have ended while the gate is [`Gate::Arbitrate`], because a process of
    /// higher priority is expected to have work then, nanoseconds of `CLOCK_MONOTONIC`; 0: none is expected.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it. A
    /// submission may still use the time from before the last `gate`.
    pub gap_until: AtomicU64,
    reserved_groups: [AtomicU64; 3],
}

// The layout is the interface: a change requires a new VERSION. Under loom the atomics have other sizes.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<ControlDevice>() == 256);
    assert!(offset_of!(ControlDevice, gate) == 0);
    assert!(offset_of!(ControlDevice, freeze_generation) == 4);
    assert!(offset_of!(ControlDevice, priority) == 8);
    assert!(offset_of!(ControlDevice, window_usec) == 12);
    assert!(offset_of!(ControlDevice, patience_usec) == 16);
    assert!(offset_of!(ControlDevice, wants_bell) == 20);
    assert!(offset_of!(ControlDevice, reclaim_generation) == 24);
    assert!(offset_of!(ControlDevice, reclaim_is_lent) == 28);
    assert!(offset_of!(ControlDevice, reclaim_bytes) == 32);
    assert!(offset_of!(ControlDevice, resident_limit) == 40);
    assert!(offset_of!(ControlDevice, swap_group_room) == 48);
    assert!(offset_of!(ControlDevice, memory_visible) == 56);
    assert!(offset_of!(ControlDevice, uuid) == 64);
    assert!(offset_of!(ControlDevice, memory_limit) == 80);
    assert!(offset_of!(ControlDevice, memory_total) == 88);
    assert!(offset_of!(ControlDevice, memory_overhead) == 96);
    assert!(offset_of!(ControlDevice, peak_generation) == 104);
    assert!(offset_of!(ControlDevice, usage_nsec) == 112);
    assert!(offset_of!(ControlDevice, memory_swap_max) == 120);
    assert!(offset_of!(ControlDevice, grant_answer) == 128);
    assert!(offset_of!(ControlDevice, grant_refused) == 132);
    assert!(offset_of!(ControlDevice, pressure_answer) == 136);
    assert!(offset_of!(ControlDevice, pressure_refused) == 140);
    assert!(offset_of!(ControlDevice, group_limit) == 144);
    assert!(offset_of!(ControlDevice, group_room) == 152);
    assert!(offset_of!(ControlDevice, swap_answer) == 160);
    assert!(offset_of!(ControlDevice, swap_refused) == 164);
    assert!(offset_of!(ControlDevice, swap_recalled) == 168);
    assert!(offset_of!(ControlDevice, swap_recall) == 172);
    assert!(offset_of!(ControlDevice, context_estimate) == 176);
    assert!(offset_of!(ControlDevice, context_missing) == 200);
    assert!(offset_of!(ControlDevice, context_answer) == 208);
    assert!(offset_of!(ControlDevice, high) == 212);
    assert!(offset_of!(ControlDevice, high_wait_usec) == 216);
    assert!(offset_of!(ControlDevice, nr_others) == 220);
    assert!(offset_of!(ControlDevice, gap_until) == 224);
};
