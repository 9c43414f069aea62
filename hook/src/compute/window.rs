//! How much work a thread keeps queued while others may need the device: a window of GPU time, not a number of calls.
//!
//! The thread marks its streams every quarter of a window, and does not submit while what it has queued would, with the
//! new submission, take longer than the window (or, where a submission takes longer than that by itself, while more than
//! three quarters of a window are left of what is queued). So whoever is more important waits for a window or for one submission,
//! whichever is longer. How long a submission takes is learnt from when marks pass. Until the first of a sort has passed,
//! which may be as long as it likes, nothing is queued behind it. What ran while somebody else had the device has
//! shared it, and counts only if many in a row say the same (`costs`).

mod costs;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use gcgroup_abi::Submission;

use self::costs::{Costs, Load, Longest};
use super::context::{Context, Mark};

/// Where the end of one is waited for, it is looked for so much later than it is expected, rather than too early.
const LOOK: u64 = 20_000;
/// One that is late is looked for this often at least.
const LATE: u64 = 150_000;
/// A look this late after the last says little about when what it finds ended did end.
const FRESH: u64 = 150_000;

#[derive(Debug)]
struct Batch {
    mark: Mark,
    load: Load,
    /// When the first of it was submitted, and when it was marked.
    at: u64,
    marked_at: u64,
}

/// A thread's on one device.
#[derive(Debug)]
pub(super) struct Window {
    /// The context whose streams these are.
    context: u32,
    costs: Costs,
    longest: Longest,
    in_flight: VecDeque<Batch>,
    /// Streams with submissions since their last mark, and when the first of those was.
    unmarked: Vec<(usize, Load, u64)>,
    /// When the last batch that is known to have passed did so most likely, and at the latest: when that was seen.
    passed_at: u64,
    passed_by: u64,
    /// When it was last asked.
    looked_at: u64,
    /// Until when somebody else had the device last.
    disturbed_until: u64,
    /// Submissions that went on without a place since one had one.
    tried: u32,
}

/// What to do with a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// There is room for it.
    Free,
    /// There will be, if the submissions take what they mostly did, in so many nanoseconds; or it will be known better.
    Taken(u64),
}

impl Window {
    pub(super) fn new() -> Self {
        Self {
            context: 0,
            costs: Costs::new(),
            longest: Longest::default(),
            in_flight: VecDeque::new(),
            unmarked: Vec::new(),
            passed_at: 0,
            passed_by: 0,
            looked_at: 0,
            disturbed_until: 0,
            tried: 0,
        }
    }

    /// Whether there is a place for a submission in a window of that many nanoseconds. To be asked when nothing of the
    /// thread's is being captured.
    pub(super) fn place(
        &mut self,
        context: Option<&Arc<Context>>,
        what: Submission,
        stream: usize,
        window: u64,
        now: u64,
    ) -> Place {
        let id = context.map_or(0, |context| context.id());
        if self.context != id {
            self.forget();
            self.context = id;
        }
        self.look(now);
        let new = self.costs.of(what);
        let limit = match self.costs.knows(what) || context.is_none() {
            true => window.saturating_sub(new).max(window * 3 / 4),
            false => 0,
        };
        if self.left(now) <= limit {
            self.tried = 0;
            self.mark(context, stream, window / 4, now);
            return Place::Free;
        }
        // To know when the rest has ended, all of it must be marked.
        self.mark(context, stream, 0, now);
        if self.left(now) <= limit {
            self.tried = 0;
            return Place::Free;
        }
        Place::Taken(self.worth_a_look(limit, now))
    }

    /// In how many nanoseconds there is room, or, where that is earlier and there are marks to see it by, the submission
    /// that runs has ended: who looks then knows since when the next one runs.
    fn worth_a_look(&self, limit: u64, now: u64) -> u64 {
        let room = self.expected(now).saturating_sub(limit);
        let end = self.in_flight.front().map(|batch| self.expected_of(batch, now));
        end.map_or(room, |end| room.min(end + LOOK))
    }

    /// In how many nanoseconds the submission that runs has ended, if it takes as long as most; of one that is late, in an
    /// eighth of that, so that who waits for long does not wake for ever.
    pub(super) fn next_end(
        &mut self,
        context: Option<&Arc<Context>>,
        stream: usize,
        now: u64,
    ) -> Option<u64> {
        if self.context != context?.id() {
            return None;
        }
        self.look(now);
        self.mark(context, stream, 0, now);
        let running = self.in_flight.front()?;
        let (cost, ran) = self.taken(running, now);
        Some(cost.saturating_sub(ran).max(ran.saturating_sub(cost) / 8) + LOOK)
    }

    /// The submission goes to the driver. Nanoseconds that it takes, as far as is known.
    pub(super) fn submit(&mut self, what: Submission, stream: usize, now: u64) -> u64 {
        let found = self.unmarked.iter_mut().find(|entry| entry.0 == stream);
        if let Some((_, load, _)) = found {
            load.add(what);
        } else {
            let mut load = Load::default();
            load.add(what);
            self.unmarked.push((stream, load, now));
        }
        self.costs.of(what)
    }

    /// How many submissions of that sort fill half a window, at least one.
    pub(super) fn batch(&self, what: Submission, window: u64) -> u32 {
        let cost = self.costs.of(what);
        u32::try_from(window / 2 / cost.max(1))
            .unwrap_or(u32::MAX)
            .clamp(1, 1024)
    }

    /// The longest that a submission took lately, nanoseconds.
    pub(super) fn longest(&self) -> u64 {
        self.longest.get()
    }

    /// How many submissions went on without a place since one had one.
    pub(super) fn tried(&self) -> u32 {
        self.tried
    }

    /// Another does.
    pub(super) fn try_more(&mut self) {
        self.tried = self.tried.saturating_add(1);
    }

    /// Somebody else has, or has just had, the device, with windows of so many nanoseconds: what that one has queued
    /// may yet run, and may be a wide window, of four.
    pub(super) fn disturb(&mut self, window: u64, now: u64) {
        self.disturbed_until = now + 4 * window;
    }

    /// Forgets what is in flight: it is another context's.
    fn forget(&mut self) {
        self.in_flight.drain(..).for_each(|batch| batch.mark.abandon());
        self.unmarked.clear();
    }

    /// What is queued, in nanoseconds of GPU time from `now` on, if the one that runs is a long one and began as late as
    /// it can have.
    fn left(&self, now: u64) -> u64 {
        self.queued(|batch| {
            let cost = self.costs.of_load(&batch.load);
            let is_one = batch.load.total() == 1;
            let most = cost.max(if is_one { self.longest.get() } else { 0 });
            let ran = now.saturating_sub(batch.at.max(self.passed_by));
            // Late already: a moment more, and one that is longer than any was may be much longer.
            let late = if is_one && ran > most { ran / 4 } else { 0 };
            most.saturating_sub(ran).max(cost / 16).max(late)
        })
    }

    /// The same if it is like most, and began when it most likely did.
    fn expected(&self, now: u64) -> u64 {
        self.queued(|batch| self.expected_of(batch, now))
    }

    /// What a batch takes, and for how long it has run, if it is the one that runs.
    fn taken(&self, batch: &Batch, now: u64) -> (u64, u64) {
        let ran = now.saturating_sub(batch.at.max(self.passed_at));
        (self.costs.of_load(&batch.load), ran)
    }

    /// What is left of a batch, if it is the one that runs. What is late is late by a little, as far as anybody knows, and
    /// is looked for that often.
    fn expected_of(&self, batch: &Batch, now: u64) -> u64 {
        let (cost, ran) = self.taken(batch, now);
        let late = (cost / 16).max(ran.saturating_sub(cost) / 8);
        cost.saturating_sub(ran).max(late.min(LATE))
    }

    /// The same, where who runs for longer than most may be any that is as long as the longest.
    pub(super) fn likely(&self, now: u64) -> u64 {
        self.queued(|batch| {
            let (cost, ran) = self.taken(batch, now);
            let is_one = batch.load.total() == 1;
            let middle = if is_one {
                self.longest.get().saturating_sub(ran) / 2
            } else {
                0
            };
            cost.saturating_sub(ran).max(middle)
        })
    }

    fn queued(&self, left_of: impl FnOnce(&Batch) -> u64) -> u64 {
        let unmarked: u64 = self
            .unmarked
            .iter()
            .map(|(_, load, _)| self.costs.of_load(load))
            .sum();
        let mut batches = self.in_flight.iter();
        let running = batches.next().map_or(0, left_of);
        let queued: u64 = batches.map(|batch| self.costs.of_load(&batch.load)).sum();
        running.saturating_add(queued).saturating_add(unmarked)
    }

    /// Sees which batches have passed, and learns from it: of all of them together, since it is not known when each did.
    fn look(&mut self, now: u64) {
        let (mut passed, mut began) = (Load::default(), now);
        let (mut at, mut was_seen) = (0, false);
        while let Some(batch) = self.in_flight.get(at) {
            if !batch.mark.has_passed() {
                at += 1;
                continue;
            }
            if let Some(batch) = self.in_flight.remove(at) {
                passed.join(batch.load);
                began = began.min(batch.at);
                was_seen |= batch.marked_at < self.looked_at;
                batch.mark.abandon();
            }
        }
        if passed.total() != 0 {
            self.account(passed, began, was_seen, now);
        }
        self.looked_at = now;
    }

    /// A load has passed now that began at `began` at the earliest; whether it was seen, at the last look, not to have passed.
    fn account(&mut self, passed: Load, began: u64, was_seen: bool, now: u64) {
        let began_by = began.max(self.passed_by);
        let began = began.max(self.passed_at);
        let most = now.saturating_sub(began);
        let is_exact = was_seen && now.saturating_sub(self.looked_at) < FRESH;
        let is_shared = began < self.disturbed_until;
        let least = if is_shared || !was_seen {
            0
        } else if is_exact {
            most
        } else {
            self.looked_at.saturating_sub(began).min(most)
        };
        if is_shared && is_exact {
            self.costs.learn_shared(passed, most);
        } else {
            self.costs.learn(passed, least, most);
        }
        if !is_shared {
            self.costs.know(passed);
        }
        if passed.total() == 1 && least != 0 {
            // Late looks must not make it longer than it was: it took until it was seen not to have passed, and a moment.
            let seen = self.looked_at.saturating_sub(began_by);
            self.longest.learn((seen + LATE).min(most));
        }
        // When it passed is not known either: what comes next began there.
        self.passed_by = now;
        self.passed_at = match is_exact {
            true => now,
            false => began + self.costs.of_load(&passed).clamp(least, most),
        };
    }

    /// Sets marks on streams with more than `least` nanoseconds of work since their last; the one in use first.
    fn mark(&mut self, context: Option<&Arc<Context>>, in_use: usize, least: u64, now: u64) {
        let Some(context) = context else { return };
        let Self {
            costs,
            in_flight,
            unmarked,
            ..
        } = self;
        unmarked.retain(|(stream, load, at)| {
            if costs.of_load(load) <= least {
                return true;
            }
            let mark = context.mark_own(*stream, *stream == in_use);
            let is_marked = mark.is_some();
            in_flight.extend(mark.map(|mark| Batch {
                mark,
                load: *load,
                at: *at,
                marked_at: now,
            }));
            !is_marked
        });
    }
}
