//! One device's part of a usage block.

use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use gcgroup_abi::{ContextKind, UsageDevice};

use super::{GrantRequest, GrantWords, MOST};

/// Upper bound of every time, nanoseconds: nine years.
const MOST_NSEC: u64 = 1 << 58;

/// Upper bound of the contexts of a process on a device, and of the threads that wait at one of its gates.
const MOST_AT_ONCE: u32 = 4096;

/// Reader of one device's values. See [`Untrusted`](super::Untrusted).
#[derive(Clone, Copy)]
pub struct UntrustedDevice<'a> {
    pub(super) usage: &'a UsageDevice,
}

impl fmt::Debug for UntrustedDevice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UntrustedDevice")
    }
}

impl<'a> UntrustedDevice<'a> {
    pub(super) fn new(usage: &'a UsageDevice) -> Self {
        Self { usage }
    }

    /// Returns the bytes charged, at most 2^53.
    pub(in crate::tree) fn charged(self) -> u64 {
        self.usage.memory_current.load(Relaxed).min(MOST)
    }

    /// Returns the number of the reset for which [`memory_peak`](Self::memory_peak) holds.
    pub(in crate::tree) fn peak_generation(self) -> u32 {
        self.usage.peak_generation.load(Acquire)
    }

    /// Returns the peak of what is charged, at most `most` bytes.
    pub(in crate::tree) fn memory_peak(self, most: u64) -> u64 {
        self.usage.memory_peak.load(Relaxed).min(most).min(MOST)
    }

    /// Returns the freeze generation that has drained.
    pub(in crate::tree) fn drained_generation(self) -> u32 {
        self.usage.drained_generation.load(Acquire)
    }

    /// Returns the driver's error that prevents a drain; every number is possible, and is only shown.
    pub(in crate::tree) fn drain_error(self) -> Option<u32> {
        Some(self.usage.drain_error.load(Relaxed)).filter(|error| *error != 0)
    }

    /// Returns whether the process claims to use the device: a context, work or waiting threads there.
    pub fn claims_use(self) -> bool {
        self.usage.claims_use()
    }

    /// Returns for how many nanoseconds the process claims to have had work up to `now`
    /// (`CLOCK_MONOTONIC`), at most nine years, and whether it claims to have some. The number may step back.
    pub(in crate::tree) fn busy(self, now: u64) -> (u64, bool) {
        let (nsec, is_busy) = self.usage.busy(now);
        (nsec.min(MOST_NSEC), is_busy)
    }

    /// Returns whether there is work, or more threads wait than `nr_waiting`, the number seen before.
    pub(in crate::tree) fn has_begun(self, nr_waiting: u32) -> bool {
        // A number at the bound cannot grow.
        let is_most = nr_waiting >= MOST_AT_ONCE;
        self.usage.has_begun(if is_most { u32::MAX } else { nr_waiting })
    }

    /// Returns the GPU time of all submissions by the process's own estimate, at most nine years, in
    /// nanoseconds.
    pub(in crate::tree) fn submitted_nsec(self) -> u64 {
        self.usage.submitted_nsec.load(Relaxed).min(MOST_NSEC)
    }

    /// Returns the time at which all submissions will have completed, `CLOCK_MONOTONIC`, at most nine years,
    /// in nanoseconds.
    pub(in crate::tree) fn queued_until(self) -> u64 {
        self.usage.queued_until.load(Relaxed).min(MOST_NSEC)
    }

    /// Returns the number of threads that wait at the gate, at most 4096.
    pub(in crate::tree) fn nr_waiting(self) -> u32 {
        self.usage.nr_waiting.load(Relaxed).min(MOST_AT_ONCE)
    }

    /// Returns the number of contexts, at most 4096.
    pub fn nr_contexts(self) -> u32 {
        self.usage.nr_contexts.load(Relaxed).min(MOST_AT_ONCE)
    }

    /// Returns the GPU time that an earlier daemon has charged, at most nine years, in nanoseconds.
    pub(in crate::tree) fn usage_nsec_before(self) -> u64 {
        self.usage.usage_nsec_before.load(Relaxed).min(MOST_NSEC)
    }

    /// Returns the bytes beyond the ledger that an earlier daemon has measured, at most `most`.
    pub(in crate::tree) fn memory_overhead_before(self, most: u64) -> u64 {
        self.usage
            .memory_overhead_before
            .load(Relaxed)
            .min(most)
            .min(MOST)
    }

    /// Returns the number of the last request to measure contexts, and their kind, `None` for several. The
    /// kind is at least as new as the number.
    pub(in crate::tree) fn context_request(self) -> (u32, Option<ContextKind>) {
        let number = self.usage.context_request.load(Acquire);
        (
            number,
            ContextKind::of_word(self.usage.context_kind.load(Relaxed)),
        )
    }

    /// Returns the bytes charged for contexts that are not measured, at most `most`.
    pub(in crate::tree) fn context_estimated(self, most: u64) -> u64 {
        self.usage.context_estimated.load(Relaxed).min(most).min(MOST)
    }

    /// Returns the bytes charged for contexts whose charge was corrected, at most `most`.
    pub(in crate::tree) fn context_measured(self, most: u64) -> u64 {
        let charged = self.usage.context_charged.load(Relaxed).min(most).min(MOST);
        charged.saturating_sub(self.context_estimated(most))
    }

    /// Returns the bytes that the process claims to have swapped out, at most `most`.
    pub(in crate::tree) fn swapped(self, most: u64) -> u64 {
        self.usage.swap_current.load(Relaxed).min(most).min(MOST)
    }

    /// Returns the charged bytes that could be swapped out, at most `most`.
    pub(in crate::tree) fn swappable(self, most: u64) -> u64 {
        self.usage.swappable.load(Relaxed).min(most).min(MOST)
    }

    /// Returns the bytes that can be moved, on the device or on the host, at most `most`.
    pub(in crate::tree) fn movable(self, most: u64) -> u64 {
        self.usage.movable.load(Relaxed).min(most).min(MOST)
    }

    /// Returns the bytes that the program is told to free, at most `most`; 0: none.
    pub(in crate::tree) fn notice_target(self, most: u64) -> u64 {
        self.usage.notice_target.load(Relaxed).min(most)
    }

    /// Returns the number of the last request to swap out that was handled.
    pub(in crate::tree) fn reclaim_generation(self) -> u32 {
        self.usage.reclaim_generation.load(Acquire)
    }

    /// Returns the number of the last request for room on the device;
    /// [`pressure_wanted`](Self::pressure_wanted) and [`pressure_size`](Self::pressure_size) are at least as
    /// new.
    pub(in crate::tree) fn pressure_request(self) -> u32 {
        self.usage.pressure_request.load(Acquire)
    }

    /// Returns the bytes that are missing on the device, at most 2^53: more than any device has.
    pub fn pressure_wanted(self) -> u64 {
        self.usage.pressure_wanted.load(Relaxed).min(MOST)
    }

    /// Returns the size of the allocations that lack them, at most 2^53 bytes; 0 if it is not reported.
    pub(in crate::tree) fn pressure_size(self) -> u64 {
        self.usage.pressure_size.load(Relaxed).min(MOST)
    }

    /// Returns the numbers of allocations that failed, that the device's limit refused and that a group's
    /// limit refused, in the order that one is counted last to first.
    pub(in crate::tree) fn refusals(self) -> [u64; 3] {
        let fails = self.usage.nr_alloc_fail.load(Acquire);
        let refused = [&self.usage.nr_oom, &self.usage.nr_group_max].map(|count| count.load(Relaxed));
        [fails, refused[0], refused[1]]
    }

    /// Returns the words by which memory is charged and granted.
    pub(in crate::tree) fn memory_words(self) -> GrantWords<'a> {
        GrantWords::new(&self.usage.memory_current, &self.usage.memory_granted)
    }

    /// Returns the words by which swap is charged and granted.
    pub(in crate::tree) fn swap_words(self) -> GrantWords<'a> {
        GrantWords::new(&self.usage.swap_charged, &self.usage.swap_granted)
    }

    /// Returns the last request for a larger grant of memory.
    pub(in crate::tree) fn memory_request(self) -> GrantRequest {
        GrantRequest::read(&self.usage.grant_request, &self.usage.grant_wanted)
    }

    /// Returns the last request for a larger grant of swap.
    pub(in crate::tree) fn swap_request(self) -> GrantRequest {
        GrantRequest::read(&self.usage.swap_request, &self.usage.swap_wanted)
    }
}
