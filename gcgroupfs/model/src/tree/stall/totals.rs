//! Totals of a process, a group or the root, and what each has passed on to the directory above.

use std::collections::BTreeMap;

use gcgroup_abi::Pressure;

use super::average::Averages;
use super::children::Part;
use crate::tree::untrusted::{StallTimes, StallsSeen};

/// Totals of a process, a group or the root.
#[derive(Debug, Default)]
pub(in crate::tree) struct Stalls {
    /// Time of the last look, nanoseconds.
    pub(super) at: u64,
    pub(super) total: StallTimes,
    /// The part of `total` that the directory above has counted.
    pub(super) passed: StallTimes,
    /// Whether something was submitted since the directory above has looked.
    pub(super) has_run: bool,
    /// `None` until they are read.
    pub(super) averages: Option<Box<Averages>>,
    /// Time of the beginning, nanoseconds.
    pub(super) since: u64,
    /// Children that have left.
    pub(super) gone: Option<Box<Stalls>>,
}

/// Clocks of a process as last seen.
#[derive(Debug, Default)]
pub(in crate::tree) struct ProcessStalls {
    pub(in crate::tree) own: Stalls,
    pub(super) seen: StallsSeen,
    pub(super) submitted: u64,
}

/// The root's totals, and the directories whose averages are kept up to date.
#[derive(Debug, Default)]
pub(in crate::tree) struct RootStalls {
    pub(super) own: Stalls,
    /// Time of the last read, nanoseconds, by entity.
    pub(super) readers: BTreeMap<u64, u64>,
}

impl RootStalls {
    pub(in crate::tree) fn new(now: u64) -> Self {
        Self {
            own: Stalls::new(now),
            readers: BTreeMap::new(),
        }
    }
}

impl Stalls {
    pub(in crate::tree) fn new(now: u64) -> Self {
        Self {
            at: now,
            since: now,
            ..Self::default()
        }
    }

    /// Returns the time for which a thread has waited, microseconds.
    pub(in crate::tree) fn some_usec(&self, what: Pressure) -> u64 {
        self.total[what as usize][0]
    }

    pub(super) fn add(&mut self, time: &StallTimes, has_run: bool) {
        self.has_run |= has_run;
        for (total, time) in self.total.iter_mut().zip(time) {
            total[0] = total[0].saturating_add(time[0]);
            total[1] = total[1].saturating_add(time[1]).min(total[0]);
        }
    }

    /// Returns what the directory above has not counted yet, which it counts now.
    pub(super) fn pass(&mut self) -> Part {
        let mut time = self.total;
        for (time, passed) in time.as_flattened_mut().iter_mut().zip(self.passed.as_flattened()) {
            *time = time.saturating_sub(*passed);
        }
        self.passed = self.total;
        Part {
            time,
            has_run: std::mem::take(&mut self.has_run),
        }
    }

    /// Keeps the part of a child that leaves.
    pub(super) fn take_in(&mut self, child: &Part) {
        let gone = self.gone.get_or_insert_default();
        gone.add(&child.time, child.has_run);
    }

    /// Returns when the averages are due, nanoseconds; `None` if they have not begun.
    pub(super) fn next_average(&self) -> Option<u64> {
        self.averages.as_ref().map(|averages| averages.next())
    }

    /// Brings the averages up to `now`.
    pub(super) fn average(&mut self, now: u64) -> &Averages {
        let averages = self
            .averages
            .get_or_insert_with(|| Box::new(Averages::new(self.since, StallTimes::default())));
        averages.update(now, &self.total);
        averages
    }
}
