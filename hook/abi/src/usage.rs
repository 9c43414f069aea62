//! The usage block: the process's side. The daemon clamps what it reads and never uses it as an index,
//! a length or an address. It writes one word for each device, [`UsageDevice::memory_granted`].

use crate::sync::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
#[cfg(not(loom))]
use core::mem::{offset_of, size_of};

use crate::{MAGIC, MAX_DEVICES, MAX_THREADS, VERSION};

/// What charged memory is, as `memory.stat` names it. The value is the index into [`UsageDevice::kinds`].
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
    /// Made for a place that is newer than the library: shown, not charged.
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

/// What a submission is; the index into the counters of entries and exits.
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

/// One (process, device).
#[repr(C, align(128))]
#[derive(Debug)]
pub struct UsageDevice {
    /// Bytes charged now, with those that threads keep: without, it is [`Usage::memory_current`].
    pub memory_current: AtomicU64,
    /// Highest `memory_current` since the reset numbered `peak_generation`.
    pub memory_peak: AtomicU64,
    pub peak_generation: AtomicU32,
    /// The freeze generation for which everything submitted here has ended and nothing more will be.
    pub drained_generation: AtomicU32,
    /// Bytes by [`Kind`], allocations and frees: what is not in the threads' own counts
    /// ([`Usage::allocations`]).
    pub kinds: [AtomicU64; 12],
    pub nr_alloc: AtomicU64,
    pub nr_free: AtomicU64,
    /// Allocations that failed, refused by us or by the driver.
    pub nr_alloc_fail: AtomicU64,
    /// Allocations that hit this device's limit (`memory.events`: max).
    pub nr_max: AtomicU64,
    /// Allocations refused for it (`memory.events`: oom).
    pub nr_oom: AtomicU64,
    /// Kernels known to have ended.
    pub nr_ended: AtomicU64,
    /// Submissions that waited at a frozen gate, and for how long.
    pub nr_frozen: AtomicU64,
    pub frozen_usec: AtomicU64,
    /// Earlier hooks counted entries here.
    reserved_entered: [AtomicU64; Submission::COUNT],
    /// Submissions of threads that found no slot, by [`Submission`] (read-modify-write).
    pub shared_exited: [AtomicU64; Submission::COUNT],
    /// Kernels in the graphs that were launched.
    pub graph_kernels: AtomicU64,
    /// Calls under way in which the device may come to hold more than is charged, in the low half; in the
    /// high half, how many have begun.
    pub unsettled: AtomicU64,
    /// Bytes of host memory that is in no block's place: made for a move to come, or left by one a moment
    /// ago.
    pub swap_supply: AtomicU64,
    /// Contexts the process has here.
    pub nr_contexts: AtomicU32,
    /// Threads that wait at this gate.
    pub nr_waiting: AtomicU32,
    /// Odd while `busy_since` and `busy_nsec` are being changed; they belong together.
    pub busy_sequence: AtomicU32,
    /// The driver's error (CUresult) that keeps the hook from learning whether what was submitted here before
    /// the last freeze has ended; zero: none does, or an earlier hook, which does not say.
    pub drain_error: AtomicU32,
    /// When work was submitted that has not been seen to end, by `CLOCK_MONOTONIC`, nanoseconds; zero: there
    /// is none. Kept while the gate is not [`Gate::Run`](crate::Gate::Run).
    pub busy_since: AtomicU64,
    /// For how long there was work before `busy_since`, nanoseconds.
    pub busy_nsec: AtomicU64,
    /// The last `usage_nsec` of a control block that was replaced.
    pub usage_nsec_before: AtomicU64,
    /// Submissions that waited at a throttled gate or for a place in the window, and for how long.
    pub nr_throttled: AtomicU64,
    pub throttled_usec: AtomicU64,
    /// Batches that passed a throttled gate because `patience_usec` was over.
    pub gate_timeouts: AtomicU64,
    /// Bytes of device allocations that are in host memory now.
    pub swap_current: AtomicU64,
    /// Bytes ever moved out and in.
    pub swap_out_bytes: AtomicU64,
    pub swap_in_bytes: AtomicU64,
    /// Blocks moved out and in, and moves that failed and left the block where it was.
    pub nr_swap_out: AtomicU64,
    pub nr_swap_in: AtomicU64,
    pub nr_swap_fail: AtomicU64,
    /// Bytes charged here that swapping could move out.
    pub swappable: AtomicU64,
    /// The `reclaim_generation` that has been dealt with.
    pub reclaim_generation: AtomicU32,
    reserved_swap: AtomicU32,
    /// The most that `memory_current` may be by the limits of the groups above, bytes;
    /// [`NO_LIMIT`](crate::NO_LIMIT): they have none. The hook makes it `NO_LIMIT`; from then on the daemon
    /// writes it. It is here, so that it outlives the daemon. What `memory_current` is charged by against it:
    /// [`crate::try_charge_granted`].
    pub memory_granted: AtomicU64,
    /// Bytes of the charge for which more is wanted. Means something while `grant_request` is not answered.
    pub grant_wanted: AtomicU64,
    /// Counts the requests for more; the last one is answered when `grant_answer` of the control block is as
    /// high.
    pub grant_request: AtomicU32,
    /// The same for requests that others make room on the device.
    pub pressure_request: AtomicU32,
    /// Bytes that the driver lacked for what it refused for want of memory.
    pub pressure_wanted: AtomicU64,
    /// The last `memory_overhead` of a control block that was replaced.
    pub memory_overhead_before: AtomicU64,
    /// Bytes of host memory that the process has for swapping, or is about to make: `swap_current`,
    /// `swap_supply`, and what a move to come needs. Kept where [`Usage::asks_to_swap`].
    pub swap_charged: AtomicU64,
    /// The most that `swap_charged` may be by `memory.swap.max` of the groups above, as `memory_granted` is
    /// for `memory_current`.
    pub swap_granted: AtomicU64,
    /// Bytes of the charge for which more of it is wanted, as `grant_wanted`.
    pub swap_wanted: AtomicU64,
    /// Counts the requests for more of it, as `grant_request`; answered by `swap_answer`.
    pub swap_request: AtomicU32,
    reserved_request: AtomicU32,
    /// Nanoseconds that what has been submitted here takes, by what the like of it took; counted while the
    /// gate is [`Gate::Arbitrate`](crate::Gate::Arbitrate).
    pub submitted_nsec: AtomicU64,
    /// When all of it will have ended, if nobody else has the device, `CLOCK_MONOTONIC`, nanoseconds.
    pub queued_until: AtomicU64,
    /// Bytes of the allocations for which `pressure_wanted` is lacking; zero: a hook that does not say.
    pub pressure_size: AtomicU64,
    reserved_grants: [AtomicU64; 4],
}

impl UsageDevice {
    /// Whether the process says that it uses the device: that it has a context, work or waiting threads
    /// there.
    pub fn claims_use(&self) -> bool {
        self.busy_since.load(Acquire) != 0
            || self.nr_waiting.load(Relaxed) > 0
            || self.nr_contexts.load(Relaxed) > 0
    }
}

/// One submitting thread on one device. Only that thread writes the counters, with plain adds; its `stock`,
/// whoever closes it.
///
/// Nothing here is an address: the gate and the entries are in the process's private part of the slot
/// ([`Entrance`](crate::Entrance)). A slot keeps its counts when its thread ends and another takes it over:
/// they are the device's.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Thread {
    /// An earlier hook has an address here.
    reserved_gate: AtomicU64,
    /// Bytes that the thread has uncharged and keeps. Means something unless [`Stocks`](crate::Stocks) are
    /// closed: an earlier hook had the thread's id here.
    pub stock: AtomicU32,
    /// Index of the device.
    pub device: AtomicU32,
    /// By [`Submission`], one pair each: submissions begun at a gate that was not open, which the daemon
    /// takes for evidence of work; submissions the driver has returned from.
    pub submissions: [[AtomicU64; 2]; Submission::COUNT],
    /// Allocations and frees on the device `counted_device`.
    pub nr_alloc: AtomicU64,
    pub nr_free: AtomicU64,
    /// Bytes there of the kinds that are allocated most ([`Self::kind`]), less those freed. Who frees what
    /// another has allocated has less than nothing: the sum over threads is what counts, and wraps.
    kinds: [AtomicU64; 5],
    /// The device that this thread's allocations are counted for. Another than `device` until it allocates
    /// there.
    pub counted_device: AtomicU32,
    /// Odd while the thread is in a call in which that device may come to hold more than is charged: the
    /// thread's own part of [`UsageDevice::unsettled`].
    pub unsettled: AtomicU32,
}

impl Thread {
    pub const fn exited(&self, what: Submission) -> &AtomicU64 {
        &self.submissions[what as usize][1]
    }

    /// The thread's own count of a kind; `None` for those that are counted in [`UsageDevice::kinds`] alone.
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

/// What the process counts of its memory on one device. Sums that wrap, of what several threads are changing:
/// where nothing stands still they are about right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocations {
    pub nr_alloc: u64,
    pub nr_free: u64,
    /// Bytes, in the order of [`Kind::ALL`].
    pub kinds: [u64; Kind::ALL.len()],
    /// Moves with each thread's own `unsettled`.
    pub nr_unsettled: u64,
    /// Threads of which that is odd.
    pub unsettled_threads: u64,
}

/// Written by the hook, but for [`UsageDevice::memory_granted`] and [`UsageDevice::swap_granted`]; read by
/// the daemon.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Usage {
    magic: AtomicU64,
    version: AtomicU32,
    /// Thread slots ever taken; those beyond are untouched.
    pub nr_threads: AtomicU32,
    /// The process's own affair: bytes charged on other devices than the one that it charged first. What it
    /// has on all together is the sum of [`UsageDevice::memory_current`].
    pub memory_elsewhere: AtomicU64,
    /// The most that was ever charged on all devices together since the reset numbered `peak_generation`.
    pub memory_peak: AtomicU64,
    pub peak_generation: AtomicU32,
    /// The `progress_generation` up to which `nr_ended` is known.
    pub progress_generation: AtomicU32,
    /// Allocations that hit the limit of the process as a whole, and those refused for it.
    pub nr_max: AtomicU64,
    pub nr_oom: AtomicU64,
    /// Look-ups of driver names that the hook's table does not know.
    pub nr_unknown_symbols: AtomicU64,
    /// Not zero: the process's large allocations can be swapped out.
    pub can_swap: AtomicU32,
    /// Not zero: it keeps to [`UsageDevice::swap_granted`], and asks for more. Else `memory_swap_max` of the
    /// control block has to say what the groups above leave it.
    pub asks_to_swap: AtomicU32,
    /// Whether threads keep what they uncharge: [`Stocks`](crate::Stocks).
    pub stocks: AtomicU32,
    reserved_word: AtomicU32,
    /// Bytes of the host's memory that the process is about to take for a block; zero: none. Set before
    /// `host_request` is increased, and zero again when the memory is made or is not wanted any more.
    pub host_claim: AtomicU64,
    /// Counts the claims. `host_answer` of the control block answers the last one.
    pub host_request: AtomicU32,
    reserved_claim: AtomicU32,
    reserved: [AtomicU64; 20],
    pub devices: [UsageDevice; MAX_DEVICES],
    pub threads: [Thread; MAX_THREADS],
}

impl Usage {
    /// Makes the block visible. Call once, when the block is zero otherwise.
    pub fn publish(&self) {
        self.version.store(VERSION, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Whether the block has been published, by a hook that means the same by it.
    pub fn is_understood(&self) -> bool {
        self.magic.load(Acquire) == MAGIC && self.version.load(Relaxed) == VERSION
    }

    /// Submissions of one sort on one device that the driver has taken: the sum over threads.
    /// Wraps rather than overflows, since the counts are the process's word.
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

    /// A number that changes with each submission on one device: when the driver has taken it, and also when
    /// it begins, if its gate is not open then. Zero if there has been none.
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

    /// What is counted of the memory on one device: the device's own counts, and those of all threads.
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

    /// Kernels submitted to one device: launched by themselves, or in graphs.
    pub fn kernels(&self, device: usize) -> u64 {
        let in_graphs = self
            .devices
            .get(device)
            .map_or(0, |d| d.graph_kernels.load(Relaxed));
        self.submitted(device, Submission::Kernel).wrapping_add(in_graphs)
    }

    /// The slots that were ever taken.
    pub fn used_threads(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().take(self.nr_threads.load(Acquire) as usize)
    }
}

// The layout is the contract: a change here is a change of VERSION. The atomics of a model have another.
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
    assert!(offset_of!(Thread, stock) == 8);
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
    assert!(offset_of!(Usage, stocks) == 72);
    assert!(offset_of!(Usage, host_claim) == 80);
    assert!(offset_of!(Usage, host_request) == 88);
    assert!(offset_of!(Usage, devices) == 256);
    assert!(offset_of!(Usage, threads) == 256 + 512 * MAX_DEVICES);
    assert!(size_of::<Usage>() == 69632);
};
