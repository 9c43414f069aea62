//! Limit on log lines about each user. If a user makes thousands of processes a second, the first few are
//! logged, and then the number of further ones.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tracing::{Level, enabled, info};

/// Lines about one user within [`PERIOD`].
const MOST: u32 = 64;
const PERIOD: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    /// By uid.
    users: HashMap<u32, Lines>,
}

#[derive(Debug)]
struct Lines {
    since: Instant,
    nr_told: u32,
    nr_kept_back: u64,
}

impl LogLimit {
    /// Returns whether another line about that user may be logged now. If not, it is counted.
    pub(crate) fn allows(&mut self, uid: u32, now: Instant) -> bool {
        self.sum_up(now);
        let lines = self.users.entry(uid).or_insert(Lines {
            since: now,
            nr_told: 0,
            nr_kept_back: 0,
        });
        let is_allowed = lines.nr_told < MOST;
        if is_allowed {
            lines.nr_told += 1;
        } else {
            lines.nr_kept_back += 1;
        }
        is_allowed
    }

    /// Returns whether another line at level debug may be logged. Where such lines are not logged, none is
    /// counted.
    pub(crate) fn allows_debug(&mut self, uid: u32, now: Instant) -> bool {
        enabled!(Level::DEBUG) && self.allows(uid, now)
    }

    /// Logs how many lines were suppressed for users whose period has ended. Returns the time until the next
    /// period with suppressed lines ends; `None` if there is none.
    pub(crate) fn sum_up(&mut self, now: Instant) -> Option<Duration> {
        for (uid, nr) in self.take_over(now) {
            info!(
                UID = uid,
                "{nr} more lines about processes of user {uid} within {} s",
                PERIOD.as_secs()
            );
        }
        let kept_back = self.users.values().filter(|lines| lines.nr_kept_back > 0);
        let left = kept_back.map(|lines| PERIOD.saturating_sub(now.saturating_duration_since(lines.since)));
        left.min()
    }

    /// Removes users whose period has ended. Returns those with suppressed lines, and the numbers.
    fn take_over(&mut self, now: Instant) -> Vec<(u32, u64)> {
        let is_over = |lines: &Lines| now.saturating_duration_since(lines.since) >= PERIOD;
        let over = self.users.extract_if(|_, lines| is_over(lines));
        over.filter(|(_, lines)| lines.nr_kept_back > 0)
            .map(|(uid, lines)| (uid, lines.nr_kept_back))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_by_user_and_period() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        let mut allowed = |uid, times, seconds| {
            let now = start + Duration::from_secs(seconds);
            (0..times).filter(|_| limit.allows(uid, now)).count()
        };
        assert_eq!(allowed(1, 1000, 0), 64);
        assert_eq!((allowed(2, 10, 1), allowed(1, 10, 9)), (10, 0));
        assert_eq!(allowed(1, 1000, 10), 64);
    }

    #[test]
    fn suppressed_lines_are_counted() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        (0..100).for_each(|_| {
            limit.allows(1, start);
        });
        limit.allows(2, start);
        assert_eq!(limit.sum_up(start), Some(PERIOD));
        assert_eq!(limit.take_over(start + PERIOD), [(1, 36)]);
        assert!(limit.users.is_empty());
        assert_eq!(limit.sum_up(start + PERIOD), None);
    }
}
