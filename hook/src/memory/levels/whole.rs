//! What the process has charged on all devices together, without a word that every charge would have to write: most
//! processes have one device, and then it is what is charged there.
//!
//! The device that is charged first is home. What is charged on others is added up beside it. From the first charge on
//! another device on, who charges holds a lock; who was about to charge at home then without it sees that after.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

use gcgroup_abi::{MAX_DEVICES, Usage, uncharge};

use crate::memory::lock::{Guard, Lock};

#[derive(Debug, Default)]
pub(super) struct Whole {
    /// Home's index and one; with [`SEVERAL`], others were charged too. Zero: nothing was.
    home: AtomicU32,
    several: Lock<()>,
}

const SEVERAL: u32 = 1 << 31;
const _: () = assert!(MAX_DEVICES < SEVERAL as usize);

#[expect(clippy::cast_possible_truncation, reason = "there are not so many devices")]
fn word(index: usize) -> u32 {
    index as u32 + 1
}

impl Whole {
    /// Whether nothing was ever charged but there. After a charge there either this sees whoever charges another device, or that one sees the charge.
    #[inline(always)]
    pub(super) fn is_still(&self, index: usize) -> bool {
        self.home.load(SeqCst) == word(index)
    }

    /// The same, now that something is to be.
    pub(super) fn begin(&self, index: usize) -> bool {
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

    /// Nobody else charges while this is held, on whichever of several devices.
    pub(super) fn alone(&self) -> Guard<'_, ()> {
        self.several.lock()
    }

    /// Bytes that are charged on all devices. No less than that, if nobody else charges.
    pub(super) fn sum(&self, usage: &Usage) -> u64 {
        let elsewhere = usage.memory_elsewhere.load(SeqCst);
        let home = (self.home.load(Relaxed) & !SEVERAL).checked_sub(1);
        let home = home.and_then(|index| usage.devices.get(index as usize));
        elsewhere.saturating_add(home.map_or(0, |home| home.memory_current.load(SeqCst)))
    }

    /// So many more are charged there, for who is [`Self::alone`].
    pub(super) fn add(&self, usage: &Usage, index: usize, bytes: u64) {
        if !self.is_home(index) {
            usage.memory_elsewhere.fetch_add(bytes, SeqCst);
        }
    }

    /// So many less.
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
