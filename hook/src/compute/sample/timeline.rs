//! The times of samples on the GPU's clock: for how long the GPU ran at least one of them.

use gcgroup_abi::Submission;
use hashbrown::HashMap;

use super::{LONGEST, Record};
use crate::program::context::Moment;
use crate::program::slot::Charge;

/// Nanoseconds by which a stream's next moment must be later than its last work for the stream to have been
/// idle.
const IDLE: i64 = 1_000;
/// Part of the host's time by which the GPU's clock may be slower.
const DRIFT: i64 = 20_000;
/// Age of the base of times at which it is replaced, nanoseconds: the driver tells times as `float`.
const OLD: i64 = 1_000_000_000;
/// Samples after submissions without samples of which the first may be left out, to find a time at which the
/// GPU was idle.
const SEARCHED: u32 = 8;

/// A sampled submission that has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub what: Submission,
    pub key: u64,
    /// Nanoseconds for which it ran.
    pub took: u64,
    /// The part of it in which no earlier sample ran.
    pub alone: u64,
    /// The part of it in which it may not have run.
    pub unsure: u64,
    /// Whether no submission that was not sampled can have run at the same time.
    pub is_apart: bool,
    pub charge: Charge,
}

/// Times of samples, nanoseconds since a base.
#[derive(Debug, Default)]
struct Line {
    /// The last end of any sample.
    covered: i64,
    covered_epoch: u32,
    /// Samples that may still be left out: they overlap with work that was not sampled.
    searched: u32,
    /// End and delay of the last sample of each stream, if all of its work since was sampled.
    streams: HashMap<usize, [i64; 2]>,
    /// The last end of any sample, and by how much sampling has delayed submissions since the GPU was idle.
    last: i64,
    delay: i64,
    epoch: u32,
    /// Least time from the submission of a start moment to its time on the GPU, and the last submission.
    lag: Option<(i64, i64)>,
}

/// Times of a sample on the host's clock, nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Host {
    pub stream: usize,
    /// When the start moment was submitted.
    pub submitted: i64,
    /// From the start moment's submission to that of the work.
    pub gap: u64,
    /// Time of the thread that the sample took before and after the driver call.
    pub before: u64,
    pub after: u64,
    /// Changes when a submission in between was not sampled.
    pub epoch: u32,
}

/// Samples of one context.
#[derive(Debug)]
struct Timeline {
    base: Moment,
    line: Line,
}

/// Timelines by the number of their context.
#[derive(Debug, Default)]
pub(super) struct Timelines(HashMap<u32, Timeline>);

impl Timelines {
    /// Returns when the GPU ran these submissions of a context, which have ended. Call with the context kept
    /// from being destroyed.
    pub(super) fn runs(&mut self, context: u32, records: Vec<Record>) -> Vec<Run> {
        let mut known = self.0.remove(&context);
        let mut timed = Vec::with_capacity(records.len());
        for record in records {
            let Record { start, end, .. } = &record;
            let times = match &known {
                Some(Timeline { base, .. }) => start.since(base).zip(end.since(base)),
                None => end.since(start).map(|took| (-took, 0)),
            };
            let Some((start, end)) = times else {
                // The driver does not tell: the base may be gone.
                known = None;
                continue;
            };
            let Timeline { line, .. } = known.get_or_insert_with(|| Timeline {
                base: record.end,
                line: Line {
                    covered: i64::MIN,
                    ..Line::default()
                },
            });
            let (times, unsure) = line.place([start, end], record.host);
            let run = Run {
                what: record.what,
                key: record.key,
                took: 0,
                alone: 0,
                unsure,
                is_apart: false,
                charge: record.charge,
            };
            timed.push((times, record.host.epoch, run));
        }
        let Some(mut known) = known else {
            return Vec::new();
        };
        timed.sort_by_key(|(times, ..)| times[0]);
        let runs = timed.into_iter().map(|(times, epoch, run)| {
            let (took, alone) = known.line.cover(times, epoch);
            Run {
                took,
                alone: alone.unwrap_or(took),
                unsure: run.unsure.min(took),
                is_apart: alone.is_some(),
                ..run
            }
        });
        let runs = runs.collect();
        if known.line.covered < OLD {
            self.0.insert(context, known);
        }
        runs
    }
}

impl Line {
    /// Returns when a submission ran that lies between these two moments of its stream, as if nothing had
    /// been sampled. If the stream was idle, the GPU has waited for the work's submission, unless it reached
    /// the start moment late, because of another process's work. Also returns in how many nanoseconds of that
    /// it may not have run: a long gap, in which the thread did not run or the driver loaded the function
    /// first, or a long time until the end moment. Records are given in the order of their submission.
    fn place(&mut self, [start, end]: [i64; 2], host: Host) -> ([i64; 2], u64) {
        if self.epoch != host.epoch {
            self.streams.clear();
            self.epoch = host.epoch;
        }
        self.delay = match start > self.last.saturating_add(IDLE) {
            true => 0,
            false => self.delay.saturating_add_unsigned(host.before),
        };
        self.last = self.last.max(end);
        let gap = i64::try_from(host.gap).unwrap_or(0) - self.late(start, host.submitted);
        let long = |nsec: u64| if nsec > LONGEST { nsec } else { 0 };
        let (began, delay, waited) = match self.streams.get(&host.stream) {
            Some([before, delay]) if start <= before + IDLE => (start.max(*before), *delay, 0),
            Some(_) if host.gap <= LONGEST => (start + gap.max(0), self.delay, 0),
            _ => (start, self.delay, long(host.gap)),
        };
        self.streams.insert(host.stream, [end, delay]);
        self.delay = self.delay.saturating_add_unsigned(host.after.min(LONGEST));
        let unsure = waited + long(host.after);
        ([began.min(end), end].map(|time| time - delay), unsure)
    }

    /// Returns how many nanoseconds later than usual the GPU reached a start moment.
    fn late(&mut self, start: i64, submitted: i64) -> i64 {
        let lag = start.saturating_sub(submitted);
        let least = match self.lag {
            Some((least, last)) => lag.min(least + submitted.saturating_sub(last).max(0) / DRIFT),
            None => lag,
        };
        self.lag = Some((least, submitted));
        lag - least
    }

    /// Returns for how long a submission ran, and for how long of that no earlier one did; `None` if it may
    /// have overlapped with work that was not sampled. Submissions are given in the order of their starts.
    fn cover(&mut self, [start, end]: [i64; 2], epoch: u32) -> (u64, Option<u64>) {
        if self.covered_epoch != epoch {
            (self.covered_epoch, self.searched, self.covered) = (epoch, SEARCHED, i64::MAX);
        }
        let is_after_gap = start > self.covered.saturating_add(IDLE);
        let counts = is_after_gap || self.searched == 0;
        let [took, alone] =
            [start, start.max(self.covered.min(end))].map(|from| u64::try_from(end - from).unwrap_or(0));
        self.covered = match self.covered {
            i64::MAX => end,
            covered => covered.max(end),
        };
        self.searched = if counts { 0 } else { self.searched - 1 };
        (took, counts.then_some(alone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSEC: i64 = 1_000_000;

    /// Returns the times of a submission whose start moment was submitted at `submitted`.
    fn host(stream: usize, epoch: u32, submitted: i64) -> Host {
        Host {
            stream,
            submitted,
            gap: 4_000,
            before: 1_000,
            after: 2_000,
            epoch,
        }
    }

    #[test]
    fn idle_stream_does_not_run_while_the_host_submits() {
        let mut line = Line::default();
        let mut place = |start, end, epoch| line.place([start, end], host(7, epoch, start)).0;
        assert_eq!(
            place(5_000, 10_000, 1),
            [5_000, 10_000],
            "nothing is known before"
        );
        assert_eq!(place(10_000, 20_000, 1), [10_000, 20_000]);
        assert_eq!(place(50_000, 64_000, 1), [54_000, 64_000]);
        assert_eq!(place(90_000, 92_000, 1), [92_000, 92_000]);
        assert_eq!(place(200_000, 210_000, 2), [200_000, 210_000]);
    }

    #[test]
    fn long_gap_may_be_time_in_which_an_idle_stream_did_not_run() {
        let mut line = Line::default();
        let mut place = |start, gap, after| {
            let host = Host {
                gap,
                after,
                ..host(7, 0, start)
            };
            line.place([start, start + 10_000], host).1
        };
        assert_eq!(place(0, 30_000, 0), 30_000);
        assert_eq!(place(50_000, 4_000, 0), 0);
        assert_eq!(place(60_000, 3_000_000, 0), 0, "the stream was busy");
        assert_eq!(place(5 * MSEC, 3_000_000, 90_000), 3_090_000);
    }

    #[test]
    fn work_that_waits_for_another_process_runs_from_its_start_moment() {
        let mut line = Line::default();
        let mut place = |start, end, late| line.place([start, end], host(7, 1, 300 + start - late)).0;
        place(0, 10_000, 0);
        assert_eq!(place(50_000, 64_000, 0), [54_000, 64_000]);
        assert_eq!(
            place(90_000, 99_000, 3_000),
            [91_001, 99_000],
            "submitted 1 us later, less drift"
        );
        assert_eq!(place(150_000, 159_000, 50_000), [150_000, 159_000]);
    }

    #[test]
    fn streams_run_as_if_nothing_delayed_their_submissions() {
        let mut line = Line::default();
        let mut place = |start, end, stream| line.place([start, end], host(stream, 0, start)).0;
        place(5_000, 6_000, 1);
        place(5_500, 7_000, 2);
        assert_eq!(place(50_000, 100_000, 1), [54_000, 100_000]);
        assert_eq!(place(57_000, 107_000, 2), [58_000, 104_000]);
        assert_eq!(
            place(107_000, 120_000, 2),
            [104_000, 117_000],
            "behind the one before"
        );
    }

    #[test]
    fn overlapping_runs_are_counted_once_from_an_idle_time_on() {
        let mut line = Line::default();
        let mut cover = |start, end, epoch| line.cover([start * MSEC, end * MSEC], epoch);
        let msec = |took: u64, alone: u64| (took * 1_000_000, Some(alone * 1_000_000));
        let unsure = |took: u64| (took * 1_000_000, None);
        assert_eq!(cover(0, 5, 1), unsure(5), "something else may have run");
        assert_eq!(cover(4, 6, 1), unsure(2));
        assert_eq!(cover(8, 10, 1), msec(2, 2));
        assert_eq!(cover(9, 12, 1), msec(3, 2));
        assert_eq!(cover(9, 11, 1), msec(2, 0));
        assert_eq!(cover(20, 21, 2), unsure(1), "not all was sampled");
        for at in 0..i64::from(SEARCHED) - 1 {
            assert_eq!(cover(21 + at, 22 + at, 2), unsure(1));
        }
        assert_eq!(cover(28, 29, 2), msec(1, 1), "never idle");
    }
}
