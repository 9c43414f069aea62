//! Processes entering and leaving groups with what they hold.

use std::sync::Arc;

use super::Grants;
use super::member::Member;
use super::node::{Charge, Recharge};
use crate::tree::{Blocks, GroupId, ProcessId};

impl Grants {
    /// Adds a process in a group, or in the root. Whatever was granted before, by this daemon or another, it
    /// holds what it has charged and nothing more.
    pub(in crate::tree) fn join(&mut self, id: ProcessId, group: Option<GroupId>, blocks: Arc<dyn Blocks>) {
        let slots: Vec<_> = self
            .slots
            .iter()
            .copied()
            .zip(self.totals.iter().copied())
            .collect();
        let member = Member::new(self.resource, blocks, &slots);
        self.members.insert(id, member);
        self.enter(id, group, true);
    }

    /// Removes a process that has ended.
    pub(in crate::tree) fn leave(&mut self, id: ProcessId) {
        self.exit(id);
        self.members.remove(&id);
    }

    /// Moves a process with what it has charged to another group.
    pub(in crate::tree) fn move_to(&mut self, id: ProcessId, group: Option<GroupId>) {
        self.exit(id);
        self.enter(id, group, false);
    }

    /// Stops granting in a group until [`told`](Self::told): one of its processes is alive and has not
    /// registered with this daemon.
    pub(in crate::tree) fn await_member(&mut self, group: GroupId) {
        for id in self.chain(Some(group)) {
            if let Some(node) = self.groups.get_mut(&id) {
                node.nr_awaited += 1;
            }
        }
    }

    /// Undoes one [`await_member`](Self::await_member).
    pub(in crate::tree) fn told(&mut self, group: GroupId) {
        for id in self.chain(Some(group)) {
            if let Some(node) = self.groups.get_mut(&id) {
                node.nr_awaited = node.nr_awaited.saturating_sub(1);
            }
        }
    }

    fn enter(&mut self, id: ProcessId, group: Option<GroupId>, is_new: bool) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        member.group = group;
        let charges: Vec<Charge> = (0..member.devices.len()).map(|at| member.charge(at)).collect();
        for above in self.chain(group) {
            if let Some(node) = self.groups.get_mut(&above) {
                node.nr_below += 1;
            }
        }
        if let Some(node) = group.and_then(|group| self.groups.get_mut(&group)) {
            node.members.insert(id);
        }
        for (at, charge) in charges.into_iter().enumerate() {
            self.charge(group, at, Recharge::of(Charge::default(), charge));
        }
        self.govern(id, is_new);
        self.settle(group);
        self.publish(group);
        self.publish_one(id, group);
    }

    /// Uncharges the groups above for what a process holds. Until it enters another group it holds what it
    /// has charged, and cannot charge more.
    fn exit(&mut self, id: ProcessId) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let group = member.group.take();
        let charges: Vec<Charge> = (0..member.devices.len()).map(|at| member.charge(at)).collect();
        (0..charges.len()).for_each(|at| member.close(at));
        for above in self.chain(group) {
            if let Some(node) = self.groups.get_mut(&above) {
                node.nr_below = node.nr_below.saturating_sub(1);
            }
        }
        if let Some(node) = group.and_then(|group| self.groups.get_mut(&group)) {
            node.members.remove(&id);
        }
        for (at, charge) in charges.into_iter().enumerate() {
            self.charge(group, at, Recharge::of(charge, Charge::default()));
        }
        self.publish(group);
    }

    /// Begins or ends the grants of a process, depending on limits above and on
    /// `memory.high`. `is_new`: it has just registered.
    pub(super) fn govern(&mut self, id: ProcessId, is_new: bool) {
        let Some(group) = self.members.get(&id).map(|member| member.group) else {
            return;
        };
        let chain = self.chain(group);
        for at in self.positions(None) {
            let is_limited = chain
                .iter()
                .filter_map(|id| self.groups.get(id))
                .any(|node| node.limits.concern(at));
            let is_granted = is_limited || self.is_bounded(id, at);
            self.change(id, at, |member| member.govern(at, is_granted, is_new));
            self.publish_high(id, at);
        }
    }
}
