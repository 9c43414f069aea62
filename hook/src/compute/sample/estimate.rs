//! The GPU time of all submissions to a device, from their number and the costs of those that were sampled.
//!
//! A sampled submission counts as what it took, every other one as the mean of its kind. Until there is a
//! mean, and where a long kernel is seen to run, time counts in which the device surely had work.

use gcgroup_abi::Submission;

use super::costs::Costs;

/// Result of a look at the device.
#[derive(Debug, Clone, Copy)]
pub(in crate::compute) struct Seen {
    /// Submissions so far, by kind.
    pub entered: [u64; Submission::COUNT],
    /// Nanoseconds since the last look.
    pub passed: u64,
    pub progress: Progress,
    /// Whether other processes had work on the device.
    pub is_shared: bool,
}

/// Progress of the work on a device since the last look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::compute) enum Progress {
    /// Work that was submitted before the last look has not ended yet.
    None,
    /// Some has ended.
    Some,
    /// All has ended that was submitted before the last look.
    Idle,
    /// The time is accounted for elsewhere.
    Elsewhere,
}

/// Kinds whose time is counted: copies do not use the processors of the GPU.
const KINDS: [Submission; 2] = [Submission::Kernel, Submission::Graph];

#[derive(Debug, Default)]
pub(super) struct Estimate {
    /// Submissions and samples that are accounted for, by kind, and the samples' time, nanoseconds.
    entered: [u64; Submission::COUNT],
    counted: [u64; Submission::COUNT],
    nsec: f64,
    /// GPU time of the submissions, the part of it that has surely passed, and what has been published,
    /// nanoseconds.
    all: f64,
    ended: f64,
    published: f64,
}

impl Estimate {
    /// Returns the nanoseconds to add to the published GPU time.
    pub(super) fn advance(&mut self, seen: &Seen, costs: &Costs) -> u64 {
        let before = self.all;
        let mut is_priced = true;
        for index in KINDS.map(|kind| kind as usize) {
            let new = seen.entered[index]
                .wrapping_sub(self.entered[index])
                .cast_signed();
            let sampled = costs.counted[index]
                .wrapping_sub(self.counted[index])
                .cast_signed();
            match costs.mean(index) {
                #[allow(clippy::cast_precision_loss, reason = "a number of submissions")]
                Some(mean) => self.all += (new - sampled) as f64 * mean,
                None => {
                    is_priced &= new == 0;
                    continue;
                }
            }
            (self.entered[index], self.counted[index]) = (seen.entered[index], costs.counted[index]);
        }
        self.all += costs.nsec - std::mem::replace(&mut self.nsec, costs.nsec);
        match seen.progress {
            Progress::Elsewhere => {
                self.entered = seen.entered;
                (self.ended, self.published) = (self.all, self.all);
                return 0;
            }
            #[allow(clippy::cast_precision_loss, reason = "nanoseconds of less than a day")]
            Progress::None if !(is_priced && seen.is_shared) => self.ended += seen.passed as f64,
            Progress::None => {}
            Progress::Some if is_priced => self.ended = self.ended.max(before),
            #[allow(clippy::cast_precision_loss, reason = "nanoseconds of less than a day")]
            Progress::Some => self.ended = self.ended.max(before) + seen.passed as f64,
            Progress::Idle => {
                // What has been published for submissions without a price is taken for their time.
                self.all = self.all.max(self.ended);
                (self.ended, self.entered) = (self.all, seen.entered);
            }
        }
        let total = self.all.max(self.ended);
        let more = (total - self.published).max(0.0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "nanoseconds of less than a day"
        )]
        let more = more as u64;
        #[allow(clippy::cast_precision_loss, reason = "nanoseconds of less than a day")]
        let published = more as f64;
        self.published += published;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::Run;
    use super::*;

    fn seen(kernels: u64, passed: u64, progress: Progress) -> Seen {
        Seen {
            entered: [kernels, 0, 0],
            passed,
            progress,
            is_shared: false,
        }
    }

    fn learn(costs: &mut Costs, took: u64) {
        let run = Run {
            what: Submission::Kernel,
            key: 1,
            took,
            alone: took,
            unsure: 0,
        };
        costs.learn(&run, false);
    }

    #[test]
    fn sampled_submissions_count_exactly_and_others_as_the_mean() {
        let (mut estimate, mut costs) = (Estimate::default(), Costs::default());
        learn(&mut costs, 1000);
        assert_eq!(estimate.advance(&seen(1, 50, Progress::Some), &costs), 1000);
        assert_eq!(estimate.advance(&seen(11, 50, Progress::Some), &costs), 10_000);
        learn(&mut costs, 3000);
        assert_eq!(
            estimate.advance(&seen(11, 50, Progress::Idle), &costs),
            1000,
            "3000 in place of the new mean"
        );
    }

    #[test]
    fn time_counts_until_a_submission_has_been_sampled() {
        let (mut estimate, mut costs) = (Estimate::default(), Costs::default());
        assert_eq!(estimate.advance(&seen(1, 700, Progress::None), &costs), 700);
        assert_eq!(estimate.advance(&seen(1, 300, Progress::None), &costs), 300);
        assert_eq!(estimate.advance(&seen(1, 100, Progress::Idle), &costs), 0);
        learn(&mut costs, 5000);
        assert_eq!(estimate.advance(&seen(2, 10, Progress::Some), &costs), 5000);
    }

    #[test]
    fn long_submission_counts_while_it_runs_beyond_its_price() {
        let (mut estimate, mut costs) = (Estimate::default(), Costs::default());
        learn(&mut costs, 1000);
        estimate.advance(&seen(1, 0, Progress::Idle), &costs);
        assert_eq!(estimate.advance(&seen(2, 900, Progress::None), &costs), 1000);
        assert_eq!(estimate.advance(&seen(2, 900, Progress::None), &costs), 800);
        let shared = Seen {
            is_shared: true,
            ..seen(2, 900, Progress::None)
        };
        assert_eq!(estimate.advance(&shared, &costs), 0, "others may run");
    }

    #[test]
    fn time_accounted_for_elsewhere_is_not_published() {
        let (mut estimate, mut costs) = (Estimate::default(), Costs::default());
        learn(&mut costs, 1000);
        assert_eq!(estimate.advance(&seen(8, 900, Progress::Elsewhere), &costs), 0);
        assert_eq!(estimate.advance(&seen(9, 900, Progress::Some), &costs), 1000);
    }
}
