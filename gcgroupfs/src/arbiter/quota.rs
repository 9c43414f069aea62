//! One quota and how much of it is used: at most so much GPU time in each period.
//!
//! What a process runs over is taken off the periods that follow, so that over several periods the quota holds to the
//! nanosecond although a kernel that runs is not interrupted. Nothing is saved up: an idle period is lost.

use super::policy::Time;
use crate::tree::Quota;

/// How much of a quota is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meter {
    quota: Quota,
    /// When the current period began.
    began: Time,
    /// Nanoseconds in the current period, with what is owed from earlier ones.
    used: u64,
}

impl Meter {
    pub fn new(quota: Quota, now: Time) -> Self {
        Self {
            quota,
            began: now,
            used: 0,
        }
    }

    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Another quota from now on. What is used stays used.
    pub fn set(&mut self, quota: Quota) {
        self.quota = quota;
    }

    /// Counts GPU time up to `now`, and begins the period that `now` is in.
    pub fn charge(&mut self, now: Time, nsec: u64) {
        self.used = self.used.saturating_add(nsec);
        let (quota, period) = (self.quota_nsec(), self.period_nsec());
        let passed = now.saturating_sub(self.began) / period;
        self.used = self.used.saturating_sub(passed.saturating_mul(quota));
        self.began += passed * period;
    }

    /// Whether nothing is left of this period's quota.
    pub fn is_over(&self) -> bool {
        self.used >= self.quota_nsec()
    }

    /// When there will be something again, if it is over. At the end of the period it is looked at anew.
    pub fn ends(&self) -> Time {
        self.began + self.period_nsec()
    }

    /// When it can be used up at the earliest, if it is used from `now` on without pause; not beyond the period's end.
    pub fn lasts(&self, now: Time) -> Time {
        let left = self.quota_nsec().saturating_sub(self.used);
        now.saturating_add(left).min(self.ends())
    }

    fn quota_nsec(&self) -> u64 {
        self.quota.usec.saturating_mul(1000)
    }

    fn period_nsec(&self) -> u64 {
        self.quota.period_usec.max(1).saturating_mul(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSEC: u64 = 1_000_000;

    fn meter(usec: u64, period_usec: u64) -> Meter {
        Meter::new(Quota { usec, period_usec }, 0)
    }

    #[test]
    fn it_is_over_when_the_quota_is_used_and_not_before() {
        let mut meter = meter(25_000, 100_000);
        meter.charge(24 * MSEC, 24 * MSEC);
        assert!(!meter.is_over());
        assert_eq!(meter.lasts(24 * MSEC), 25 * MSEC);
        meter.charge(25 * MSEC, MSEC);
        assert!(meter.is_over());
        assert_eq!(meter.ends(), 100 * MSEC);
        meter.charge(100 * MSEC, 0);
        assert!(!meter.is_over());
    }

    #[test]
    fn what_ran_over_is_owed_to_the_periods_that_follow() {
        let mut meter = meter(25_000, 100_000);
        meter.charge(60 * MSEC, 60 * MSEC);
        meter.charge(100 * MSEC, 0);
        assert!(meter.is_over(), "35 ms are owed, 25 are given");
        meter.charge(200 * MSEC, 0);
        assert!(!meter.is_over());
        assert_eq!(meter.lasts(200 * MSEC), 215 * MSEC);
    }

    #[test]
    fn nothing_is_saved_up() {
        let mut meter = meter(25_000, 100_000);
        meter.charge(950 * MSEC, 0);
        assert_eq!(meter.ends(), 1000 * MSEC);
        meter.charge(975 * MSEC, 25 * MSEC);
        assert!(meter.is_over());
    }

    #[test]
    fn a_quota_lasts_to_the_end_of_its_period_at_most() {
        let meter = meter(400_000, 100_000);
        assert_eq!(meter.lasts(0), 100 * MSEC);
    }

    #[test]
    fn absurd_charges_do_no_harm() {
        let mut meter = meter(1_000, 1_000);
        meter.charge(u64::MAX, u64::MAX);
        meter.charge(0, u64::MAX);
        assert!(meter.is_over());
    }
}
