//! The table of the scheduler's options, and the arbiter's settings made from them.

/// Longest time in which a process repays GPU time that it used out of its turn or beyond its quota,
/// nanoseconds. What is still owed then is remitted: a process that only waited for another process may have
/// been charged for that, and must go on.
pub(super) const LONGEST_DEBT: u64 = 20_000_000_000;

/// One percent, the unit of shares.
pub(super) const PERCENT: u64 = 1;

/// Share of the GPU for all waiting classes together, if `starvation_percent` is not more.
const MOST_WAITING: u64 = 16 * PERCENT;

/// Has a macro define what follows from the options, one a line:
/// `NAME => FIELD * UNIT: BOUNDS = DEFAULT, "HELP";`. `NAME` is in the configuration, a whole number; `FIELD`
/// is that number times `UNIT` in [`Settings`].
macro_rules! options {
    ($define:ident) => {
        $define! {
            window_usec => window * USEC: 100..=100_000 = 500,
                "GPU time that a process may have queued where one of higher priority may come";
            linger_usec => linger * USEC: 0..=1_000_000 = 1_000,
                "time for which the GPU is kept free for a process in each of its pauses, at most";
            cycle_usec => cycle * USEC: 1_000..=1_000_000 = 20_000,
                "each busy process gets a turn within this time, if its share allows one";
            starvation_percent => starvation * PERCENT: 0..=50 = 1,
                "share of the GPU for waiting processes that have equal parts; all waiting ones get at most 16 or this; 0: only in their turn";
            patience_usec => patience * USEC: 5_000..=1_000_000 = 250_000,
                "after this time a waiting process submits one batch, whatever the daemon says";
            watch_usec => watch * USEC: 0..=3_600_000_000 = 10_000_000,
                "GPU time is measured for this long after compute.stat was read";
            always_measure => measures * FLAG: 0..=1 = 1,
                "1: GPU time is always measured, with drivers from CUDA 12.5 on; 0: only as watch_usec says";
            memory_turn_move_percent => turn_move_percent * PERCENT: 0..=50 = 5,
                "memory turns last so long that moving memory takes this part of them; 0: no memory turns";
            memory_turn_least_usec => turn_least * USEC: 100_000..=60_000_000 = 1_000_000,
                "shortest memory turn";
            memory_turn_most_usec => turn_most * USEC: 100_000..=600_000_000 = 60_000_000,
                "longest memory turn";
        }
    };
}

pub(super) use options;

/// Defines [`Settings`].
macro_rules! define {
    ($(
        $name:ident => $field:ident * $unit:ident: $least:literal..=$most:literal = $default:literal, $help:literal;
    )*) => {
        /// Settings of the arbiter. Times are nanoseconds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Settings {
            $(#[doc = $help] pub $field: u64,)*
        }
    };
}

options!(define);

impl Settings {
    /// Returns the time in which a class repays `nsec` of GPU time that it used while others had the turn.
    /// `nr_classes` have work.
    pub(super) fn repayment(&self, nsec: u64, nr_classes: usize) -> u64 {
        let all = self.starvation.saturating_mul(nr_classes as u64);
        let share = nsec.saturating_mul(100 / PERCENT) / self.starvation.max(PERCENT);
        share.saturating_mul(all.max(MOST_WAITING)) / self.starvation.max(MOST_WAITING)
    }

    /// Returns the interval at which a waiting process that owes nothing gets an in-flight window; `None`:
    /// only in its turn.
    pub(super) fn starvation_interval(&self, nr_classes: usize) -> Option<u64> {
        (self.starvation > 0).then(|| self.repayment(self.window, nr_classes))
    }

    /// Returns the interval of ticks while a process waits for others' work, in case the end of that work is
    /// not rung.
    pub fn tick(&self) -> u64 {
        (4 * self.window).clamp(500_000, 2_000_000)
    }
}
