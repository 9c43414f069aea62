//! Running averages of 10, 60 and 300 seconds, in the kernel's fixed-point arithmetic (`calc_avgs` in
//! kernel/sched/psi.c, `calc_load_n` in kernel/sched/loadavg.c).
//!
//! The kernel's timer runs every 2 s while something waits. Here an update may come later: then the time
//! waited since the last one is spread evenly over the periods that have passed.

use std::fmt::Write;

use gcgroup_abi::Pressure;

use crate::tree::untrusted::StallTimes;

/// Time between two updates, nanoseconds.
const PERIOD: u64 = 2_000_000_000;

/// 1 in fixed point.
const FIXED_1: u64 = 1 << SHIFT;
const SHIFT: u32 = 11;

/// e^(-2/10), e^(-2/60) and e^(-2/300) in fixed point.
const DECAYS: [u64; 3] = [1677, 1981, 2034];

/// Averages of one directory.
#[derive(Debug)]
pub(super) struct Averages {
    /// StallTimes of the last update, and of the next, nanoseconds.
    last: u64,
    next: u64,
    /// Totals at the last update, microseconds.
    counted: StallTimes,
    /// Percents in fixed point, over 10, 60 and 300 s, by [`Pressure`], of some and of full.
    percents: [[[u64; 3]; 2]; Pressure::COUNT],
}

impl Averages {
    /// Begins at `since` (nanoseconds) with the totals of then.
    pub(super) fn new(since: u64, total: StallTimes) -> Self {
        Self {
            last: since,
            next: since.saturating_add(PERIOD),
            counted: total,
            percents: Default::default(),
        }
    }

    /// Returns when an update is due, nanoseconds.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Updates the averages, if it is time, with the totals at `now` (nanoseconds).
    pub(super) fn update(&mut self, now: u64, total: &StallTimes) {
        let Some(late) = now.checked_sub(self.next) else {
            return;
        };
        let nr_periods = 1 + late / PERIOD;
        let elapsed = (now - self.last).div_euclid(1000).max(1);
        self.next += nr_periods * PERIOD;
        self.last = now;
        let before = std::mem::replace(&mut self.counted, *total);
        let times = total.as_flattened().iter().zip(before.as_flattened());
        for ((total, before), averages) in times.zip(self.percents.as_flattened_mut()) {
            let waited = total.saturating_sub(*before).min(elapsed);
            // Whole percents, as in the kernel.
            let percent = waited * 100 / elapsed * FIXED_1;
            for (average, decay) in averages.iter_mut().zip(DECAYS) {
                *average = load(*average, power(decay, nr_periods), percent);
            }
        }
    }

    /// Returns the two lines of a pressure file.
    pub(super) fn show(&self, what: Pressure, total: [u64; 2]) -> String {
        let mut text = String::new();
        for ((name, total), averages) in ["some", "full"]
            .iter()
            .zip(total)
            .zip(&self.percents[what as usize])
        {
            text.push_str(name);
            for (seconds, average) in [10, 60, 300].iter().zip(averages) {
                let (whole, rest) = (average >> SHIFT, ((average & (FIXED_1 - 1)) * 100) >> SHIFT);
                // Writing to a String cannot fail.
                let _ = write!(text, " avg{seconds}={whole}.{rest:02}");
            }
            let _ = writeln!(text, " total={total}");
        }
        text
    }
}

/// Moves an average towards `active`: `calc_load` of the kernel.
fn load(average: u64, decay: u64, active: u64) -> u64 {
    let mut load = average * decay + active * (FIXED_1 - decay);
    if active >= average {
        load += FIXED_1 - 1;
    }
    load / FIXED_1
}

/// Returns `base` to the power of `exponent` in fixed point: `fixed_power_int` of the kernel.
fn power(mut base: u64, mut exponent: u64) -> u64 {
    const HALF: u64 = 1 << (SHIFT - 1);
    let mut result = FIXED_1;
    while exponent != 0 {
        if exponent & 1 != 0 {
            result = (result * base + HALF) >> SHIFT;
        }
        exponent >>= 1;
        base = (base * base + HALF) >> SHIFT;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Returns the averages after each of these percents, one update every two seconds.
    fn after(percents: &[u64]) -> Averages {
        let mut averages = Averages::new(0, StallTimes::default());
        let mut total = 0;
        for (percent, period) in percents.iter().zip(1..) {
            total += 20_000 * percent;
            averages.update(period * PERIOD, &[[total, 0], [0, 0]]);
        }
        averages
    }

    fn shown(averages: &Averages) -> String {
        let text = averages.show(Pressure::Compute, [7, 5]);
        text.lines().next().unwrap().to_owned()
    }

    /// As printed by a program made from the kernel's `calc_load` and `LOAD_FRAC`.
    #[test]
    fn averages_are_those_of_the_kernel() {
        assert_eq!(
            shown(&after(&[])),
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=7"
        );
        for (percents, expected) in EXPECTED {
            assert_eq!(shown(&after(percents)), *expected, "{percents:?}");
        }
    }

    const EXPECTED: &[(&[u64], &str)] = &[
        (&[100], "some avg10=18.11 avg60=3.27 avg300=0.68 total=7"),
        (&[100; 5], "some avg10=63.18 avg60=15.32 avg300=3.37 total=7"),
        (
            &[50, 0, 100, 7],
            "some avg10=21.07 avg60=4.87 avg300=1.06 total=7",
        ),
        (
            &[1, 99, 0, 0, 0, 0],
            "some avg10=8.12 avg60=2.86 avg300=0.66 total=7",
        ),
        (&[100; 150], "some avg10=100.00 avg60=99.32 avg300=64.28 total=7"),
    ];

    #[test]
    fn averages_follow_the_exact_exponential_within_a_percent() {
        let mut exact = [0.0_f64; 3];
        let mut percents = Vec::new();
        for period in 0..600_u64 {
            let percent = if period % 90 < 40 { 75 } else { 10 };
            percents.push(percent);
            for (exact, seconds) in exact.iter_mut().zip([10.0, 60.0, 300.0]) {
                let decay = (-2.0_f64 / seconds).exp();
                *exact = *exact * decay + percent as f64 * (1.0 - decay);
            }
        }
        let averages = after(&percents);
        for (average, exact) in averages.percents[0][0].iter().zip(exact) {
            let average = *average as f64 / FIXED_1 as f64;
            assert!((average - exact).abs() < 1.0, "{average} {exact}");
        }
    }

    #[test]
    fn late_update_spreads_the_time_evenly() {
        let mut late = Averages::new(0, StallTimes::default());
        late.update(60 * SECOND, &[[30_000_000, 0], [0, 0]]);
        let timely = after(&[50; 30]);
        for (late, timely) in late.percents[0][0].iter().zip(timely.percents[0][0]) {
            assert!(late.abs_diff(timely) < FIXED_1, "{late} {timely}");
        }
        assert_eq!(late.next(), 62 * SECOND);
    }

    #[test]
    fn early_update_and_time_that_steps_back_change_nothing() {
        let mut averages = after(&[100]);
        let before = shown(&averages);
        averages.update(3 * SECOND, &[[3_000_000, 0], [0, 0]]);
        averages.update(0, &[[9_000_000, 0], [0, 0]]);
        assert_eq!(shown(&averages), before);
        averages.update(u64::MAX / 2, &[[u64::MAX; 2]; 2]);
        assert!(shown(&averages).contains("avg10="), "no overflow");
    }

    #[test]
    fn full_is_the_second_line() {
        let averages = after(&[100]);
        let text = averages.show(Pressure::Compute, [2_000_000, 0]);
        assert!(
            text.ends_with("full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
            "{text}"
        );
    }
}
