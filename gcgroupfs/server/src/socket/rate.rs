//! Rate limits: [`Rate`] refuses what exceeds the limit, [`Pace`] says how long it must wait.

use std::time::{Duration, Instant};

/// Allows `most` events per second; a second begins with its first event.
#[derive(Debug)]
pub(super) struct Rate {
    most: u32,
    since: Option<Instant>,
    count: u32,
}

impl Rate {
    pub(super) fn new(most: u32) -> Self {
        Self {
            most,
            since: None,
            count: 0,
        }
    }

    /// Counts an event and returns whether it is within the rate.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        if self.is_over(now) {
            (self.since, self.count) = (Some(now), 0);
        }
        self.count = self.count.saturating_add(1);
        self.count <= self.most
    }

    /// Returns whether the current second is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.since
            .is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1))
    }
}

/// Spreads events over time: a second's worth may happen at once, after that one each interval.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    /// How long before [`Self::end`] the next event may happen.
    ahead: Duration,
    /// When all events so far would have happened at an even pace.
    end: Option<Instant>,
}

impl Pace {
    /// Allows `per_second` events in each second; must not be zero.
    pub(super) fn new(per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second;
        Self {
            interval,
            ahead: Duration::from_secs(1) - interval,
            end: None,
        }
    }

    /// Returns how long the next event must wait: at most one interval, zero if it may happen now.
    pub(super) fn delay(&self, now: Instant) -> Duration {
        let end = self.end.unwrap_or(now);
        end.saturating_duration_since(now + self.ahead)
    }

    /// Counts an event if it may happen now, and returns whether it may.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let is_allowed = self.delay(now).is_zero();
        if is_allowed {
            self.end = Some(self.end.map_or(now, |end| end.max(now)) + self.interval);
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_after_a_burst_delays_each_by_one_interval() {
        let start = Instant::now();
        let mut pace = Pace::new(4);
        assert_eq!((0..9).filter(|_| pace.allows(start)).count(), 4);
        let quarter = Duration::from_millis(250);
        for n in 1..10 {
            let before = start + quarter * (n - 1) + quarter / 5;
            assert_eq!(pace.delay(before), quarter * 4 / 5);
            assert!(!pace.allows(before));
            assert!(pace.allows(start + quarter * n), "{n}");
        }
        let later = start + Duration::from_secs(60);
        assert_eq!((0..9).filter(|_| pace.allows(later)).count(), 4);
    }

    #[test]
    fn rate_allows_the_same_number_each_second() {
        let start = Instant::now();
        let mut rate = Rate::new(2);
        for second in 0..3 {
            let now = start + Duration::from_secs(second);
            let allowed: Vec<bool> = (0..4).map(|_| rate.allows(now)).collect();
            assert_eq!(allowed, [true, true, false, false]);
        }
    }
}
