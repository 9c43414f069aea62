//! Estimates of how long the queued work takes.

use super::{Batch, LATE, LOOK, Window};

impl Window {
    /// Returns the nanoseconds until there is room, or until the running submission ends if that is earlier
    /// and marked: a poll then shows when the next one began. A submission whose cost may be far too high is
    /// polled after half of it too.
    pub(super) fn worth_a_look(&self, limit: u64, now: u64) -> u64 {
        let room = self.expected(now).saturating_sub(limit);
        let Some(running) = self.in_flight.front() else {
            return room;
        };
        let room = room.min(self.expected_of(running, now) + LOOK);
        let (cost, ran) = self.taken(running, now);
        let known = self.costs.shapes.known(running.load.key);
        match known.is_some_and(|known| known.is_doubtful()) && ran < cost / 2 {
            true => room.min(cost / 2 - ran + LOOK),
            false => room,
        }
    }

    /// Returns an upper estimate of the queued work, nanoseconds: the running submission is a long one and
    /// began as late as possible.
    pub(super) fn left(&self, now: u64) -> u64 {
        self.queued(|batch| {
            let cost = self.costs.of_load(&batch.load);
            let is_one = batch.load.total() == 1;
            let most = cost.max(if is_one { self.longest_of(&batch.load) } else { 0 });
            let ran = now.saturating_sub(batch.at.max(self.passed_by));
            // Already late: add a little, and a quarter of its time if it exceeds every earlier one.
            let late = if is_one && ran > most { ran / 4 } else { 0 };
            most.saturating_sub(ran).max(cost / 16).max(late)
        })
    }

    /// Returns the expected queued work, nanoseconds: the running submission takes its usual time and began
    /// when likely.
    pub(super) fn expected(&self, now: u64) -> u64 {
        self.queued(|batch| self.expected_of(batch, now))
    }

    /// Returns a batch's cost and how long it has run if it is the running one, nanoseconds.
    pub(super) fn taken(&self, batch: &Batch, now: u64) -> (u64, u64) {
        let ran = now.saturating_sub(batch.at.max(self.passed_at));
        (self.costs.of_load(&batch.load), ran)
    }

    /// Returns what is left of the running batch, nanoseconds. A late one is assumed to be late by a little,
    /// and is polled at that interval.
    pub(super) fn expected_of(&self, batch: &Batch, now: u64) -> u64 {
        let (cost, ran) = self.taken(batch, now);
        let late = (cost / 16).max(ran.saturating_sub(cost) / 8);
        cost.saturating_sub(ran).max(late.min(LATE))
    }

    /// Returns the likely queued work, nanoseconds: a submission that exceeds its cost may be as long as the
    /// longest.
    pub(crate) fn likely(&self, now: u64) -> u64 {
        self.queued(|batch| {
            let (cost, ran) = self.taken(batch, now);
            let is_one = batch.load.total() == 1;
            let middle = if is_one {
                self.longest_of(&batch.load).saturating_sub(ran) / 2
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
}
