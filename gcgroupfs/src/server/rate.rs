//! How often something may happen.

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

#[cfg(test)]
mod tests {
    use super::*;

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
