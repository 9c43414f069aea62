//! Publishing to processes the limits of the groups above and the room left in them.

use super::Grants;
use super::node::Allowed;
use crate::tree::{GroupId, ProcessId};

impl Grants {
    /// Publishes limits and room to all processes that a change in a group concerns.
    pub(super) fn publish(&mut self, group: Option<GroupId>) {
        if let Some(top) = self.chain(group).into_iter().rfind(|id| self.has_limit(*id)) {
            self.publish_below(top);
        }
    }

    /// Publishes limits and room to all processes in a group above which there is no limit.
    pub(super) fn publish_below(&self, top: GroupId) {
        let mut next = vec![(top, vec![Allowed::ALL; self.slots.len()])];
        while let Some((id, mut allowed)) = next.pop() {
            let Some(node) = self.groups.get(&id) else {
                continue;
            };
            node.narrow(&mut allowed);
            for member in &node.members {
                self.publish_to(*member, &allowed);
            }
            let children = node.children.iter();
            next.extend(children.map(|child| (*child, allowed.clone())));
        }
    }

    /// Publishes to one process the limits of the groups above and the room left in them.
    pub(super) fn publish_one(&self, id: ProcessId, group: Option<GroupId>) {
        let mut allowed = vec![Allowed::ALL; self.slots.len()];
        for node in self.chain(group).iter().filter_map(|id| self.groups.get(id)) {
            node.narrow(&mut allowed);
        }
        self.publish_to(id, &allowed);
    }

    /// Returns the smallest limit of a group and those above on the device in a slot, and the bytes that they
    /// leave; [`NO_LIMIT`](gcgroup_abi::NO_LIMIT) without a limit.
    pub(in crate::tree) fn room_below(&self, group: Option<GroupId>, slot: usize) -> (u64, u64) {
        let mut allowed = vec![Allowed::ALL; self.slots.len()];
        for node in self.chain(group).iter().filter_map(|id| self.groups.get(id)) {
            node.narrow(&mut allowed);
        }
        let at = self.slots.iter().position(|known| *known == slot);
        let allowed = at.and_then(|at| allowed.get(at)).unwrap_or(&Allowed::ALL);
        (allowed.limit, allowed.room)
    }

    fn publish_to(&self, id: ProcessId, allowed: &[Allowed]) {
        let Some(member) = self.members.get(&id) else {
            return;
        };
        for (slot, allowed) in self.slots.iter().zip(allowed) {
            self.resource.publish(member.blocks.control(), *slot, allowed);
        }
    }
}
