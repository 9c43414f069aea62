//! In-flight window: limits the work that a thread keeps queued while others may need the device, in GPU time
//! instead of a number of calls.
//!
//! The thread sets a marker on its streams every quarter of a window, or every half where markers are slow,
//! and none in front of a kernel that may overlap with the one before it, unless it must wait. It does not
//! submit while its queued work, with the new submission, would take longer than the window (or, if the
//! submission alone takes longer than that, while more than three quarters of a window are queued). So a
//! process of higher priority waits for one window or one submission, whichever is longer. The cost of a
//! submission is learned from when markers pass. Until the first submission of a kind has passed, which may
//! take any time, nothing is queued behind it. A submission that ran while another process had the device
//! has shared it, and counts only if many in a row agree (`costs`). The costs of kernels and graphs are
//! learned one by one (`shapes`): the first of each is marked alone. If one of several milliseconds always
//! shares the device, its cost is the GPU time that the daemon has charged for it until the next
//! submission.

mod costs;
mod gap;
mod queued;
mod shapes;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use self::costs::{Costs, Load, Longest};
use self::gap::Gap;
pub(crate) use self::shapes::Shape;
use super::context::{Context, PendingMarker};
use crate::sys;

/// Time after an expected end at which it is polled, nanoseconds: late rather than early.
const LOOK: u64 = 20_000;
/// Shortest submission, nanoseconds, whose cost is learned from the charged GPU time: the daemon charges at
/// least every two milliseconds.
pub(crate) const CHARGED: u64 = 4_000_000;
/// Longest interval between polls of a late submission, nanoseconds.
const LATE: u64 = 150_000;
/// Maximum time since the previous poll at which a poll tells when the work ended, nanoseconds.
const FRESH: u64 = 150_000;

#[derive(Debug)]
struct Batch {
    marker: PendingMarker,
    load: Load,
    /// When the first submission of it was made, and when the marker was set.
    at: u64,
    marked_at: u64,
}

/// In-flight window of a thread on one device. All times are nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Number of the context whose streams these are.
    context: u32,
    costs: Costs,
    longest: Longest,
    in_flight: VecDeque<Batch>,
    /// Streams with submissions since their last marker: handle, load, and time of the first submission.
    unmarked: Vec<(usize, Load, u64)>,
    /// Time at which the last known batch most likely passed, the earliest and the latest possible one.
    passed_at: u64,
    passed_from: u64,
    passed_by: u64,
    /// Time of the last poll.
    looked_at: u64,
    /// End of the time in which another process last had the device.
    disturbed_until: u64,
    /// Number of submissions whose patience ended since one was admitted.
    tried: u32,
    /// Whether the last submission is to be marked alone.
    isolates: bool,
    /// GPU time that the daemon has charged to the process.
    charged: u64,
    gap: Option<Gap>,
    /// The last submission if it was alone in the queue and shared the device.
    unsettled: Option<Unsettled>,
    /// Shortest time in which a marker was set, nanoseconds; 0 before the first.
    marking: u64,
}

/// A submission whose cost is known when all of its GPU time has been charged.
#[derive(Debug, Clone, Copy)]
struct Unsettled {
    key: u64,
    took: u64,
    /// GPU time charged to the process before.
    charged: u64,
}

/// Answer to a request for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// There is room.
    Room,
    /// No room. Nanoseconds until there is, if the submissions take their usual time, or until more is known.
    Later(u64),
}

impl Window {
    /// Tells the GPU time that the daemon has charged to the process.
    pub(crate) fn set_charged(&mut self, nsec: u64) {
        self.charged = nsec;
    }

    /// Asks whether a submission fits a window of `window` nanoseconds. Not to be called while the thread
    /// captures.
    #[expect(clippy::too_many_arguments, reason = "on the path of each submission")]
    pub(crate) fn admission(
        &mut self,
        context: Option<&Arc<Context>>,
        shape: impl Into<Shape>,
        stream: usize,
        window: u64,
        now: u64,
    ) -> Admission {
        let shape = shape.into();
        let id = context.map_or(0, |context| context.id());
        if self.context != id {
            self.forget();
            self.context = id;
        }
        self.look(now);
        let new = self.costs.of(shape);
        let limit = match self.costs.knows(shape) || context.is_none() {
            true => window.saturating_sub(new).max(window * 3 / 4),
            false => 0,
        };
        let Some(most) = self.within_gap(new, now) else {
            return Admission::Later(LATE);
        };
        let limit = limit.min(most);
        if self.left(now) <= limit {
            self.tried = 0;
            let is_alone = self.isolates || self.costs.shapes.is_new(shape.key);
            let least = self.least(shape, if is_alone { 0 } else { self.interval(window) });
            self.mark(context, stream, least, now);
            return Admission::Room;
        }
        // All of the queue must be marked to learn when it has ended; most of it does before this submission.
        self.mark(context, stream, [0; 2], now);
        if self.left(now) <= limit {
            self.tried = 0;
            return Admission::Room;
        }
        Admission::Later(self.worth_a_look(limit, now))
    }

    /// Returns the nanoseconds until the running submission ends, if it takes its usual time; if it is late,
    /// an eighth of the time it is late, so that a long wait wakes up less and less often.
    pub(crate) fn next_end(
        &mut self,
        context: Option<&Arc<Context>>,
        stream: usize,
        now: u64,
    ) -> Option<u64> {
        if self.context != context?.id() {
            return None;
        }
        self.look(now);
        self.mark(context, stream, [0; 2], now);
        let running = self.in_flight.front()?;
        let (cost, ran) = self.taken(running, now);
        Some(cost.saturating_sub(ran).max(ran.saturating_sub(cost) / 8) + LOOK)
    }

    /// Records that the submission goes to the driver; returns its expected cost, nanoseconds.
    pub(crate) fn submit(&mut self, shape: impl Into<Shape>, stream: usize, now: u64) -> u64 {
        let shape = shape.into();
        let is_first = self.in_flight.is_empty() && self.unmarked.is_empty();
        if let Some(last) = self.unsettled.take().filter(|_| is_first) {
            let charged = self.charged.saturating_sub(last.charged);
            if charged >= CHARGED {
                self.costs.shapes.learn(last.key, charged.min(last.took));
            }
        }
        self.isolates = self.costs.shapes.is_new(shape.key);
        if self.isolates {
            self.costs.shapes.try_out(shape.key);
        }
        let known = self.costs.shapes.known(shape.key).map(|known| known.nsec);
        let found = self.unmarked.iter_mut().find(|entry| entry.0 == stream);
        if let Some((_, load, _)) = found {
            load.add(shape, known);
        } else {
            let mut load = Load::default();
            load.add(shape, known);
            load.charged = is_first.then_some(self.charged);
            self.unmarked.push((stream, load, now));
        }
        self.costs.of(shape)
    }

    /// Returns whether the cost of such submissions has been learned.
    pub(crate) fn knows(&self, shape: Shape) -> bool {
        self.costs.knows(shape)
    }

    /// Returns how many submissions like this one fill half a window, 1 to 1024.
    pub(crate) fn batch(&self, shape: impl Into<Shape>, window: u64) -> u32 {
        let shape = shape.into();
        if self.costs.shapes.is_new(shape.key) {
            return 1;
        }
        let cost = self.costs.of(shape);
        u32::try_from(window / 2 / cost.max(1))
            .unwrap_or(u32::MAX)
            .clamp(1, 1024)
    }

    /// Returns the longest time that submissions like the running one took lately, nanoseconds; `None` if it
    /// is the first of its shape.
    pub(crate) fn longest(&self) -> Option<u64> {
        match self.in_flight.front() {
            Some(batch) if self.costs.shapes.is_tried(batch.load.key) => None,
            Some(batch) => Some(self.longest_of(&batch.load)),
            None => Some(self.longest.get()),
        }
    }

    /// Returns the longest time that a submission like the only one in a load took lately, nanoseconds.
    fn longest_of(&self, load: &Load) -> u64 {
        let known = self.costs.shapes.known(load.key);
        known.map_or(self.longest.get(), |known| known.longest)
    }

    /// Returns the number of submissions whose patience ended since one was admitted.
    pub(crate) fn tried(&self) -> u32 {
        self.tried
    }

    /// Counts a submission whose patience has ended.
    pub(crate) fn try_more(&mut self) {
        self.tried = self.tried.saturating_add(1);
    }

    /// Records that another process has the device, with windows of `window` nanoseconds. What it has queued
    /// may still run, and its window may be a wide one, of four.
    pub(crate) fn disturb(&mut self, window: u64, now: u64) {
        self.disturbed_until = now + 4 * window;
    }

    /// Drops what is in flight, because it belongs to another context.
    fn forget(&mut self) {
        self.in_flight.drain(..).for_each(|batch| batch.marker.abandon());
        self.unmarked.clear();
        (self.isolates, self.unsettled) = (false, None);
    }

    /// Polls the markers and learns from all batches that have passed together: single ends are not known.
    fn look(&mut self, now: u64) {
        let (mut passed, mut began, mut marked_at) = (Load::default(), now, now);
        let (mut at, mut was_seen) = (0, false);
        while let Some(batch) = self.in_flight.get(at) {
            if !batch.marker.has_passed() {
                at += 1;
                continue;
            }
            if let Some(batch) = self.in_flight.remove(at) {
                passed.join(batch.load);
                began = began.min(batch.at);
                marked_at = marked_at.min(batch.marked_at);
                was_seen |= batch.marked_at < self.looked_at;
                batch.marker.abandon();
            }
        }
        if passed.total() != 0 {
            // A submission to an empty queue begins at the end of the driver call, which loads a function at
            // its first launch. The marker was set after that.
            let is_first = passed.charged.is_some() && passed.total() == 1;
            let called = if is_first { marked_at } else { began };
            self.account(passed, [began, called], was_seen, now);
        }
        self.looked_at = now;
    }

    /// Accounts a load seen to have passed at `now`. It began at `began` or later; if the device was idle, at
    /// `called` or earlier. `was_seen`: the last poll saw it run.
    fn account(&mut self, passed: Load, [began, called]: [u64; 2], was_seen: bool, now: u64) {
        let began_by = called.max(self.passed_by);
        let began_from = began.max(self.passed_from);
        let [began, called] = [began, called].map(|time| time.max(self.passed_at));
        let most = now.saturating_sub(began);
        let is_exact = was_seen && now.saturating_sub(self.looked_at) < FRESH;
        let is_shared = began < self.disturbed_until;
        let least = if is_shared || !was_seen {
            0
        } else if is_exact {
            now.saturating_sub(called).min(most)
        } else {
            self.looked_at.saturating_sub(called).min(most)
        };
        // Costs are lowered to the smallest of many upper bounds, so each bound must hold even if the batch
        // before passed as early as it can have.
        let bound = now.saturating_sub(began_from);
        if is_shared && is_exact {
            self.costs.learn_shared(passed, bound);
        } else {
            self.costs
                .learn(passed, least, if least == 0 { bound } else { most });
        }
        if !is_shared {
            self.costs.know(passed);
        }
        let settles = is_shared && passed.total() == 1 && passed.key != 0 && most >= CHARGED;
        self.unsettled = passed.charged.filter(|_| settles).map(|charged| Unsettled {
            key: passed.key,
            took: most,
            charged,
        });
        if passed.total() == 1 && least != 0 {
            // A late poll must not lengthen it: it took until the last poll that saw it run, and at most
            // `LATE` more.
            let seen = self.looked_at.saturating_sub(began_by);
            self.longest.learn((seen + LATE).min(most));
        }
        // The end is estimated too: the next batch began there.
        self.passed_from = if was_seen { self.looked_at } else { began_from };
        self.passed_by = now;
        self.passed_at = match is_exact {
            true => now,
            false => began + self.costs.of_load(&passed).clamp(least, most),
        };
    }

    /// Returns the nanoseconds of work on a stream between two markers: a quarter of a window, or up to half
    /// of it, so that setting markers takes at most one hundredth of the time.
    fn interval(&self, window: u64) -> u64 {
        (window / 4).max(self.marking.saturating_mul(100).min(window / 2))
    }

    /// Returns the largest load, nanoseconds, of the stream of a submission that needs no marker in front of
    /// the submission, and that of other streams, which is `least`. A marker in front of a submission that
    /// may overlap with the one before it would keep the two apart.
    fn least(&self, shape: Shape, least: u64) -> [u64; 2] {
        [if shape.overlaps { u64::MAX } else { least }, least]
    }

    /// Sets markers on streams with more than `least` nanoseconds of work since their last one: of `in_use`,
    /// the stream of the current call, which surely exists, and of other streams.
    fn mark(&mut self, context: Option<&Arc<Context>>, in_use: usize, least: [u64; 2], now: u64) {
        let Some(context) = context else { return };
        let Self {
            costs,
            in_flight,
            unmarked,
            marking,
            ..
        } = self;
        unmarked.retain(|(stream, load, at)| {
            let is_in_use = *stream == in_use;
            if costs.of_load(load) <= least[usize::from(!is_in_use)] {
                return true;
            }
            let began = sys::now();
            let marker = context.mark_own(*stream, is_in_use);
            let is_marked = marker.is_some();
            if is_marked {
                let took = sys::now().saturating_sub(began).max(1);
                // The minimum: other times include waits for the processor.
                *marking = if *marking == 0 { took } else { took.min(*marking) };
            }
            in_flight.extend(marker.map(|marker| Batch {
                marker,
                load: *load,
                at: *at,
                marked_at: now,
            }));
            !is_marked
        });
    }
}
