//! One quota and its use: an amount of GPU time in each period.
//!
//! An overrun is subtracted from the following periods, so that over several periods the quota is exact to
//! the nanosecond although a running kernel is not interrupted. What is not repaid after [`LONGEST_DEBT`] is
//! remitted. Unused quota is not saved.
//!
//! A meter charges the quotas above it with no more than its own quota in each period; the rest is charged
//! there in the following periods. So members of an outer quota lose by one of them no more than that one's
//! own quota, whatever it claims and however long its kernels are.

mod sharers;

use self::sharers::Sharers;
use super::policy::Time;
use super::settings::LONGEST_DEBT;
use crate::tree::Quota;

/// Scope of a meter: `None` for the whole process or group, or one device.
type Slot = Option<usize>;

/// Key of a meter: number of the process or group, and scope.
pub(super) type Key = (u64, Slot);

/// Nanoseconds that the quotas above are charged with at most when a meter is removed while it still owes
/// them time: a process cannot have more queued when its gate closes.
const MOST_LEFT: u64 = 1_000_000_000;

/// Use of one quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meter {
    quota: Quota,
    /// When the current period began.
    began: Time,
    /// Nanoseconds used in the current period, including debt from earlier ones.
    used: u64,
    /// Nanoseconds charged to the quotas above in the current period.
    passed: u64,
    /// Nanoseconds not yet charged to the quotas above, by device.
    deferred: Vec<(usize, u64)>,
    /// The meters above, nearest first, as of the last charge.
    above: Vec<Key>,
    /// Whether it was used up when [`has_turned`](Self::has_turned) was last called.
    was_over: bool,
    sharers: Sharers,
    /// Whether it was used up in this period or the one before.
    is_scarce: bool,
    was_used_up: bool,
}

/// GPU time on a device to charge to meters, each with what the one before passes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passed {
    pub device: usize,
    pub nsec: u64,
    pub to: Vec<Key>,
}

impl Meter {
    pub(super) fn new(quota: Quota, now: Time) -> Self {
        Self {
            quota,
            began: now,
            used: 0,
            passed: 0,
            deferred: Vec::new(),
            above: Vec::new(),
            was_over: false,
            sharers: Sharers::default(),
            is_scarce: false,
            was_used_up: false,
        }
    }

    pub(super) fn quota(&self) -> Quota {
        self.quota
    }

    /// Changes the quota. What is used stays used.
    pub(super) fn set(&mut self, quota: Quota) {
        self.quota = quota;
    }

    /// Charges `nsec` of GPU time up to `now`, and advances to the period that contains `now`.
    pub(super) fn charge(&mut self, now: Time, nsec: u64) {
        self.used = self.used.saturating_add(nsec);
        let (quota, period) = (self.quota_nsec(), self.period_nsec());
        let passed = now.saturating_sub(self.began) / period;
        self.was_used_up |= self.is_over();
        self.used = self.used.saturating_sub(passed.saturating_mul(quota));
        self.began += passed * period;
        if passed > 0 {
            self.passed = 0;
            self.is_scarce = self.was_used_up;
            self.was_used_up = self.is_over();
            self.sharers.begin(self.is_scarce);
        }
        let most = (LONGEST_DEBT / period).max(1).saturating_mul(quota);
        self.used = self.used.min(most);
    }

    /// Returns how many nanoseconds of a charge the meters above are charged with now; the rest is deferred.
    pub(super) fn pass(&mut self, device: usize, nsec: u64, above: &[Key]) -> u64 {
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

    /// Returns the deferred charges for which the current period has room, and removes them.
    pub(super) fn release(&mut self) -> Vec<Passed> {
        let room = self.quota_nsec().saturating_sub(self.passed);
        let released = self.take(room);
        self.passed += released.iter().map(|one| one.nsec).sum::<u64>();
        released
    }

    /// Drops what is not yet charged to the quotas above, because the last process has ended. This quota
    /// stays overrun for later processes, so these use no more of the quotas above in the long run.
    pub(super) fn drop_deferred(&mut self) {
        self.deferred.clear();
    }

    /// Returns what the meters above are charged with when this quota is removed.
    pub(super) fn settle(mut self) -> Vec<Passed> {
        self.take(MOST_LEFT)
    }

    /// Removes and returns deferred charges, `most` nanoseconds in all.
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

    /// Begins a look at the processes that want the GPU, see [`Self::attribute`].
    pub(super) fn look(&mut self) {
        self.sharers.rest();
    }

    /// Records a process under this quota: its part of the GPU if it wants it, and what it was charged,
    /// nanoseconds.
    pub(super) fn attribute(&mut self, process: u64, part: Option<u64>, nsec: u64) {
        if let Some(part) = part {
            self.sharers.want(process, part);
        }
        self.sharers.charge(process, nsec);
    }

    /// Returns until when a process waits because others of equal part have had less of the quota, which
    /// keeps being used up: at most until the rest of the period is just long enough to use what is left.
    pub(super) fn waits_until(&self, process: u64, now: Time) -> Option<Time> {
        let until = self.ends().saturating_sub(self.left());
        let is_ahead = || self.sharers.ahead(process) > self.slack();
        ((self.is_scarce || self.was_used_up) && now < until && is_ahead()).then_some(until)
    }

    /// Returns the difference of what processes have had of the quota from which on one waits, nanoseconds.
    fn slack(&self) -> u64 {
        self.quota_nsec() / 8
    }

    /// Returns what is left of the quota in this period, nanoseconds.
    fn left(&self) -> u64 {
        self.quota_nsec().saturating_sub(self.used)
    }

    /// Returns whether this period's quota is used up.
    pub(super) fn is_over(&self) -> bool {
        self.used >= self.quota_nsec()
    }

    /// Returns whether the quota has been used up or repaid since the last call.
    pub(super) fn has_turned(&mut self) -> bool {
        let is_over = self.is_over();
        std::mem::replace(&mut self.was_over, is_over) != is_over
    }

    /// Returns the end of the current period.
    fn ends(&self) -> Time {
        self.began + self.period_nsec()
    }

    /// Returns the end of the period in which a quota that is used up is repaid.
    pub(super) fn repaid(&self) -> Time {
        let periods = self.used / self.quota_nsec().max(1);
        self.began + periods.max(1).saturating_mul(self.period_nsec())
    }

    /// Returns when the quota is used up, or a process need not wait for others under it, at the earliest, if
    /// it is used from `now` on without pause; not beyond the period's end.
    pub(super) fn lasts(&self, now: Time) -> Time {
        let waits = self.sharers.wanting().filter_map(|process| {
            let until = self.waits_until(process, now)?;
            let ahead = self.sharers.ahead(process).saturating_sub(self.slack());
            Some(until.min(now.saturating_add(ahead)))
        });
        waits
            .chain([now.saturating_add(self.left()), self.ends()])
            .min()
            .unwrap_or(now)
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
    fn meter_is_over_exactly_when_quota_is_used() {
        let mut meter = meter(25_000, 100_000);
        meter.charge(24 * MSEC, 24 * MSEC);
        assert!(!meter.is_over());
        assert_eq!(meter.lasts(24 * MSEC), 25 * MSEC);
        meter.charge(25 * MSEC, MSEC);
        assert!(meter.is_over());
        assert_eq!(meter.repaid(), 100 * MSEC);
        meter.charge(100 * MSEC, 0);
        assert!(!meter.is_over());
    }

    #[test]
    fn meter_overrun_is_charged_to_following_periods() {
        let mut meter = meter(25_000, 100_000);
        meter.charge(60 * MSEC, 60 * MSEC);
        meter.charge(100 * MSEC, 0);
        assert!(meter.is_over(), "a debt of 35 ms exceeds the quota of 25 ms");
        assert_eq!(meter.repaid(), 200 * MSEC);
        meter.charge(200 * MSEC, 0);
        assert!(!meter.is_over());
        assert_eq!(meter.lasts(200 * MSEC), 215 * MSEC);
    }

    #[test]
    fn meter_debt_beyond_the_longest_is_remitted() {
        let mut meter = meter(5_000, 100_000);
        meter.charge(100 * MSEC, 100 * MSEC);
        assert_eq!(meter.repaid(), 2000 * MSEC);
        meter.charge(200 * MSEC, u64::MAX);
        assert_eq!(meter.repaid(), 200 * MSEC + LONGEST_DEBT);
    }

    #[test]
    fn meter_idle_period_saves_nothing() {
        let mut meter = meter(25_000, 100_000);
        meter.charge(950 * MSEC, 0);
        assert_eq!(meter.ends(), 1000 * MSEC);
        meter.charge(975 * MSEC, 25 * MSEC);
        assert!(meter.is_over());
    }

    #[test]
    fn meter_lasts_no_longer_than_its_period() {
        let meter = meter(400_000, 100_000);
        assert_eq!(meter.lasts(0), 100 * MSEC);
    }

    #[test]
    fn meter_passes_excess_up_in_following_periods() {
        let (mut meter, above) = (meter(10_000, 100_000), [(7, None)]);
        let charge = |meter: &mut Meter, now, nsec| {
            meter.charge(now, nsec);
            meter.pass(0, nsec, &above)
        };
        assert_eq!(charge(&mut meter, 4 * MSEC, 4 * MSEC), 4 * MSEC);
        assert_eq!(charge(&mut meter, 29 * MSEC, 25 * MSEC), 6 * MSEC);
        assert_eq!(meter.release(), [], "this period has no room");
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
    fn meter_huge_charges_saturate() {
        let mut meter = meter(1_000, 1_000);
        meter.charge(u64::MAX, u64::MAX);
        meter.charge(0, u64::MAX);
        assert!(meter.is_over());
    }
}
