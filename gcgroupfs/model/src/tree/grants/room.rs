//! Finding room for a request: from what groups have left, and from what other processes hold and do not use.
//! Where more is held than a limit allows, grants are closed.

use gcgroup_abi::NO_LIMIT;

use super::{Grants, Position, Refusal};
use crate::tree::{GroupId, ProcessId};

impl Grants {
    /// Returns the bytes of a group's limit that are not held, on the device of a slot or as a whole.
    pub(in crate::tree) fn room(&self, id: GroupId, device: Option<usize>) -> u64 {
        let (Ok(position), Some(node)) = (self.position(device), self.groups.get(&id)) else {
            return NO_LIMIT;
        };
        node.room(position, 0)
    }

    /// Finds room in every group above for a process to hold `need` bytes more at a position, taking back
    /// what others do not use. Returns the bytes that may be granted in addition.
    pub(super) fn find_room(
        &mut self,
        group: Option<GroupId>,
        asker: (ProcessId, usize),
        need: u64,
    ) -> Result<u64, Refusal> {
        let levels: Vec<(GroupId, Position)> = self
            .chain(group)
            .into_iter()
            .flat_map(|id| [(id, Some(asker.1)), (id, None)])
            .filter(|(id, position)| self.limit(*id, *position) != NO_LIMIT)
            .collect();
        let refusal = |(group, position): (GroupId, Position), slots: &[usize]| Refusal {
            group,
            device: position.and_then(|at| slots.get(at).copied()),
        };
        let too_small = |level: &&(GroupId, Position)| self.limit(level.0, level.1) < need;
        if let Some(level) = levels.iter().find(too_small) {
            return Err(refusal(*level, &self.slots));
        }
        let mut is_short = false;
        for (id, position) in &levels {
            let missing = self.missing(*id, *position, need);
            if missing > 0 {
                is_short = true;
                self.take_back(*id, *position, missing, Some(asker));
            }
        }
        let mut slack = if is_short {
            0
        } else {
            self.resource.most_unused(NO_LIMIT)
        };
        for level in levels {
            let (id, position) = level;
            let Some(node) = self
                .groups
                .get(&id)
                .filter(|node| node.missing(position, need) == 0)
            else {
                return Err(refusal(level, &self.slots));
            };
            let spare = node.room(position, 0) - need;
            let most = self.resource.most_unused(self.limit(id, position));
            slack = slack.min(spare / (node.nr_below as u64 + 1)).min(most);
        }
        Ok(slack)
    }

    /// Takes back up to `bytes` that processes below a group hold at a position and do not use, largest
    /// first, except from the requester.
    pub(super) fn take_back(
        &mut self,
        id: GroupId,
        position: Position,
        bytes: u64,
        asker: Option<(ProcessId, usize)>,
    ) {
        let mut idle: Vec<(u64, ProcessId, usize)> = Vec::new();
        for id in self.below(id) {
            let Some(member) = self.members.get(&id) else {
                continue;
            };
            let of = |at| (member.idle(at), id, at);
            idle.extend(self.positions(position).map(of).filter(|(bytes, ..)| *bytes > 0));
        }
        idle.sort_unstable_by(|one, other| other.cmp(one));
        let mut left = bytes;
        for (_, id, at) in idle.into_iter().filter(|(_, id, at)| asker != Some((*id, *at))) {
            if left == 0 {
                return;
            }
            self.change(id, at, |member| {
                let before = member.held(at);
                member.take_back(at, left);
                left = left.saturating_sub(before.saturating_sub(member.held(at)));
            });
        }
    }

    /// Returns whether the process, which has rung, leaves more of a grant unused than it may.
    pub(in crate::tree) fn has_unused(&mut self, id: ProcessId) -> bool {
        let mut positions = self.positions(None);
        let Some(member) = self.members.get_mut(&id) else {
            return false;
        };
        let unused: Vec<usize> = positions.by_ref().filter(|at| member.is_wasteful(*at)).collect();
        unused.iter().for_each(|at| member.expect_nothing(*at));
        !unused.is_empty()
    }

    /// Takes back all that the process leaves unused where that is more than it may. Returns whether there
    /// was any.
    pub(in crate::tree) fn take_unused(&mut self, id: ProcessId) -> bool {
        let Some(group) = self.members.get(&id).map(|member| member.group) else {
            return false;
        };
        let wasteful = |grants: &Self, at| {
            grants
                .members
                .get(&id)
                .is_some_and(|member| member.is_wasteful(at))
        };
        let found: Vec<usize> = self.positions(None).filter(|at| wasteful(self, *at)).collect();
        for at in &found {
            self.change(id, *at, |member| {
                member.expect_nothing(*at);
                member.take_back(*at, NO_LIMIT);
            });
        }
        // It may have charged what was shown to others as free.
        self.publish(group);
        !found.is_empty()
    }

    /// Reduces what is held beyond limits, from a group upwards: takes back what is not used. If that is not
    /// enough, closes the grants below, so that each charge must ask while usage shrinks.
    pub(super) fn settle(&mut self, group: Option<GroupId>) {
        for id in self.chain(group) {
            for position in self.positions(None).map(Some).chain([None]) {
                let missing = self.missing(id, position, 0);
                if missing > 0 {
                    self.take_back(id, position, missing, None);
                }
                if self.missing(id, position, 0) > 0 {
                    self.close(id, position);
                }
            }
        }
    }

    fn close(&mut self, id: GroupId, position: Position) {
        for id in self.below(id) {
            for at in self.positions(position) {
                self.change(id, at, |member| member.close(at));
            }
        }
    }
}
