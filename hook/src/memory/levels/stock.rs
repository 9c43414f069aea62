//! Charging from what the thread itself has uncharged, so that threads do not all write one word; see
//! [`Stocks`].
//!
//! Bytes in a stock remain part of `memory_current`. So a charge from a stock is within every limit and peak
//! that `memory_current` is within: this is checked after taking the bytes, and the taking is undone if it
//! does not hold. A charge that would exceed a limit or reach a new peak closes the stocks first, and is then
//! exact. They open again after enough frees to make up for the cost.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use gcgroup_abi::{Control, Kept, NO_LIMIT, Stock, Stocks, Usage, UsageDevice, uncharge};

use super::Levels;
use super::limits::granted;
use crate::memory::lock::{Guard, Lock};
use crate::shared::counters::Counts;

/// Frees of a thread between two attempts to open the stocks: closing them costs as much as a few frees.
const FREES: u64 = 64;

/// State that controls opening and closing of the stocks.
#[derive(Debug, Default)]
pub(super) struct Switch {
    /// Held to open or close the stocks, and while they must stay closed.
    lock: Lock<()>,
    /// Set when they are closed permanently.
    are_ended: AtomicBool,
}

impl Levels {
    /// Returns the sum for the peaks if the charge that led to `sum` needs no true sum: `sum` itself where
    /// stocks are closed, 0 where no peak is reached. `None`: the stocks must be closed for an exact answer.
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

    /// Uncharges bytes of a device, into the thread's stock if it has room and stocks are open.
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
    /// Empties a stock that was filled while the stocks were being closed, and may have been missed.
    #[cold]
    #[inline(never)]
    fn take_out(&self, usage: &Usage, device: &UsageDevice, stock: Stock<'_>) {
        let _switch = self.switch.lock.lock();
        if !Stocks::of(usage).are_open() {
            uncharge(&device.memory_current, stock.empty());
        }
    }

    /// Opens the stocks for that device if nothing forbids it.
    #[cold]
    #[inline(never)]
    fn open(&self, usage: &Usage, control: &Control, index: usize) {
        let Some(_switch) = self.switch.lock.try_lock() else {
            return;
        };
        let may = !self.switch.are_ended.load(Relaxed) && self.may_be_open(usage, control, index);
        if may && Stocks::of(usage).are_closed() {
            Stocks::open(usage, index);
        }
    }

    /// Returns whether stocks may be open: members of groups cannot use bytes in the stocks of others, and a
    /// daemon that does not know of stocks counts them as used.
    fn may_be_open(&self, usage: &Usage, control: &Control, index: usize) -> bool {
        control.knows_stocks.load(Relaxed) != 0
            && granted(usage, index) == NO_LIMIT
            && self.whole.is_still(index)
    }

    /// Closes the stocks if they may no longer be open. Called when settings have changed.
    pub(crate) fn review_stocks(&self, usage: &Usage, control: &Control) {
        let stocks = Stocks::of(usage);
        if let Some(home) = stocks.home().filter(|_| stocks.are_open())
            && !self.may_be_open(usage, control, home)
        {
            drop(self.without_stocks(usage));
        }
    }

    /// Closes the stocks and keeps them closed while the guard lives.
    #[inline]
    pub(super) fn without_stocks(&self, usage: &Usage) -> Guard<'_, ()> {
        let switch = self.switch.lock.lock();
        Stocks::close(usage);
        switch
    }

    /// Runs `body` while the stocks are closed.
    pub(crate) fn while_closed<T>(&self, usage: &Usage, body: impl FnOnce() -> T) -> T {
        let _closed = self.without_stocks(usage);
        body()
    }

    /// Closes the stocks permanently: once several devices are charged, no single word has the total.
    pub(super) fn end_stocks(&self, usage: &Usage) {
        if !self.switch.are_ended.load(Acquire) {
            let _switch = self.without_stocks(usage);
            self.switch.are_ended.store(true, Release);
        }
    }
}
