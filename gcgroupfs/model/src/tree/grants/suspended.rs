//! Charges of suspended processes, which hold no memory of the devices.

use super::member::Member;
use super::node::{Charge, Recharge};
use super::{Grants, Position};
use crate::tree::{Exchange, GroupId, ProcessId};

impl Grants {
    /// Drops the charge of a process for as long as it is suspended, or makes it again regardless of limits.
    /// The process keeps its grants. What was [reserved](Self::reserve) for it is released.
    pub(in crate::tree) fn set_suspended(&mut self, id: ProcessId, is_suspended: bool) {
        let member = self.members.get(&id);
        let is_changed =
            member.is_some_and(|member| member.is_suspended() != is_suspended || member.has_reserved());
        let group = member.and_then(|member| member.group);
        if is_changed {
            self.recharge(id, |member| member.set_suspended(is_suspended));
            self.settle(group);
            self.publish(group);
        }
    }

    /// Charges a suspended process again, if all groups above have room after taking back what others do not
    /// use. Returns whether they have.
    pub(in crate::tree) fn resume(&mut self, id: ProcessId) -> bool {
        self.charge_if_room(id, |member| member.set_suspended(false))
    }

    /// Charges a suspended process for what it will hold when GPUs change places, as [`resume`](Self::resume)
    /// otherwise. The process stays suspended.
    pub(in crate::tree) fn reserve(&mut self, id: ProcessId, exchange: Exchange) -> bool {
        let slots = self.slots.clone();
        let place = |slot: usize| slots.iter().position(|known| *known == slot);
        self.charge_if_room(id, |member| {
            let from = slots.iter().filter_map(|slot| place(exchange.of(*slot)));
            let charges = from.map(|at| member.charge_when_resumed(at));
            member.reserved = charges.collect();
        })
    }

    /// Gives a process's grants of two devices to each other, after it has moved its charges.
    pub(in crate::tree) fn exchange(&mut self, id: ProcessId, Exchange { from, to }: Exchange) {
        let (Ok(Some(from)), Ok(Some(to))) = (self.position(Some(from)), self.position(Some(to))) else {
            return;
        };
        self.recharge(id, |member| member.exchange(from, to));
        // The limits of the two devices differ.
        self.govern(id, false);
        self.look(id);
        let group = self.members.get(&id).and_then(|member| member.group);
        self.settle(group);
        self.publish(group);
    }

    fn charge_if_room(&mut self, id: ProcessId, change: impl FnOnce(&mut Member)) -> bool {
        let Some(group) = self.members.get(&id).map(|member| member.group) else {
            return false;
        };
        self.recharge(id, change);
        let has_room = self.has_room(group);
        if !has_room {
            self.recharge(id, |member| member.set_suspended(true));
        }
        self.publish(group);
        has_room
    }

    /// Returns whether a group and all above keep their limits, after taking back what processes do not use.
    fn has_room(&mut self, group: Option<GroupId>) -> bool {
        let positions: Vec<Position> = self.positions(None).map(Some).chain([None]).collect();
        let mut has_room = true;
        for above in self.chain(group) {
            for position in &positions {
                let missing = self.missing(above, *position, 0);
                self.take_back(above, *position, missing, None);
                has_room = has_room && self.missing(above, *position, 0) == 0;
            }
        }
        has_room
    }

    /// Changes what a process is charged at all positions.
    fn recharge(&mut self, id: ProcessId, change: impl FnOnce(&mut Member)) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let group = member.group;
        let positions = 0..self.slots.len();
        let before: Vec<Charge> = positions.clone().map(|at| member.charge(at)).collect();
        change(member);
        let now: Vec<Charge> = positions.map(|at| member.charge(at)).collect();
        for (at, (before, now)) in before.into_iter().zip(now).enumerate() {
            self.charge(group, at, Recharge::of(before, now));
        }
    }
}
