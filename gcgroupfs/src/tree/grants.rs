//! How much of the groups' limits each process has: the arithmetic of grants, of memory on devices and of what may be
//! swapped out.
//!
//! A process charges itself, without asking, up to what it was granted on a device. What a group is charged is what its
//! processes *hold*: at least what each has charged and at most what it may, and what contexts take beside. So the sum
//! of what is charged never passes a limit, though nobody adds it up when memory is allocated.
//!
//! Knows no files, no settings and no clock. Everything is loads and stores.

mod member;
mod membership;
mod node;
mod publish;
mod resource;
mod room;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use gcgroup_abi::{NO_LIMIT, OTHER_DEVICE};

use self::member::Member;
use self::node::{Change, Node};
pub(super) use self::resource::Resource;
use super::{Device, GroupId, ProcessId};

/// Where a limit is: on one device, by its place in [`Grants::slots`], or on all together.
type Place = Option<usize>;

/// A group had no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) group: GroupId,
    /// The device's slot whose limit it was; none, if it was that on all devices together.
    pub(super) device: Option<usize>,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    Refused(Refusal),
    /// Not to be answered yet: somebody in a group above may hold what nobody knows.
    Unknown,
}

/// All limits of groups on one resource, and what is held of them.
#[derive(Debug)]
pub(super) struct Grants {
    resource: Resource,
    /// The slots in use; one for each place.
    slots: Vec<usize>,
    /// Bytes that there are in each.
    totals: Vec<u64>,
    groups: BTreeMap<GroupId, Node>,
    members: BTreeMap<ProcessId, Member>,
}

impl Grants {
    pub(super) fn new(resource: Resource, devices: &[Device]) -> Self {
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

    /// There is one more device: it has a place behind all others.
    pub(super) fn add_slot(&mut self, slot: usize, devices: &[Device]) {
        let total = self.resource.total(slot, devices);
        self.slots.push(slot);
        self.totals.push(total);
        self.groups.values_mut().for_each(Node::add_place);
        self.members
            .values_mut()
            .for_each(|member| member.add_place((slot, total)));
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

    /// A group, which has no limit and nobody in it.
    pub(super) fn add_group(&mut self, id: GroupId, parent: Option<GroupId>) {
        self.groups.insert(id, Node::new(parent, self.slots.len()));
        if let Some(parent) = parent.and_then(|id| self.groups.get_mut(&id)) {
            parent.children.insert(id);
        }
    }

    /// Forgets a group that is empty.
    pub(super) fn remove_group(&mut self, id: GroupId) {
        let Some(node) = self.groups.remove(&id) else {
            return;
        };
        if let Some(parent) = node.parent.and_then(|id| self.groups.get_mut(&id)) {
            parent.children.remove(&id);
        }
        // Who was awaited there finds no group when it comes.
        for above in self.chain(node.parent) {
            if let Some(above) = self.groups.get_mut(&above) {
                above.nr_awaited = above.nr_awaited.saturating_sub(node.nr_awaited);
            }
        }
    }

    /// Sets a group's limit on the device of that slot, or on all together. What is beyond it is not given back by
    /// anybody: see [`excess`](Self::excess).
    pub(super) fn set_limit(&mut self, id: GroupId, device: Option<usize>, limit: u64) {
        let Ok(place) = self.place(device) else { return };
        let Some(node) = self.groups.get_mut(&id) else {
            return;
        };
        if node.limit(place) == limit {
            return;
        }
        // Nothing is measured against it before all below are counted.
        node.set_limit(place, limit);
        for member in self.below(id) {
            self.govern(member, false);
        }
        // What it passes on may be bounded otherwise.
        for at in self.places(None) {
            self.charge(Some(id), at, Change::default());
        }
        self.settle(Some(id));
        self.publish(Some(id));
        // Where there is no limit any more.
        if !self.chain(Some(id)).iter().any(|id| self.has_limit(*id)) {
            self.publish_below(id);
        }
    }

    /// Bytes that are held beyond a group's limit.
    pub(super) fn excess(&self, id: GroupId, device: Option<usize>) -> u64 {
        let (Ok(place), Some(node)) = (self.place(device), self.groups.get(&id)) else {
            return 0;
        };
        node.missing(place, 0)
    }

    /// What the process holds beside its ledger on the device of that slot.
    pub(super) fn set_overhead(&mut self, id: ProcessId, device: usize, bytes: u64) {
        let (Ok(Some(at)), Some(member)) = (self.place(Some(device)), self.members.get_mut(&id)) else {
            return;
        };
        let (charge, group) = (member.charge(at), member.group);
        let before = member.set_overhead(at, bytes);
        let now = member.charge(at);
        self.charge(group, at, Change::of(charge, now));
        if before != bytes && group.is_some() {
            self.settle(group);
            self.publish(group);
        }
    }

    /// What the process claims is taken on trust until NVML is heard.
    pub(super) fn trust(&mut self, id: ProcessId) {
        for at in self.places(None) {
            self.change(id, at, |member| member.trust(at));
        }
        let group = self.members.get(&id).and_then(|member| member.group);
        self.settle(group);
        self.publish(group);
    }

    /// NVML shows the process to hold so many bytes on the device of that slot, whatever it has charged.
    pub(super) fn show(&mut self, id: ProcessId, device: usize, bytes: u64) {
        let Ok(Some(at)) = self.place(Some(device)) else {
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

    /// The most that the process is believed to have charged on the device of that slot.
    pub(super) fn most(&self, id: ProcessId, device: usize) -> u64 {
        match (self.place(Some(device)), self.members.get(&id)) {
            (Ok(Some(at)), Some(member)) => member.most(at),
            _ => 0,
        }
    }

    /// The most that is believed to be held in a group on the device of that slot, or on all together.
    pub(super) fn cap(&self, id: GroupId, device: Option<usize>) -> u64 {
        let (Ok(place), Some(node)) = (self.place(device), self.groups.get(&id)) else {
            return NO_LIMIT;
        };
        u64::try_from(node.cap(place)).unwrap_or(NO_LIMIT)
    }

    /// The process may have charged what was there already, more than was granted: it holds it, then. Or it asks for every
    /// byte, and has given some back.
    pub(super) fn look(&mut self, id: ProcessId) {
        if !self.members.get(&id).is_some_and(Member::is_limited) {
            return;
        }
        for at in self.places(None) {
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

    /// Grants the process so many bytes beyond what it has charged on the device of that slot, if all groups above have
    /// them, once others have given back what they do not use.
    pub(super) fn request(&mut self, id: ProcessId, device: usize, bytes: u64) -> Outcome {
        let (Ok(Some(at)), Some(member)) = (self.place(Some(device)), self.members.get_mut(&id)) else {
            return Outcome::Granted;
        };
        let group = member.group;
        let before = member.charge(at);
        let Some((_, held)) = member.refresh(at) else {
            return Outcome::Granted;
        };
        let (need, is_open) = (member.wanted(at, bytes).saturating_sub(held), member.is_open(at));
        let now = member.charge(at);
        self.charge(group, at, Change::of(before, now));
        if need == 0 && is_open && bytes > 0 {
            return Outcome::Granted;
        }
        if self.chain(group).iter().any(|id| self.is_unsure(*id)) {
            return Outcome::Unknown;
        }
        let outcome = match self.find_room(group, (id, at), need) {
            Ok(slack) => {
                let all = held.saturating_add(need).saturating_add(slack);
                self.change(id, at, |member| member.grant(at, all));
                Outcome::Granted
            }
            Err(refusal) => {
                self.concede(id, at);
                Outcome::Refused(refusal)
            }
        };
        self.publish(group);
        outcome
    }

    /// Bytes that the process may have charged on the device of that slot without asking; none if no limit is above.
    pub(super) fn granted(&self, id: ProcessId, device: usize) -> Option<u64> {
        let at = self.place(Some(device)).ok()??;
        let member = self.members.get(&id)?;
        member.is_granted(at).then(|| member.held(at))
    }

    /// Bytes that the group has left on the device of that slot, or on all together, besides what is held.
    pub(super) fn room(&self, id: GroupId, device: Option<usize>) -> u64 {
        let (Ok(place), Some(node)) = (self.place(device), self.groups.get(&id)) else {
            return NO_LIMIT;
        };
        node.room(place)
    }

    /// Somebody of the group is alive and has not registered with this daemon: until [`told`](Self::told), nothing is
    /// granted there.
    pub(super) fn await_member(&mut self, group: GroupId) {
        for id in self.chain(Some(group)) {
            if let Some(node) = self.groups.get_mut(&id) {
                node.nr_awaited += 1;
            }
        }
    }

    /// Undoes one [`await_member`](Self::await_member).
    pub(super) fn told(&mut self, group: GroupId) {
        for id in self.chain(Some(group)) {
            if let Some(node) = self.groups.get_mut(&id) {
                node.nr_awaited = node.nr_awaited.saturating_sub(1);
            }
        }
    }

    /// What the group is charged for its limit.
    #[cfg(test)]
    fn charged(&self, id: GroupId, device: Option<usize>) -> u128 {
        let place = self.place(device).unwrap_or_default();
        self.groups[&id].charged(place)
    }

    fn has_limit(&self, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(Node::has_limit)
    }

    fn is_unsure(&self, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(Node::is_unsure)
    }

    fn limit(&self, id: GroupId, place: Place) -> u64 {
        self.groups.get(&id).map_or(NO_LIMIT, |node| node.limit(place))
    }

    fn missing(&self, id: GroupId, place: Place, need: u64) -> u64 {
        self.groups.get(&id).map_or(0, |node| node.missing(place, need))
    }

    /// That place, or all there are.
    fn places(&self, place: Place) -> Range<usize> {
        place.map_or(0..self.slots.len(), |at| at..at + 1)
    }

    /// The place of a device's slot, and that of none.
    fn place(&self, device: Option<usize>) -> Result<Place, ()> {
        let Some(slot) = device else { return Ok(None) };
        self.slots.iter().position(|of| *of == slot).map(Some).ok_or(())
    }

    /// A group and those above it, the nearest first.
    fn chain(&self, group: Option<GroupId>) -> Vec<GroupId> {
        let parent = |id: &GroupId| self.groups.get(id).and_then(|node| node.parent);
        let known = group.filter(|id| self.groups.contains_key(id));
        std::iter::successors(known, parent).collect()
    }

    /// Everybody in a group and below.
    fn below(&self, id: GroupId) -> Vec<ProcessId> {
        let (mut found, mut next) = (Vec::new(), vec![id]);
        while let Some(node) = next.pop().and_then(|id| self.groups.get(&id)) {
            found.extend(&node.members);
            next.extend(&node.children);
        }
        found
    }

    /// Charges a group for a change of what is held in it, and those above as far as it concerns them.
    fn charge(&mut self, group: Option<GroupId>, at: usize, mut change: Change) {
        for (nr, id) in self.chain(group).into_iter().enumerate() {
            if nr > 0 && change.is_none() {
                return;
            }
            if let Some(node) = self.groups.get_mut(&id) {
                change = node.charge(at, &change);
            }
        }
    }

    /// Changes what a process holds at a place, and charges the groups above for it.
    fn change(&mut self, id: ProcessId, at: usize, change: impl FnOnce(&mut Member)) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let (group, before) = (member.group, member.charge(at));
        change(member);
        let now = member.charge(at);
        if before != now {
            self.charge(group, at, Change::of(before, now));
        }
    }

    /// What is charged beyond what is held is held from now on, limit or not, as far as it is believed to be there.
    fn concede(&mut self, id: ProcessId, at: usize) {
        let Some(member) = self.members.get(&id) else {
            return;
        };
        let (group, now) = (member.group, member.believed(at));
        if member.is_granted(at) && now > member.held(at) {
            self.change(id, at, |member| member.concede(at, now));
            self.settle(group);
            self.publish(group);
        }
    }
}
