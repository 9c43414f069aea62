//! Costs of submissions, learned from samples.

use gcgroup_abi::Submission;
use hashbrown::HashMap;

use super::timeline::Run;
use crate::program::slot::Charge;

/// Number of samples of a kind after which older ones count half as much.
const RECENT: f64 = 512.0;
/// Weight of a shape's next sample.
const NEXT: f64 = 1.0 / 8.0;
/// Steps towards the next sample that is shorter or longer than the low times of a shape: so they are those
/// which a ninth of the samples do not reach.
const DOWN: f64 = 1.0 / 2.0;
const UP: f64 = 1.0 / 16.0;
/// Shortest submission, nanoseconds, of which samples beside other processes' work are no measure: it always
/// includes slices of theirs.
const LONG: f64 = 4e6;
/// Part of a sample's time that may be unsure: nothing is learned from it if more is.
const UNSURE: u64 = 16;
/// Most shapes that are remembered.
const MOST: usize = 4096;

/// Samples of one kind of submission, the older ones with less weight.
#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    count: f64,
    nsec: f64,
}

/// Costs of one shape of submission, nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Mean while no other process used the device.
    mean: Option<f64>,
    /// Low times among the others: these may include the time of other processes' work.
    least: f64,
}

#[derive(Debug, Default)]
pub(super) struct Costs {
    kinds: [Kind; Submission::COUNT],
    shapes: HashMap<u64, Known>,
    /// Time of samples, and the part of it in which at least one of them ran.
    took: f64,
    alone: f64,
    /// Number of samples that are charged at looks by kind, and the GPU time of all of them, nanoseconds.
    pub(super) counted: [u64; Submission::COUNT],
    pub(super) nsec: f64,
    pub(super) charged: Charged,
}

/// Samples that their threads have charged.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Charged {
    pub count: u64,
    /// Nanoseconds that the threads have charged, and to add to that: for those charged too little, at least
    /// 0, and too much, at most 0.
    pub nsec: f64,
    pub more: f64,
    pub less: f64,
}

#[allow(clippy::cast_precision_loss, reason = "nanoseconds of less than a day")]
fn float(nsec: u64) -> f64 {
    nsec as f64
}

impl Costs {
    /// Learns from a sample, unless it may overlap with work that was not sampled; returns whether its time
    /// counts. `nr_others`: number of processes that had work on the device too.
    pub(super) fn learn(&mut self, run: &Run, nr_others: u32) -> bool {
        if !run.is_apart {
            return false;
        }
        let (took, is_shared) = (float(run.took), nr_others != 0);
        // The least of a time if others had slices of it: before it began, and equal ones while it ran.
        let others = f64::from(nr_others);
        let own = |took: f64| (took - LONG * others) / (1.0 + others);
        let index = run.what as usize;
        if run.unsure > run.took / UNSURE {
            let known = self.of(run.what, run.key).map(float);
            let Some(likely) = known.or_else(|| self.mean(index)) else {
                return false;
            };
            let least = own(took - float(run.unsure)).max(0.0);
            self.count(run, likely.clamp(least, took).min(float(run.alone)));
            return true;
        }
        if self.shapes.len() >= MOST && !self.shapes.contains_key(&run.key) {
            self.shapes.clear();
        }
        let known = self.shapes.entry(run.key).or_insert(Known {
            mean: None,
            least: took,
        });
        let cost = if is_shared {
            let step = if took < known.least { DOWN } else { UP };
            known.least += (took.min(2.0 * known.least) - known.least) * step;
            // The mean may be that of times with other processes' work, of which was not known yet.
            let is_less = |mean: &&mut f64| took < **mean;
            if let Some(mean) = known.mean.as_mut().filter(is_less) {
                *mean += (took - *mean) * NEXT;
            }
            known.mean.unwrap_or(known.least).max(own(took)).min(took)
        } else {
            let mean = known.mean.get_or_insert(took);
            *mean += (took - *mean) * NEXT;
            took
        };
        if !is_shared {
            (self.took, self.alone) = (self.took + took, self.alone + float(run.alone));
        }
        let nsec = if is_shared {
            cost * self.part()
        } else {
            float(run.alone)
        };
        self.count(run, nsec);
        let kind = &mut self.kinds[index];
        (kind.count, kind.nsec) = (kind.count + 1.0, kind.nsec + cost);
        if kind.count > RECENT {
            self.kinds.iter_mut().for_each(|kind| {
                (kind.count, kind.nsec) = (kind.count / 2.0, kind.nsec / 2.0);
            });
            (self.took, self.alone) = (self.took / 2.0, self.alone / 2.0);
        }
        true
    }

    /// Counts a sample of which nothing could be learned as what its shape costs, or else as its whole time.
    pub(super) fn count_whole(&mut self, run: &Run) {
        self.count(run, float(self.of(run.what, run.key).unwrap_or(run.took)));
    }

    /// Counts a sample that took `nsec`.
    fn count(&mut self, run: &Run, nsec: f64) {
        match run.charge {
            Charge::Looks => {
                self.nsec += nsec;
                self.counted[run.what as usize] = self.counted[run.what as usize].wrapping_add(1);
            }
            Charge::Known(charged) | Charge::Unknown(charged) => {
                self.charged.count += 1;
                self.charged.nsec += float(charged);
                self.charged.more += (nsec - float(charged)).max(0.0);
                self.charged.less += (nsec - float(charged)).min(0.0);
            }
        }
    }

    /// Returns the part of the time of submissions that remains if simultaneous ones are counted once.
    fn part(&self) -> f64 {
        if self.took > 0.0 {
            self.alone / self.took
        } else {
            1.0
        }
    }

    /// Returns the mean cost of a kind of submission, nanoseconds.
    pub(super) fn mean(&self, what: usize) -> Option<f64> {
        let kind = self.kinds.get(what).filter(|kind| kind.count > 0.0)?;
        Some(kind.nsec / kind.count * self.part())
    }

    /// Returns the cost of a submission, nanoseconds: that of its shape, or the mean of its kind if it has no
    /// shape. `None` if no such one was sampled, or a long one only beside other processes' work.
    pub(super) fn of(&self, what: Submission, key: u64) -> Option<u64> {
        let cost = match (key, self.shapes.get(&key)) {
            (0, _) => self.mean(what as usize),
            (_, None) => None,
            (_, Some(Known { mean: None, least })) if *least >= LONG => None,
            (_, Some(known)) => Some(known.mean.unwrap_or(known.least) * self.part()),
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it saturates"
        )]
        cost.map(|nsec| nsec as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(took: u64, alone: u64) -> Run {
        Run {
            what: Submission::Kernel,
            key: 3,
            took,
            alone,
            unsure: 0,
            is_apart: true,
            charge: Charge::Looks,
        }
    }

    #[test]
    fn sample_that_is_mostly_unsure_counts_as_what_its_shape_costs() {
        let mut costs = Costs::default();
        let sure = run(1000, 1000);
        let unsure = |unsure| Run {
            unsure,
            ..run(100_000, 100_000)
        };
        costs.learn(&unsure(99_900), 0);
        assert_eq!((costs.of(Submission::Kernel, 3), costs.counted), (None, [0; 3]));
        costs.learn(&sure, 0);
        costs.learn(&unsure(99_900), 0);
        assert_eq!(costs.nsec, 2000.0);
        costs.learn(&unsure(50_000), 0);
        assert_eq!(costs.nsec, 52_000.0);
        costs.learn(&unsure(50_000), 1);
        assert_eq!(costs.nsec, 53_000.0, "the rest may be another process's slice");
        let other = Run {
            key: 4,
            ..unsure(50_000)
        };
        costs.learn(&other, 0);
        assert_eq!(costs.nsec, 103_000.0, "more than the mean of all kernels");
        assert_eq!(costs.of(Submission::Kernel, 3), Some(1000));
        assert_eq!(costs.counted, [5, 0, 0]);
    }

    #[test]
    fn simultaneous_submissions_cost_less_than_their_sum() {
        let mut costs = Costs::default();
        assert_eq!(costs.of(Submission::Kernel, 3), None);
        for _ in 0..1000 {
            costs.learn(&run(1000, 1000), 0);
            costs.learn(&run(1000, 0), 0);
        }
        for key in [3, 0] {
            let cost = costs.of(Submission::Kernel, key).unwrap();
            assert!((490..=510).contains(&cost), "{key}: {cost}");
        }
        assert_eq!(costs.of(Submission::Kernel, 4), None, "it may be longer");
        assert_eq!(costs.of(Submission::Graph, 0), None);
        assert_eq!((costs.counted, costs.nsec), ([2000, 0, 0], 1e6));
    }

    #[test]
    fn time_of_other_processes_does_not_raise_costs() {
        let mut costs = Costs::default();
        for _ in 0..100 {
            costs.learn(&run(9000, 9000), 1);
            costs.learn(&run(1000, 1000), 1);
        }
        let cost = costs.of(Submission::Kernel, 3).unwrap();
        assert!((1000..1300).contains(&cost), "{cost}");
        costs.learn(&run(1500, 1500), 0);
        costs.learn(&run(9000, 9000), 1);
        assert_eq!(costs.of(Submission::Kernel, 3), Some(1500));
    }

    #[test]
    fn long_submission_beside_others_has_no_cost_until_it_runs_alone() {
        let mut costs = Costs::default();
        costs.learn(&run(9_000_000, 9_000_000), 1);
        assert_eq!(costs.of(Submission::Kernel, 3), None);
        costs.learn(&run(5_000_000, 5_000_000), 0);
        assert_eq!(costs.of(Submission::Kernel, 3), Some(5_000_000));
    }

    #[test]
    fn submission_longer_than_its_shape_and_others_slices_costs_its_part() {
        let mut costs = Costs::default();
        costs.learn(&run(1000, 1000), 0);
        costs.learn(&run(3_000_000, 3_000_000), 1);
        assert_eq!(costs.nsec, 2000.0, "it may have waited for the other process");
        costs.learn(&run(204_000_000, 204_000_000), 1);
        assert_eq!(costs.nsec, 100_002_000.0);
    }
}
