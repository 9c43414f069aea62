//! What a process has charged, less what its threads have uncharged and keep to charge anew.
//!
//! Threads that all write the one word that says what is charged wait for each other. So a thread may keep what it
//! uncharges, up to [`MOST_STOCK`], in a word of its own, [`Thread::stock`](crate::Thread::stock), and charge from there:
//! [`UsageDevice::memory_current`](crate::UsageDevice::memory_current) has it all the while. Only of one device, the
//! process's home. Where it matters to the byte, stocks are closed: nobody keeps anything then.

use crate::sync::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst, fence};

use crate::{MAX_DEVICES, Thread, Usage, UsageDevice, uncharge};

/// Bytes that a thread keeps at most.
pub const MOST_STOCK: u32 = 4 << 20;

/// What [`Usage::stocks`] says: home's index and one, and above that how often something has changed. Zero: nobody has ever
/// kept anything.
///
/// It is closed, open, or being closed, in turn: so two looks that say the same have had nothing in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stocks(u32);

/// One change.
const STEP: u32 = 1 << 8;
const CLOSED: u32 = 0;
const OPEN: u32 = 1;
const _: () = assert!(MAX_DEVICES < STEP as usize);

impl Stocks {
    #[inline]
    pub fn of(usage: &Usage) -> Self {
        Self(usage.stocks.load(SeqCst))
    }

    /// Nobody keeps anything, but who has not noticed yet, and is uncharging still.
    #[inline]
    pub const fn are_closed(self) -> bool {
        self.phase() == CLOSED
    }

    #[inline]
    pub const fn are_open(self) -> bool {
        self.phase() == OPEN
    }

    /// The same, for what is charged on that device.
    #[inline]
    pub const fn are_open_for(self, index: usize) -> bool {
        self.0 as usize % (4 * STEP as usize) == OPEN as usize * STEP as usize + index + 1
    }

    /// They are not being closed just now.
    pub const fn are_settled(self) -> bool {
        self.are_closed() || self.are_open()
    }

    const fn phase(self) -> u32 {
        self.0 / STEP % 4
    }

    /// Whose bytes are kept.
    pub fn home(self) -> Option<usize> {
        (self.0 % STEP).checked_sub(1).map(|index| index as usize)
    }

    /// Whether nothing has changed since.
    #[inline]
    pub fn are_still(self, usage: &Usage) -> bool {
        Self::of(usage) == self
    }

    /// From here on threads may keep what they uncharge on that device, the same one each time. One caller at a time; they
    /// are closed.
    pub fn open(usage: &Usage, index: usize) {
        if usage.stocks.load(Relaxed) == 0 {
            usage.stocks.store(u32::try_from(index).unwrap_or(0) + 1, SeqCst);
        }
        usage.stocks.fetch_add(STEP, SeqCst);
    }

    /// No longer: what they have kept is uncharged. One caller at a time.
    ///
    /// Who keeps something looks at the word after that, and this at what is kept after the word has changed: so either it is
    /// found here, or who has kept it takes it back.
    pub fn close(usage: &Usage) {
        let now = Self::of(usage);
        if !now.are_open() {
            return;
        }
        usage.stocks.fetch_add(STEP, SeqCst);
        fence(SeqCst);
        let kept = usage
            .used_threads()
            .map(|thread| Stock::of(thread).drain())
            .fold(0, u64::wrapping_add);
        if let Some(device) = now.home().and_then(|index| usage.devices.get(index)) {
            uncharge(&device.memory_current, kept);
        }
        usage.stocks.fetch_add(2 * STEP, SeqCst);
    }
}

impl Stocks {
    /// Whether what is charged on the device is no more than its peaks, and nothing has changed since this was read.
    ///
    /// Last the stocks: a peak begins anew only while they are closed, from what is charged then.
    #[inline(always)]
    pub fn is_unremarkable(self, usage: &Usage, device: &UsageDevice, charged: u64) -> bool {
        charged <= device.memory_peak.load(Acquire)
            && charged <= usage.memory_peak.load(Acquire)
            && self.are_still(usage)
    }
}

/// What one thread has uncharged and keeps: [`Thread::stock`](crate::Thread::stock).
#[derive(Debug, Clone, Copy)]
pub struct Stock<'a>(&'a AtomicU32);

/// What became of bytes that a thread wanted to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// They are in the stock.
    Kept,
    /// There was no room: they are still to be uncharged.
    Full,
    /// They are in the stock, which was closed just then: whoever has the lock of closing is to [`Stock::empty`] it.
    Closed,
}

impl<'a> Stock<'a> {
    #[inline]
    pub const fn of(thread: &'a Thread) -> Self {
        Self(&thread.stock)
    }

    /// Charges from the stock, where stocks are open for the device; false if there was not so much, if `memory_current` with
    /// all stocks is more than `limit` or a peak, or if stocks are not what was `seen` any more: then nothing is charged.
    #[inline(always)]
    pub fn charge(self, usage: &Usage, device: &UsageDevice, seen: Stocks, bytes: u64, limit: u64) -> bool {
        if !self.take(bytes) {
            return false;
        }
        let charged = device.memory_current.load(SeqCst);
        if charged <= limit && seen.is_unremarkable(usage, device, charged) {
            return true;
        }
        give_back(device, bytes);
        false
    }

    /// Keeps what was charged, where stocks are open for its device.
    #[inline(always)]
    pub fn keep(self, usage: &Usage, bytes: u64) -> Kept {
        if !self.put(bytes) {
            return Kept::Full;
        }
        if Stocks::of(usage).are_open() {
            Kept::Kept
        } else {
            Kept::Closed
        }
    }

    /// Takes all of it.
    pub fn empty(self) -> u64 {
        self.0.swap(0, SeqCst).into()
    }

    /// Takes all of it. Most have nothing, and a look does not take the line from its thread.
    fn drain(self) -> u64 {
        match self.0.load(SeqCst) {
            0 => 0,
            _ => self.empty(),
        }
    }

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
}

/// Takes back what was taken from a stock and may not be; nothing was charged.
#[cold]
#[inline(never)]
fn give_back(device: &UsageDevice, bytes: u64) {
    uncharge(&device.memory_current, bytes);
}

/// Looks at stocks that change meanwhile, before what was seen is taken.
const LOOKS: u32 = 8;

impl Usage {
    /// Bytes that are charged on a device: what no thread keeps. About right while threads charge and uncharge.
    pub fn memory_current(&self, index: usize) -> u64 {
        let Some(device) = self.devices.get(index) else {
            return 0;
        };
        let mut looked = 0;
        let mut last = None;
        loop {
            let stocks = Stocks::of(self);
            let seen = self.less_stocks(device, stocks.home() == Some(index) && !stocks.are_closed());
            looked += 1;
            let is_sure = stocks.are_still(self) && (stocks.are_closed() || last == Some(seen));
            // Whoever writes it may be hostile, and never stand still.
            if is_sure || looked == LOOKS {
                return seen;
            }
            last = Some(seen);
        }
    }

    fn less_stocks(&self, device: &UsageDevice, are_kept: bool) -> u64 {
        let charged = device.memory_current.load(SeqCst);
        if !are_kept {
            return charged;
        }
        let kept = self
            .used_threads()
            .map(|thread| u64::from(thread.stock.load(Acquire)))
            .fold(0, u64::wrapping_add);
        charged.saturating_sub(kept)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::boxed::Box;

    fn usage(charged: u64, kept: &[u32]) -> Box<Usage> {
        // SAFETY: atomics only, for which all zeroes are a value.
        let usage: Box<Usage> = unsafe { Box::new_zeroed().assume_init() };
        usage.devices[2].memory_current.store(charged, Relaxed);
        for (thread, kept) in usage.threads.iter().zip(kept) {
            thread.stock.store(*kept, Relaxed);
            usage.nr_threads.fetch_add(1, Relaxed);
        }
        usage
    }

    #[test]
    fn what_threads_keep_is_not_charged_and_is_uncharged_when_they_close() {
        let usage = usage(100, &[10, 0, 30]);
        assert!(Stocks::of(&usage).are_closed());
        assert_eq!(
            usage.memory_current(2),
            100,
            "an earlier hook has something else there"
        );
        for _ in 0..3 {
            Stocks::open(&usage, 2);
            let open = Stocks::of(&usage);
            assert!(open.are_open() && open.home() == Some(2));
            assert!(open.are_open_for(2) && !open.are_open_for(1));
            let kept: u64 = usage
                .threads
                .iter()
                .map(|thread| u64::from(thread.stock.load(Relaxed)))
                .sum();
            assert_eq!(usage.memory_current(2), 100 - 40);
            assert_eq!(usage.memory_current(3), 0);
            Stocks::close(&usage);
            assert!(Stocks::of(&usage).are_closed() && !open.are_still(&usage));
            assert_eq!(usage.memory_current(2), 60);
            assert_eq!(usage.devices[2].memory_current.load(Relaxed), 60);
            usage.devices[2].memory_current.store(100, Relaxed);
            usage.threads[1]
                .stock
                .store(u32::try_from(kept).unwrap_or(0), Relaxed);
        }
        Stocks::close(&usage);
        assert_eq!(usage.memory_current(2), 100, "they were closed already");
    }

    #[test]
    fn what_a_stranger_writes_is_bounded() {
        let usage = usage(100, &[u32::MAX; 4]);
        usage.nr_threads.store(u32::MAX, Relaxed);
        for word in [0, 1, 3, STEP + 3, 2 * STEP + 3, STEP + 200, u32::MAX] {
            usage.stocks.store(word, Relaxed);
            let seen = usage.memory_current(2);
            assert!(seen == 0 || seen == 100, "{word}");
            assert_eq!(usage.memory_current(MAX_DEVICES), 0);
        }
    }
}
