//! The usage block: written by the hook, read by the daemon. The daemon bounds what it reads (in
//! `gcgroupfs/model/src/tree/untrusted.rs`, nowhere else) and never uses it as an index, a length or an
//! address. The daemon itself writes only the grants of each device, [`UsageDevice::memory_granted`] and
//! [`UsageDevice::swap_granted`].

mod device;
mod thread;

use crate::sync::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
#[cfg(not(loom))]
use core::mem::{offset_of, size_of};

use crate::{MAGIC, MAX_DEVICES, MAX_THREADS, Pressure, Stall, VERSION};

pub use device::{UNKNOWN_COST, UsageDevice};
pub use thread::{Submission, Thread};

/// Kind of charged memory, as listed in `memory.stat`. The value is the index into [`UsageDevice::kinds`].
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Linear,
    Managed,
    Pool,
    Vmm,
    Array,
    Graph,
    Module,
    /// Imported from another process: shown, charged to its exporter.
    Ipc,
    /// Page-locked host memory: shown, not charged.
    Host,
    /// Bound to multicast objects: shown, charged where it was made.
    Multicast,
    /// Made at a location type newer than the library: shown, not charged.
    Unknown,
    /// Charged for linear memory and arrays beyond their sizes, since they take whole pages.
    Rounding,
}

impl Kind {
    /// Each kind with its key in `memory.stat` and whether it counts towards `memory.current`.
    pub const ALL: [(Kind, &'static str, bool); 12] = [
        (Kind::Linear, "linear", true),
        (Kind::Managed, "managed", true),
        (Kind::Pool, "pool", true),
        (Kind::Vmm, "vmm", true),
        (Kind::Array, "array", true),
        (Kind::Graph, "graph", true),
        (Kind::Module, "module", true),
        (Kind::Ipc, "ipc", false),
        (Kind::Host, "host", false),
        (Kind::Multicast, "multicast", false),
        (Kind::Unknown, "unknown", false),
        (Kind::Rounding, "rounding", true),
    ];
}

/// Memory counters of the process on one device: wrapping sums over threads, which are approximate while
/// threads allocate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocations {
    pub nr_alloc: u64,
    pub nr_free: u64,
    /// Bytes, in the order of [`Kind::ALL`].
    pub kinds: [u64; Kind::ALL.len()],
    /// Sum that changes with each thread's `unsettled`.
    pub nr_unsettled: u64,
    /// Number of threads whose `unsettled` is odd.
    pub unsettled_threads: u64,
}

/// The usage block of a process. Written by the hook, except for [`UsageDevice::memory_granted`] and
/// [`UsageDevice::swap_granted`]; read by the daemon.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Usage {
    /// [`MAGIC`] once the block is published.
    ///
    /// Ordering: as [`Control::publish`] and [`Control::is_understood`]: `Release`, `Acquire`.
    magic: AtomicU64,
    /// [`VERSION`] of the block.
    ///
    /// Ordering: `Relaxed`, ordered by `magic`.
    version: AtomicU32,
    /// Number of thread slots ever taken; those beyond are untouched.
    ///
    /// Ordering: the hook stores `Release` after it has prepared the slot; the daemon loads `Acquire`: it
    /// sees slots only as they were prepared.
    pub nr_threads: AtomicU32,
    /// Bytes ever charged on all devices, also those that were uncharged again, and those that moved from one
    /// device to another. Wraps.
    ///
    /// Ordering: the hook adds `Release` before it calls the driver; the daemon loads `Acquire`: what the
    /// device has at a moment has been counted by then.
    pub memory_taken: AtomicU64,
    /// Highest total charge on all devices since the reset numbered `peak_generation`.
    ///
    /// Ordering: as [`UsageDevice::memory_peak`].
    pub memory_peak: AtomicU64,
    /// Number of the last reset of `memory_peak` that the process has seen.
    ///
    /// Ordering: as [`UsageDevice::peak_generation`].
    pub peak_generation: AtomicU32,
    /// The `progress_generation` for which `nr_ended` is up to date.
    ///
    /// Ordering: the hook stores `Release` after `nr_ended`; the daemon loads `Acquire`: an `nr_ended` that
    /// it reads next is at least as new.
    pub progress_generation: AtomicU32,
    /// Number of allocations that hit the limit of the process as a whole.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_max: AtomicU64,
    /// Number of allocations refused because of the limit of the process as a whole.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_oom: AtomicU64,
    /// Look-ups of driver names that are not in the hook's table.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_unknown_symbols: AtomicU64,
    /// Nonzero: the process's large allocations can be swapped out.
    ///
    /// Ordering: `Relaxed`: stored before the process registers, and ordered by the socket; or afterwards, if
    /// the daemon enables it: one word, no other data depends on it.
    pub can_swap: AtomicU32,
    reserved_flags: [AtomicU32; 2],
    /// Nonzero: the process measures for how long each device has work while its gate is open.
    ///
    /// Ordering: `Relaxed` (hook stores, daemon loads): one word, no other data depends on it.
    pub measures_time: AtomicU32,
    /// Claim: bytes of host memory that the process is about to take for a block; 0: none. Set before
    /// `host_request` is incremented, and reset to 0 when the memory is made or no longer wanted.
    ///
    /// Ordering: `Relaxed`, ordered by `host_request`.
    pub host_claim: AtomicU64,
    /// Counts the claims. `host_answer` of the control block answers the last one.
    ///
    /// Ordering: the hook adds `Release` after `host_claim`; the daemon loads `Acquire`: the claim is at
    /// least as new as the number.
    pub host_request: AtomicU32,
    /// The `suspend_generation` of the control block that the helper thread has seen: it has ended its moves
    /// and makes no driver calls. 0 once it has seen 0, asked the driver which GPUs the process has, and
    /// moved the charges there.
    ///
    /// Ordering: the helper stores `Release` after its last driver call; the daemon loads `Acquire`.
    pub suspend_generation: AtomicU32,
    /// Bytes that the last allocation refused because of a limit would have added to the charge, on whichever
    /// device; 0: none, or a hook that does not report it.
    ///
    /// Ordering: `Relaxed` (hook stores, daemon loads): one word, only shown.
    pub refused_bytes: AtomicU64,
    reserved_high: AtomicU32,
    /// Nonzero: the process has, or was about to make, a context that it shares with others by MPS.
    ///
    /// Ordering: `Relaxed` (hook stores, daemon loads): one word, no other data depends on it.
    pub uses_mps: AtomicU32,
    /// Number of blocks, handles and pools that the process has exported to other processes or opened from
    /// them (CUDA IPC), until it frees or closes them. Only whether it is 0 matters.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_shared: AtomicU64,
    reserved_devices: AtomicU32,
    /// Number of threads that ask for room (`pressure_request`) for what cannot be moved: a context, or
    /// memory of any kind but a movable allocation.
    ///
    /// Ordering: `Relaxed`, ordered by `pressure_request`.
    pub nr_asking_fixed: AtomicU32,
    /// Bytes of `memory_current` of all devices that are prepared for blocks that move in, until these are
    /// settled.
    ///
    /// Ordering: `Relaxed` (hook adds and subtracts, daemon loads): only shown, and a hint for donors.
    pub moving_in: AtomicU64,
    /// When memory moves out for which the last notice was given (`notice_target`), nanoseconds of
    /// `CLOCK_MONOTONIC`.
    ///
    /// Ordering: `Relaxed` (hook stores, daemon loads): one word, only shown.
    pub notice_deadline: AtomicU64,
    /// The last `idle_generation` of the control block that a call has seen at a closed gate: the call needs
    /// the GPU.
    ///
    /// Ordering: the hook stores `Release`, then rings; the daemon loads `Acquire`: one word, no other data
    /// depends on it.
    pub wanted_generation: AtomicU32,
    /// Nonzero: the hook stores `wanted_generation`.
    ///
    /// Ordering: `Relaxed`: stored before the process registers, and ordered by the socket.
    pub tells_wanted: AtomicU32,
    reserved: [AtomicU64; 9],
    /// For how long threads have waited, by [`Pressure`]. Zero: a hook that does not report it.
    pub stalls: [Stall; Pressure::COUNT],
    pub devices: [UsageDevice; MAX_DEVICES],
    pub threads: [Thread; MAX_THREADS],
}

impl Usage {
    /// Publishes the block. Call once, while the block is otherwise zero.
    pub fn publish(&self) {
        self.version.store(VERSION, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Returns whether the block has been published with this version.
    pub fn is_understood(&self) -> bool {
        self.magic.load(Acquire) == MAGIC && self.version.load(Relaxed) == VERSION
    }

    /// Begins a busy period of a device at `now` (`CLOCK_MONOTONIC`, nanoseconds); returns false if one has
    /// begun already. One writer of a device at a time.
    pub fn begin_busy(&self, device: usize, now: u64) -> bool {
        let has_begun = self
            .devices
            .get(device)
            .is_some_and(|device| device.begin_busy(now));
        if has_begun {
            self.stalls.iter().for_each(|stall| stall.begin_work(now));
        }
        has_begun
    }

    /// Ends the busy period of a device at `end` (`CLOCK_MONOTONIC`, nanoseconds) if there is one. One writer
    /// of a device at a time.
    pub fn end_busy(&self, device: usize, end: u64) {
        let device = self.devices.get(device);
        if let Some(device) = device.filter(|device| device.busy_since.load(Relaxed) != 0) {
            device.end_busy(end);
            self.stalls.iter().for_each(|stall| stall.end_work(end));
        }
    }

    /// Returns the bytes charged on a device; 0 for a device that does not exist.
    pub fn memory_current(&self, device: usize) -> u64 {
        let device = self.devices.get(device);
        device.map_or(0, |device| device.memory_current.load(Acquire))
    }

    /// Returns the number of submissions of one kind on one device from which the driver has returned, also
    /// with an error, summed over threads. Wraps instead of overflowing, since the counters are written by
    /// the process.
    pub fn submitted(&self, device: usize, what: Submission) -> u64 {
        let shared = self
            .devices
            .get(device)
            .map_or(0, |d| d.shared_exited[what as usize].load(Relaxed));
        self.used_threads()
            .filter(|slot| slot.device.load(Acquire) as usize == device)
            .fold(shared, |sum, slot| {
                sum.wrapping_add(slot.exited(what).load(Relaxed))
            })
    }

    /// Returns a number that changes with each submission to one device: when the driver has returned, and
    /// also when it starts at a gate that is not open. 0 if there has been none.
    pub fn progress(&self, device: usize) -> u64 {
        let shared = self.devices.get(device).map(|device| &device.shared_exited);
        let shared = shared.into_iter().flatten();
        let own = self
            .used_threads()
            .filter(|slot| slot.device.load(Acquire) as usize == device)
            .flat_map(|slot| slot.submissions.iter().flatten());
        shared
            .chain(own)
            .fold(0, |sum: u64, count| sum.wrapping_add(count.load(Relaxed)))
    }

    /// Returns the memory counters of one device: its own plus those of all threads.
    pub fn allocations(&self, device: usize) -> Allocations {
        let mut sums = Allocations::default();
        let Some(shared) = self.devices.get(device) else {
            return sums;
        };
        let add = |sum: &mut u64, count: &AtomicU64| *sum = sum.wrapping_add(count.load(Acquire));
        add(&mut sums.nr_alloc, &shared.nr_alloc);
        add(&mut sums.nr_free, &shared.nr_free);
        for (sum, count) in sums.kinds.iter_mut().zip(&shared.kinds) {
            add(sum, count);
        }
        let is_here = |slot: &&Thread| slot.counted_device.load(Acquire) as usize == device;
        for slot in self.used_threads().filter(is_here) {
            add(&mut sums.nr_alloc, &slot.nr_alloc);
            add(&mut sums.nr_free, &slot.nr_free);
            let unsettled = slot.unsettled.load(Acquire);
            sums.nr_unsettled = sums.nr_unsettled.wrapping_add(unsettled.into());
            sums.unsettled_threads += u64::from(unsettled % 2);
            for (sum, (kind, ..)) in sums.kinds.iter_mut().zip(Kind::ALL) {
                slot.kind(kind).into_iter().for_each(|count| add(sum, count));
            }
        }
        sums
    }

    /// Returns the number of kernels submitted to one device, launched singly or in graphs.
    pub fn kernels(&self, device: usize) -> u64 {
        let in_graphs = self
            .devices
            .get(device)
            .map_or(0, |d| d.graph_kernels.load(Relaxed));
        self.submitted(device, Submission::Kernel).wrapping_add(in_graphs)
    }

    /// Returns the thread slots that have ever been taken.
    pub fn used_threads(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().take(self.nr_threads.load(Acquire) as usize)
    }
}

// The layout is the interface: a change requires a new VERSION. Under loom the atomics have other sizes.
#[cfg(not(loom))]
const _: () = {
    assert!(offset_of!(Usage, nr_threads) == 12);
    assert!(offset_of!(Usage, memory_taken) == 16);
    assert!(offset_of!(Usage, memory_peak) == 24);
    assert!(offset_of!(Usage, peak_generation) == 32);
    assert!(offset_of!(Usage, nr_max) == 40);
    assert!(offset_of!(Usage, nr_unknown_symbols) == 56);
    assert!(offset_of!(Usage, can_swap) == 64);
    assert!(offset_of!(Usage, reserved_flags) == 68);
    assert!(offset_of!(Usage, measures_time) == 76);
    assert!(offset_of!(Usage, host_claim) == 80);
    assert!(offset_of!(Usage, host_request) == 88);
    assert!(offset_of!(Usage, suspend_generation) == 92);
    assert!(offset_of!(Usage, refused_bytes) == 96);
    assert!(offset_of!(Usage, uses_mps) == 108);
    assert!(offset_of!(Usage, nr_shared) == 112);
    assert!(offset_of!(Usage, moving_in) == 128);
    assert!(offset_of!(Usage, notice_deadline) == 136);
    assert!(offset_of!(Usage, wanted_generation) == 144);
    assert!(offset_of!(Usage, stalls) == 224);
    assert!(offset_of!(Usage, devices) == 256);
    assert!(offset_of!(Usage, threads) == 256 + 512 * MAX_DEVICES);
    assert!(size_of::<Usage>() == 69632);
};
