//! The usage block: written by the hook, read by the daemon. The daemon clamps what it reads and never uses
//! it as an index, a length or an address. The daemon itself writes only the grants of each device,
//! [`UsageDevice::memory_granted`] and [`UsageDevice::swap_granted`].

use crate::sync::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
#[cfg(not(loom))]
use core::mem::{offset_of, size_of};

use crate::{MAGIC, MAX_DEVICES, MAX_THREADS, VERSION};

/// Kind of charged memory, as listed in `memory.stat`. The value is the index into [`UsageDevice::kinds`].
#[repr(usize)]
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
}

impl Kind {
    /// Each kind with its key in `memory.stat` and whether it counts towards `memory.current`.
    pub const ALL: [(Kind, &'static str, bool); 11] = [
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
    ];
}

/// Kind of a submission; the index into the entry and exit counters.
#[repr(usize)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submission {
    /// A kernel launch.
    Kernel,
    /// A graph launch.
    Graph,
    /// A copy or a set.
    Copy,
}

impl Submission {
    pub const COUNT: usize = 3;
}

/// Usage of one process on one device.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct UsageDevice {
    /// Bytes charged now.
    pub memory_current: AtomicU64,
    /// Highest `memory_current` since the reset numbered `peak_generation`.
    pub memory_peak: AtomicU64,
    pub peak_generation: AtomicU32,
    /// The freeze generation for which all submitted work has completed and no more can be submitted.
    pub drained_generation: AtomicU32,
    /// Bytes by [`Kind`], allocations and frees, as far as they are not in the threads' own counters
    /// ([`Usage::allocations`]).
    pub kinds: [AtomicU64; 12],
    pub nr_alloc: AtomicU64,
    pub nr_free: AtomicU64,
    /// Allocations that failed, refused by the hook or by the driver.
    pub nr_alloc_fail: AtomicU64,
    /// Allocations that hit this device's limit (`memory.events`: max).
    pub nr_max: AtomicU64,
    /// Allocations refused because of the limit (`memory.events`: oom).
    pub nr_oom: AtomicU64,
    /// Kernels known to have completed.
    pub nr_ended: AtomicU64,
    /// Number of submissions that waited at a frozen gate, and the time they waited, microseconds.
    pub nr_frozen: AtomicU64,
    pub frozen_usec: AtomicU64,
    /// Earlier hooks counted entries here.
    reserved_entered: [AtomicU64; Submission::COUNT],
    /// Submissions of threads without a slot, by [`Submission`] (read-modify-write).
    pub shared_exited: [AtomicU64; Submission::COUNT],
    /// Kernels in launched graphs.
    pub graph_kernels: AtomicU64,
    /// Low half: calls in progress after which the device may hold more than is charged. High half: number of
    /// such calls ever started.
    pub unsettled: AtomicU64,
    /// Size of the swap pool: host memory that is in no block's place, bytes.
    pub swap_supply: AtomicU64,
    /// Number of the process's contexts on this device.
    pub nr_contexts: AtomicU32,
    /// Number of threads that wait at this gate.
    pub nr_waiting: AtomicU32,
    /// Sequence lock of `busy_since` and `busy_nsec`: odd while they are being changed.
    pub busy_sequence: AtomicU32,
    /// The driver's error (CUresult) that prevents the drain of the last freeze; 0: none, or an earlier hook
    /// that does not report it.
    pub drain_error: AtomicU32,
    /// Time at which the oldest work not known to have completed was submitted, `CLOCK_MONOTONIC`,
    /// nanoseconds; 0: there is none. Maintained while the gate is not [`Gate::Run`](crate::Gate::Run).
    pub busy_since: AtomicU64,
    /// Total busy time before `busy_since`, nanoseconds.
    pub busy_nsec: AtomicU64,
    /// The last `usage_nsec` of a control block that was replaced.
    pub usage_nsec_before: AtomicU64,
    /// Number of submissions that waited at a throttled gate or for admission, and the time they waited,
    /// microseconds.
    pub nr_throttled: AtomicU64,
    pub throttled_usec: AtomicU64,
    /// Batches that passed a throttled gate because `patience_usec` had passed.
    pub gate_timeouts: AtomicU64,
    /// Bytes of device allocations that are in host memory now.
    pub swap_current: AtomicU64,
    /// Total bytes moved out, and in.
    pub swap_out_bytes: AtomicU64,
    pub swap_in_bytes: AtomicU64,
    /// Blocks moved out and in, and moves that failed and left the block where it was.
    pub nr_swap_out: AtomicU64,
    pub nr_swap_in: AtomicU64,
    pub nr_swap_fail: AtomicU64,
    /// Charged bytes that could be swapped out.
    pub swappable: AtomicU64,
    /// The last `reclaim_generation` that has been handled.
    pub reclaim_generation: AtomicU32,
    reserved_swap: AtomicU32,
    /// Bound of `memory_current` granted by the groups above, bytes; [`NO_LIMIT`](crate::NO_LIMIT): they have
    /// no limit. The hook initialises it to `NO_LIMIT`; afterwards the daemon writes it. It is in this block
    /// so that it outlives the daemon. Charges against it are made by [`crate::try_charge_granted`].
    pub memory_granted: AtomicU64,
    /// Bytes of the charge for which a larger grant is requested. Valid while `grant_request` is unanswered.
    pub grant_wanted: AtomicU64,
    /// Counts the requests for a larger grant; the last one is answered when `grant_answer` of the control
    /// block has reached it.
    pub grant_request: AtomicU32,
    /// Counts the requests that other processes make room on the device; answered by `pressure_answer`.
    pub pressure_request: AtomicU32,
    /// Bytes that were missing in an allocation refused by the driver for lack of memory.
    pub pressure_wanted: AtomicU64,
    /// The last `memory_overhead` of a control block that was replaced.
    pub memory_overhead_before: AtomicU64,
    /// Bytes of host memory that the process has for swap or is about to make: `swap_current`, `swap_supply`
    /// and the needs of the next move. Maintained where [`Usage::asks_to_swap`].
    pub swap_charged: AtomicU64,
    /// Bound of `swap_charged` granted by `memory.swap.max` of the groups above, bytes, like `memory_granted`
    /// for `memory_current`.
    pub swap_granted: AtomicU64,
    /// Bytes of the charge for which a larger `swap_granted` is requested, like `grant_wanted`.
    pub swap_wanted: AtomicU64,
    /// Counts the requests for a larger `swap_granted`, like `grant_request`; answered by `swap_answer`.
    pub swap_request: AtomicU32,
    reserved_request: AtomicU32,
    /// Estimated GPU time of all submissions, nanoseconds, by the measured cost of similar ones; counted
    /// while the gate is [`Gate::Arbitrate`](crate::Gate::Arbitrate).
    pub submitted_nsec: AtomicU64,
    /// Estimated time at which all of them will have completed if no other process uses the device,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub queued_until: AtomicU64,
    /// Size of the allocations that lack `pressure_wanted`, bytes; 0: a hook that does not report it.
    pub pressure_size: AtomicU64,
    reserved_grants: [AtomicU64; 4],
}

impl UsageDevice {
    /// Returns whether the process reports that it uses the device: that it has a context, work or waiting
    /// threads there.
    pub fn claims_use(&self) -> bool {
        self.busy_since.load(Acquire) != 0
            || self.nr_waiting.load(Relaxed) > 0
            || self.nr_contexts.load(Relaxed) > 0
    }
}

/// Counters of one submitting thread on one device. Only that thread writes the counters, with plain
/// additions.
///
/// The slot holds no address: the gate and the entry counters are in the process's private part of the slot
/// ([`Entrance`](crate::Entrance)). A slot keeps its counts when its thread ends and another takes it over,
/// since they belong to the device.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Thread {
    /// Earlier hooks stored an address here.
    reserved_gate: AtomicU64,
    /// Earlier hooks stored the thread's id here, or bytes that it kept.
    reserved_stock: AtomicU32,
    /// Index of the device.
    pub device: AtomicU32,
    /// One pair for each [`Submission`]: submissions started at a gate that was not open, which the daemon
    /// takes as evidence of work; submissions from which the driver has returned.
    pub submissions: [[AtomicU64; 2]; Submission::COUNT],
    /// Allocations and frees on the device `counted_device`.
    pub nr_alloc: AtomicU64,
    pub nr_free: AtomicU64,
    /// Allocated minus freed bytes on `counted_device` of the most frequent kinds ([`Self::kind`]). A thread
    /// that frees another thread's block makes its own counter negative; only the wrapping sum over threads
    /// is meaningful.
    kinds: [AtomicU64; 5],
    /// The device for which this thread's allocations are counted. It differs from `device` until the thread
    /// allocates there.
    pub counted_device: AtomicU32,
    /// Odd while the thread is in a call after which that device may hold more than is charged: the thread's
    /// part of [`UsageDevice::unsettled`].
    pub unsettled: AtomicU32,
}

impl Thread {
    pub const fn exited(&self, what: Submission) -> &AtomicU64 {
        &self.submissions[what as usize][1]
    }

    /// Returns the thread's own counter of a kind; `None` for kinds that are counted in
    /// [`UsageDevice::kinds`] only.
    pub const fn kind(&self, kind: Kind) -> Option<&AtomicU64> {
        let [linear, managed, vmm, array, host] = &self.kinds;
        match kind {
            Kind::Linear => Some(linear),
            Kind::Managed => Some(managed),
            Kind::Vmm => Some(vmm),
            Kind::Array => Some(array),
            Kind::Host => Some(host),
            _ => None,
        }
    }
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
    magic: AtomicU64,
    version: AtomicU32,
    /// Number of thread slots ever taken; those beyond are untouched.
    pub nr_threads: AtomicU32,
    /// Used by the process only: bytes charged on other devices than its home. The total is the sum of
    /// [`UsageDevice::memory_current`].
    pub memory_elsewhere: AtomicU64,
    /// Highest total charge on all devices since the reset numbered `peak_generation`.
    pub memory_peak: AtomicU64,
    pub peak_generation: AtomicU32,
    /// The `progress_generation` for which `nr_ended` is up to date.
    pub progress_generation: AtomicU32,
    /// Number of allocations that hit the limit of the process as a whole, and of those refused because of
    /// it.
    pub nr_max: AtomicU64,
    pub nr_oom: AtomicU64,
    /// Look-ups of driver names that are not in the hook's table.
    pub nr_unknown_symbols: AtomicU64,
    /// Nonzero: the process's large allocations can be swapped out.
    pub can_swap: AtomicU32,
    /// Nonzero: the process obeys [`UsageDevice::swap_granted`] and requests more. Otherwise
    /// `memory_swap_max` of the control block must include what the groups above leave it.
    pub asks_to_swap: AtomicU32,
    /// Earlier daemons take another value than 0 to say that threads keep bytes which are in
    /// `memory_current`.
    reserved_stocks: AtomicU32,
    reserved_word: AtomicU32,
    /// Claim: bytes of host memory that the process is about to take for a block; 0: none. Set before
    /// `host_request` is incremented, and reset to 0 when the memory is made or no longer wanted.
    pub host_claim: AtomicU64,
    /// Counts the claims. `host_answer` of the control block answers the last one.
    pub host_request: AtomicU32,
    reserved_claim: AtomicU32,
    reserved: [AtomicU64; 20],
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

    /// Returns the bytes charged on a device; 0 for a device that does not exist.
    pub fn memory_current(&self, device: usize) -> u64 {
        let device = self.devices.get(device);
        device.map_or(0, |device| device.memory_current.load(Acquire))
    }

    /// Returns the number of submissions of one kind on one device that the driver has accepted, summed over
    /// threads. Wraps instead of overflowing, since the counters are written by the process.
    pub fn submitted(&self, device: usize, what: Submission) -> u64 {
        let shared = self
            .devices
            .get(device)
            .map_or(0, |d| d.shared_exited[what as usize].load(Relaxed));
        self.used_threads()
            .filter(|slot| slot.device.load(Relaxed) as usize == device)
            .fold(shared, |sum, slot| {
                sum.wrapping_add(slot.exited(what).load(Relaxed))
            })
    }

    /// Returns a number that changes with each submission to one device: when the driver has accepted it, and
    /// also when it starts at a gate that is not open. 0 if there has been none.
    pub fn progress(&self, device: usize) -> u64 {
        let shared = self.devices.get(device).map(|device| &device.shared_exited);
        let shared = shared.into_iter().flatten();
        let own = self
            .used_threads()
            .filter(|slot| slot.device.load(Relaxed) as usize == device)
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
    assert!(size_of::<UsageDevice>() == 512);
    assert!(offset_of!(UsageDevice, memory_peak) == 8);
    assert!(offset_of!(UsageDevice, peak_generation) == 16);
    assert!(offset_of!(UsageDevice, drained_generation) == 20);
    assert!(offset_of!(UsageDevice, kinds) == 24);
    assert!(offset_of!(UsageDevice, nr_alloc) == 120);
    assert!(offset_of!(UsageDevice, nr_max) == 144);
    assert!(offset_of!(UsageDevice, nr_ended) == 160);
    assert!(offset_of!(UsageDevice, nr_frozen) == 168);
    assert!(offset_of!(UsageDevice, shared_exited) == 208);
    assert!(offset_of!(UsageDevice, graph_kernels) == 232);
    assert!(offset_of!(UsageDevice, unsettled) == 240);
    assert!(offset_of!(UsageDevice, swap_supply) == 248);
    assert!(offset_of!(UsageDevice, nr_contexts) == 256);
    assert!(offset_of!(UsageDevice, busy_since) == 272);
    assert!(offset_of!(UsageDevice, usage_nsec_before) == 288);
    assert!(offset_of!(UsageDevice, nr_throttled) == 296);
    assert!(offset_of!(UsageDevice, gate_timeouts) == 312);
    assert!(offset_of!(UsageDevice, swap_current) == 320);
    assert!(offset_of!(UsageDevice, reclaim_generation) == 376);
    assert!(offset_of!(UsageDevice, memory_granted) == 384);
    assert!(offset_of!(UsageDevice, grant_wanted) == 392);
    assert!(offset_of!(UsageDevice, grant_request) == 400);
    assert!(offset_of!(UsageDevice, pressure_request) == 404);
    assert!(offset_of!(UsageDevice, pressure_wanted) == 408);
    assert!(offset_of!(UsageDevice, memory_overhead_before) == 416);
    assert!(offset_of!(UsageDevice, swap_charged) == 424);
    assert!(offset_of!(UsageDevice, swap_granted) == 432);
    assert!(offset_of!(UsageDevice, swap_wanted) == 440);
    assert!(offset_of!(UsageDevice, swap_request) == 448);
    assert!(offset_of!(UsageDevice, submitted_nsec) == 456);
    assert!(offset_of!(UsageDevice, pressure_size) == 472);
    assert!(size_of::<Thread>() == 128);
    assert!(offset_of!(Thread, reserved_stock) == 8);
    assert!(offset_of!(Thread, device) == 12);
    assert!(offset_of!(Thread, submissions) == 16);
    assert!(offset_of!(Thread, nr_alloc) == 64);
    assert!(offset_of!(Thread, nr_free) == 72);
    assert!(offset_of!(Thread, kinds) == 80);
    assert!(offset_of!(Thread, counted_device) == 120);
    assert!(offset_of!(Thread, unsettled) == 124);
    assert!(offset_of!(Usage, nr_threads) == 12);
    assert!(offset_of!(Usage, memory_elsewhere) == 16);
    assert!(offset_of!(Usage, memory_peak) == 24);
    assert!(offset_of!(Usage, peak_generation) == 32);
    assert!(offset_of!(Usage, nr_max) == 40);
    assert!(offset_of!(Usage, nr_unknown_symbols) == 56);
    assert!(offset_of!(Usage, can_swap) == 64);
    assert!(offset_of!(Usage, asks_to_swap) == 68);
    assert!(offset_of!(Usage, reserved_stocks) == 72);
    assert!(offset_of!(Usage, host_claim) == 80);
    assert!(offset_of!(Usage, host_request) == 88);
    assert!(offset_of!(Usage, devices) == 256);
    assert!(offset_of!(Usage, threads) == 256 + 512 * MAX_DEVICES);
    assert!(size_of::<Usage>() == 69632);
};
