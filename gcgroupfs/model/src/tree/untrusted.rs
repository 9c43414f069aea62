//! The daemon's only access to usage blocks. A process can write anything there at any time, so no other code
//! of the daemon gets a reference to a block: [`Untrusted`] has the only one, and its methods return bounded
//! values.
//!
//! A returned value is one of four kinds:
//!
//! * bytes, counts and times, clamped as the method's documentation says;
//! * flags, as `bool`: both values are possible at any time;
//! * generations and request numbers, `u32`: every value is possible, and they are compared for equality or
//!   stored back only;
//! * sums that change when the process does something: compared for equality only.
//!
//! No value is an index or a length. Two reads of one field may differ.
//!
//! Reads of a page that the process has not written allocate it: methods that read all devices do so only for
//! processes that share or swap memory.

mod device;
mod grant;
mod ledger;
mod stall;
mod sums;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use gcgroup_abi::{Allocations, Kind, OTHER_DEVICE, Usage, UsageDevice};

pub(super) use device::UntrustedDevice;
pub(super) use grant::{GrantRequest, GrantWords};
pub use ledger::{Intake, Ledger};
pub(super) use stall::{StallTimes, StallsSeen};

/// Upper bound of every count and every number of bytes: not reached in a century, and representable by every
/// reader.
const MOST: u64 = 1 << 53;

/// A process's usage block.
#[derive(Clone, Copy)]
pub struct Untrusted<'a> {
    usage: &'a Usage,
}

impl fmt::Debug for Untrusted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Untrusted")
    }
}

impl<'a> Untrusted<'a> {
    /// Wraps a mapped block.
    pub fn new(usage: &'a Usage) -> Self {
        Self { usage }
    }

    /// Returns the block itself, for tests that play the process.
    #[cfg(any(test, fuzzing, feature = "fixture"))]
    pub fn raw(self) -> &'a Usage {
        self.usage
    }

    /// Returns whether the block has been published with the daemon's version.
    pub(super) fn is_understood(self) -> bool {
        self.usage.is_understood()
    }

    /// Returns whether the process claims that its memory can be swapped out.
    pub(super) fn can_swap(self) -> bool {
        self.usage.can_swap.load(Relaxed) != 0
    }

    /// Returns whether the process claims that it has exported memory to other processes or opened theirs.
    pub fn shares_memory(self) -> bool {
        self.usage.nr_shared.load(Relaxed) != 0
    }

    /// Returns whether the process claims to ask for room for what cannot be moved.
    pub(super) fn asks_for_fixed(self) -> bool {
        self.usage.nr_asking_fixed.load(Relaxed) != 0
    }

    /// Returns whether the process claims to be a client of MPS.
    pub(super) fn uses_mps(self) -> bool {
        self.usage.uses_mps.load(Relaxed) != 0
    }

    /// Returns whether the process claims to have a swap pool on any device.
    pub(super) fn has_swap_pool(self) -> bool {
        let mut devices = self.usage.devices.iter();
        self.can_swap() && devices.any(|device| device.swap_pool.load(Relaxed) != 0)
    }

    /// Returns the number of the reset for which [`memory_peak`](Self::memory_peak) holds.
    pub(super) fn peak_generation(self) -> u32 {
        self.usage.peak_generation.load(Acquire)
    }

    /// Returns the peak of what is charged on all devices together, at most `most` bytes.
    pub(super) fn memory_peak(self, most: u64) -> u64 {
        self.usage.memory_peak.load(Relaxed).min(most).min(MOST)
    }

    /// Returns the number of allocations that the process's own limit refused; only differences matter.
    pub(super) fn nr_oom(self) -> u64 {
        self.usage.nr_oom.load(Relaxed)
    }

    /// Returns the number of the last progress request that was answered.
    pub(super) fn progress_generation(self) -> u32 {
        self.usage.progress_generation.load(Acquire)
    }

    /// Returns the number of the last order to make no driver calls that the helper thread has acknowledged.
    pub(super) fn suspend_generation(self) -> u32 {
        self.usage.suspend_generation.load(Acquire)
    }

    /// Returns the last number of an idle process's freeze for which a call has said that it needs the GPU.
    pub(super) fn wanted_generation(self) -> u32 {
        self.usage.wanted_generation.load(Acquire)
    }

    /// Returns whether the process claims to say so.
    pub(super) fn tells_wanted(self) -> bool {
        self.usage.tells_wanted.load(Relaxed) != 0
    }

    /// Returns whether the process measures its work while its gate is open.
    pub(super) fn measures_time(self) -> bool {
        self.usage.measures_time.load(Relaxed) != 0
    }

    /// Returns the number of the last claim of host memory; [`host_claim`](Self::host_claim) is at least as
    /// new.
    pub(super) fn host_request(self) -> u32 {
        self.usage.host_request.load(Acquire)
    }

    /// Returns the bytes of host memory that the process is about to take, at most `most`.
    pub(super) fn host_claim(self, most: u64) -> u64 {
        self.usage.host_claim.load(Relaxed).min(most).min(MOST)
    }

    /// Returns when memory moves out for which the process says that it has given notice,
    /// `CLOCK_MONOTONIC` in nanoseconds; every number is possible, and is only shown.
    pub(super) fn notice_deadline(self) -> u64 {
        self.usage.notice_deadline.load(Relaxed)
    }

    /// Returns the bytes of the last allocation that a limit refused, at most 2^53; 0 if it is not reported.
    pub(super) fn refused_bytes(self) -> u64 {
        self.usage.refused_bytes.load(Relaxed).min(MOST)
    }

    /// Returns the bytes charged on the device of a slot, at most `most`; 0 if there is no such slot.
    pub fn charged(self, slot: usize, most: u64) -> u64 {
        self.usage.memory_current(slot).min(most).min(MOST)
    }

    /// Returns the bytes charged on the device of a slot without memory that is prepared there for blocks
    /// that move in, at most `most`. Until a block is settled it counts on the host.
    pub(super) fn current(self, slot: usize, most: u64) -> u64 {
        self.usage
            .memory_current(slot)
            .saturating_sub(self.prepared(slot))
            .min(most)
            .min(MOST)
    }

    /// Returns the bytes charged on the device of a slot for blocks that move in.
    pub(super) fn prepared(self, slot: usize) -> u64 {
        match self.usage.moving_in.load(Relaxed).min(MOST) {
            0 => 0,
            all => Ledger::of(self, slot).map_or(0, |ledger| ledger.prepared().min(all)),
        }
    }

    /// Returns the bytes of shared memory that the process has ever freed on the device of a slot, which only
    /// grow, and those of other processes that it has opened there: any number if it does not know their
    /// size.
    pub fn shared(self, slot: usize) -> (u64, u64) {
        let mut devices = self.usage.devices.iter();
        let is_unsized = |device: &UsageDevice| device.nr_unsized.load(Relaxed) != 0;
        let is_sized = !self.shares_memory() || !devices.any(is_unsized);
        let [here, other] = [slot, OTHER_DEVICE].map(|slot| self.usage.allocations(slot));
        let of = |counts: &Allocations| counts.kinds[Kind::Ipc as usize].min(MOST);
        let opened = if is_sized { of(&here) + of(&other) } else { MOST };
        let slots = [slot, OTHER_DEVICE].into_iter();
        let freed = slots.filter_map(|slot| self.usage.devices.get(slot));
        let freed = freed.map(|device| device.shared_freed.load(Acquire).min(MOST));
        (freed.sum(), opened)
    }

    /// Returns the bytes charged for pools on the device of a slot if the process shares memory, else 0: the
    /// driver can shrink a pool at any time, and others hold what it has released.
    pub fn shared_pools(self, slot: usize) -> u64 {
        let Allocations { kinds, .. } = self.usage.allocations(slot);
        let pools = kinds[Kind::Pool as usize].min(MOST);
        if self.shares_memory() { pools } else { 0 }
    }

    /// Returns the bytes swapped out from all devices, at most `most` from each.
    pub(super) fn swapped_in_all(self, most: u64) -> u64 {
        let devices = self.usage.devices.iter();
        devices
            .map(|usage| UntrustedDevice::new(usage).swapped(most))
            .fold(0, u64::saturating_add)
    }

    /// Returns the charged bytes on the device of a slot that are there only while they are used, at most
    /// 2^53 of each kind: managed memory, and that of graphs.
    pub fn movable(self, slot: usize) -> u64 {
        let Allocations { kinds, .. } = self.usage.allocations(slot);
        let movable = [Kind::Managed, Kind::Graph].map(|kind| kinds[kind as usize].min(MOST));
        movable.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns a number that changes with each submission to a device, counting those made before the device
    /// had a number; 0 if there has been none.
    pub fn progress(self, slot: usize) -> u64 {
        // The submissions may have been counted before the device had a number.
        let other = self.usage.progress(OTHER_DEVICE);
        other.wrapping_add(self.usage.progress(slot))
    }

    /// Returns the number of contexts that the process claims on a device and on devices whose number it does
    /// not know, at most 4096 of each.
    pub fn nr_contexts(self, slot: usize) -> u64 {
        let slots = [slot, OTHER_DEVICE].into_iter();
        slots
            .filter_map(|slot| self.device(slot))
            .map(|device| u64::from(device.nr_contexts()))
            .sum()
    }

    /// Returns the part of the device of a slot; `None` if there is no such slot.
    pub fn device(self, slot: usize) -> Option<UntrustedDevice<'a>> {
        self.usage.devices.get(slot).map(UntrustedDevice::new)
    }
}
