//! Words of grants: charged by the process, granted by the daemon, requested by the process.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};

use gcgroup_abi::{NO_LIMIT, WANTED_AGAIN, WANTED_BELOW_HIGH, lower_grant};

use super::MOST;

/// Words of one resource on one device: what the process has charged, and what it may charge.
///
/// The process can write the granted word too, so it is never read for its value: the daemon has its own
/// copy.
#[derive(Debug, Clone, Copy)]
pub(in crate::tree) struct GrantWords<'a> {
    charged: &'a AtomicU64,
    granted: &'a AtomicU64,
}

impl<'a> GrantWords<'a> {
    pub(super) fn new(charged: &'a AtomicU64, granted: &'a AtomicU64) -> Self {
        Self { charged, granted }
    }

    /// Returns the bytes that the process says it has charged, at most 2^53.
    pub(in crate::tree) fn charged(self) -> u64 {
        self.charged.load(SeqCst).min(MOST)
    }

    /// Stores what the process may charge in all, bytes.
    pub(in crate::tree) fn grant(self, bytes: u64) {
        self.granted.store(bytes, SeqCst);
    }

    /// Lets the process charge without limit.
    pub(in crate::tree) fn lift(self) {
        if self.granted.load(Relaxed) != NO_LIMIT {
            self.grant(NO_LIMIT);
        }
    }

    /// Lowers what the process may charge from `old` towards `target`, but not below what it has charged.
    /// Returns the new grant, which is between the two.
    pub(in crate::tree) fn lower(self, old: u64, target: u64) -> u64 {
        lower_grant(self.charged, self.granted, old, target)
    }
}

/// A request for a larger grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) struct GrantRequest {
    pub(in crate::tree) number: u32,
    /// Bytes of the charge that needs it, at most 2^53. At least as new as the number.
    pub(in crate::tree) bytes: u64,
    /// Whether it is to be refused if usage would exceed `memory.high`.
    pub(in crate::tree) below_high: bool,
    /// Whether the process claims that it is for an allocation which was granted beyond `memory.high` before.
    pub(in crate::tree) is_again: bool,
}

impl GrantRequest {
    pub(super) fn read(number: &AtomicU32, bytes: &AtomicU64) -> Self {
        let number = number.load(Acquire);
        let word = bytes.load(Relaxed);
        Self {
            number,
            bytes: (word & !(WANTED_BELOW_HIGH | WANTED_AGAIN)).min(MOST),
            below_high: word & WANTED_BELOW_HIGH != 0,
            is_again: word & WANTED_AGAIN != 0,
        }
    }
}
