//! Membership of processes in groups: entering, leaving, and moving. A process takes the memory that it holds
//! along; what it has counted stays in the group where it was counted.

use super::group::Counted;
use super::inherited::Inherited;
use super::process::Process;
use super::{Caller, Directory, Edit, Entity, GroupId, Item, Notice, ProcessId, State, Sums};
use crate::error::{Error, Result};

impl State {
    /// Puts a process that has just registered, or has left its group, into a group.
    pub(super) fn enter(&mut self, id: ProcessId, to: Option<GroupId>, notices: &mut Vec<Notice>) {
        let Some(group) = to.and_then(|to| self.groups.get_mut(&to)) else {
            return;
        };
        group.members.insert(id);
        let inherited = group.inherited.clone();
        if let Some(process) = self.processes.get_mut(&id) {
            process.group = to;
            process.inherited = inherited;
        }
        let groups = self.chain(to);
        self.count_member(id, &groups, true, notices);
        self.observe(id);
        self.kill_expired(id, to, notices);
    }

    /// Removes an ending process from its group. Its counts stay in all groups above, unless the process goes
    /// on.
    pub(super) fn exit(&mut self, id: ProcessId, goes_on: bool, notices: &mut Vec<Notice>) {
        let Some(group) = self.processes.get(&id).and_then(|process| process.group) else {
            return;
        };
        let groups = self.chain(Some(group));
        self.observe(id);
        if !goes_on {
            self.depart(id, &groups);
        }
        self.count_member(id, &groups, false, notices);
        if let Some(group) = self.groups.get_mut(&group) {
            group.members.remove(&id);
        }
        notices.extend(groups.into_iter().map(Notice::GroupChanged));
    }

    /// Moves the process with that pid into a group, or into the root.
    ///
    /// # Errors
    /// `ESRCH` if no such process is registered; `EPERM` if it is not the caller's, if the caller may not
    /// write `gcgroup.procs` of the closest common ancestor, or if root froze or suspended a group that it
    /// would leave; [`Error::Gone`].
    pub(super) fn relocate(
        &mut self,
        pid: u32,
        to: Option<GroupId>,
        caller: Caller,
        notices: &mut Vec<Notice>,
    ) -> Result<()> {
        let id = *self.pids.get(&pid).ok_or(Error::NoProcess)?;
        self.settle_owner(Directory::process(id), caller);
        let process = self.processes.get(&id).ok_or(Error::NoProcess)?;
        let from = process.group;
        let (mut left, mut entered) = (self.chain(from), self.chain(to));
        if entered.first().copied() != to {
            return Err(Error::Gone);
        }
        let mut common = None;
        while let (Some(one), Some(other)) = (left.last(), entered.last())
            && one == other
        {
            common = left.pop();
            entered.pop();
        }
        if !self.is_root(caller) {
            let may_write = self.lets(Item::procs(Directory::of(common)), caller, &[], 0o2)?;
            if caller.uid != process.identity.uid || !may_write {
                return Err(Error::NotYours(
                    "moving a process needs ownership of it, and to write gcgroup.procs of the closest common ancestor",
                ));
            }
        }
        let is_held = |id| {
            self.groups
                .get(id)
                .is_some_and(|group| group.settings.is_stopped_by_root([0, self.owner.uid]))
        };
        if !self.is_root(caller) && left.iter().any(is_held) {
            return Err(Error::StoppedByRoot);
        }
        if from == to {
            return Ok(());
        }
        self.observe(id);
        self.leave_stalls(id);
        self.depart(id, &left);
        self.arrive(id, &entered);
        self.count_member(id, &left, false, notices);
        if let Some(group) = from.and_then(|from| self.groups.get_mut(&from)) {
            group.members.remove(&id);
        }
        if let Some(process) = self.processes.get_mut(&id) {
            process.group = None;
            process.has_moved = true;
        }
        let inherited = match to.and_then(|to| self.groups.get_mut(&to)) {
            Some(group) => {
                group.members.insert(id);
                group.inherited.clone()
            }
            None => Inherited::nothing(),
        };
        self.count_member(id, &entered, true, notices);
        if let Some(process) = self.processes.get_mut(&id) {
            process.group = to;
        }
        self.note_quotas(id.0);
        self.observe(id);
        self.inherit(id, inherited, notices);
        self.grants.move_to(id, to);
        self.swap_grants.move_to(id, to);
        for group in &entered {
            self.make_room(*group, notices);
        }
        notices.push(Notice::SettingsChanged(id));
        notices.extend(left.into_iter().chain(entered).map(Notice::GroupChanged));
        self.kill_expired(id, to, notices);
        self.reap(from, notices);
        self.tie(notices);
        Ok(())
    }

    /// Leaves the counts of a departing process in `groups`.
    fn depart(&mut self, id: ProcessId, groups: &[GroupId]) {
        self.each_count(id, groups, |counted, sums| counted.before += sums.departed());
    }

    /// Excludes the counts of an arriving process from those of `groups`; submissions still pending will be
    /// included.
    fn arrive(&mut self, id: ProcessId, groups: &[GroupId]) {
        self.each_count(id, groups, |counted, sums| {
            counted.arrived += sums.counts();
            counted.before.graph_kernels = counted.before.graph_kernels.saturating_add(sums.nr_pending());
        });
    }

    fn each_count(&mut self, id: ProcessId, groups: &[GroupId], count: impl Fn(&mut Counted, &Sums)) {
        let Self {
            processes,
            groups: all,
            devices,
            ..
        } = self;
        let Some(process) = processes.get(&id) else { return };
        for device in [None].into_iter().chain((0..devices.len()).map(Some)) {
            let sums = Sums::of(process, device, devices);
            if sums.counts() == Sums::default() {
                continue;
            }
            for id in groups {
                if let Some(group) = all.get_mut(id) {
                    count(group.counted_mut(device), &sums);
                }
            }
        }
    }

    /// Returns the processes in a group and below.
    pub(super) fn within(&self, id: GroupId) -> Vec<&Process> {
        let mut members = Vec::new();
        let mut left = vec![id];
        while let Some(group) = left.pop().and_then(|id| self.groups.get(&id)) {
            if group.nr_members > 0 {
                members.extend(&group.members);
                left.extend(group.children.values());
            }
        }
        members
            .into_iter()
            .filter_map(|id| self.processes.get(id).map(AsRef::as_ref))
            .collect()
    }

    /// Returns a group and those below.
    pub(super) fn groups_within(&self, id: GroupId) -> Vec<GroupId> {
        let mut found = Vec::new();
        let mut left = vec![id];
        while let Some(group) = left.pop().and_then(|id| self.groups.get(&id)) {
            found.push(group.id);
            left.extend(group.children.values());
        }
        found
    }

    /// Returns the memory held by a group and all below, and their counts.
    pub(super) fn group_sums(&self, id: GroupId, device: Option<usize>) -> Sums {
        let mut sums = self.held(id, device);
        sums.bound(
            self.current_in(Some(id), device),
            self.swapped_in(Some(id), device),
            &self.devices.host,
        );
        if let Some(counted) = self.groups.get(&id).map(|group| group.counted(device)) {
            sums += counted.before;
            sums = sums.less(counted.arrived);
        }
        sums
    }

    fn held(&self, id: GroupId, device: Option<usize>) -> Sums {
        let mut sums = Sums::default();
        for process in self.within(id) {
            sums += Sums::of(process, device, &self.devices);
        }
        sums
    }
}

impl Edit<'_> {
    /// Moves the process with that pid into this directory.
    ///
    /// # Errors
    /// `EOPNOTSUPP` except in the root and in groups; `ESRCH`, `EPERM` as for a move.
    pub fn take_in(&mut self, pid: u32) -> Result<()> {
        let to = match (self.directory.whose(), self.directory.device) {
            (Entity::Root, None) => None,
            (Entity::Group(id), None) => Some(id),
            _ => return Err(Error::NotSupported("processes can only be put into groups")),
        };
        self.state.relocate(pid, to, self.caller, &mut self.notices)
    }
}
