//! GPU time that a process has used out of its turn, as the time in which it is repaid.

use super::policy::Time;
use super::settings::LONGEST_DEBT;

/// A debt that began at one time and is repaid at another. It stays known after it is repaid, until the
/// process has a turn or begins another debt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Debt {
    since: Time,
    until: Time,
}

impl Debt {
    /// Extends the debt by `nsec` of repayment, for use between `last` and `now`. It is repaid at most
    /// [`LONGEST_DEBT`] after `now`.
    pub(super) fn add(&mut self, now: Time, last: Time, nsec: u64) {
        if self.until <= last {
            *self = Self {
                since: last,
                until: last,
            };
        }
        self.until = self
            .until
            .saturating_add(nsec)
            .min(now.saturating_add(LONGEST_DEBT));
    }

    /// Returns when it is repaid.
    pub(super) fn until(self) -> Time {
        self.until
    }

    /// Returns how long its repayment takes in all, nanoseconds, at most [`LONGEST_DEBT`].
    pub(super) fn length(self) -> u64 {
        (self.until - self.since).min(LONGEST_DEBT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debt_adds_up_until_repaid_and_is_bounded() {
        let mut debt = Debt::default();
        debt.add(20, 10, 100);
        assert_eq!((debt.until(), debt.length()), (110, 100));
        debt.add(60, 50, 100);
        assert_eq!((debt.until(), debt.length()), (210, 200), "not repaid yet");
        debt.add(310, 300, 50);
        assert_eq!((debt.until(), debt.length()), (350, 50));
        debt.add(400, 340, u64::MAX);
        assert_eq!((debt.until(), debt.length()), (400 + LONGEST_DEBT, LONGEST_DEBT));
    }
}
