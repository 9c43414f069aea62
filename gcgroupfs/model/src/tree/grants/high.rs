//! `memory.high`: a bound of what may be granted without asking. A request beyond it is granted all the same,
//! exactly; its process is told to wait (`tree/high.rs`).

use gcgroup_abi::{HIGH_ALONE, HIGH_IN_FORCE, NO_LIMIT};

use super::{Grants, Position};
use crate::tree::{GroupId, ProcessId};

/// A `memory.high` that is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) struct Above {
    /// The group that it is of; `None`: the process itself.
    pub(in crate::tree) group: Option<GroupId>,
    /// The slot of its device; `None`: all together.
    pub(in crate::tree) device: Option<usize>,
    pub(in crate::tree) high: u64,
    /// Bytes held beyond it.
    pub(in crate::tree) excess: u64,
}

/// A `memory.high` that bounds a process, and the bytes held under it.
struct Level {
    group: Option<GroupId>,
    position: Position,
    high: u64,
    charged: u128,
}

impl Level {
    fn excess(&self, need: u64) -> u64 {
        let wanted = self.charged + u128::from(need);
        u64::try_from(wanted.saturating_sub(self.high.into())).unwrap_or(u64::MAX)
    }
}

impl Grants {
    /// Sets `memory.high` of a group in bytes, on the device of a slot or as a whole.
    pub(in crate::tree) fn set_group_high(&mut self, id: GroupId, device: Option<usize>, high: u64) {
        let Ok(position) = self.position(device) else {
            return;
        };
        let Some(node) = self
            .groups
            .get_mut(&id)
            .filter(|node| node.highs.get(position) != high)
        else {
            return;
        };
        node.highs.set(position, high);
        for member in self.below(id) {
            self.govern(member, false);
        }
        self.take_back_above(Some(id), None);
        self.publish_below_top(id);
    }

    /// Sets `memory.high` of a process in bytes, on the device of a slot or as a whole.
    pub(in crate::tree) fn set_process_high(&mut self, id: ProcessId, device: Option<usize>, high: u64) {
        let Ok(position) = self.position(device) else {
            return;
        };
        let member = self.members.get_mut(&id);
        let Some(member) = member.filter(|member| member.highs.get(position) != high) else {
            return;
        };
        member.highs.set(position, high);
        let group = member.group;
        // What it claims to have charged is not sure before NVML shows it.
        self.govern(id, true);
        self.take_back_above(group, Some(id));
        self.publish_one(id, group);
    }

    /// Returns each `memory.high` that is exceeded where the process holds memory on the device of a slot:
    /// its own first, then those of its groups upwards.
    pub(in crate::tree) fn above(&self, id: ProcessId, device: usize) -> Vec<Above> {
        let Ok(Some(at)) = self.position(Some(device)) else {
            return Vec::new();
        };
        let levels = self.levels(id, at).into_iter();
        let above = levels.filter(|level| level.excess(0) > 0);
        above
            .map(|level| Above {
                group: level.group,
                device: level.position.and_then(|at| self.slots.get(at).copied()),
                high: level.high,
                excess: level.excess(0),
            })
            .collect()
    }

    /// Returns the bytes held beyond a group's `memory.high`, on the device of a slot or as a whole.
    pub(in crate::tree) fn excess_above(&self, group: GroupId, device: Option<usize>) -> u64 {
        let (Ok(position), Some(node)) = (self.position(device), self.groups.get(&group)) else {
            return 0;
        };
        let held = node.charged(position);
        u64::try_from(held.saturating_sub(node.highs.get(position).into())).unwrap_or(u64::MAX)
    }

    /// Returns the bytes that may be granted beyond `need`, at most `slack`, so that the next allocation
    /// beyond a `memory.high` asks; `None` if `need` exceeds one, after taking back what others do not use.
    pub(super) fn slack_below_high(
        &mut self,
        (id, at): (ProcessId, usize),
        need: u64,
        mut slack: u64,
    ) -> Option<u64> {
        for level in self.levels(id, at) {
            let excess = level.excess(need);
            if let (true, Some(group)) = (excess > 0, level.group) {
                self.take_back(group, level.position, excess, Some((id, at)));
            }
        }
        let mut is_above = false;
        for level in self.levels(id, at) {
            let nr_below = level.group.and_then(|group| self.groups.get(&group));
            let nr_below = nr_below.map_or(0, |node| node.nr_below as u64);
            let left = u128::from(level.high).saturating_sub(level.charged + u128::from(need));
            let left = u64::try_from(left).unwrap_or(u64::MAX);
            slack = slack.min(left / (nr_below + 1));
            is_above |= level.excess(need) > 0;
        }
        (!is_above).then_some(slack)
    }

    /// Takes back what is not used where the process is above a `memory.high` on the device of a slot.
    pub(in crate::tree) fn take_back_unused(&mut self, id: ProcessId, device: usize) {
        let Ok(Some(at)) = self.position(Some(device)) else {
            return;
        };
        // A grant that the process has not charged yet is left to it.
        let is_due = self.members.get_mut(&id).is_some_and(|member| member.is_used(at));
        let but = (!is_due).then_some((id, at));
        for level in self.levels(id, at) {
            let excess = level.excess(0);
            match level.group {
                Some(group) => self.take_back(group, level.position, excess, but),
                None => {
                    let mut positions = self.positions(level.position);
                    positions
                        .by_ref()
                        .filter(|other| is_due || *other != at)
                        .for_each(|at| {
                            self.change(id, at, |member| member.take_back(at, excess));
                        });
                }
            }
        }
    }

    /// Returns whether any `memory.high` bounds the process at a position.
    pub(super) fn is_bounded(&self, id: ProcessId, at: usize) -> bool {
        !self.levels(id, at).is_empty()
    }

    /// Publishes whether a `memory.high` bounds the process at a position, and whether it is alone.
    pub(super) fn publish_high(&self, id: ProcessId, at: usize) {
        let (Some(member), Some(slot)) = (self.members.get(&id), self.slots.get(at)) else {
            return;
        };
        let mut flags = 0;
        if self.is_bounded(id, at) {
            let chain = self.chain(member.group);
            let mut groups = chain.iter().filter_map(|id| self.groups.get(id));
            let is_limited = groups.any(|node| node.limits.concern(at));
            flags = HIGH_IN_FORCE | if is_limited { 0 } else { HIGH_ALONE };
        }
        self.resource.publish_high(member.blocks.control(), *slot, flags);
    }

    /// Returns each `memory.high` that bounds a process at a position.
    fn levels(&self, id: ProcessId, at: usize) -> Vec<Level> {
        let Some(member) = self.members.get(&id) else {
            return Vec::new();
        };
        let places = [Some(at), None];
        let own = places.map(|position| Level {
            group: None,
            position,
            high: member.highs.get(position),
            charged: member.charged(position),
        });
        let chain = self.chain(member.group);
        let groups = chain.iter().filter_map(|id| Some((*id, self.groups.get(id)?)));
        let groups = groups.flat_map(|(id, node)| {
            places.map(|position| Level {
                group: Some(id),
                position,
                high: node.highs.get(position),
                charged: node.charged(position),
            })
        });
        let all = own.into_iter().chain(groups);
        all.filter(|level| level.high != NO_LIMIT).collect()
    }

    /// Takes back what processes below a group, or one process, do not use, where more is held than
    /// `memory.high` allows: their next allocations ask.
    fn take_back_above(&mut self, group: Option<GroupId>, id: Option<ProcessId>) {
        let positions: Vec<usize> = self.positions(None).collect();
        let members = match (id, group) {
            (Some(id), _) => vec![id],
            (None, Some(group)) => self.below(group),
            (None, None) => Vec::new(),
        };
        for id in members {
            for at in positions.iter().copied() {
                if self.levels(id, at).iter().any(|level| level.excess(0) > 0) {
                    self.change(id, at, |member| member.take_back(at, NO_LIMIT));
                }
            }
        }
    }

    /// Publishes to all processes in a group.
    fn publish_below_top(&mut self, id: GroupId) {
        self.publish(Some(id));
        for member in self.below(id) {
            for at in self.positions(None) {
                self.publish_high(member, at);
            }
        }
    }
}
