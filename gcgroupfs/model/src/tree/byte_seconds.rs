//! Memory use over time: the integral of `memory.current`, from samples.

/// Nanoseconds of a second.
const SECOND: u128 = 1_000_000_000;

/// Integral of a process's `memory.current` since its program first registered. Between two samples the
/// mean of both is taken, so memory that was allocated and freed in between does not count.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteSeconds {
    /// Time of the last sample, nanoseconds.
    at: u64,
    /// Bytes in the last sample.
    bytes: u64,
    /// Twice the integral, in bytes times nanoseconds.
    twice: u128,
}

impl ByteSeconds {
    /// Begins with no bytes and an integral of `earlier` bytes times seconds; `now` in nanoseconds.
    pub(super) fn new(now: u64, earlier: u128) -> Self {
        Self {
            at: now,
            bytes: 0,
            twice: earlier.saturating_mul(2 * SECOND),
        }
    }

    /// Adds a sample.
    pub(super) fn sample(&mut self, now: u64, bytes: u64) {
        let sum = u128::from(self.bytes) + u128::from(bytes);
        let elapsed = u128::from(now.saturating_sub(self.at));
        self.twice = self.twice.saturating_add(sum.saturating_mul(elapsed));
        (self.at, self.bytes) = (now.max(self.at), bytes);
    }

    /// Returns the integral in minutes of the present use: a number that changes every minute while memory is
    /// in use.
    pub(super) fn minutes(&self) -> u64 {
        let minutes = self.get() / u128::from(self.bytes.max(1)) / 60;
        u64::try_from(minutes).unwrap_or(u64::MAX)
    }

    /// Returns bytes times seconds, rounded down.
    pub(super) fn get(&self) -> u128 {
        self.twice / 2 / SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_joined_by_straight_lines() {
        const SECOND: u64 = 1_000_000_000;
        let mut integral = ByteSeconds::new(5 * SECOND, 0);
        assert_eq!(integral.get(), 0);
        integral.sample(6 * SECOND, 100);
        integral.sample(8 * SECOND, 100);
        assert_eq!(integral.get(), 50 + 200);
        integral.sample(8 * SECOND, 40);
        integral.sample(7 * SECOND, 40);
        assert_eq!(integral.get(), 250, "no time passed, or the clock went back");
        integral.sample(9 * SECOND, 40);
        assert_eq!(integral.get(), 290);
        integral.sample(u64::MAX, u64::MAX);
        integral.sample(u64::MAX, u64::MAX);
    }
}
