//! Quota of GPU time, as in `compute.max`.

use gcgroup_abi::NO_LIMIT;
use serde::{Deserialize, Serialize};

/// An upper bound of GPU time in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Microseconds of GPU time; [`NO_LIMIT`] for none.
    pub usec: u64,
    /// Microseconds.
    pub period_usec: u64,
}

impl Quota {
    /// Bounds in microseconds, as cgroup v2 has for `cpu.max`.
    pub const LEAST: u64 = 1_000;
    pub const LEAST_PERIOD: u64 = 1_000;
    pub const LONGEST_PERIOD: u64 = 1_000_000;

    /// Upper bound of a quota in microseconds: more than all GPUs of a machine give in the longest period.
    pub const MOST: u64 = 1_000_000_000;

    /// No quota, with the default period.
    pub const NONE: Self = Self {
        usec: NO_LIMIT,
        period_usec: 100_000,
    };

    pub fn is_none(self) -> bool {
        self.usec == NO_LIMIT
    }

    /// Returns whether this quota allows no more than `bound`, neither as a share nor per period.
    pub fn is_within(self, bound: Self) -> bool {
        let share = |one: Self, other: Self| u128::from(one.usec) * u128::from(other.period_usec);
        bound.is_none() || (self.usec <= bound.usec && share(self, bound) <= share(bound, self))
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_within_compares_share_and_burst() {
        let bound = Quota {
            usec: 25_000,
            period_usec: 100_000,
        };
        for (usec, period_usec, is_within) in [
            (25_000, 100_000, true),
            (10_000, 40_000, true),
            (10_000, 39_999, false),
            (25_001, 1_000_000, false),
            (25_000, 1_000_000, true),
            (NO_LIMIT, 100_000, false),
        ] {
            let quota = Quota { usec, period_usec };
            assert_eq!(quota.is_within(bound), is_within, "{quota:?}");
            assert!(quota.is_within(Quota::NONE));
        }
    }
}
