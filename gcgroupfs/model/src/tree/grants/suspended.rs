//! Charges of suspended processes, which hold no memory of the devices.

use super::node::Recharge;
use super::{Grants, Position};
use crate::tree::ProcessId;

impl Grants {
    /// Drops the charge of a process for as long as it is suspended, or makes it again regardless of limits.
    /// The process keeps its grants.
    pub(in crate::tree) fn set_suspended(&mut self, id: ProcessId, is_suspended: bool) {
        let before = self
            .members
            .get(&id)
            .map(|member| (member.group, member.is_suspended()));
        let Some((group, _)) = before.filter(|(_, before)| *before != is_suspended) else {
            return;
        };
        self.suspend(id, is_suspended);
        self.settle(group);
        self.publish(group);
    }

    /// Charges a suspended process again, if all groups above have room after taking back what others do not
    /// use. Returns whether they have.
    pub(in crate::tree) fn resume(&mut self, id: ProcessId) -> bool {
        let Some(group) = self.members.get(&id).map(|member| member.group) else {
            return false;
        };
        self.suspend(id, false);
        let positions: Vec<Position> = self.positions(None).map(Some).chain([None]).collect();
        let mut has_room = true;
        for above in self.chain(group) {
            for position in &positions {
                let missing = self.missing(above, *position, 0);
                self.take_back(above, *position, missing, None);
                has_room = has_room && self.missing(above, *position, 0) == 0;
            }
        }
        if !has_room {
            self.suspend(id, true);
        }
        self.publish(group);
        has_room
    }

    fn suspend(&mut self, id: ProcessId, is_suspended: bool) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let group = member.group;
        let positions = 0..self.slots.len();
        let before: Vec<_> = positions.clone().map(|at| member.charge(at)).collect();
        member.set_suspended(is_suspended);
        let now: Vec<_> = positions.map(|at| member.charge(at)).collect();
        for (at, (before, now)) in before.into_iter().zip(now).enumerate() {
            self.charge(group, at, Recharge::of(before, now));
        }
    }
}
