//! One quota and how much of it is used: at most so much GPU time in each period.
//!
//! What a process runs over is taken off the periods that follow, so that over several periods the quota holds to the
//! nanosecond although a kernel that runs is not interrupted. Nothing is saved up: an idle period is lost.
//!
//! A meter charges the quotas above it with no more than its own quota in each period. What was used beyond that is charged
//! there in the periods that follow, as it is paid back here. So the members of an outer quota lose no more by one of them
//! than its own quota, whatever it says and however long its kernels are.

use super::policy::Time;
use super::state::Key;
use crate::tree::Quota;

/// Time that quotas above are charged with when a meter goes while it still owes them time: no more than a process may have
/// queued when its gate closes.
const MOST_LEFT: u64 = 1_000_000_000;

/// How much of a quota is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meter {
    quota: Quota,
    /// When the current period began.
    began: Time,
    /// Nanoseconds in the current period, with what is owed from earlier ones.
    used: u64,
    /// Nanoseconds that the quotas above were charged with for the current period.
    passed: u64,
    /// Nanoseconds that they have not been charged with yet, by device.
    deferred: Vec<(usize, u64)>,
    /// The meters above, the nearest first, as of the last charge.
    above: Vec<Key>,
}

/// GPU time on a device that meters are to be charged with, each with what the one before passes on.
#[derive(Debug, PartialEq, Eq)]
pub struct Passed {
    pub device: usize,
    pub nsec: u64,
    pub to: Vec<Key>,
}

impl Meter {
    pub fn new(quota: Quota, now: Time) -> Self {
        Self {
            quota,
            began: now,
            used: 0,
            passed: 0,
            deferred: Vec::new(),
            above: Vec::new(),
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
        if passed > 0 {
            self.passed = 0;
        }
    }

    /// Returns how much of a charge the meters above are to be charged with now; the rest is deferred.
    pub fn pass(&mut self, device: usize, nsec: u64, above: &[Key]) -> u64 {
        if self.above != above {
            self.above = above.to_vec();
        }
        let now = nsec.min(self.quota_nsec().saturating_sub(self.passed));
        self.passed += now;
        let later = nsec - now;
        if later > 0 && !above.is_empty() {
            match self.deferred.iter_mut().find(|(on, _)| *on == device) {
                Some((_, sum)) => *sum = sum.saturating_add(later),
                None => self.deferred.push((device, later)),
            }
        }
        now
    }

    /// Takes out what was deferred and the current period has room for.
    pub fn release(&mut self) -> Vec<Passed> {
        let room = self.quota_nsec().saturating_sub(self.passed);
        let released = self.take(room);
        self.passed += released.iter().map(|one| one.nsec).sum::<u64>();
        released
    }

    /// What the meters above are to be charged with when there is no such quota any more.
    pub fn settle(mut self) -> Vec<Passed> {
        self.take(MOST_LEFT)
    }

    /// Takes out what was deferred, `most` nanoseconds at most.
    fn take(&mut self, mut most: u64) -> Vec<Passed> {
        let mut taken = Vec::new();
        for (device, sum) in &mut self.deferred {
            let nsec = most.min(*sum);
            *sum -= nsec;
            most -= nsec;
            if nsec > 0 {
                taken.push(Passed {
                    device: *device,
                    nsec,
                    to: self.above.clone(),
                });
            }
        }
        self.deferred.retain(|(_, sum)| *sum > 0);
        taken
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
    fn what_is_beyond_the_quota_is_passed_up_in_the_periods_that_follow() {
        let (mut meter, above) = (meter(10_000, 100_000), [(7, None)]);
        let charge = |meter: &mut Meter, now, nsec| {
            meter.charge(now, nsec);
            meter.pass(0, nsec, &above)
        };
        assert_eq!(charge(&mut meter, 4 * MSEC, 4 * MSEC), 4 * MSEC);
        assert_eq!(charge(&mut meter, 29 * MSEC, 25 * MSEC), 6 * MSEC);
        assert_eq!(meter.release(), [], "not in this period");
        for left in [10 * MSEC, 9 * MSEC] {
            let next = meter.ends();
            meter.charge(next, 0);
            let released = meter.release();
            let passed = Passed {
                device: 0,
                nsec: left,
                to: above.to_vec(),
            };
            assert_eq!(released, [passed]);
            assert_eq!(meter.release(), []);
        }
        meter.charge(400 * MSEC, 0);
        assert!(!meter.is_over());
        assert_eq!(charge(&mut meter, 420 * MSEC, 20 * MSEC), 10 * MSEC);
        let settled = meter.clone().settle();
        assert_eq!(settled.iter().map(|one| one.nsec).sum::<u64>(), 10 * MSEC);
        charge(&mut meter, 420 * MSEC, u64::MAX);
        let settled = meter.settle();
        assert_eq!(settled.iter().map(|one| one.nsec).sum::<u64>(), MOST_LEFT);
    }

    #[test]
    fn absurd_charges_do_no_harm() {
        let mut meter = meter(1_000, 1_000);
        meter.charge(u64::MAX, u64::MAX);
        meter.charge(0, u64::MAX);
        assert!(meter.is_over());
    }
}
