//! One device's part of a usage block.

use crate::sync::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed};
#[cfg(not(loom))]
use core::mem::{offset_of, size_of};

use super::Submission;

/// Addition to [`UsageDevice::submitted_nsec`] for a submission whose cost is not known, nanoseconds: the
/// daemon then charges the time for which there is work. The guess from which the process estimates its queue
/// is added too. When the submission has ended and a sample has told its cost, this is subtracted again.
pub const UNKNOWN_COST: u64 = 1_000_000_000;

/// Usage of one process on one device.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct UsageDevice {
    /// Bytes charged now.
    ///
    /// Ordering: charges against a grant are `SeqCst`, as is the daemon's load when it lowers the grant: one
    /// of them sees the other (`charge.rs`). An uncharge is `Release`, so that a reader of the smaller number
    /// sees what was refused before. Other loads are `Relaxed`.
    pub memory_current: AtomicU64,
    /// Highest `memory_current` since the reset numbered `peak_generation`.
    ///
    /// Ordering: `Relaxed`; `peak_generation` orders it after a reset.
    pub memory_peak: AtomicU64,
    /// Number of the last reset of `memory_peak` that the process has seen.
    ///
    /// Ordering: the hook stores `Release` after `memory_peak`, under a lock; it loads `Acquire` before it
    /// raises the peak, and the daemon before it reads the peak: with a new number, neither sees the peak
    /// from before that reset.
    pub peak_generation: AtomicU32,
    /// The freeze generation for which all submitted work has completed and no more can be submitted.
    ///
    /// Ordering: the hook stores `Release` after all exits are visible to it; the daemon loads `Acquire`:
    /// counts that it reads next are at least as new.
    pub drained_generation: AtomicU32,
    /// Bytes by [`Kind`](crate::Kind), as far as they are not in the threads' own counters
    /// ([`crate::Usage::allocations`]).
    ///
    /// Ordering: the hook adds `Relaxed` and fences `Release` before it uncharges; the daemon loads `Acquire`
    /// ([`crate::Usage::allocations`]): a reader that sees an uncharge sees what was counted before it.
    pub kinds: [AtomicU64; 12],
    /// Allocations, as far as they are not in the threads' own counters.
    ///
    /// Ordering: as `kinds`.
    pub nr_alloc: AtomicU64,
    /// Frees, as far as they are not in the threads' own counters.
    ///
    /// Ordering: as `kinds`.
    pub nr_free: AtomicU64,
    /// Allocations that failed, refused by the hook or by the driver.
    ///
    /// Ordering: the hook adds `Relaxed`; the daemon loads `Acquire`, between fences, to tell whether the
    /// ledger has changed meanwhile.
    pub nr_alloc_fail: AtomicU64,
    /// Allocations that hit this device's limit (`memory.events`: max).
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_max: AtomicU64,
    /// Allocations refused because of the limit (`memory.events`: oom).
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_oom: AtomicU64,
    /// Kernels known to have completed.
    ///
    /// Ordering: the hook raises `Relaxed` before it stores `progress_generation` with `Release`; the daemon
    /// loads `Relaxed`.
    pub nr_ended: AtomicU64,
    /// Number of submissions that waited at a frozen gate.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_frozen: AtomicU64,
    /// Time for which submissions waited at a frozen gate, microseconds.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub frozen_usec: AtomicU64,
    /// Bytes of memory shared with other processes that this process has freed, ever. Other processes, or
    /// descriptors, may still hold it.
    ///
    /// Ordering: the hook adds `Release` before it counts the charge for them among `context_charged` and
    /// requests a measurement; the daemon loads `Acquire`: the number is at least as new as the request.
    pub shared_freed: AtomicU64,
    /// Number of imports whose size is not known, since they have not been mapped.
    ///
    /// Ordering: `Relaxed` (hook adds and subtracts, daemon loads): one word, no other data depends on it.
    pub nr_unsized: AtomicU64,
    /// Bytes that the process has to free before `notice_deadline` so that none of its memory moves out for
    /// other processes; 0: no notice is in force.
    ///
    /// Ordering: `Relaxed` (hook stores, daemon loads): one word, no other data depends on it.
    pub notice_target: AtomicU64,
    /// Submissions of threads without a slot, by [`Submission`] (read-modify-write).
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub shared_exited: [AtomicU64; Submission::COUNT],
    /// Kernels in launched graphs.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub graph_kernels: AtomicU64,
    /// Low half: calls in progress after which the device may hold more than is charged, and in the slot
    /// `OTHER_DEVICE` also registrations, in which charges change slots. High half: number of such calls and
    /// registrations ever started.
    ///
    /// Ordering: the hook adds and subtracts `Release`, the daemon loads `Acquire`: equal values before and
    /// after a measurement mean that no such call ended in between.
    pub unsettled: AtomicU64,
    /// Size of the swap pool: host memory that is in no block's place, bytes.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub swap_pool: AtomicU64,
    /// Number of the process's contexts on this device.
    ///
    /// Ordering: `Relaxed` (hook stores, daemon loads): one word, no other data depends on it.
    pub nr_contexts: AtomicU32,
    /// Number of threads that wait at this gate.
    ///
    /// Ordering: `Relaxed`; its publication is ordered against `wants_bell` by `SeqCst` fences on both sides
    /// (`bell.rs`).
    pub nr_waiting: AtomicU32,
    /// Sequence lock of `busy_since` and `busy_nsec`: odd while they are being changed.
    ///
    /// Ordering: the hook stores the odd number `Relaxed` and the even one `Release`; the daemon loads
    /// `Acquire` before the two times and `Relaxed` after them (`busy.rs`).
    pub busy_sequence: AtomicU32,
    /// The driver's error (CUresult) that prevents the drain of the last freeze; 0: none, or an earlier hook
    /// that does not report it.
    ///
    /// Ordering: `Relaxed` (hook stores, daemon loads): one word, only shown.
    pub drain_error: AtomicU32,
    /// Time at which the oldest work not known to have completed was submitted, `CLOCK_MONOTONIC`,
    /// nanoseconds; 0: there is none. Maintained while the gate is not [`Gate::Run`](crate::Gate::Run).
    ///
    /// Ordering: the hook stores `Release`, the daemon loads `Acquire`: a reader of a new time sees the odd
    /// `busy_sequence` (`busy.rs`). Against `wants_bell` it is ordered by `SeqCst` fences (`bell.rs`), with
    /// `Relaxed` loads.
    pub busy_since: AtomicU64,
    /// Total busy time before `busy_since`, nanoseconds.
    ///
    /// Ordering: as `busy_since` in `busy.rs`.
    pub busy_nsec: AtomicU64,
    /// The last `usage_nsec` of a control block that was replaced.
    ///
    /// Ordering: the hook stores `Relaxed` before it registers; the daemon loads `Relaxed` after it has
    /// received the registration from the socket, which orders them.
    pub usage_nsec_before: AtomicU64,
    /// Number of submissions that waited at a throttled gate or for admission.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_throttled: AtomicU64,
    /// Time for which submissions waited at a throttled gate or for admission, microseconds.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub throttled_usec: AtomicU64,
    /// Batches that passed a throttled gate because `patience_usec` had passed.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub gate_timeouts: AtomicU64,
    /// Bytes of device allocations that are in host memory now.
    ///
    /// Ordering: the hook charges `Relaxed` and uncharges `Release`; the daemon loads `Relaxed`: one word, no
    /// other data depends on it.
    pub swap_current: AtomicU64,
    /// Total bytes moved out.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub swap_out_bytes: AtomicU64,
    /// Total bytes moved in.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub swap_in_bytes: AtomicU64,
    /// Blocks moved out.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_swap_out: AtomicU64,
    /// Blocks moved in.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_swap_in: AtomicU64,
    /// Moves that failed and left the block where it was.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_swap_fail: AtomicU64,
    /// Charged bytes that could be swapped out.
    ///
    /// Ordering: `Relaxed` (hook adds and subtracts, daemon loads), a count that no other data depends on.
    pub swappable: AtomicU64,
    /// The last `reclaim_generation` that has been handled.
    ///
    /// Ordering: the hook stores `Release` after the last move; the daemon loads `Acquire`: what was moved is
    /// counted.
    pub reclaim_generation: AtomicU32,
    /// Counts the requests to measure contexts whose charge is estimated; answered by `context_answer` of the
    /// control block.
    ///
    /// Ordering: the hook adds `Release` after `context_kind` and the charge of the context; the daemon loads
    /// `Acquire`: both are at least as new as the request.
    pub context_request: AtomicU32,
    /// Bound of `memory_current` granted by the groups above, bytes; [`NO_LIMIT`](crate::NO_LIMIT): they have
    /// no limit. The hook initialises it to `NO_LIMIT`; afterwards the daemon writes it. It is in this block
    /// so that it outlives the daemon. Charges against it are made by [`crate::try_charge_granted`].
    ///
    /// Ordering: stores and the deciding loads of both sides are `SeqCst`: either the daemon that lowers it
    /// sees a charge, or the charge sees the lower grant and is undone (`charge.rs`). First looks and hints
    /// are `Relaxed`.
    pub memory_granted: AtomicU64,
    /// Bytes of the charge for which a larger grant is requested, and
    /// [`WANTED_BELOW_HIGH`](crate::WANTED_BELOW_HIGH) and [`WANTED_AGAIN`](crate::WANTED_AGAIN). Valid while
    /// `grant_request` is unanswered.
    ///
    /// Ordering: `Relaxed`, ordered by `grant_request`.
    pub grant_wanted: AtomicU64,
    /// Counts the requests for a larger grant; the last one is answered when `grant_answer` of the control
    /// block has reached it.
    ///
    /// Ordering: the hook adds `Release` after `grant_wanted`; the daemon loads `Acquire`: the size is at
    /// least as new as the request (`charge.rs`).
    pub grant_request: AtomicU32,
    /// Counts the requests that other processes make room on the device; answered by `pressure_answer`.
    ///
    /// Ordering: the hook adds `Release` after `pressure_wanted` and `pressure_size`; the daemon loads
    /// `Acquire`: both are at least as new as the request.
    pub pressure_request: AtomicU32,
    /// Bytes that were missing in an allocation refused by the driver for lack of memory.
    ///
    /// Ordering: `Relaxed`, ordered by `pressure_request`.
    pub pressure_wanted: AtomicU64,
    /// The last `memory_overhead` of a control block that was replaced.
    ///
    /// Ordering: as `usage_nsec_before`.
    pub memory_overhead_before: AtomicU64,
    /// Bytes of host memory that the process has for swap or is about to make: `swap_current`, `swap_pool`
    /// and the needs of the next move.
    ///
    /// Ordering: as `memory_current` against `memory_granted`.
    pub swap_charged: AtomicU64,
    /// Bound of `swap_charged` granted by `memory.swap.max` of the groups above, bytes, like `memory_granted`
    /// for `memory_current`.
    ///
    /// Ordering: as `memory_granted`.
    pub swap_granted: AtomicU64,
    /// Bytes of the charge for which a larger `swap_granted` is requested, like `grant_wanted`.
    ///
    /// Ordering: `Relaxed`, ordered by `swap_request`.
    pub swap_wanted: AtomicU64,
    /// Counts the requests for a larger `swap_granted`, like `grant_request`; answered by `swap_answer`.
    ///
    /// Ordering: the hook adds `Release` after `swap_wanted`; the daemon loads `Acquire`: the size is at
    /// least as new as the request.
    pub swap_request: AtomicU32,
    /// The [`ContextKind`](crate::ContextKind) of the context that is to be measured, as
    /// [`ContextKind::asked`](crate::ContextKind::asked) writes it.
    ///
    /// Ordering: `Relaxed`, ordered by `context_request`.
    pub context_kind: AtomicU32,
    /// Estimated GPU time of all submissions, nanoseconds, by the measured cost of similar ones; 0: a hook
    /// that does not measure it. Added while the gate is [`Gate::Arbitrate`](crate::Gate::Arbitrate) or
    /// [`Gate::Throttled`](crate::Gate::Throttled) before the submission, otherwise within 20 ms and before
    /// the busy period ends.
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub submitted_nsec: AtomicU64,
    /// Estimated time at which all of them will have completed if no other process uses the device,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    ///
    /// Ordering: `Relaxed` (hook stores, daemon loads): an estimate that no other data depends on.
    pub queued_until: AtomicU64,
    /// Size of the allocations that lack `pressure_wanted`, bytes; 0: a hook that does not report it.
    ///
    /// Ordering: `Relaxed`, ordered by `pressure_request`.
    pub pressure_size: AtomicU64,
    /// Bytes of `memory_current` charged for contexts. Changes are bracketed by `unsettled`.
    ///
    /// Ordering: the hook adds and subtracts `Relaxed`; the daemon loads `Acquire`, between fences, to tell
    /// whether the ledger has changed meanwhile.
    pub context_charged: AtomicU64,
    /// The part of `context_charged` that is an estimate: the daemon has not measured these contexts.
    ///
    /// Ordering: `Relaxed` (hook adds and subtracts, daemon loads): only shown.
    pub context_estimated: AtomicU64,
    /// Allocations refused because of the limit of a group above (`memory.events`: group_max).
    ///
    /// Ordering: `Relaxed` (hook adds, daemon loads), a count that no other data depends on.
    pub nr_group_max: AtomicU64,
    /// Bytes of the allocations that can be moved, on the device or on the host.
    ///
    /// Ordering: as `swappable`.
    pub movable: AtomicU64,
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
    assert!(offset_of!(UsageDevice, shared_freed) == 184);
    assert!(offset_of!(UsageDevice, nr_unsized) == 192);
    assert!(offset_of!(UsageDevice, shared_exited) == 208);
    assert!(offset_of!(UsageDevice, graph_kernels) == 232);
    assert!(offset_of!(UsageDevice, unsettled) == 240);
    assert!(offset_of!(UsageDevice, swap_pool) == 248);
    assert!(offset_of!(UsageDevice, nr_contexts) == 256);
    assert!(offset_of!(UsageDevice, busy_since) == 272);
    assert!(offset_of!(UsageDevice, usage_nsec_before) == 288);
    assert!(offset_of!(UsageDevice, nr_throttled) == 296);
    assert!(offset_of!(UsageDevice, gate_timeouts) == 312);
    assert!(offset_of!(UsageDevice, swap_current) == 320);
    assert!(offset_of!(UsageDevice, reclaim_generation) == 376);
    assert!(offset_of!(UsageDevice, context_request) == 380);
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
    assert!(offset_of!(UsageDevice, context_kind) == 452);
    assert!(offset_of!(UsageDevice, submitted_nsec) == 456);
    assert!(offset_of!(UsageDevice, pressure_size) == 472);
    assert!(offset_of!(UsageDevice, context_charged) == 480);
    assert!(offset_of!(UsageDevice, context_estimated) == 488);
    assert!(offset_of!(UsageDevice, nr_group_max) == 496);
    assert!(offset_of!(UsageDevice, movable) == 504);
};
