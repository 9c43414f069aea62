//! Grants: the parts of group limits that each process may charge without asking, of device memory and of
//! swap.
//!
//! A process charges itself up to its grant on a device. A group is charged what its processes *hold*: at
//! least what each has charged and at most what it may, and its contexts. So the sum of all charges never
//! exceeds a limit, although no sum is computed when memory is allocated.
//!
//! This module knows no files, no settings and no clock, and does loads and stores only.

mod bounds;
mod high;
mod member;
mod membership;
mod node;
mod publish;
mod resource;
mod room;
mod suspended;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use gcgroup_abi::{NO_LIMIT, OTHER_DEVICE};

pub(super) use self::high::Above;
use self::member::Member;
use self::node::{Charge, Node, Recharge};
pub(super) use self::resource::Resource;
use super::{Devices, GroupId, ProcessId};

/// The scope of a limit: one device, by its index in [`Grants::slots`], or all together.
type Position = Option<usize>;

/// The limit that caused a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) group: GroupId,
    /// The slot of the device whose limit it was; `None` for the limit on all together.
    pub(super) device: Option<usize>,
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GrantResult {
    Granted,
    /// Granted beyond a `memory.high`: see [`Grants::above`].
    GrantedAbove,
    Refused(Refusal),
    /// Refused because of a `memory.high`, which the process asked not to exceed.
    TooHigh,
    /// Cannot be answered yet: a group above has processes whose charge is unknown.
    Unknown,
}

/// All group limits on one resource, and the bytes held under them.
#[derive(Debug)]
pub(super) struct Grants {
    resource: Resource,
    /// The slots in use; the index is the position.
    slots: Vec<usize>,
    /// Bytes that exist at each position.
    totals: Vec<u64>,
    groups: BTreeMap<GroupId, Node>,
    members: BTreeMap<ProcessId, Member>,
}

impl Grants {
    pub(super) fn new(resource: Resource, devices: &Devices) -> Self {
        let slots: Vec<usize> = (0..devices.len()).chain([OTHER_DEVICE]).collect();
        let totals = slots.iter().map(|slot| resource.total(*slot, devices)).collect();
        Self {
            resource,
            slots,
            totals,
            groups: BTreeMap::new(),
            members: BTreeMap::new(),
        }
    }

    /// Adds a device at the end.
    pub(super) fn add_slot(&mut self, slot: usize, devices: &Devices) {
        let total = self.resource.total(slot, devices);
        self.slots.push(slot);
        self.totals.push(total);
        self.groups.values_mut().for_each(Node::add_position);
        self.members
            .values_mut()
            .for_each(|member| member.add_position((slot, total)));
        let members: Vec<_> = self
            .members
            .iter()
            .map(|(id, member)| (*id, member.group))
            .collect();
        for (id, group) in members {
            self.govern(id, false);
            self.publish_one(id, group);
        }
    }

    /// Adds a group without limits and processes.
    pub(super) fn add_group(&mut self, id: GroupId, parent: Option<GroupId>) {
        self.groups.insert(id, Node::new(parent, self.slots.len()));
        if let Some(parent) = parent.and_then(|id| self.groups.get_mut(&id)) {
            parent.children.insert(id);
        }
    }

    /// Removes an empty group.
    pub(super) fn remove_group(&mut self, id: GroupId) {
        let Some(node) = self.groups.remove(&id) else {
            return;
        };
        if let Some(parent) = node.parent.and_then(|id| self.groups.get_mut(&id)) {
            parent.children.remove(&id);
        }
        // A process that was awaited there finds no group when it registers.
        for above in self.chain(node.parent) {
            if let Some(above) = self.groups.get_mut(&above) {
                above.nr_awaited = above.nr_awaited.saturating_sub(node.nr_awaited);
            }
        }
    }

    /// Sets a group's limit in bytes, on the device of a slot or as a whole. Bytes held beyond it stay held:
    /// see [`excess`](Self::excess).
    pub(super) fn set_limit(&mut self, id: GroupId, device: Option<usize>, limit: u64) {
        let Ok(position) = self.position(device) else {
            return;
        };
        let Some(node) = self.groups.get_mut(&id) else {
            return;
        };
        if node.limits.get(position) == limit {
            return;
        }
        // Set first; compared only after all processes below have been charged.
        node.limits.set(position, limit);
        for member in self.below(id) {
            self.govern(member, false);
        }
        // The bound of what the group passes on may have changed.
        for at in self.positions(None) {
            self.charge(Some(id), at, Recharge::default());
        }
        self.settle(Some(id));
        self.publish(Some(id));
        // Without any limit above, `publish` does nothing.
        if !self.chain(Some(id)).iter().any(|id| self.has_limit(*id)) {
            self.publish_below(id);
        }
    }

    /// Returns the bytes held beyond a group's limit.
    pub(super) fn excess(&self, id: GroupId, device: Option<usize>) -> u64 {
        let (Ok(position), Some(node)) = (self.position(device), self.groups.get(&id)) else {
            return 0;
        };
        node.missing(position, 0)
    }

    /// Sets the bytes that the process holds beyond its ledger on the device of a slot.
    pub(super) fn set_overhead(&mut self, id: ProcessId, device: usize, bytes: u64) {
        let (Ok(Some(at)), Some(member)) = (self.position(Some(device)), self.members.get_mut(&id)) else {
            return;
        };
        let (charge, group) = (member.charge(at), member.group);
        let before = member.set_overhead(at, bytes);
        let now = member.charge(at);
        self.charge(group, at, Recharge::of(charge, now));
        if before != bytes && group.is_some() {
            self.settle(group);
            self.publish(group);
        }
    }

    /// Replaces what a group itself is charged on the device of a slot beside its processes, in bytes.
    pub(super) fn charge_group(&mut self, id: GroupId, device: usize, before: u64, now: u64) {
        let Ok(Some(at)) = self.position(Some(device)) else {
            return;
        };
        let of = |bytes: u64| Charge {
            all: bytes.into(),
            sure: bytes.into(),
        };
        self.charge(Some(id), at, Recharge::of(of(before), of(now)));
        self.settle(Some(id));
        self.publish(Some(id));
    }

    /// Trusts what the process claims to hold until NVML answers.
    pub(super) fn trust(&mut self, id: ProcessId) {
        for at in self.positions(None) {
            self.change(id, at, |member| member.trust(at));
        }
        self.settle_raised(id, self.positions(None));
    }

    /// Stores what NVML shows the process to hold on the device of a slot, in bytes.
    pub(super) fn show(&mut self, id: ProcessId, device: usize, bytes: u64) {
        let Ok(Some(at)) = self.position(Some(device)) else {
            return;
        };
        let before = self.members.get(&id).map(|member| member.charge(at));
        self.change(id, at, |member| member.show(at, bytes));
        self.concede(id, at);
        let member = self.members.get(&id);
        if let Some(member) = member.filter(|member| Some(member.charge(at)) != before) {
            let group = member.group;
            self.settle(group);
            self.publish(group);
        }
    }

    /// Returns the most bytes that the process is believed to have charged on the device of a slot.
    pub(super) fn most(&self, id: ProcessId, device: usize) -> u64 {
        match (self.position(Some(device)), self.members.get(&id)) {
            (Ok(Some(at)), Some(member)) => member.most(at),
            _ => 0,
        }
    }

    /// Returns the most bytes believed to be held in a group on the device of a slot, or as a whole.
    pub(super) fn cap(&self, id: GroupId, device: Option<usize>) -> u64 {
        let (Ok(position), Some(node)) = (self.position(device), self.groups.get(&id)) else {
            return NO_LIMIT;
        };
        u64::try_from(node.cap(position)).unwrap_or(NO_LIMIT)
    }

    /// Compares what the process has charged with what it holds. Memory that existed already may have been
    /// charged beyond the grant and is held from now on; a process without a grant may have freed some.
    pub(super) fn look(&mut self, id: ProcessId) {
        if !self.members.get(&id).is_some_and(Member::is_limited) {
            return;
        }
        for at in self.positions(None) {
            self.concede(id, at);
            let Some(member) = self.members.get(&id).filter(|member| !member.is_open(at)) else {
                continue;
            };
            let (group, before) = (member.group, member.held(at));
            self.change(id, at, |member| {
                member.refresh(at);
            });
            if self
                .members
                .get(&id)
                .is_some_and(|member| member.held(at) < before)
            {
                self.publish(group);
            }
        }
    }

    /// Grants the process `bytes` beyond what it has charged on the device of a slot, if all groups above
    /// have room after taking back what others do not use. `below_high`: only if no `memory.high` is
    /// exceeded.
    pub(super) fn request(
        &mut self,
        id: ProcessId,
        device: usize,
        (bytes, below_high): (u64, bool),
    ) -> GrantResult {
        let (Ok(Some(at)), Some(member)) = (self.position(Some(device)), self.members.get_mut(&id)) else {
            return GrantResult::Granted;
        };
        let group = member.group;
        let before = member.charge(at);
        let Some((_, held)) = member.refresh(at) else {
            return GrantResult::Granted;
        };
        let (need, is_open) = (member.wanted(at, bytes).saturating_sub(held), member.is_open(at));
        let now = member.charge(at);
        self.charge(group, at, Recharge::of(before, now));
        if need == 0 && is_open && bytes > 0 {
            return GrantResult::Granted;
        }
        if self.chain(group).iter().any(|id| self.is_unsure(*id)) {
            return GrantResult::Unknown;
        }
        let result = match self.find_room(group, (id, at), need) {
            Ok(slack) => {
                let below = self.slack_below_high((id, at), need, slack);
                if below.is_none() && below_high {
                    self.publish(group);
                    return GrantResult::TooHigh;
                }
                let all = held.saturating_add(need).saturating_add(below.unwrap_or(0));
                self.change(id, at, |member| member.grant(at, all, bytes));
                match below {
                    Some(_) => GrantResult::Granted,
                    None => GrantResult::GrantedAbove,
                }
            }
            Err(refusal) => {
                self.concede(id, at);
                GrantResult::Refused(refusal)
            }
        };
        self.publish(group);
        result
    }

    /// Returns the bytes that the process may have charged on the device of a slot; `None` without a limit
    /// above.
    pub(super) fn granted(&self, id: ProcessId, device: usize) -> Option<u64> {
        let at = self.position(Some(device)).ok()??;
        let member = self.members.get(&id)?;
        member.is_granted(at).then(|| member.held(at))
    }

    /// Returns the bytes that the group is charged.
    #[cfg(test)]
    fn charged(&self, id: GroupId, device: Option<usize>) -> u128 {
        let position = self.position(device).unwrap_or_default();
        self.groups[&id].charged(position)
    }

    fn has_limit(&self, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(|node| !node.limits.is_empty())
    }

    fn is_unsure(&self, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(Node::is_unsure)
    }

    fn limit(&self, id: GroupId, position: Position) -> u64 {
        self.groups
            .get(&id)
            .map_or(NO_LIMIT, |node| node.limits.get(position))
    }

    fn missing(&self, id: GroupId, position: Position, need: u64) -> u64 {
        self.groups
            .get(&id)
            .map_or(0, |node| node.missing(position, need))
    }

    /// Returns that position, or all for `None`.
    fn positions(&self, position: Position) -> Range<usize> {
        position.map_or(0..self.slots.len(), |at| at..at + 1)
    }

    /// Returns the position of a slot, `None` for the whole; an error for a slot that is not in use.
    fn position(&self, device: Option<usize>) -> Result<Position, ()> {
        let Some(slot) = device else { return Ok(None) };
        self.slots.iter().position(|of| *of == slot).map(Some).ok_or(())
    }

    /// Returns a group and its ancestors, the group first.
    fn chain(&self, group: Option<GroupId>) -> Vec<GroupId> {
        let parent = |id: &GroupId| self.groups.get(id).and_then(|node| node.parent);
        let known = group.filter(|id| self.groups.contains_key(id));
        std::iter::successors(known, parent).collect()
    }

    /// Returns all processes in a group and below.
    fn below(&self, id: GroupId) -> Vec<ProcessId> {
        let (mut found, mut next) = (Vec::new(), vec![id]);
        while let Some(node) = next.pop().and_then(|id| self.groups.get(&id)) {
            found.extend(&node.members);
            next.extend(&node.children);
        }
        found
    }

    /// Charges a group for a change, and those above for the part that is passed on.
    fn charge(&mut self, group: Option<GroupId>, at: usize, mut change: Recharge) {
        for (nr, id) in self.chain(group).into_iter().enumerate() {
            if nr > 0 && change.is_none() {
                return;
            }
            if let Some(node) = self.groups.get_mut(&id) {
                change = node.charge(at, &change);
            }
        }
    }

    /// Changes what a process holds at a position, and charges the groups above.
    fn change(&mut self, id: ProcessId, at: usize, change: impl FnOnce(&mut Member)) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let (group, before) = (member.group, member.charge(at));
        change(member);
        let now = member.charge(at);
        if before != now {
            self.charge(group, at, Recharge::of(before, now));
        }
    }

    /// Makes the process hold what it has charged beyond its grant, regardless of limits, as far as it is
    /// believed.
    fn concede(&mut self, id: ProcessId, at: usize) {
        let Some(member) = self.members.get(&id) else {
            return;
        };
        let now = member.believed(at);
        if member.is_granted(at) && now > member.held(at) {
            self.change(id, at, |member| member.concede(at, now));
            self.settle_raised(id, at..at + 1);
        }
    }

    /// Settles after what a process holds was raised, and opens its grants again where no limit above is
    /// exceeded.
    fn settle_raised(&mut self, id: ProcessId, raised: Range<usize>) {
        let group = self.members.get(&id).and_then(|member| member.group);
        self.settle(group);
        let chain = self.chain(group);
        for at in raised {
            let missing = |id: &GroupId| self.missing(*id, Some(at), 0).max(self.missing(*id, None, 0));
            if chain.iter().all(|id| missing(id) == 0) {
                self.change(id, at, |member| member.open(at));
            }
        }
        self.publish(group);
    }
}
