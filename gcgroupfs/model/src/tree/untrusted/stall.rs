//! Stall clocks of a process.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{Pressure, StallClock};

use super::Untrusted;

/// Microseconds by [`Pressure`]: of some, and of full.
pub(in crate::tree) type StallTimes = [[u64; 2]; Pressure::COUNT];

/// Times on a process's stall clocks at the last look, by [`Pressure`], of some and of full.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::tree) struct StallsSeen(StallTimes);

impl Untrusted<'_> {
    /// Returns by how many microseconds each clock has advanced up to `now` (`CLOCK_MONOTONIC`, nanoseconds)
    /// since the last call with `seen`: at most `most`, and of full at most that of some. A clock that has
    /// stepped back has not advanced.
    pub(in crate::tree) fn stalled(self, seen: &mut StallsSeen, now: u64, most: u64) -> StallTimes {
        let mut advanced = [[0; 2]; Pressure::COUNT];
        for ((stall, seen), advanced) in self.usage.stalls.iter().zip(&mut seen.0).zip(&mut advanced) {
            for ((clock, seen), advanced) in [&stall.some, &stall.full].iter().zip(seen).zip(&mut *advanced) {
                let shown = clock.usec(now);
                let elapsed = StallClock::elapsed(shown, std::mem::replace(seen, shown));
                *advanced = u64::try_from(elapsed).unwrap_or(0).min(most);
            }
        }
        advanced
    }

    /// Returns whether a thread of the process waits for memory.
    pub(in crate::tree) fn waits_for_memory(self) -> bool {
        let stall = self.usage.stalls.get(Pressure::Memory as usize);
        stall.is_some_and(|stall| stall.some.has_waiters())
    }

    /// Returns a number that changes with each submission to the devices of `slots` that the driver has
    /// accepted.
    pub(in crate::tree) fn nr_submitted(self, slots: impl Iterator<Item = usize>) -> u64 {
        let devices = slots.filter_map(|slot| self.usage.devices.get(slot));
        let shared = devices.flat_map(|device| &device.shared_exited);
        let threads = self.usage.used_threads();
        let own = threads.flat_map(|thread| thread.submissions.iter().map(|[_, exited]| exited));
        shared
            .chain(own)
            .fold(0, |sum: u64, count| sum.wrapping_add(count.load(Relaxed)))
    }
}
