//! Costs of submissions by kind, learned from when markers pass.

use gcgroup_abi::Submission;

use super::shapes::{Shape, Shapes};

/// Initial cost of a submission, nanoseconds: long enough to be marked at once.
pub(super) const GUESS: u64 = 200_000;
/// Minimum cost, nanoseconds: bounds the number of queued submissions.
pub(super) const SHORTEST: u64 = 500;
/// The longest submission is that of at least this many of the last ones, and of at most twice as many.
pub(super) const SAMPLES: u32 = 32;

/// Submissions to one stream between two markers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    /// Submissions by kind, of shapes with unknown cost.
    pub(super) counts: [u32; Submission::COUNT],
    /// Submissions of shapes with known cost, and the sum of these costs.
    pub(super) known: u32,
    pub(super) known_nsec: u64,
    /// The shape's key if all submissions have the same, otherwise 0.
    pub(super) key: u64,
    /// GPU time charged to the process, nanoseconds, if this was submitted to an empty queue.
    pub(super) charged: Option<u64>,
}

/// Costs by kind of submission, nanoseconds.
#[derive(Debug)]
pub(super) struct Costs {
    pub(super) each: [u64; Submission::COUNT],
    /// Set once a submission of the kind has been measured.
    pub(super) is_known: [bool; Submission::COUNT],
    pub(super) shapes: Shapes,
    streak: Streak,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            each: [GUESS; Submission::COUNT],
            is_known: Default::default(),
            shapes: Shapes::default(),
            streak: Streak::default(),
        }
    }
}

/// Run of loads on a shared device that all took longer than expected, or all less. `nearest` is the ratio
/// closest to the expectation, in thousandths.
#[derive(Debug, Clone, Copy, Default)]
struct Streak {
    is_longer: bool,
    count: u32,
    nearest: u64,
}

/// The longest recent submission, nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Longest {
    /// Longest of the last `count`, and of the `SAMPLES` before them.
    last: u64,
    count: u32,
    before: u64,
}

impl Load {
    /// Adds a submission whose shape has the cost `known`, nanoseconds, if it is known.
    pub(super) fn add(&mut self, shape: Shape, known: Option<u64>) {
        if self.total() == 0 {
            self.key = shape.key;
        } else if self.key != shape.key {
            self.key = 0;
        }
        if let Some(nsec) = known {
            self.known = self.known.saturating_add(1);
            self.known_nsec = self.known_nsec.saturating_add(nsec);
        } else if let Some(count) = self.counts.get_mut(shape.what as usize) {
            *count = count.saturating_add(1);
        }
    }

    pub(super) fn join(&mut self, other: Self) {
        if self.total() == 0 {
            *self = other;
            return;
        }
        if self.key != other.key {
            self.key = 0;
        }
        self.charged = None;
        self.known = self.known.saturating_add(other.known);
        self.known_nsec = self.known_nsec.saturating_add(other.known_nsec);
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
    }

    pub(super) fn total(&self) -> u32 {
        self.counts.iter().sum::<u32>().saturating_add(self.known)
    }
}

impl Costs {
    pub(super) fn of(&self, shape: Shape) -> u64 {
        match self.shapes.known(shape.key) {
            Some(known) => known.nsec,
            None => self.each.get(shape.what as usize).copied().unwrap_or(GUESS),
        }
    }

    pub(super) fn of_load(&self, load: &Load) -> u64 {
        let each = load.counts.iter().zip(self.each);
        each.map(|(count, cost)| u64::from(*count).saturating_mul(cost))
            .fold(load.known_nsec, u64::saturating_add)
    }

    pub(super) fn knows(&self, shape: Shape) -> bool {
        let kind = self.is_known.get(shape.what as usize);
        kind.copied().unwrap_or(false) || self.shapes.known(shape.key).is_some()
    }

    /// Learns that a load took between `least` and `most` nanoseconds; `least` is not above `most`.
    pub(super) fn learn(&mut self, load: Load, least: u64, most: u64) {
        let expected = self.of_load(&load).max(1);
        let took = expected.clamp(least, most);
        let total = u64::from(load.total().max(1));
        if least != 0 && most - least <= least / 4 {
            // Exact enough.
            self.shapes.learn(load.key, took / total);
        } else {
            self.shapes.lower(load.key, most / total);
        }
        if least != 0 {
            self.streak = Streak::default();
        } else if took == expected {
            return;
        }
        let each = self.each.iter_mut().zip(&mut self.is_known).zip(load.counts);
        for ((cost, is_known), _) in each.filter(|(_, count)| *count != 0) {
            let found = u128::from(*cost) * u128::from(took) / u128::from(expected);
            let found = u64::try_from(found).unwrap_or(u64::MAX);
            if std::mem::replace(is_known, true) {
                *cost = cost.midpoint(found.min(*cost * 4)).max(SHORTEST);
            } else {
                *cost = found.max(SHORTEST);
            }
        }
    }

    /// Records that a load that had the device alone has ended, so that its kinds are known to end.
    pub(super) fn know(&mut self, load: Load) {
        for (is_known, count) in self.is_known.iter_mut().zip(load.counts) {
            *is_known |= count != 0;
        }
    }

    /// Learns that a load on a shared device took at most `most` nanoseconds. Without this, a process that
    /// always shares would keep a wrong cost; the quickest of many loads has hardly shared. Mixed results
    /// teach nothing.
    pub(super) fn learn_shared(&mut self, load: Load, most: u64) {
        self.shapes.bound(load.key, most / u64::from(load.total().max(1)));
        let times = most.saturating_mul(1000) / self.of_load(&load).max(1);
        let is_longer = times > 1125;
        if !is_longer && times >= 1000 {
            self.streak = Streak::default();
            return;
        }
        let Streak { count, nearest, .. } = self.streak;
        let (count, nearest) = match count != 0 && is_longer == self.streak.is_longer {
            true if is_longer => (count + 1, nearest.min(times)),
            true => (count + 1, nearest.max(times)),
            false => (1, times),
        };
        self.streak = Streak {
            is_longer,
            count,
            nearest,
        };
        if count < SAMPLES / 2 {
            return;
        }
        self.streak = Streak::default();
        let each = self.each.iter_mut().zip(load.counts);
        for (cost, _) in each.filter(|(_, count)| *count != 0) {
            *cost = (cost.saturating_mul(nearest) / 1000).max(SHORTEST);
        }
        self.know(load);
    }
}

impl Longest {
    pub(super) fn get(self) -> u64 {
        self.last.max(self.before)
    }

    /// Adds a submission that took at least `least` nanoseconds.
    pub(super) fn learn(&mut self, least: u64) {
        if self.count == SAMPLES {
            (self.before, self.last, self.count) = (self.last, 0, 0);
        }
        self.last = self.last.max(least);
        self.count += 1;
    }
}
