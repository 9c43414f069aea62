//! Total of the process over all devices, without a word that every charge must write: most processes use one
//! device, and then the total is that device's.
//!
//! The first device charged is the home device. Charges on others are summed up beside it. From the first
//! charge on another device, charging threads hold a lock; a thread that was charging the home device without
//! the lock notices afterwards.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

use gcgroup_abi::{MAX_DEVICES, Usage, uncharge};
use parking_lot::{Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(super) struct Whole {
    /// Index of the home device plus one, with [`SEVERAL`] if others were charged too. Zero: nothing was
    /// charged yet.
    home: AtomicU32,
    several: Mutex<()>,
}

const SEVERAL: u32 = 1 << 31;
const _: () = assert!(MAX_DEVICES < SEVERAL as usize);

#[expect(clippy::cast_possible_truncation, reason = "there are not so many devices")]
fn word(index: usize) -> u32 {
    index as u32 + 1
}

impl Whole {
    /// Returns whether no other device was ever charged. Called after a charge: either this sees the thread
    /// that charges another device, or that thread sees the charge.
    #[inline(always)]
    pub(super) fn is_still(&self, index: usize) -> bool {
        self.home.load(SeqCst) == word(index)
    }

    /// Returns whether no other device was ever charged, and records that this one is about to be.
    #[inline(always)]
    pub(super) fn is_only(&self, index: usize) -> bool {
        self.is_still(index) || self.begin(index)
    }

    #[cold]
    #[inline(never)]
    fn begin(&self, index: usize) -> bool {
        if self.are_several() {
            return false;
        }
        let begun = self.home.compare_exchange(0, word(index), SeqCst, SeqCst);
        let is_only = begun.map_or_else(|home| home == word(index), |_| true);
        if !is_only {
            self.home.fetch_or(SEVERAL, SeqCst);
        }
        is_only
    }

    pub(super) fn are_several(&self) -> bool {
        self.home.load(Relaxed) & SEVERAL != 0
    }

    fn is_home(&self, index: usize) -> bool {
        self.home.load(Relaxed) & !SEVERAL == word(index)
    }

    /// Locks out other charges, where several devices are charged.
    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.several.lock()
    }

    /// Returns the bytes charged on all devices; exact if no other thread charges.
    pub(super) fn sum(&self, usage: &Usage) -> u64 {
        let elsewhere = usage.memory_elsewhere.load(SeqCst);
        let home = (self.home.load(Relaxed) & !SEVERAL).checked_sub(1);
        let home = home.and_then(|index| usage.devices.get(index as usize));
        elsewhere.saturating_add(home.map_or(0, |home| home.memory_current.load(SeqCst)))
    }

    /// Adds bytes charged on a device. The caller is [`Self::alone`].
    pub(super) fn add(&self, usage: &Usage, index: usize, bytes: u64) {
        if !self.is_home(index) {
            usage.memory_elsewhere.fetch_add(bytes, SeqCst);
        }
    }

    /// Subtracts bytes of a device.
    #[inline(always)]
    pub(super) fn take(&self, usage: &Usage, index: usize, bytes: u64) {
        if !self.is_home(index) {
            take_elsewhere(usage, bytes);
        }
    }
}

#[cold]
#[inline(never)]
fn take_elsewhere(usage: &Usage, bytes: u64) {
    uncharge(&usage.memory_elsewhere, bytes);
}
