//! Quantiles and random numbers.

use std::time::Duration;

/// Returns the quantile `share` (0 to 1) of sorted values by nearest rank; 0 if there are none.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length"
    )]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.clamp(1, sorted.len().max(1)) - 1)
        .copied()
        .unwrap_or_default()
}

/// Returns the values in ascending order.
pub(crate) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Random number generator (splitmix64); the same seed gives the same numbers.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // From the upper 53 bits.
        (z >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns an exponentially distributed duration.
    pub(crate) fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.uniform()).ln())
    }

    /// Returns an index below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below the count"
        )]
        let index = (self.uniform() * count as f64) as usize;
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occur() {
        let values = sorted(vec![3.0, 1.0, 2.0, 4.0]);
        assert_eq!(
            [
                quantile(&values, 0.5),
                quantile(&values, 0.99),
                quantile(&values, 1.0)
            ],
            [2.0, 4.0, 4.0]
        );
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[5.0], 0.0), 5.0);
    }

    #[test]
    fn exponential_has_its_mean_and_repeats_with_seed() {
        let mean = Duration::from_millis(10);
        let sum = |seed| {
            let mut random = Random::new(seed);
            (0..20_000)
                .map(|_| random.exponential(mean).as_secs_f64())
                .sum::<f64>()
        };
        assert!((sum(1) / 20_000.0 / mean.as_secs_f64() - 1.0).abs() < 0.03);
        assert_eq!(sum(2), sum(2));
        assert_ne!(sum(2), sum(3));
    }

    #[test]
    fn below_yields_every_index_and_none_beyond() {
        let mut random = Random::new(1);
        let mut chosen = [0; 5];
        (0..1000).for_each(|_| chosen[random.below(5)] += 1);
        assert!(chosen.iter().all(|&count| count > 100), "{chosen:?}");
    }
}
