//! For how long a device had work: two words that belong together, under a sequence lock.
//!
//! The hook writes, the daemon reads and never waits. See `hook/abi/models/src/busy.rs`.

use crate::UsageDevice;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Looks at times that change meanwhile, before what was seen last is taken.
const LOOKS: u32 = 8;

impl UsageDevice {
    /// Nanoseconds for which there was work here up to `now` (`CLOCK_MONOTONIC`), and whether there is some.
    /// Whoever writes it may be hostile: the result means nothing until it is clamped.
    pub fn busy(&self, now: u64) -> (u64, bool) {
        let mut times = (0, 0);
        // A writer that died in between leaves the sequence odd for ever.
        for _ in 0..LOOKS {
            let (seen, is_whole) = self.look_at_busy_times();
            times = seen;
            if is_whole {
                break;
            }
        }
        let (since, closed) = times;
        let open = if since == 0 { 0 } else { now.saturating_sub(since) };
        (closed.wrapping_add(open), since != 0)
    }

    /// Reads `busy_since` and `busy_nsec`, and says whether they belong together.
    #[inline]
    pub fn look_at_busy_times(&self) -> ((u64, u64), bool) {
        let before = self.busy_sequence.load(Acquire);
        let times = (self.busy_since.load(Acquire), self.busy_nsec.load(Acquire));
        let is_whole = before.is_multiple_of(2) && self.busy_sequence.load(Relaxed) == before;
        (times, is_whole)
    }

    /// Begins to count work at `now`; false if work was there already. One writer at a time.
    #[inline]
    pub fn begin_busy(&self, now: u64) -> bool {
        if self.busy_since.load(Relaxed) != 0 {
            return false;
        }
        self.busy_since.store(now.max(1), Release);
        true
    }

    /// Adds the time since work began, up to `end`, to what was counted before. One writer at a time.
    #[inline]
    pub fn end_busy(&self, end: u64) {
        let since = self.busy_since.load(Relaxed);
        if since == 0 {
            return;
        }
        let sequence = self.busy_sequence.load(Relaxed);
        // What is released after it releases this too.
        self.busy_sequence.store(sequence.wrapping_add(1), Relaxed);
        let length = end.saturating_sub(since);
        self.busy_nsec
            .store(self.busy_nsec.load(Relaxed).wrapping_add(length), Release);
        self.busy_since.store(0, Release);
        self.busy_sequence.store(sequence.wrapping_add(2), Release);
    }
}
