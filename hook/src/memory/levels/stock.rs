//! Charging from what the thread itself has uncharged, so that threads do not all write one word; see [`Stocks`].
//!
//! A stock is part of `memory_current` still. So what is taken from one is within every limit that `memory_current` is within, and
//! is no new peak where that is none: it is looked at after it was taken, which comes to nothing where it is not so. Whatever
//! would pass a limit or be a new peak closes the stocks first, and is then as exact as if there were none. They open again
//! when enough was freed to make up for it.

#[cfg(test)]
mod tests;

use std::sync::atomic::{
    AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

use gcgroup_abi::{Control, MOST_STOCK, NO_LIMIT, Stocks, Usage, UsageDevice, uncharge};

use super::Levels;
use super::limits::granted;
use crate::compute::slot::Counts;
use crate::memory::lock::{Guard, Lock};

/// Frees by a thread from one look at whether the stocks may be open to the next: closing them costs as much as a few.
const FREES: u64 = 64;

/// The calling thread's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stock<'a>(pub(crate) &'a AtomicU32);

/// Who may open and close them.
#[derive(Debug, Default)]
pub(super) struct Doors {
    /// Held by who opens or closes, and by whoever needs them closed.
    keys: Lock<()>,
    /// They stay closed.
    are_locked: AtomicBool,
}

impl Stock<'_> {
    /// Whether there was so much.
    #[inline(always)]
    fn take(self, bytes: u64) -> bool {
        let now = self.0.load(Relaxed);
        let left = u32::try_from(bytes).ok().and_then(|bytes| now.checked_sub(bytes));
        left.is_some_and(|left| self.0.compare_exchange(now, left, SeqCst, Relaxed).is_ok())
    }

    /// Whether there is room for so much.
    #[inline(always)]
    fn put(self, bytes: u64) -> bool {
        let now = self.0.load(Relaxed);
        let sum = u32::try_from(bytes).ok().and_then(|bytes| now.checked_add(bytes));
        let sum = sum.filter(|sum| *sum <= MOST_STOCK);
        sum.is_some_and(|sum| self.0.compare_exchange(now, sum, SeqCst, Relaxed).is_ok())
    }

    /// All of it.
    fn empty(self) -> u64 {
        self.0.swap(0, SeqCst).into()
    }
}

impl Levels {
    /// Charges from the thread's stock, if it has so much there and what is charged with all stocks is within `limit` and no
    /// peak. For home, where they were open. (What is granted has all stocks in it.)
    #[inline(always)]
    pub(super) fn take(
        &self,
        usage: &Usage,
        device: &UsageDevice,
        stock: Option<Stock<'_>>,
        seen: Stocks,
        [bytes, limit]: [u64; 2],
    ) -> bool {
        if !stock.is_some_and(|stock| stock.take(bytes)) {
            return false;
        }
        let charged = device.memory_current.load(SeqCst);
        if charged <= limit && is_unremarkable(usage, device, charged, seen) {
            return true;
        }
        give_back(device, bytes)
    }

    /// What is charged, after `sum` in all, if stocks do not matter to it: all of that where they were closed, and nothing
    /// where it is no peak.
    #[inline(always)]
    pub(super) fn is_charged(
        &self,
        usage: &Usage,
        device: &UsageDevice,
        seen: Stocks,
        sum: u64,
    ) -> Option<u64> {
        if seen.are_closed() && seen.are_still(usage) {
            return Some(sum);
        }
        (seen.are_open() && is_unremarkable(usage, device, sum, seen)).then_some(0)
    }

    /// Uncharges what the thread had on a device: to its stock, if it may keep so much.
    #[inline]
    pub(crate) fn give(
        &self,
        usage: &Usage,
        control: &Control,
        index: usize,
        own: Option<Counts<'_>>,
        bytes: u64,
    ) {
        let (Some(device), Some(own)) = (usage.devices.get(index), own) else {
            return self.uncharge(usage, index, bytes);
        };
        let seen = Stocks::of(usage);
        if !seen.are_open() || !self.whole.is_still(index) || device.memory_granted.load(Relaxed) != NO_LIMIT
        {
            self.uncharge(usage, index, bytes);
            if seen.are_closed() && own.nr_free().is_multiple_of(FREES) {
                self.open(usage, control, index);
            }
            return;
        }
        let stock = own.stock();
        if !stock.put(bytes) {
            return self.uncharge(usage, index, bytes);
        }
        if !Stocks::of(usage).are_open() {
            self.take_out(usage, device, stock);
        }
    }
}

/// Takes back what was taken from a stock and may not be; nothing was charged.
#[cold]
#[inline(never)]
fn give_back(device: &UsageDevice, bytes: u64) -> bool {
    uncharge(&device.memory_current, bytes);
    false
}

/// Whether what is charged is no more than there was before, and the stocks are still open.
///
/// Last the stocks: a peak begins anew only while they are closed, from what is charged then.
#[inline(always)]
fn is_unremarkable(usage: &Usage, device: &UsageDevice, charged: u64, seen: Stocks) -> bool {
    charged <= device.memory_peak.load(Acquire)
        && charged <= usage.memory_peak.load(Acquire)
        && seen.are_still(usage)
}

impl Levels {
    /// What was put into a stock just when they were closed, and perhaps not found.
    #[cold]
    #[inline(never)]
    fn take_out(&self, usage: &Usage, device: &UsageDevice, stock: Stock<'_>) {
        let _keys = self.doors.keys.lock();
        if !Stocks::of(usage).are_open() {
            uncharge(&device.memory_current, stock.empty());
        }
    }

    /// Has threads keep what they uncharge on that device, if nobody needs to know better.
    #[cold]
    #[inline(never)]
    fn open(&self, usage: &Usage, control: &Control, index: usize) {
        let Some(_keys) = self.doors.keys.try_lock() else {
            return;
        };
        let may = !self.doors.are_locked.load(Relaxed) && self.may_be_open(usage, control, index);
        if may && Stocks::of(usage).are_closed() {
            Stocks::open(usage, index);
        }
    }

    /// Groups have nothing of what threads of others keep, and an earlier daemon takes it for used.
    fn may_be_open(&self, usage: &Usage, control: &Control, index: usize) -> bool {
        control.knows_stocks.load(Relaxed) != 0
            && granted(usage, index) == NO_LIMIT
            && self.whole.is_still(index)
    }

    /// Closes them if they may not be open any more. For who is told that something has changed.
    pub(crate) fn review_stocks(&self, usage: &Usage, control: &Control) {
        let stocks = Stocks::of(usage);
        if let Some(home) = stocks.home().filter(|_| stocks.are_open())
            && !self.may_be_open(usage, control, home)
        {
            drop(self.without_stocks(usage));
        }
    }

    /// Has the stocks be closed for as long as this lives.
    #[inline]
    pub(super) fn without_stocks(&self, usage: &Usage) -> Guard<'_, ()> {
        let keys = self.doors.keys.lock();
        Stocks::close(usage);
        keys
    }

    /// Does something that may not be done while threads keep anything.
    pub(crate) fn while_closed<T>(&self, usage: &Usage, body: impl FnOnce() -> T) -> T {
        let _closed = self.without_stocks(usage);
        body()
    }

    /// Closes them for good: where several devices are charged, there is no one word that has everything.
    pub(super) fn end_stocks(&self, usage: &Usage) {
        if !self.doors.are_locked.load(Acquire) {
            let _keys = self.without_stocks(usage);
            self.doors.are_locked.store(true, Release);
        }
    }
}
