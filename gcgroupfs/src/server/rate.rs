//! How often something may happen: [`Rate`] refuses what is too much, [`Pace`] says when it may happen
//! instead.

use std::time::{Duration, Instant};

/// Allows so many a second, counted from the first.
#[derive(Debug)]
pub struct Rate {
    most: u32,
    since: Option<Instant>,
    count: u32,
}

impl Rate {
    pub fn new(most: u32) -> Self {
        Self {
            most,
            since: None,
            count: 0,
        }
    }

    /// Counts one more, and says whether it is within the rate.
    pub fn allows(&mut self, now: Instant) -> bool {
        if self.is_over(now) {
            (self.since, self.count) = (Some(now), 0);
        }
        self.count = self.count.saturating_add(1);
        self.count <= self.most
    }

    /// Whether one more would be beyond the rate.
    pub fn is_spent(&self, now: Instant) -> bool {
        !self.is_over(now) && self.count >= self.most
    }

    /// Whether the second that was counted in is over.
    pub fn is_over(&self, now: Instant) -> bool {
        self.since
            .is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1))
    }
}

/// Spreads what happens over time: a second's worth may happen at once, and then one each fraction of a
/// second.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    /// How long before [`Self::end`] the next one may happen.
    ahead: Duration,
    /// When all that has happened would have, at the even pace.
    end: Option<Instant>,
}

impl Pace {
    /// Allows `per_second` in each second; must not be zero.
    pub fn new(per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second;
        Self {
            interval,
            ahead: Duration::from_secs(1) - interval,
            end: None,
        }
    }

    /// Returns how long the next one must wait: at most a fraction of a second, and zero if it may happen
    /// now.
    pub fn delay(&self, now: Instant) -> Duration {
        let end = self.end.unwrap_or(now);
        end.saturating_duration_since(now + self.ahead)
    }

    /// Counts one, if it may happen now.
    pub fn allows(&mut self, now: Instant) -> bool {
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
    fn each_second_allows_as_many_as_the_last() {
        let start = Instant::now();
        let mut rate = Rate::new(2);
        for second in 0..3 {
            let now = start + Duration::from_secs(second);
            let allowed: Vec<bool> = (0..4).map(|_| rate.allows(now)).collect();
            assert_eq!(allowed, [true, true, false, false]);
        }
    }
}
