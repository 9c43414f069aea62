//! A process's ledger for a device, and what the process holds beyond it.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::SeqCst, fence};

use gcgroup_abi::{Allocations, Kind, OTHER_DEVICE, UsageDevice};

use super::Untrusted;

/// A process's ledger for a device as written by the process: only compared and subtracted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger {
    charged: u64,
    /// The part of `charged` that is for contexts.
    contexts: u64,
    /// The part of `contexts` that is an estimate.
    estimated: u64,
    /// Bytes charged that are on the device only as far as they have been used there.
    managed: u64,
    /// Bytes charged for allocations that exist.
    allocated: u64,
    /// Counters that change before bytes are uncharged that the device no longer holds, so equal values prove
    /// that the ledger did not change.
    counts: [u64; 4],
    unsettled: u64,
    unsettled_threads: u64,
    /// Number of the last request to measure contexts.
    request: u32,
}

impl Ledger {
    /// Reads the ledger of a device, including what the process charged to devices whose number it did not
    /// know: they may be this one.
    pub fn of(usage: Untrusted<'_>, device: usize) -> Option<Self> {
        let usage = usage.usage;
        let request = usage.devices.get(device)?.context_request.load(Acquire);
        let slots = [usage.devices.get(device)?, usage.devices.get(OTHER_DEVICE)?];
        // Bytes move from the second to the first, which is read last, so that none is missed.
        let sum = |word: fn(&UsageDevice) -> &AtomicU64| {
            let word = |slot: &&UsageDevice| word(slot).load(Acquire);
            slots.iter().rev().map(word).fold(0, u64::wrapping_add)
        };
        fence(SeqCst);
        let charged = sum(|slot| &slot.memory_current);
        let [other, here] = [OTHER_DEVICE, device].map(|slot| usage.allocations(slot));
        let both = |of: fn(&Allocations) -> u64| of(&other).wrapping_add(of(&here));
        let contexts = sum(|slot| &slot.context_charged).min(charged);
        let ledger = Self {
            charged,
            contexts,
            estimated: sum(|slot| &slot.context_estimated).min(contexts),
            managed: both(|counts| counts.kinds[Kind::Managed as usize]),
            allocated: both(allocated),
            counts: [
                both(|counts| counts.nr_alloc),
                both(|counts| counts.nr_free),
                both(|counts| counts.nr_unsettled),
                sum(|slot| &slot.nr_alloc_fail),
            ],
            unsettled: sum(|slot| &slot.unsettled),
            unsettled_threads: both(|counts| counts.unsettled_threads),
            request,
        };
        fence(SeqCst);
        Some(ledger)
    }

    /// Returns whether no call is under way that may have made the device hold more than is charged.
    pub fn is_settled(&self) -> bool {
        self.unsettled & u64::from(u32::MAX) == 0 && self.unsettled_threads == 0
    }

    /// Returns the number of the last request to measure contexts.
    pub fn request(&self) -> u32 {
        self.request
    }

    /// Returns whether everything that is charged exists, so that no allocation is under way.
    pub fn is_complete(&self) -> bool {
        self.charged - self.contexts == self.allocated
    }

    /// Returns the bytes charged for allocations that exist and for contexts. Memory that is prepared for a
    /// move is not among them.
    pub(in crate::tree) fn existing(&self) -> u64 {
        self.allocated.saturating_add(self.contexts).min(self.charged)
    }

    /// Returns the bytes charged for memory that is prepared for a move, and for allocations under way.
    pub(in crate::tree) fn prepared(&self) -> u64 {
        self.charged - self.existing()
    }

    /// Returns the bytes charged for all but contexts.
    pub fn allocations(&self) -> u64 {
        self.charged - self.contexts
    }

    /// Returns the bytes charged for contexts.
    pub fn contexts(&self) -> u64 {
        self.contexts
    }

    /// Returns the bytes charged for contexts that have been measured.
    pub fn measured_contexts(&self) -> u64 {
        self.contexts - self.estimated
    }

    /// Returns the bytes of contexts and of what else is beyond the allocations, of `held` bytes in all and
    /// at most as many. No interface reports how much managed memory is on the device, so the `known` result
    /// is kept as long as it is possible.
    pub fn overhead(&self, held: u64, known: u64) -> u64 {
        let charged = self.charged - self.contexts;
        let least = held.saturating_sub(charged);
        let most = held.saturating_sub(charged.saturating_sub(self.managed));
        known.min(most).max(least)
    }
}

/// Most bytes that a call takes which is not charged before.
const UNKNOWN: u64 = 1 << 30;

/// A reading of what a process has taken of a device, to be compared with a later one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Intake {
    ledger: Ledger,
    /// Bytes ever charged, on all devices.
    taken: u64,
    nr_contexts: u64,
}

impl Intake {
    /// Reads it. `None`: there is no such device.
    pub fn of(usage: Untrusted<'_>, device: usize) -> Option<Self> {
        Some(Self {
            ledger: Ledger::of(usage, device)?,
            taken: usage.usage.memory_taken.load(Acquire),
            nr_contexts: usage.nr_contexts(device),
        })
    }

    /// Returns the most bytes that the process can have taken between this reading and a later one, whether
    /// it has freed them again or not.
    pub fn until(&self, later: &Self) -> u64 {
        let is_unknown = self.is_in_call() || later.is_in_call() || self.nr_contexts != later.nr_contexts;
        let (started, charged) = (later.taken.wrapping_sub(self.taken), self.ledger.prepared());
        let unknown = if is_unknown { UNKNOWN } else { 0 };
        started.saturating_add(charged).saturating_add(unknown)
    }

    /// Returns whether no call of the process freed shared memory between this reading and a later one; the
    /// driver may have shrunk pools.
    pub fn is_quiet(&self, later: &Self) -> bool {
        self.ledger.unsettled == later.ledger.unsettled && !self.is_in_call()
    }

    /// Returns whether a call is under way that may take more than is charged, and does not end at once.
    fn is_in_call(&self) -> bool {
        self.ledger.unsettled & u64::from(u32::MAX) != 0
    }
}

/// Returns the bytes of all kinds that are charged.
fn allocated(counts: &Allocations) -> u64 {
    let kinds = Kind::ALL.iter().zip(counts.kinds);
    let charged = kinds.filter(|((.., is_charged), _)| *is_charged);
    charged.fold(0, |sum, (_, bytes)| sum.wrapping_add(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_memory_elsewhere_does_not_hide_a_context() {
        let ledger = |charged, managed| Ledger {
            charged,
            contexts: 0,
            estimated: 0,
            managed,
            allocated: charged,
            counts: [0; 4],
            unsettled: 0,
            unsettled_threads: 0,
            request: 0,
        };
        assert_eq!(ledger(1000, 1000).overhead(64, 64), 64, "none of it is there");
        assert_eq!(ledger(1000, 1000).overhead(564, 64), 64, "a part");
        assert_eq!(ledger(1000, 1000).overhead(1064, 0), 64, "at least");
        assert_eq!(ledger(1000, 400).overhead(650, 64), 50, "at most");
        assert_eq!(ledger(u64::MAX, 0).overhead(650, 64), 0);
        assert_eq!(ledger(0, u64::MAX).overhead(650, 64), 650);
        let contexts = Ledger {
            contexts: 64,
            ..ledger(1064, 400)
        };
        assert_eq!(contexts.overhead(1000, 64), 64, "charged in advance");
        assert_eq!(contexts.overhead(1164, 64), 164, "it has grown");
    }
}
