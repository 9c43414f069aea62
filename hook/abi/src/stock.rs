//! Stocks: bytes that threads have uncharged and keep, to charge them again.
//!
//! Threads that all write the word with the charged bytes contend for its cache line. So a thread may keep
//! what it uncharges, up to [`MOST_STOCK`], in a word of its own, [`Thread::stock`](crate::Thread::stock),
//! and charge from there; [`UsageDevice::memory_current`](crate::UsageDevice::memory_current) still contains
//! these bytes. Stocks exist for one device, the process's home. Where accounting must be exact, stocks are
//! closed: no thread keeps bytes.

use crate::sync::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst, fence};

use crate::{MAX_DEVICES, Thread, Usage, UsageDevice, uncharge};

/// Maximum of a thread's stock, bytes.
pub const MOST_STOCK: u32 = 4 << 20;

/// State of all stocks, [`Usage::stocks`]: bits 0–7 the home device's index plus one, the bits above a count
/// of changes. 0 if no thread has ever kept bytes.
///
/// The state cycles through closed, open and closing. Two equal values mean that nothing has changed in
/// between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stocks(u32);

/// Increment of the count of changes.
const STEP: u32 = 1 << 8;
const CLOSED: u32 = 0;
const OPEN: u32 = 1;
const _: () = assert!(MAX_DEVICES < STEP as usize);

impl Stocks {
    #[inline]
    pub fn of(usage: &Usage) -> Self {
        Self(usage.stocks.load(SeqCst))
    }

    /// Returns whether no thread keeps bytes, except threads that have not noticed yet and are still
    /// uncharging.
    #[inline]
    pub const fn are_closed(self) -> bool {
        self.phase() == CLOSED
    }

    #[inline]
    pub const fn are_open(self) -> bool {
        self.phase() == OPEN
    }

    /// Returns whether stocks are open for the device.
    #[inline]
    pub const fn are_open_for(self, index: usize) -> bool {
        self.0 as usize % (4 * STEP as usize) == OPEN as usize * STEP as usize + index + 1
    }

    /// Returns whether stocks are open or closed, not being closed.
    pub const fn are_settled(self) -> bool {
        self.are_closed() || self.are_open()
    }

    const fn phase(self) -> u32 {
        self.0 / STEP % 4
    }

    /// Returns the index of the home device.
    pub fn home(self) -> Option<usize> {
        (self.0 % STEP).checked_sub(1).map(|index| index as usize)
    }

    /// Returns whether nothing has changed since this state was read.
    #[inline]
    pub fn are_still(self, usage: &Usage) -> bool {
        Self::of(usage) == self
    }

    /// Opens the stocks: threads may keep what they uncharge on the device, which must be the same in every
    /// call. The stocks must be closed; one caller at a time.
    pub fn open(usage: &Usage, index: usize) {
        if usage.stocks.load(Relaxed) == 0 {
            usage.stocks.store(u32::try_from(index).unwrap_or(0) + 1, SeqCst);
        }
        usage.stocks.fetch_add(STEP, SeqCst);
    }

    /// Closes the stocks and uncharges what they contain. One caller at a time.
    ///
    /// A thread that keeps bytes reads the state afterwards; this reads the stocks after it has changed the
    /// state. So either this finds the bytes, or the thread sees the change and takes them back.
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
    /// Returns whether `charged` is no more than the peaks, and nothing has changed since this state was
    /// read.
    ///
    /// The state is checked last: a peak is reset only while stocks are closed, to what is charged then.
    #[inline(always)]
    pub fn is_unremarkable(self, usage: &Usage, device: &UsageDevice, charged: u64) -> bool {
        charged <= device.memory_peak.load(Acquire)
            && charged <= usage.memory_peak.load(Acquire)
            && self.are_still(usage)
    }
}

/// Bytes that one thread has uncharged and keeps: [`Thread::stock`](crate::Thread::stock).
#[derive(Debug, Clone, Copy)]
pub struct Stock<'a>(&'a AtomicU32);

/// Result of [`Stock::keep`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The bytes are in the stock.
    Kept,
    /// No room: the caller must uncharge the bytes.
    Full,
    /// The bytes are in the stock, which was closed meanwhile: the caller must [`Stock::empty`] it under the
    /// closing lock.
    Closed,
}

impl<'a> Stock<'a> {
    #[inline]
    pub const fn of(thread: &'a Thread) -> Self {
        Self(&thread.stock)
    }

    /// Charges from the stock if stocks are open for the device. Returns false, with nothing charged, if the
    /// stock is too small, if `memory_current` with all stocks exceeds `limit` or a peak, or if the state is
    /// no longer `seen`.
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

    /// Keeps charged bytes if stocks are open for their device.
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

    /// Empties the stock and returns its bytes.
    pub fn empty(self) -> u64 {
        self.0.swap(0, SeqCst).into()
    }

    /// Empties the stock and returns its bytes. Most are empty, and a load leaves the cache line with its
    /// thread.
    fn drain(self) -> u64 {
        match self.0.load(SeqCst) {
            0 => 0,
            _ => self.empty(),
        }
    }

    /// Takes bytes from the stock; returns whether there were enough.
    #[inline(always)]
    fn take(self, bytes: u64) -> bool {
        let now = self.0.load(Relaxed);
        let left = u32::try_from(bytes).ok().and_then(|bytes| now.checked_sub(bytes));
        left.is_some_and(|left| self.0.compare_exchange(now, left, SeqCst, Relaxed).is_ok())
    }

    /// Adds bytes to the stock; returns whether there was room.
    #[inline(always)]
    fn put(self, bytes: u64) -> bool {
        let now = self.0.load(Relaxed);
        let sum = u32::try_from(bytes).ok().and_then(|bytes| now.checked_add(bytes));
        let sum = sum.filter(|sum| *sum <= MOST_STOCK);
        sum.is_some_and(|sum| self.0.compare_exchange(now, sum, SeqCst, Relaxed).is_ok())
    }
}

/// Uncharges bytes that were taken from a stock for a charge that failed.
#[cold]
#[inline(never)]
fn give_back(device: &UsageDevice, bytes: u64) {
    uncharge(&device.memory_current, bytes);
}

/// Number of attempts to read a consistent sum, after which the last one seen is used.
const LOOKS: u32 = 8;

impl Usage {
    /// Returns the bytes charged on a device, without stocks. Approximate while threads charge and uncharge.
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
            // The writer may be hostile and never pause.
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
        // SAFETY: consists of atomics, for which all zeroes is a valid value.
        let usage: Box<Usage> = unsafe { Box::new_zeroed().assume_init() };
        usage.devices[2].memory_current.store(charged, Relaxed);
        for (thread, kept) in usage.threads.iter().zip(kept) {
            thread.stock.store(*kept, Relaxed);
            usage.nr_threads.fetch_add(1, Relaxed);
        }
        usage
    }

    #[test]
    fn stocks_are_not_charged_and_are_uncharged_at_close() {
        let usage = usage(100, &[10, 0, 30]);
        assert!(Stocks::of(&usage).are_closed());
        assert_eq!(
            usage.memory_current(2),
            100,
            "an earlier hook uses these words differently"
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
        assert_eq!(usage.memory_current(2), 100, "already closed");
    }

    #[test]
    fn memory_current_of_hostile_block_is_bounded() {
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
