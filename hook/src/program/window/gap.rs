//! The time in a pause of a process of higher priority that is given to others: all work is to end in it.

use super::{LOOK, Window};

/// Time after its end for which a gap counts, nanoseconds.
pub(super) const STALE: u64 = 20_000_000;

/// Time in which a process of higher priority is not expected to have work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    /// When the thread first knew of it.
    since: u64,
    until: u64,
}

impl Window {
    /// Tells when all work is to have ended, because a process of higher priority is expected; 0: none is. A
    /// time that has passed [`STALE`] nanoseconds ago is the last word of a daemon that is gone.
    pub(crate) fn set_gap(&mut self, until: u64, now: u64) {
        let since = self
            .gap
            .filter(|gap| gap.until == until)
            .map_or(now, |gap| gap.since);
        self.gap = (until.saturating_add(STALE) > now && until != 0).then_some(Gap { since, until });
    }

    /// Returns the most that may be queued in front of a submission of `cost` nanoseconds so that it ends
    /// within the gap; `None` if it is not to be submitted now. One that is longer than a gap is submitted in
    /// the first half: otherwise it would never be.
    pub(super) fn within_gap(&self, cost: u64, now: u64) -> Option<u64> {
        let Some(Gap { since, until }) = self.gap else {
            return Some(u64::MAX);
        };
        let (all, left) = (until.saturating_sub(since), until.saturating_sub(now));
        if cost > all / 4 * 3 {
            return (left > 0 && left >= all / 2).then_some(0);
        }
        left.checked_sub(cost + LOOK)
    }
}
