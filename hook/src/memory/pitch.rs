//! The row alignment of pitched memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The row alignment that the driver has used, bytes.
#[derive(Debug, Default)]
pub(crate) struct Pitch(AtomicU64);

impl Pitch {
    /// Returns the expected pitch in bytes; the width itself if none has been observed.
    #[inline]
    pub(crate) fn foretold(&self, width: u64) -> u64 {
        let step = self.0.load(Relaxed).max(1);
        // A power of two.
        width.saturating_add(step - 1) & !(step - 1)
    }

    /// Learns from a pitch that the driver chose.
    #[inline]
    pub(crate) fn learn(&self, width: u64, pitch: u64) {
        if pitch != 0 && pitch != self.foretold(width) {
            let step = 1 << pitch.trailing_zeros().min(MOST_STEP);
            let known = self.0.load(Relaxed);
            self.0
                .store(if known == 0 { step } else { known.min(step) }, Relaxed);
        }
    }
}

/// Largest exponent of the assumed row alignment: 4096 bytes.
const MOST_STEP: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use gcgroup_abi::NO_LIMIT;

    #[test]
    fn pitch_is_predicted_from_the_smallest_observed_step() {
        let pitch = Pitch::default();
        assert_eq!(pitch.foretold(100), 100, "nothing observed yet");
        pitch.learn(1000, 1024);
        assert_eq!(pitch.foretold(100), 1024);
        pitch.learn(100, 512);
        assert_eq!((pitch.foretold(100), pitch.foretold(513)), (512, 1024));
        pitch.learn(600, 1024);
        assert_eq!(pitch.foretold(100), 512, "as expected");
        pitch.learn(100, 0);
        assert_eq!(pitch.foretold(0), 0);
        assert_eq!(pitch.foretold(u64::MAX), !511);
    }

    #[test]
    fn likely_size_is_charged_first_then_the_actual_size() {
        let memory = Memory::of_test(1000);
        let usage = memory.usage();
        let current = || memory.page_counter.sum();
        let (mut charge, sums) = memory.try_charge_likely(0, 600, || 500).unwrap();
        assert_eq!(current(), 600);
        let sums = charge.fit(sums, 550).unwrap();
        assert_eq!(current(), 550);
        charge.keep(sums);
        assert_eq!(
            usage.memory_peak.load(Relaxed),
            550,
            "the actual size, not the likely one"
        );

        let (charge, _) = memory.try_charge_likely(0, 451, || 450).unwrap();
        assert_eq!(current(), 1000, "no room for the likely size");
        drop(charge);
        assert_eq!(current(), 550);
        let (mut charge, sums) = memory.try_charge_likely(0, 400, || 400).unwrap();
        assert!(charge.fit(sums, 451).is_err());
        let sums = charge.fit(sums, 450).unwrap();
        assert_eq!(current(), 1000);
        charge.keep(sums);
        assert_eq!(usage.memory_peak.load(Relaxed), 1000);

        let (charge, _) = Memory::of_test(NO_LIMIT)
            .try_charge_likely(0, u64::MAX, || 7)
            .unwrap();
        assert_eq!(charge.bytes, 7, "sizes beyond any device are not used");
    }
}
