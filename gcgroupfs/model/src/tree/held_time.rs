//! Time for which a device was kept free for a process while others waited.

/// Nanoseconds that "recent" covers.
pub(super) const RECENT: u64 = 10_000_000_000;

/// Held time of a process on a device, in all and lately, nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HeldTime {
    nsec: u64,
    /// Beginning of the current period of [`RECENT`], and the held time in it and in the one before.
    began: u64,
    current: u64,
    before: u64,
}

impl HeldTime {
    pub(super) fn from_usec(usec: u64) -> Self {
        Self {
            nsec: usec.saturating_mul(1000),
            ..Self::default()
        }
    }

    pub(super) fn nsec(self) -> u64 {
        self.nsec
    }

    pub(super) fn usec(self) -> u64 {
        self.nsec / 1000
    }

    pub(super) fn add(&mut self, now: u64, nsec: u64) {
        *self = self.at(now);
        self.nsec = self.nsec.saturating_add(nsec);
        self.current = self.current.saturating_add(nsec);
    }

    /// Returns the part of the last ten seconds that was held, percent.
    pub(super) fn percent(self, now: u64) -> u64 {
        let Self {
            began,
            current,
            before,
            ..
        } = self.at(now);
        let rest = RECENT - now.saturating_sub(began).min(RECENT);
        let before = u128::from(before) * u128::from(rest) / u128::from(RECENT);
        let held = before + u128::from(current);
        u64::try_from(held * 100 / u128::from(RECENT)).map_or(100, |percent| percent.min(100))
    }

    /// Advances to the period that contains `now`.
    fn at(self, now: u64) -> Self {
        let periods = now.saturating_sub(self.began) / RECENT;
        match periods {
            0 => self,
            _ => Self {
                began: self.began + periods * RECENT,
                before: if periods == 1 { self.current } else { 0 },
                current: 0,
                ..self
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;

    #[test]
    fn held_time_counts_in_all_and_for_ten_seconds() {
        let mut held = HeldTime::from_usec(7);
        held.add(101 * SEC, 2 * SEC);
        assert_eq!((held.usec(), held.percent(102 * SEC)), (2_000_007, 20));
        held.add(109 * SEC, SEC);
        assert_eq!(held.percent(109 * SEC), 30);
        assert_eq!(
            [115, 119, 121].map(|second| held.percent(second * SEC)),
            [15, 3, 0]
        );
        held.add(131 * SEC, u64::MAX);
        assert_eq!(held.percent(131 * SEC), 100);
    }
}
