//! Charging from what the thread itself has uncharged, so that threads do not all write one word; see [`Stocks`].
//!
//! A stock is part of `memory_current` still. So what is taken from one is within every limit that `memory_current` is within, and
//! is no new peak where that is none: it is looked at after it was taken, which comes to nothing where it is not so. Whatever
//! would pass a limit or be a new peak closes the stocks first, and is then as exact as if there were none. They open again
//! when enough was freed to make up for it.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use gcgroup_abi::{Control, Kept, NO_LIMIT, Stock, Stocks, Usage, UsageDevice, uncharge};

use super::Levels;
use super::limits::granted;
use crate::compute::slot::Counts;
use crate::memory::lock::{Guard, Lock};

/// Frees by a thread from one look at whether the stocks may be open to the next: closing them costs as much as a few.
const FREES: u64 = 64;

/// Who may open and close them.
#[derive(Debug, Default)]
pub(super) struct Doors {
    /// Held by who opens or closes, and by whoever needs them closed.
    keys: Lock<()>,
    /// They stay closed.
    are_locked: AtomicBool,
}

impl Levels {
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
        (seen.are_open() && seen.is_unremarkable(usage, device, sum)).then_some(0)
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
        match stock.keep(usage, bytes) {
            Kept::Kept => {}
            Kept::Full => self.uncharge(usage, index, bytes),
            Kept::Closed => self.take_out(usage, device, stock),
        }
    }
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
