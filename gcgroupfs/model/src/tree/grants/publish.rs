//! Publishing to processes the limits of the groups above and the room left in them. What a process may
//! charge and has not is room for the others, since it is taken back when they need it.

use std::collections::BTreeMap;

use gcgroup_abi::NO_LIMIT;

use super::Grants;
use super::node::Allowed;
use crate::tree::{GroupId, ProcessId};

/// Bytes by position that processes in a group and below hold and have not charged.
type Unused = BTreeMap<GroupId, Vec<u64>>;

impl Grants {
    /// Publishes limits and room to all processes that a change in a group concerns.
    pub(super) fn publish(&mut self, group: Option<GroupId>) {
        if let Some(top) = self.chain(group).into_iter().rfind(|id| self.has_limit(*id)) {
            self.publish_below(top);
        }
    }

    /// Publishes limits and room to all processes in a group above which there is no limit.
    pub(super) fn publish_below(&self, top: GroupId) {
        let mut unused = Unused::new();
        self.sum_unused(top, &mut unused);
        let mut next = vec![(top, vec![Allowed::ALL; self.slots.len()])];
        while let Some((id, mut allowed)) = next.pop() {
            let (Some(node), Some(unused)) = (self.groups.get(&id), unused.get(&id)) else {
                continue;
            };
            node.narrow(&mut allowed, unused);
            for member in &node.members {
                self.publish_to(*member, &allowed);
            }
            let children = node.children.iter();
            next.extend(children.map(|child| (*child, allowed.clone())));
        }
    }

    /// Publishes to one process the limits of the groups above and the room left in them.
    pub(super) fn publish_one(&self, id: ProcessId, group: Option<GroupId>) {
        self.publish_to(id, &self.allowed(group));
    }

    /// Returns the smallest limit of a group and those above on the device in a slot, and the bytes that they
    /// leave; [`NO_LIMIT`](gcgroup_abi::NO_LIMIT) without a limit.
    pub(in crate::tree) fn room_below(&self, group: Option<GroupId>, slot: usize) -> (u64, u64) {
        let allowed = self.allowed(group);
        let at = self.slots.iter().position(|known| *known == slot);
        let allowed = at.and_then(|at| allowed.get(at)).unwrap_or(&Allowed::ALL);
        (allowed.limit, allowed.room)
    }

    /// Returns what a group and those above allow, by position.
    fn allowed(&self, group: Option<GroupId>) -> Vec<Allowed> {
        let (chain, mut unused) = (self.chain(group), Unused::new());
        if let Some(top) = chain.iter().rfind(|id| self.has_limit(**id)) {
            self.sum_unused(*top, &mut unused);
        }
        let mut allowed = vec![Allowed::ALL; self.slots.len()];
        for (node, unused) in chain
            .iter()
            .filter_map(|id| self.groups.get(id).zip(unused.get(id)))
        {
            node.narrow(&mut allowed, unused);
        }
        allowed
    }

    /// Adds to `found` what is unused in a group and in each group below.
    fn sum_unused(&self, id: GroupId, found: &mut Unused) {
        let Some(node) = self.groups.get(&id) else {
            return;
        };
        let mut sums = vec![0; self.slots.len()];
        for member in node.members.iter().filter_map(|id| self.members.get(id)) {
            let spare = (0..sums.len()).map(|at| member.spare(at));
            sums.iter_mut().zip(spare).for_each(|(sum, spare)| *sum += spare);
        }
        for child in &node.children {
            self.sum_unused(*child, found);
            let below = found.get(child).into_iter().flatten();
            sums.iter_mut().zip(below).for_each(|(sum, spare)| *sum += spare);
        }
        found.insert(id, sums);
    }

    /// Publishes limits and room to one process, which adds to the room what it may charge itself.
    fn publish_to(&self, id: ProcessId, allowed: &[Allowed]) {
        let Some(member) = self.members.get(&id) else {
            return;
        };
        for (at, (slot, allowed)) in self.slots.iter().zip(allowed).enumerate() {
            let own = if member.is_open(at) { member.spare(at) } else { 0 };
            let room = match allowed.room {
                NO_LIMIT => NO_LIMIT,
                room => room.saturating_sub(own),
            };
            let allowed = Allowed { room, ..*allowed };
            self.resource.publish(member.blocks.control(), *slot, &allowed);
        }
    }
}
