//! The control block: written by the daemon, read by the hook.

mod device;

use crate::sync::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
#[cfg(not(loom))]
use core::mem::{offset_of, size_of};

use crate::{MAGIC, MAX_DEVICES, VERSION};

pub use device::{
    BELL_AT_BEGIN, BELL_AT_END, ControlDevice, Gate, HIGH_ALONE, HIGH_IN_FORCE, VISIBLE_LIMIT, VISIBLE_SWAP,
    WANTED_AGAIN, WANTED_BELOW_HIGH,
};

/// Flag in [`Control::device_page`]: a context keeps the pages that its small blocks have shared until it is
/// destroyed.
pub const KEEPS_PAGES: u64 = 1;

/// The control block of a process. Written by the daemon, read by the hook.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Control {
    /// [`MAGIC`] once the block is published.
    ///
    /// Ordering: `Release` by [`Control::publish`], `Acquire` by [`Control::is_understood`]: a reader of the
    /// number sees every first value.
    magic: AtomicU64,
    /// [`VERSION`] of the block.
    ///
    /// Ordering: `Relaxed`, ordered by `magic`.
    version: AtomicU32,
    /// Number of devices that the daemon knows; they use the slots from 0. When it grows, the helper is rung.
    ///
    /// Ordering: the daemon stores `Release` after it has filled the slot; the hook loads `Acquire`: slots
    /// below are filled. Loads that only compare it, or look at slots already known, are `Relaxed`.
    pub nr_devices: AtomicU32,
    /// Number of this registration, unique within one daemon.
    ///
    /// Ordering: the daemon stores `Relaxed` before [`Control::publish`], whose `Release` the hook's
    /// `Acquire` of `magic` pairs with.
    pub generation: AtomicU64,
    /// Limit of the bytes charged by the process on all devices together.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it. A
    /// charge respects the limit that it has loaded (`charge.rs`).
    pub memory_limit: AtomicU64,
    /// Counts the resets of `memory.peak` of the process as a whole.
    ///
    /// Ordering: as [`ControlDevice::peak_generation`].
    pub peak_generation: AtomicU32,
    /// Incremented for each request to update the number of completed kernels.
    ///
    /// Ordering: the daemon adds `Relaxed`, the hook loads `Acquire`: no other data comes with the request.
    pub progress_generation: AtomicU32,
    /// Milliseconds after the loss of the daemon at which held gates open; all ones: never.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub grace_msec: AtomicU32,
    /// The process's pid as the daemon sees it.
    ///
    /// Ordering: the daemon stores `Relaxed` before [`Control::publish`], whose `Release` the hook's
    /// `Acquire` of `magic` pairs with.
    pub pid: AtomicU32,
    /// Limit of the process's bytes on all devices together that may be swapped out.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub memory_swap_max: AtomicU64,
    reserved_swap: [AtomicU32; 2],
    /// Bytes of host memory that other processes had claimed when claim `host_answer` was answered;
    /// [`crate::NO_LIMIT`]: unknown.
    ///
    /// Ordering: `Relaxed`, ordered by `host_answer`.
    pub host_claimed: AtomicU64,
    /// The last `host_request` of the usage block that has been answered.
    ///
    /// Ordering: the daemon stores `Release` after `host_claimed`; the hook loads `Acquire`: it is at least
    /// as new as the answer.
    pub host_answer: AtomicU32,
    /// Nonzero: the daemon answers claims of host memory.
    ///
    /// Ordering: the daemon stores `Relaxed` before [`Control::publish`], whose `Release` the hook's
    /// `Acquire` of `magic` pairs with.
    pub answers_claims: AtomicU32,
    /// Time between the notice of a move for other processes and the move, microseconds; 0: none is given.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub notice_usec: AtomicU32,
    /// Nonzero: the hook's helper thread must make no driver calls, because the driver is about to lock the
    /// process, or has locked it. Each such order has another number.
    ///
    /// Ordering: the daemon stores `Release`; the hook loads `Acquire`: one word, no other data depends on
    /// it.
    pub suspend_generation: AtomicU32,
    /// Size of a page of device memory, bytes, a power of two, and [`KEEPS_PAGES`]; 0: 2 MiB.
    ///
    /// Ordering: the daemon stores `Relaxed` before [`Control::publish`], whose `Release` the hook's
    /// `Acquire` of `magic` pairs with.
    pub device_page: AtomicU64,
    /// Until when notices have a reader, nanoseconds of `CLOCK_MONOTONIC`; without one none is given.
    ///
    /// Ordering: the daemon stores and the hook loads `Relaxed`: one word, no other data depends on it.
    pub notice_until: AtomicU64,
    /// Nonzero: the process is frozen because it was idle. A call that a closed gate holds stores the number
    /// in `wanted_generation` of the usage block and rings. Each such freeze has another number.
    ///
    /// Ordering: the daemon stores `Relaxed` before the gates' `Release`; the hook loads `Relaxed` behind a
    /// full barrier after it has seen a closed gate: it sees the number that was stored before that.
    pub idle_generation: AtomicU32,
    reserved_idle: AtomicU32,
    reserved: [AtomicU64; 17],
    /// Nonzero: large allocations are to be movable, also if the process has not asked for it.
    ///
    /// Ordering: the daemon stores `Relaxed` before [`Control::publish`], whose `Release` the hook's
    /// `Acquire` of `magic` pairs with. The hook reads it when it registers.
    pub enables_swap: AtomicU64,
    pub devices: [ControlDevice; MAX_DEVICES],
}

impl Control {
    /// Publishes the block. Call once, after every other field has its first value.
    pub fn publish(&self) {
        self.version.store(VERSION, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Returns whether the block has been published with this version.
    pub fn is_understood(&self) -> bool {
        self.magic.load(Acquire) == MAGIC && self.version.load(Relaxed) == VERSION
    }

    /// Returns the version of the block, for error messages.
    pub fn version(&self) -> u32 {
        self.version.load(Relaxed)
    }
}

// The layout is the interface: a change requires a new VERSION. Under loom the atomics have other sizes.
#[cfg(not(loom))]
const _: () = {
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
    assert!(offset_of!(Control, reserved_swap) == 56);
    assert!(offset_of!(Control, host_claimed) == 64);
    assert!(offset_of!(Control, host_answer) == 72);
    assert!(offset_of!(Control, answers_claims) == 76);
    assert!(offset_of!(Control, notice_usec) == 80);
    assert!(offset_of!(Control, suspend_generation) == 84);
    assert!(offset_of!(Control, device_page) == 88);
    assert!(offset_of!(Control, notice_until) == 96);
    assert!(offset_of!(Control, idle_generation) == 104);
    assert!(offset_of!(Control, enables_swap) == 248);
    assert!(offset_of!(Control, devices) == 256);
};
