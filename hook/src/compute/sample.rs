//! Samples of GPU time: a kernel or graph launch is enclosed by two moments, the times of which the GPU
//! tells.
//!
//! Only submissions on the slow path are sampled, and no more than [`PART`] of a thread's time is spent on
//! that. `estimate` makes from the samples what all submissions cost.

mod costs;
mod estimate;
mod timeline;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use gcgroup_abi::{Submission, UNKNOWN_COST};
use parking_lot::Mutex;

use crate::program::Program;
use crate::program::context::{Context, Moment};
use crate::program::slot::{Bound, Charge, Sample};
use crate::program::window::Shape;
use crate::sys;
use costs::Costs;
use estimate::Estimate;
pub(super) use estimate::{Progress, Seen};
use timeline::{Host, Timelines};

/// One part of this many of the time may be spent on samples, and how much of it in advance, nanoseconds of
/// that time: a program that launches now and then has each launch sampled.
const PART: u64 = 100;
const AHEAD: u64 = 200_000_000;
/// Longest time that a moment is taken to cost, nanoseconds: more is time that the thread did not run.
const LONGEST: u64 = 20_000;
/// Most samples that wait for the GPU.
const MOST: usize = 1024;

/// A sampled submission.
#[derive(Debug)]
struct Record {
    start: Moment,
    end: Moment,
    what: Submission,
    key: u64,
    host: Host,
    charge: Charge,
}

/// The samples of one device.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// When the samples so far are paid for, at one [`PART`] of the time (generic cell rate algorithm, ITU-T
    /// I.371), nanoseconds.
    due: AtomicU64,
    epoch: AtomicU32,
    /// Whether submissions are sampled until the next look.
    is_on: AtomicBool,
    /// Submissions that their threads have charged, by kind, and the nanoseconds, without [`UNKNOWN_COST`].
    charged: [AtomicU64; Submission::COUNT],
    charged_nsec: AtomicU64,
    unknown: Mutex<Unknown>,
    pending: Mutex<VecDeque<Record>>,
    /// Used by the helper alone, which calls the driver meanwhile.
    timelines: Mutex<Timelines>,
    results: Mutex<Results>,
}

/// Submissions for which [`UNKNOWN_COST`] is published.
#[derive(Debug, Default)]
struct Unknown {
    /// Number of those that are not corrected, and when the first of them was made or, if that was later, the
    /// ones before were corrected, nanoseconds.
    count: u64,
    since: u64,
    /// Number of all.
    noted: u64,
}

impl Unknown {
    /// Counts one as corrected; returns whether there was one to correct.
    fn correct(&mut self) -> bool {
        let has_one = self.count > 0;
        self.count -= u64::from(has_one);
        has_one
    }
}

/// Costs learned from the samples, and the GPU time estimated with them.
#[derive(Debug, Default)]
struct Results {
    costs: Costs,
    estimate: Estimate,
}

impl Sampler {
    pub(crate) fn new() -> Self {
        Self {
            is_on: AtomicBool::new(true),
            ..Self::default()
        }
    }

    /// Decides at a look whether submissions are sampled until the next one: if there is time for it. A
    /// decision at each submission would prefer those that follow a long one.
    pub(super) fn decide(&self, now: u64) -> bool {
        let is_on = self.due.load(Relaxed) < now + AHEAD;
        self.is_on.store(is_on, Relaxed);
        is_on
    }

    /// Records that submissions pass, or have passed, without being sampled.
    pub(super) fn skip(&self) {
        self.epoch.fetch_add(1, Relaxed);
    }

    /// Records that the calling thread charges its submission as `nsec` nanoseconds.
    pub(super) fn note_charged(&self, what: Submission, nsec: u64) {
        self.charged_nsec.fetch_add(nsec, Relaxed);
        if let Some(count) = self.charged.get(what as usize) {
            count.fetch_add(1, Release);
        }
    }

    /// Records that [`UNKNOWN_COST`] has been published for a submission made at `now`.
    pub(super) fn note_unknown(&self, now: u64) {
        let unknown = &mut *self.unknown.lock();
        if unknown.count == 0 {
            // Time up to the last correction has been charged.
            unknown.since = unknown.since.max(now);
        }
        (unknown.count, unknown.noted) = (unknown.count + 1, unknown.noted + 1);
    }

    /// Returns how often a submission of unknown cost has been noted.
    pub(super) fn nr_noted(&self) -> u64 {
        self.unknown.lock().noted
    }

    /// Returns the nanoseconds published in excess for submissions of unknown cost, all of which have ended.
    pub(super) fn end_unknown(&self) -> u64 {
        let unknown = &mut *self.unknown.lock();
        if unknown.count == 0 {
            return 0;
        }
        let now = sys::now();
        let passed = now.saturating_sub(std::mem::replace(&mut unknown.since, now));
        (std::mem::take(&mut unknown.count) * UNKNOWN_COST).saturating_sub(passed)
    }

    /// Begins a sample of the submission that the calling thread is about to make. Not to be called while any
    /// stream of the process is being captured.
    #[expect(clippy::too_many_arguments, reason = "one submission")]
    pub(super) fn begin(
        &self,
        program: &Program,
        bound: Bound<'_>,
        shape: Shape,
        stream: usize,
        charge: Charge,
    ) {
        let now = sys::now();
        let has_room = self.pending.lock().len() < MOST;
        let start = (has_room && self.is_on.load(Relaxed))
            .then(|| program.contexts.numbered(bound.context())?.moment(stream))
            .flatten();
        let Some(start) = start else {
            return self.skip();
        };
        let submitted = sys::now();
        *bound.state.sample.lock() = Some(Sample {
            start,
            shape,
            stream,
            submitted,
            cost: submitted - now,
            charge,
        });
    }

    /// Ends the thread's sample when the driver has returned.
    pub(super) fn end(&self, bound: Bound<'_>, is_refused: bool) {
        let Some(sample) = bound.state.sample.lock().take() else {
            return;
        };
        let now = sys::now();
        let end = match is_refused {
            true => None,
            false => sample.start.context().moment(sample.stream),
        };
        let late = sys::now() - now;
        let cost = sample.cost + late;
        let paid = self.due.load(Relaxed).max(now) + cost.min(LONGEST) * PART;
        self.due.store(paid, Relaxed);
        let Some(end) = end else {
            return self.skip();
        };
        self.pending.lock().push_back(Record {
            start: sample.start,
            end,
            what: sample.shape.what,
            key: sample.shape.key(),
            host: Host {
                stream: sample.stream,
                submitted: sample.submitted.cast_signed(),
                gap: now - sample.submitted,
                before: sample.cost.min(LONGEST),
                after: late,
                epoch: self.epoch.load(Relaxed),
            },
            charge: sample.charge,
        });
    }

    /// Evaluates the samples that have ended, up to the first that has not, and returns the nanoseconds that
    /// were published in excess for those whose cost was unknown. `nr_others`: number of processes that had
    /// work on the device too. Called in the helper, which may call the driver.
    pub(super) fn settle(&self, nr_others: u32) -> u64 {
        let mut excess = 0;
        loop {
            let Some(context) = self
                .pending
                .lock()
                .front()
                .map(|first| Arc::clone(first.start.context()))
            else {
                return excess;
            };
            let ended = context.with_current(|| self.take_ended(&context));
            let Some(ended) = ended else {
                // Its events are gone with it.
                let mut pending = self.pending.lock();
                pending.retain(|record| record.start.context().id() != context.id());
                continue;
            };
            if ended.is_empty() {
                return excess;
            }
            let runs = context.with_current(|| self.timelines.lock().runs(context.id(), ended));
            let costs = &mut self.results.lock().costs;
            for run in runs.iter().flatten() {
                let counts = costs.learn(run, nr_others);
                if matches!(run.charge, Charge::Unknown(_)) && self.unknown.lock().correct() {
                    excess += UNKNOWN_COST;
                    if !counts {
                        costs.count_whole(run);
                    }
                }
            }
        }
    }

    /// Returns the number of samples that are not evaluated, and how many submissions the threads have
    /// charged, by kind, with their nanoseconds.
    pub(super) fn nr_pending(&self) -> (usize, [u64; Submission::COUNT], u64) {
        let sampling = self.pending.lock().len();
        let charged = self.charged.each_ref().map(|count| count.load(Acquire));
        (sampling, charged, self.charged_nsec.load(Relaxed))
    }

    /// Removes and returns the first records, all of this context, that have ended.
    fn take_ended(&self, context: &Context) -> Vec<Record> {
        let mut ended = Vec::new();
        loop {
            let is_next = |record: &mut Record| record.start.context().id() == context.id();
            let next = self.pending.lock().pop_front_if(is_next);
            match next {
                Some(record) if record.end.has_passed() => ended.push(record),
                Some(record) => {
                    self.pending.lock().push_front(record);
                    return ended;
                }
                None => return ended,
            }
        }
    }

    /// Returns the GPU time of a submission, nanoseconds, if samples have shown it.
    pub(super) fn cost(&self, shape: Shape) -> Option<u64> {
        match shape.what {
            Submission::Copy => Some(0),
            what => self.results.lock().costs.of(what, shape.key()),
        }
    }

    /// Returns the nanoseconds to add to the published GPU time of all submissions.
    pub(super) fn advance(&self, seen: &Seen) -> i64 {
        let results = &mut *self.results.lock();
        results.estimate.advance(seen, &results.costs)
    }

    /// Leaves out submissions until the next [`Self::advance`].
    pub(super) fn pause(&self) {
        self.results.lock().estimate.pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_cost_settled_while_it_is_noted_is_charged_for_its_time() {
        let (sampler, charged, is_over) = (Sampler::new(), AtomicU64::new(0), AtomicBool::new(false));
        let settle = || charged.fetch_sub(sampler.end_unknown(), Relaxed);
        let began = sys::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let before = settle();
                    assert!(
                        before.cast_signed() >= 0,
                        "{before}: more was subtracted than published"
                    );
                }
            });
            for _ in 0..20_000 {
                let now = sys::now();
                charged.fetch_add(UNKNOWN_COST, Relaxed);
                sampler.note_unknown(now);
            }
            is_over.store(true, Relaxed);
        });
        settle();
        let (charged, passed) = (charged.load(Relaxed), sys::now() - began);
        assert!(charged <= passed, "{charged} in {passed} ns");
    }
}
