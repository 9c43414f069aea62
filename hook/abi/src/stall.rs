//! Stall clocks: for how long threads of a process have waited, in one word each.
//!
//! The word has a time of 47 bits in microseconds (wrapping), the number of devices with work (7 bits) and
//! the number of waiting threads (10 bits). The clock runs while a thread waits and no device has work. A
//! clock that starts subtracts the time of day, and one that stops adds it: a reader adds the present time to
//! that of a running clock, and sees a wait that is not over. Time and numbers change in one step, so no lock
//! is needed, which a signal handler of the program could find held.

use crate::sync::{AtomicU64, Ordering::Relaxed};

/// One waiting thread, and the bits of their number.
const WAITER: u64 = 1;
const WAITERS: u64 = (1 << 10) - 1;
/// One device with work, and the bits of their number.
const WORK: u64 = 1 << 10;
const WORKS: u64 = 0x7f << 10;
/// Position of the time.
const TIME: u32 = 17;

/// The reason for which threads wait; the index into [`Usage::stalls`](crate::Usage::stalls).
#[repr(usize)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// At a gate: throttled, frozen, or without room in the in-flight window.
    Compute,
    /// For memory to be granted, made room for or moved.
    Memory,
}

impl Pressure {
    pub const COUNT: usize = 2;
    pub const ALL: [Self; Self::COUNT] = [Self::Compute, Self::Memory];
}

/// A clock that runs while a thread waits and no device has work. The hook writes it, and the daemon reads it
/// as any number: see [`StallClock::elapsed`].
#[repr(transparent)]
#[derive(Debug)]
pub struct StallClock {
    /// Time and numbers.
    ///
    /// Ordering: `Relaxed` (hook exchanges, daemon loads), one word that no other data depends on.
    word: AtomicU64,
}

impl StallClock {
    /// Changes the numbers at `now` (`CLOCK_MONOTONIC`, nanoseconds); `None` leaves the word as it is.
    /// Returns whether it has changed.
    fn change(&self, now: u64, counts: impl Fn(u64) -> Option<u64>) -> bool {
        let mut before = self.word.load(Relaxed);
        loop {
            let Some(after) = counts(before).map(|after| moved(before, after, now / 1000)) else {
                return false;
            };
            match self.word.compare_exchange_weak(before, after, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(seen) => before = seen,
            }
        }
    }

    /// Adds a waiting thread. Returns false if there are 1023 already; then it must not be removed.
    fn enter(&self, now: u64) -> bool {
        self.change(now, |word| (word & WAITERS != WAITERS).then_some(word + WAITER))
    }

    fn leave(&self, now: u64) {
        self.change(now, |word| (word & WAITERS != 0).then_some(word - WAITER));
    }

    pub(crate) fn begin_work(&self, now: u64) {
        self.change(now, |word| (word & WORKS != WORKS).then_some(word + WORK));
    }

    pub(crate) fn end_work(&self, now: u64) {
        self.change(now, |word| (word & WORKS != 0).then_some(word - WORK));
    }

    /// Returns the time on the clock at `now` (`CLOCK_MONOTONIC`, nanoseconds), microseconds modulo 2^47. The
    /// writer may be hostile: the caller must clamp the result.
    pub fn usec(&self, now: u64) -> u64 {
        let word = self.word.load(Relaxed);
        let running = if runs(word) { (now / 1000) << TIME } else { 0 };
        word.wrapping_add(running) >> TIME
    }

    /// Returns whether a thread waits.
    pub fn has_waiters(&self) -> bool {
        self.word.load(Relaxed) & WAITERS != 0
    }

    /// Returns by how many microseconds the time `now` of the clock is ahead of the time `before`. Below 0
    /// for a moment if two threads read the time in one order and changed the word in the other.
    pub const fn elapsed(now: u64, before: u64) -> i64 {
        (now.wrapping_sub(before) << TIME).cast_signed() >> TIME
    }

    /// Stores any word, as a hostile process does.
    pub fn forge(&self, word: u64) {
        self.word.store(word, Relaxed);
    }
}

/// Returns whether the clock runs.
const fn runs(word: u64) -> bool {
    word & WAITERS != 0 && word & WORKS == 0
}

/// Returns the word with the time that belongs to the new numbers.
const fn moved(before: u64, after: u64, usec: u64) -> u64 {
    match (runs(before), runs(after)) {
        (false, true) => after.wrapping_sub(usec << TIME),
        (true, false) => after.wrapping_add(usec << TIME),
        _ => after,
    }
}

/// The two clocks of one [`Pressure`]. All times are `CLOCK_MONOTONIC`, nanoseconds.
#[repr(C)]
#[derive(Debug)]
pub struct Stall {
    /// Runs while at least one thread waits.
    pub some: StallClock,
    /// Runs while at least one thread waits and no device is known to have work of the process.
    pub full: StallClock,
}

impl Stall {
    /// Counts a thread as waiting. Returns false if there are too many; then [`leave`](Self::leave) must not
    /// be called.
    pub fn enter(&self, now: u64) -> bool {
        if !self.some.enter(now) {
            return false;
        }
        let both = self.full.enter(now);
        if !both {
            self.some.leave(now);
        }
        both
    }

    /// Stops counting a waiting thread.
    pub fn leave(&self, now: u64) {
        self.full.leave(now);
        self.some.leave(now);
    }

    /// Counts a device as having work.
    pub(crate) fn begin_work(&self, now: u64) {
        self.full.begin_work(now);
    }

    /// Stops counting a device as having work.
    pub(crate) fn end_work(&self, now: u64) {
        self.full.end_work(now);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    const MSEC: u64 = 1_000_000;

    fn stall() -> Stall {
        let clock = || StallClock {
            word: AtomicU64::new(0),
        };
        Stall {
            some: clock(),
            full: clock(),
        }
    }

    fn usec(stall: &Stall, now: u64) -> [u64; 2] {
        [&stall.some, &stall.full].map(|clock| clock.usec(now * MSEC))
    }

    #[test]
    fn clock_shows_a_wait_in_progress_and_overlaps_once() {
        let stall = stall();
        assert!(stall.enter(1000 * MSEC));
        assert_eq!(usec(&stall, 1003), [3000, 3000]);
        assert!(stall.enter(1004 * MSEC));
        stall.leave(1010 * MSEC);
        assert_eq!(usec(&stall, 1011), [11_000, 11_000]);
        stall.leave(1012 * MSEC);
        assert_eq!(usec(&stall, 5000), [12_000, 12_000]);
    }

    #[test]
    fn full_clock_stands_while_a_device_has_work() {
        let stall = stall();
        stall.begin_work(1000 * MSEC);
        stall.enter(1001 * MSEC);
        stall.begin_work(1002 * MSEC);
        stall.end_work(1003 * MSEC);
        assert_eq!(usec(&stall, 1005), [4000, 0]);
        stall.end_work(1006 * MSEC);
        assert_eq!(usec(&stall, 1009), [8000, 3000]);
        stall.begin_work(1010 * MSEC);
        stall.leave(1020 * MSEC);
        assert_eq!(usec(&stall, 5000), [19_000, 4000]);
        stall.end_work(1021 * MSEC);
        stall.end_work(1022 * MSEC);
        assert_eq!(usec(&stall, 5000), [19_000, 4000], "one too many");
    }

    #[test]
    fn too_many_threads_are_not_counted() {
        let stall = stall();
        let entered = (0..2000).filter(|_| stall.enter(MSEC)).count();
        assert_eq!(entered, 1023);
        (0..entered).for_each(|_| stall.leave(3 * MSEC));
        assert_eq!(usec(&stall, 9), [2000, 2000]);
        stall.leave(MSEC);
        assert_eq!(usec(&stall, 9), [2000, 2000]);
    }

    #[test]
    fn elapsed_is_signed_and_wraps() {
        let top = (1 << 47) - 1;
        assert_eq!(StallClock::elapsed(7, 5), 2);
        assert_eq!(StallClock::elapsed(5, 7), -2);
        assert_eq!(StallClock::elapsed(1, top), 2);
        assert_eq!(StallClock::elapsed(top, 1), -2);
    }

    #[test]
    #[cfg_attr(miri, ignore = "long")]
    fn concurrent_waits_leave_a_standing_clock() {
        let stall = stall();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let stall = &stall;
                scope.spawn(move || {
                    for round in 0..10_000 {
                        let now = (round * 4 + thread) * MSEC;
                        stall.enter(now);
                        stall.begin_work(now);
                        stall.end_work(now);
                        stall.leave(now);
                    }
                });
            }
        });
        let at = usec(&stall, 1);
        assert_eq!(usec(&stall, 100_000), at, "no thread waits");
    }
}
