//! The control block: the daemon's side.

use crate::sync::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
#[cfg(not(loom))]
use core::mem::{offset_of, size_of};

use crate::{MAGIC, MAX_DEVICES, VERSION};

/// What a submission does at its gate. Zero passes without a look at anything else.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Nothing asked: pass.
    Run = 0,
    /// Pass, and let it be known that this process is busy.
    Track = 1,
    /// Keep queued work within a window; wait when told.
    Arbitrate = 2,
    /// Drain, acknowledge, wait.
    Frozen = 3,
    /// Another's turn: wait, but no longer than `patience_usec`; then a batch goes through.
    Throttled = 4,
}

impl Gate {
    /// An unknown word (a newer daemon's) holds nothing back: never stop a program on a guess.
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

/// In `wants_bell`: the daemon sleeps, and is to be told when work begins here (`busy_since` leaves zero).
pub const BELL_AT_BEGIN: u32 = 1;
/// In `wants_bell`: others wait for the device, and the end of the work here is to be told.
pub const BELL_AT_END: u32 = 2;

/// One (process, device): a cache line for the submission path, a line for allocation, the rest for what is
/// rare.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct ControlDevice {
    /// A [`Gate`] word; threads wait on it with `FUTEX_WAIT`.
    pub gate: AtomicU32,
    /// Counts the changes of `gate` to and from [`Gate::Frozen`].
    pub freeze_generation: AtomicU32,
    /// `compute.priority` in force here.
    pub priority: AtomicU32,
    /// Longest run of queued work, microseconds, while the gate is [`Gate::Arbitrate`] or
    /// [`Gate::Throttled`].
    pub window_usec: AtomicU32,
    /// Longest wait, microseconds, while the gate is [`Gate::Throttled`].
    pub patience_usec: AtomicU32,
    /// When the daemon wants the bell: [`BELL_AT_BEGIN`], [`BELL_AT_END`].
    pub wants_bell: AtomicU32,
    /// Counts the writes of `memory.reclaim` here.
    pub reclaim_generation: AtomicU32,
    /// Not zero: all of those were asked for in the name of more important processes, and come back when
    /// there is room.
    pub reclaim_is_lent: AtomicU32,
    /// Bytes to be swapped out, asked for by all writes that the process has not dealt with;
    /// [`crate::NO_LIMIT`]: all there are.
    pub reclaim_bytes: AtomicU64,
    reserved_gate: [AtomicU64; 3],
    /// The device's UUID as the driver gives it (16 bytes, little-endian halves); zero: no device here.
    pub uuid: [AtomicU64; 2],
    /// Most bytes the process may have charged on this device.
    pub memory_limit: AtomicU64,
    /// Bytes the device has; zero if unknown.
    pub memory_total: AtomicU64,
    /// Bytes that the daemon measured the process to hold here beyond its ledger (contexts, modules).
    pub memory_overhead: AtomicU64,
    /// Counts the resets of `memory.peak` on this device.
    pub peak_generation: AtomicU32,
    reserved_word: AtomicU32,
    /// GPU time charged to the process here, nanoseconds: what the daemon made of its and its neighbours'
    /// `busy_nsec`.
    pub usage_nsec: AtomicU64,
    /// Most bytes of the process's memory here that may be swapped out.
    pub memory_swap_max: AtomicU64,
    /// The last `grant_request` of the usage block that has been answered; its thread waits on it with
    /// `FUTEX_WAIT`.
    pub grant_answer: AtomicU32,
    /// The last one that was refused.
    pub grant_refused: AtomicU32,
    /// The same of `pressure_request`: looked at, and nobody can make room.
    pub pressure_answer: AtomicU32,
    pub pressure_refused: AtomicU32,
    /// Least of the limits of the groups above, here and on all devices together, bytes; [`crate::NO_LIMIT`]:
    /// none.
    pub group_limit: AtomicU64,
    /// Bytes that those groups have left, besides what is granted; [`crate::NO_LIMIT`]: they have no limit.
    pub group_room: AtomicU64,
    /// The last `swap_request` of the usage block that has been answered.
    pub swap_answer: AtomicU32,
    /// The last one that was refused.
    pub swap_refused: AtomicU32,
    /// The last one that was refused while others have been asked to let go what they keep: there may be room
    /// in a moment.
    pub swap_recalled: AtomicU32,
    /// Counts how often the process was asked to let go what it keeps (`swap_supply`), since others have no
    /// room for it.
    pub swap_recall: AtomicU32,
    reserved_groups: [AtomicU64; 10],
}

/// Written by the daemon, read by the hook.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Control {
    magic: AtomicU64,
    version: AtomicU32,
    /// Devices the daemon knows; they take the slots from zero. It may grow: then the helper is rung.
    pub nr_devices: AtomicU32,
    /// This registration's number; no two of one daemon share it.
    pub generation: AtomicU64,
    /// Most bytes the process may have charged on all devices together.
    pub memory_limit: AtomicU64,
    /// Counts the resets of `memory.peak` of the process as a whole.
    pub peak_generation: AtomicU32,
    /// Bumped each time somebody wants to know which submissions have ended.
    pub progress_generation: AtomicU32,
    /// After losing the daemon, held gates open when this many milliseconds have passed; all ones: never.
    pub grace_msec: AtomicU32,
    /// The process's pid as the daemon sees it.
    pub pid: AtomicU32,
    /// Most bytes of the process's memory on all devices together that may be swapped out.
    pub memory_swap_max: AtomicU64,
    /// Not zero: the daemon writes `swap_granted` of the usage block.
    pub grants_swap: AtomicU32,
    /// Not zero: the daemon knows that threads may keep what they uncharge ([`crate::Stocks`]).
    pub knows_stocks: AtomicU32,
    /// Bytes of the host's memory that other processes were about to take when claim `host_answer` was
    /// answered; [`crate::NO_LIMIT`]: unknown.
    pub host_claimed: AtomicU64,
    /// The last `host_request` of the usage block that has been answered.
    pub host_answer: AtomicU32,
    /// Not zero: the daemon answers claims of the host's memory.
    pub answers_claims: AtomicU32,
    reserved: [AtomicU64; 22],
    pub devices: [ControlDevice; MAX_DEVICES],
}

impl Control {
    /// Makes the block visible. Call once, after every other field has its first value.
    pub fn publish(&self) {
        self.version.store(VERSION, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Whether the block has been published, by a daemon that means the same by it.
    pub fn is_understood(&self) -> bool {
        self.magic.load(Acquire) == MAGIC && self.version.load(Relaxed) == VERSION
    }

    /// The version of a block, for the message that says it is not ours.
    pub fn version(&self) -> u32 {
        self.version.load(Relaxed)
    }
}

// The layout is the contract: a change here is a change of VERSION. The atomics of a model have another.
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
    assert!(size_of::<Control>() == 20480);
    assert!(offset_of!(Control, version) == 8);
    assert!(offset_of!(Control, nr_devices) == 12);
    assert!(offset_of!(Control, generation) == 16);
    assert!(offset_of!(Control, memory_limit) == 24);
    assert!(offset_of!(Control, peak_generation) == 32);
    assert!(offset_of!(Control, progress_generation) == 36);
    assert!(offset_of!(Control, grace_msec) == 40);
    assert!(offset_of!(Control, pid) == 44);
    assert!(offset_of!(Control, memory_swap_max) == 48);
    assert!(offset_of!(Control, grants_swap) == 56);
    assert!(offset_of!(Control, knows_stocks) == 60);
    assert!(offset_of!(Control, host_claimed) == 64);
    assert!(offset_of!(Control, host_answer) == 72);
    assert!(offset_of!(Control, answers_claims) == 76);
    assert!(offset_of!(Control, devices) == 256);
};
