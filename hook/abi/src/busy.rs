//! Busy times of a device: two words that belong together, protected by a sequence lock.
//!
//! The hook writes; the daemon reads without waiting. See `hook/abi/models/src/busy.rs`.

use crate::UsageDevice;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Number of attempts to read consistent times, after which the last ones seen are used.
const LOOKS: u32 = 8;

impl UsageDevice {
    /// Returns for how many nanoseconds the device had work up to `now` (`CLOCK_MONOTONIC`), and whether it
    /// has some. The writer may be hostile: the caller must clamp the result.
    pub fn busy(&self, now: u64) -> (u64, bool) {
        let mut times = (0, 0);
        // A writer that died during an update leaves the sequence odd for ever.
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

    /// Reads `busy_since` and `busy_nsec`; returns them, and whether they belong together.
    #[inline]
    pub fn look_at_busy_times(&self) -> ((u64, u64), bool) {
        let before = self.busy_sequence.load(Acquire);
        let times = (self.busy_since.load(Acquire), self.busy_nsec.load(Acquire));
        let is_whole = before.is_multiple_of(2) && self.busy_sequence.load(Relaxed) == before;
        (times, is_whole)
    }

    /// Begins a busy period at `now`; returns false if one has begun already. One writer at a time.
    #[inline]
    pub fn begin_busy(&self, now: u64) -> bool {
        if self.busy_since.load(Relaxed) != 0 {
            return false;
        }
        self.busy_since.store(now.max(1), Release);
        true
    }

    /// Ends the busy period at `end` and adds its length. One writer at a time.
    #[inline]
    pub fn end_busy(&self, end: u64) {
        let since = self.busy_since.load(Relaxed);
        if since == 0 {
            return;
        }
        let sequence = self.busy_sequence.load(Relaxed);
        // May be `Relaxed`: the releasing stores below publish it too.
        self.busy_sequence.store(sequence.wrapping_add(1), Relaxed);
        let length = end.saturating_sub(since);
        self.busy_nsec
            .store(self.busy_nsec.load(Relaxed).wrapping_add(length), Release);
        self.busy_since.store(0, Release);
        self.busy_sequence.store(sequence.wrapping_add(2), Release);
    }
}
