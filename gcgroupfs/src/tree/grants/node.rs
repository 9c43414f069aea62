//! One group: its limits, and what is held of them.

use std::collections::{BTreeMap, BTreeSet};

use gcgroup_abi::NO_LIMIT;

use super::Place;
use crate::tree::{GroupId, ProcessId};

/// What groups allow on a device, and have left there, bytes.
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

#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Option<GroupId>,
    pub(super) children: BTreeSet<GroupId>,
    /// The processes directly in it.
    pub(super) members: BTreeSet<ProcessId>,
    /// Processes in it and below.
    pub(super) nr_below: usize,
    /// Processes in it and below that are alive and not registered.
    pub(super) nr_awaited: usize,
    /// Those that there are.
    limits: BTreeMap<Place, u64>,
    /// Bytes held by place, of grants and beside them. Where no limit is above a process, of that what is beside.
    charged: Vec<u128>,
    /// The sum.
    whole: u128,
}

impl Node {
    pub(super) fn new(parent: Option<GroupId>, nr_places: usize) -> Self {
        Self {
            parent,
            children: BTreeSet::new(),
            members: BTreeSet::new(),
            nr_below: 0,
            nr_awaited: 0,
            limits: BTreeMap::new(),
            charged: vec![0; nr_places],
            whole: 0,
        }
    }

    pub(super) fn add_place(&mut self) {
        self.charged.push(0);
    }

    pub(super) fn limit(&self, place: Place) -> u64 {
        self.limits.get(&place).copied().unwrap_or(NO_LIMIT)
    }

    pub(super) fn set_limit(&mut self, place: Place, limit: u64) {
        match limit {
            NO_LIMIT => self.limits.remove(&place),
            limit => self.limits.insert(place, limit),
        };
    }

    /// Whether what is on that device counts towards any limit of the group's.
    pub(super) fn limits(&self, at: usize) -> bool {
        self.limits.contains_key(&Some(at)) || self.limits.contains_key(&None)
    }

    pub(super) fn has_limit(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Leaves what this group allows too.
    pub(super) fn narrow(&self, allowed: &mut [Allowed]) {
        for (at, allowed) in allowed.iter_mut().enumerate() {
            for place in [Some(at), None] {
                allowed.limit = allowed.limit.min(self.limit(place));
                allowed.room = allowed.room.min(self.room(place));
            }
        }
    }

    /// Whether more may be held of a limit than is known.
    pub(super) fn is_unsure(&self) -> bool {
        self.nr_awaited > 0 && self.has_limit()
    }

    pub(super) fn charge(&mut self, at: usize, before: u64, now: u64) {
        let change = |sum: &mut u128| *sum = (*sum + u128::from(now)).saturating_sub(before.into());
        if let Some(charged) = self.charged.get_mut(at) {
            change(charged);
            change(&mut self.whole);
        }
    }

    pub(super) fn charged(&self, place: Place) -> u128 {
        match place {
            None => self.whole,
            Some(at) => self.charged.get(at).copied().unwrap_or(0),
        }
    }

    /// Bytes that are missing there for `need` more to be held; without a limit, none are.
    pub(super) fn missing(&self, place: Place, need: u64) -> u64 {
        match self.limit(place) {
            NO_LIMIT => 0,
            limit => {
                let wanted = self.charged(place) + u128::from(need);
                u64::try_from(wanted.saturating_sub(limit.into())).unwrap_or(u64::MAX)
            }
        }
    }

    /// Bytes that are left there.
    pub(super) fn room(&self, place: Place) -> u64 {
        match self.limit(place) {
            NO_LIMIT => NO_LIMIT,
            limit => u64::try_from(u128::from(limit).saturating_sub(self.charged(place))).unwrap_or(0),
        }
    }
}
