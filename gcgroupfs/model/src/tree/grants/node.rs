//! One group: its limits, and the bytes held under them.
//!
//! The groups above are charged no more than this group's limits, or its sure charge if that is more. So a
//! claim in a group costs others no more than the group could have used honestly. The sure charge exceeds the
//! limit where the limit was set below what was held.

use std::collections::BTreeSet;

use gcgroup_abi::NO_LIMIT;

use super::Position;
use super::bounds::Bounds;
use crate::tree::{GroupId, ProcessId};

/// Limit of the groups on a device and bytes left there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowed {
    pub(super) limit: u64,
    pub(super) room: u64,
}

impl Allowed {
    pub(super) const ALL: Self = Self {
        limit: NO_LIMIT,
        room: NO_LIMIT,
    };
}

/// Bytes charged to a group, and the part of them that is not merely claimed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) all: u128,
    pub(super) sure: u128,
}

/// Change of what is held below a group: at one position, and of the sum over all.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Recharge {
    pub(super) before: Charge,
    pub(super) now: Charge,
    whole_before: u128,
    whole_now: u128,
}

impl Recharge {
    /// Returns the change for one process.
    pub(super) fn of(before: Charge, now: Charge) -> Self {
        Self {
            before,
            now,
            whole_before: before.all,
            whole_now: now.all,
        }
    }

    pub(super) fn is_none(&self) -> bool {
        self.before == self.now && self.whole_before == self.whole_now
    }
}

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) parent: Option<GroupId>,
    pub(super) children: BTreeSet<GroupId>,
    /// Processes directly in this group.
    pub(super) members: BTreeSet<ProcessId>,
    /// Number of processes in this group and below.
    pub(super) nr_below: usize,
    /// Number of processes in this group and below that are alive and not registered.
    pub(super) nr_awaited: usize,
    pub(super) limits: Bounds,
    /// `memory.high`.
    pub(super) highs: Bounds,
    /// Charge by position: grants and overhead. A process without a limit above has only overhead here.
    charged: Vec<Charge>,
    /// Bytes held at all positions together: the sum, with child groups bounded to what they pass on.
    whole: u128,
    /// Bytes charged to the group above, by position and in all.
    passed: Vec<u128>,
    passed_whole: u128,
}

impl Node {
    pub(super) fn new(parent: Option<GroupId>, nr_positions: usize) -> Self {
        Self {
            parent,
            charged: vec![Charge::default(); nr_positions],
            passed: vec![0; nr_positions],
            ..Self::default()
        }
    }

    pub(super) fn add_position(&mut self) {
        self.charged.push(Charge::default());
        self.passed.push(0);
    }

    /// Reduces `allowed` to what this group allows; `unused` are the bytes, by position, that processes below
    /// hold and have not charged.
    pub(super) fn narrow(&self, allowed: &mut [Allowed], unused: &[u64]) {
        let all = unused
            .iter()
            .fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        for (allowed, (at, here)) in allowed.iter_mut().zip(unused.iter().enumerate()) {
            for (position, unused) in [(Some(at), *here), (None, all)] {
                allowed.limit = allowed.limit.min(self.limits.get(position));
                allowed.room = allowed.room.min(self.room(position, unused));
            }
        }
    }

    /// Returns whether more may be held of a limit than is known.
    pub(super) fn is_unsure(&self) -> bool {
        self.nr_awaited > 0 && !self.limits.is_empty()
    }

    /// Charges a change below. Returns the change of what the group above is charged.
    pub(super) fn charge(&mut self, at: usize, change: &Recharge) -> Recharge {
        let Some(charged) = self.charged.get_mut(at) else {
            return Recharge::default();
        };
        let moved = |sum: u128, before: u128, now: u128| (sum + now).saturating_sub(before);
        charged.all = moved(charged.all, change.before.all, change.now.all);
        charged.sure = moved(charged.sure, change.before.sure, change.now.sure);
        self.whole = moved(self.whole, change.whole_before, change.whole_now);

        let (before, whole_before) = (self.passed.get(at).copied().unwrap_or(0), self.passed_whole);
        let now = self.charged(Some(at)).min(self.cap(Some(at)));
        if let Some(passed) = self.passed.get_mut(at) {
            *passed = now;
        }
        self.passed_whole = self.whole.min(self.cap(None)).min(self.passed.iter().sum());
        let passed = |all, sure| Charge { all, sure };
        Recharge {
            before: passed(before, change.before.sure),
            now: passed(now, change.now.sure),
            whole_before,
            whole_now: self.passed_whole,
        }
    }

    /// Returns the most bytes believed to be held at a position: the limits, or the sure charge if that is
    /// more.
    pub(super) fn cap(&self, position: Position) -> u128 {
        let limit = self.limits.get(position).min(self.limits.get(None));
        self.sure(position).max(limit.into())
    }

    fn sure(&self, position: Position) -> u128 {
        match position {
            None => self.charged.iter().map(|charged| charged.sure).sum(),
            Some(at) => self.charged.get(at).map_or(0, |charged| charged.sure),
        }
    }

    pub(super) fn charged(&self, position: Position) -> u128 {
        match position {
            None => self.whole,
            Some(at) => self.charged.get(at).map_or(0, |charged| charged.all),
        }
    }

    /// Returns the bytes missing at a position for `need` more to be held; 0 without a limit.
    pub(super) fn missing(&self, position: Position, need: u64) -> u64 {
        match self.limits.get(position) {
            NO_LIMIT => 0,
            limit => {
                let wanted = self.charged(position) + u128::from(need);
                u64::try_from(wanted.saturating_sub(limit.into())).unwrap_or(u64::MAX)
            }
        }
    }

    /// Returns the bytes left at a position if `unused` of those charged are taken back.
    pub(super) fn room(&self, position: Position, unused: u64) -> u64 {
        match self.limits.get(position) {
            NO_LIMIT => NO_LIMIT,
            limit => {
                let used = self.charged(position).saturating_sub(unused.into());
                u64::try_from(u128::from(limit).saturating_sub(used)).unwrap_or(0)
            }
        }
    }
}
