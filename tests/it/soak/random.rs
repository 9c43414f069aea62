//! Reproducible random numbers.

/// Generator of random numbers (xorshift64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1))
    }

    /// Returns a generator whose seed is printed and differs from run to run.
    pub(crate) fn unlike_before() -> Self {
        let seed = std::time::UNIX_EPOCH.elapsed().expect("a time").subsec_nanos();
        println!("Random::of({seed})");
        Self::of(seed.into())
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % end as u64).expect("the value fits")
    }

    pub(crate) fn of_these<'a, T>(&mut self, these: &'a [T]) -> Option<&'a T> {
        (!these.is_empty()).then(|| &these[self.below(these.len())])
    }
}
