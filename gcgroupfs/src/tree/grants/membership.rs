//! Who is in which group: what comes with a process that enters one, and goes with it.

use std::sync::Arc;

use super::Grants;
use super::member::{Held, Member};
use crate::tree::{Blocks, GroupId, ProcessId};

impl Grants {
    /// Has a process be in a group, or in none. Whatever it was granted before, by this daemon or another, it keeps what
    /// it has charged and nothing more.
    pub(in crate::tree) fn join(&mut self, id: ProcessId, group: Option<GroupId>, blocks: Arc<dyn Blocks>) {
        let member = Member::new(self.resource, blocks, &self.slots);
        self.members.insert(id, member);
        self.enter(id, group);
    }

    /// A process has ended.
    pub(in crate::tree) fn leave(&mut self, id: ProcessId) {
        self.exit(id);
        self.members.remove(&id);
    }

    /// Moves a process, with what it has charged, to another group.
    pub(in crate::tree) fn move_to(&mut self, id: ProcessId, group: Option<GroupId>) {
        self.exit(id);
        self.enter(id, group);
    }

    fn enter(&mut self, id: ProcessId, group: Option<GroupId>) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        member.group = group;
        let charges: Vec<u64> = member.devices.iter().map(Held::charge).collect();
        for above in self.chain(group) {
            if let Some(node) = self.groups.get_mut(&above) {
                node.nr_below += 1;
            }
        }
        if let Some(node) = group.and_then(|group| self.groups.get_mut(&group)) {
            node.members.insert(id);
        }
        for (at, bytes) in charges.into_iter().enumerate() {
            self.charge(group, at, 0, bytes);
        }
        self.govern(id);
        self.settle(group);
        self.publish(group);
        self.publish_one(id, group);
    }

    /// Takes what a process holds off the groups above. It holds what it has charged, and can charge nothing more, until
    /// it enters another.
    fn exit(&mut self, id: ProcessId) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let group = member.group.take();
        let charges: Vec<u64> = member.devices.iter().map(Held::charge).collect();
        (0..charges.len()).for_each(|at| member.close(at));
        for above in self.chain(group) {
            if let Some(node) = self.groups.get_mut(&above) {
                node.nr_below = node.nr_below.saturating_sub(1);
            }
        }
        if let Some(node) = group.and_then(|group| self.groups.get_mut(&group)) {
            node.members.remove(&id);
        }
        for (at, bytes) in charges.into_iter().enumerate() {
            self.charge(group, at, bytes, 0);
        }
        self.publish(group);
    }

    /// Has grants begin or end for a process, as there are limits above it or not.
    pub(super) fn govern(&mut self, id: ProcessId) {
        let Some(group) = self.members.get(&id).map(|member| member.group) else {
            return;
        };
        let chain = self.chain(group);
        for at in self.places(None) {
            let is_limited = chain
                .iter()
                .filter_map(|id| self.groups.get(id))
                .any(|node| node.limits(at));
            self.change(id, at, |member| member.govern(at, is_limited));
        }
    }
}
