//! The GPU time of all submissions to a device, from their number and the costs of those that were sampled.
//!
//! A sampled submission counts as what it took, every other one as the mean of its kind. Where a long kernel
//! is seen to run, time counts in which its marker has not passed; the excess is subtracted from later work
//! if all that has ended turns out to be sampled. Until there is a mean, all time counts in which there may
//! have been work; the excess is subtracted too.

use gcgroup_abi::Submission;

use super::costs::{Charged, Costs};

/// Result of a look at the device.
#[derive(Debug, Clone, Copy)]
pub(in crate::compute) struct Seen {
    /// Number of samples that have not been evaluated. Read before `entered`.
    pub sampling: usize,
    /// Submissions so far that are charged here, by kind; wraps.
    pub entered: [u64; Submission::COUNT],
    /// Submissions so far that their threads have charged, by kind, and the nanoseconds; both wrap.
    pub charged: ([u64; Submission::COUNT], u64),
    /// Nanoseconds since the last look.
    pub passed: u64,
    pub progress: Progress,
    /// Whether other processes had work on the device.
    pub is_shared: bool,
}

impl Seen {
    /// Returns the number of submissions that threads have charged, without copies, and the nanoseconds.
    fn all_charged(&self) -> (u64, u64) {
        let counts = KINDS.map(|kind| self.charged.0[kind as usize]);
        (counts.into_iter().fold(0, u64::wrapping_add), self.charged.1)
    }
}

/// Progress of the work on a device since the last look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::compute) enum Progress {
    /// Work that was submitted before the last look has not ended yet.
    None,
    /// Not seen: no markers had been set.
    Unseen,
    /// Some has ended: markers have passed.
    Some,
    /// All submissions that are charged here have ended.
    Idle,
}

/// Kinds whose time is counted: copies do not use the processors of the GPU.
const KINDS: [Submission; 2] = [Submission::Kernel, Submission::Graph];

#[derive(Debug, Default)]
pub(super) struct Estimate {
    /// Submissions and samples that are accounted for, by kind, and the samples' time, nanoseconds.
    entered: [u64; Submission::COUNT],
    counted: [u64; Submission::COUNT],
    nsec: f64,
    /// Submissions less samples since all work had last ended, by kind.
    unsampled: [i64; Submission::COUNT],
    /// Submissions that their threads have charged, and samples of them, that are accounted for.
    charged: (u64, u64),
    evaluated: Charged,
    /// Submissions less samples of them since all work had last ended, and what they were charged.
    open: i64,
    open_nsec: f64,
    /// GPU time of the submissions, the part of it that has surely passed, and what has been published,
    /// nanoseconds.
    all: f64,
    ended: f64,
    published: f64,
    /// Whether some submissions have no price yet: `ended` has all time in which they may have run. Of that,
    /// the time in which some were seen to run while the process was alone on the device, and the number of
    /// those that have ended, by kind.
    is_open: bool,
    seen_alone: f64,
    unpriced: [i64; Submission::COUNT],
    /// Whether submissions are accounted for, and whether some from before that may be in flight.
    counts: bool,
    has_earlier: bool,
}

impl Estimate {
    /// Returns the nanoseconds to add to the published GPU time.
    pub(super) fn advance(&mut self, seen: &Seen, costs: &Costs) -> i64 {
        let begins = !std::mem::replace(&mut self.counts, true);
        if begins {
            self.has_earlier = seen.entered != self.entered;
            (self.entered, self.counted, self.nsec) = (seen.entered, costs.counted, costs.nsec);
            (self.charged, self.evaluated) = (seen.all_charged(), costs.charged);
        }
        let (before, counted, evaluated) = (self.all, self.counted, self.evaluated.count);
        let (mut is_priced, mut late, mut unsampled) = (true, 0.0, 0.0);
        for index in KINDS.map(|kind| kind as usize) {
            let new = seen.entered[index]
                .wrapping_sub(self.entered[index])
                .cast_signed();
            let sampled = costs.counted[index]
                .wrapping_sub(self.counted[index])
                .cast_signed();
            match costs.mean(index) {
                #[allow(clippy::cast_precision_loss, reason = "numbers of submissions")]
                Some(mean) => {
                    self.unsampled[index] += new - sampled;
                    unsampled += self.unsampled[index] as f64 * mean;
                    self.all += (new - sampled) as f64 * mean;
                    late += std::mem::take(&mut self.unpriced[index]).max(0) as f64 * mean;
                }
                None => {
                    // Less than before if launches became part of a graph.
                    is_priced &= self.unpriced[index] + new <= 0;
                    continue;
                }
            }
            (self.entered[index], self.counted[index]) = (seen.entered[index], costs.counted[index]);
        }
        #[allow(clippy::cast_precision_loss, reason = "nanoseconds of less than a day")]
        let passed = seen.passed as f64;
        if std::mem::replace(&mut self.is_open, !is_priced) && is_priced {
            self.all += late.min((self.ended - before).max(0.0));
            self.ended = before + std::mem::take(&mut self.seen_alone);
        }
        self.all += costs.nsec - std::mem::replace(&mut self.nsec, costs.nsec);
        let less = self.take_charged(seen, &costs.charged);
        // What has ended is known exactly if all other submissions are samples that have not.
        let nr_unsampled = self.unsampled.iter().sum::<i64>() + self.open;
        let is_exact = is_priced && !self.has_earlier && usize::try_from(nr_unsampled) == Ok(seen.sampling);
        let has_learned = nr_unsampled == 0 || counted != self.counted || evaluated != self.evaluated.count;
        match seen.progress {
            _ if is_exact && has_learned => self.ended = self.all - unsampled - self.open_nsec,
            // Earlier work runs: alone, or in front of what is accounted for.
            Progress::None if self.has_earlier && (!seen.is_shared || is_priced && nr_unsampled <= 0) => {
                (self.all, self.ended) = (self.all + passed, self.ended + passed);
            }
            Progress::None if self.has_earlier || !(is_priced && seen.is_shared) => {
                self.ended += passed;
                if !is_priced && !seen.is_shared {
                    self.seen_alone += passed;
                }
            }
            Progress::None => {}
            Progress::Unseen | Progress::Some if is_priced => self.ended = self.ended.max(before),
            Progress::Unseen | Progress::Some => self.ended = self.ended.max(before) + passed,
            Progress::Idle if is_priced => {
                self.all = self.all.max(self.ended);
                (self.ended, self.entered) = (self.all, seen.entered);
            }
            Progress::Idle => {
                for (count, (new, old)) in self
                    .unpriced
                    .iter_mut()
                    .zip(seen.entered.iter().zip(self.entered))
                {
                    *count = (*count + new.wrapping_sub(old).cast_signed()).max(0);
                }
                (self.ended, self.entered) = (self.ended.max(self.all), seen.entered);
            }
        }
        // Markers that were set since counting began have passed.
        self.has_earlier &= begins || matches!(seen.progress, Progress::None | Progress::Unseen);
        if seen.progress == Progress::Idle {
            (self.unsampled, self.open, self.open_nsec) = Default::default();
        }
        let total = self.all.max(self.ended);
        let more = ((total - self.published).max(0.0) + less).trunc();
        self.published += more - less;
        #[allow(clippy::cast_possible_truncation, reason = "nanoseconds of less than a day")]
        let more = more as i64;
        more
    }

    /// Accounts for what threads have charged themselves, which is published, and for the samples of that.
    /// Returns what these show to have been too much, at most 0: it is subtracted at once, since the daemon
    /// has not charged more than the time for which there was work.
    #[allow(clippy::cast_precision_loss, reason = "nanoseconds of less than a day")]
    fn take_charged(&mut self, seen: &Seen, evaluated: &Charged) -> f64 {
        let last = std::mem::replace(&mut self.evaluated, *evaluated);
        let before = std::mem::replace(&mut self.charged, seen.all_charged());
        let count = self.charged.0.wrapping_sub(before.0).cast_signed();
        let nsec = self.charged.1.wrapping_sub(before.1) as f64;
        let less = evaluated.less - last.less;
        self.all += nsec + less + evaluated.more - last.more;
        self.published += nsec + less;
        self.open += count - evaluated.count.wrapping_sub(last.count).cast_signed();
        self.open_nsec += nsec - (evaluated.nsec - last.nsec);
        less
    }

    /// Leaves out submissions until the next [`Self::advance`].
    pub(super) fn pause(&mut self) {
        self.counts = false;
    }
}

#[cfg(test)]
mod tests;
