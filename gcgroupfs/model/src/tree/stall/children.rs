//! Adds up the waits of a directory's children, of each of which only the length is known.

use gcgroup_abi::Pressure;

use crate::tree::untrusted::StallTimes;

/// Time for which a child has waited since the directory above has looked.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) time: StallTimes,
    pub(super) has_run: bool,
}

/// The children of a directory over `elapsed` microseconds.
pub(super) struct Children {
    elapsed: u64,
    /// Time in which no child waited.
    free: [u64; Pressure::COUNT],
    /// Time in which no child ran.
    standing: [u64; Pressure::COUNT],
    /// Time in which no child ran and none was stalled in full.
    idle: [u64; Pressure::COUNT],
    pub(super) has_run: bool,
}

impl Children {
    pub(super) fn new(elapsed: u64) -> Self {
        let all = [elapsed; Pressure::COUNT];
        Self {
            elapsed,
            free: all,
            standing: all,
            idle: all,
            has_run: false,
        }
    }

    pub(super) fn add(&mut self, part: &Part) {
        self.has_run |= part.has_run;
        for (what, times) in part.time.iter().enumerate() {
            let [some, full] = times.map(|time| time.min(self.elapsed));
            self.free[what] = self.share(self.free[what], self.elapsed - some);
            if part.has_run {
                self.standing[what] = self.share(self.standing[what], full);
                self.idle[what] = 0;
            } else {
                self.idle[what] = self.share(self.idle[what], self.elapsed - full);
            }
        }
    }

    /// Returns the part of `time` in which something happens that takes `of` of the time elapsed.
    fn share(&self, time: u64, of: u64) -> u64 {
        let product = u128::from(time) * u128::from(of) / u128::from(self.elapsed.max(1));
        // At most `time`, since `of` is at most `elapsed`.
        u64::try_from(product).unwrap_or(time)
    }

    pub(super) fn times(&self) -> StallTimes {
        std::array::from_fn(|what| {
            let some = self.elapsed - self.free[what];
            let full = self.standing[what] - self.idle[what];
            [some, full.min(some)]
        })
    }
}
