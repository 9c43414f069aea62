//! Making, removing, finding and restoring groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::creation::Creation;
use super::group::{MAX_DEPTH, MAX_GROUPS, MAX_OTHERS, MAX_PER_UID, check_name};
use super::inherited::Inherited;
use super::settings::MEMORY_SWAP_MAX;
use super::stall::totals::Stalls;
use super::{
    Access, Caller, Change, DIRECTORY_MODE, Device, Directory, Entity, Group, GroupId, NewGroup, Notice,
    Owner, ProcessId, Saved, Settings, State, Transient, Tree, enforce,
};
use crate::error::{Error, Result};

impl Tree {
    /// Makes a group in a directory and returns its number with the [`Change`]. The caller becomes its owner;
    /// its right to do so has been checked by the kernel or [`may_change`](Self::may_change).
    ///
    /// # Errors
    /// `EPERM` in a process's or a device's directory; `EINVAL` or `ENAMETOOLONG` for the name; `EEXIST`;
    /// `EMLINK` beyond [`MAX_DEPTH`]; `EAGAIN` if there are too many groups in all or of the caller.
    pub fn make_group(&self, new: &NewGroup<'_>) -> Result<(GroupId, Change)> {
        self.make(new, None)
    }

    pub(super) fn make(&self, new: &NewGroup<'_>, transient: Option<Transient>) -> Result<(GroupId, Change)> {
        let mut notices = Vec::new();
        let mut state = self.state.lock();
        let made = state.make_group(new, transient, &mut notices)?;
        Ok((made, Change::new(notices)))
    }

    /// Removes a group.
    ///
    /// # Errors
    /// `EPERM` for a process's or a device's directory, `ENOENT` if no group has that name, `EBUSY` if the
    /// group contains processes or groups.
    pub fn remove_group(&self, parent: Directory, name: &str) -> Result<Change> {
        let directory = self.subdirectory(parent, name)?;
        let Entity::Group(id) = directory.whose() else {
            return Err(Error::FixedShape);
        };
        if directory.device.is_some() {
            return Err(Error::FixedShape);
        }
        let mut notices = Vec::new();
        let mut state = self.state.lock();
        let gone = state.remove_group(id, &mut notices)?;
        state.reap(gone.parent, &mut notices);
        Ok(Change::new(notices))
    }

    /// Returns the parent directory; the root's parent is the root.
    pub fn parent(&self, directory: Directory) -> Directory {
        let state = self.state.lock();
        match directory.whose() {
            _ if directory.device.is_some() => directory.whole(),
            Entity::Group(id) => Directory::of(state.groups.get(&id).and_then(|group| group.parent)),
            Entity::Root | Entity::Process(_) => Directory::ROOT,
        }
    }

    /// Returns the path of a group from the root; empty for the root.
    pub fn path(&self, group: Option<GroupId>) -> String {
        self.state.lock().path(group)
    }

    /// Returns the group of a process (`Some(None)` for the root), or `None` if the process has left.
    pub fn group_of(&self, id: ProcessId) -> Option<Option<GroupId>> {
        Some(self.state.lock().processes.get(&id)?.group)
    }

    /// Returns all groups.
    pub fn groups(&self) -> Vec<GroupId> {
        self.state.lock().groups.keys().copied().collect()
    }

    /// Returns the group of a user's job of that name, if the user has one such job.
    pub fn job_of(&self, uid: u32, name: &str) -> Option<GroupId> {
        let state = self.state.lock();
        let is_it = |group: &&Group| group.is_job && group.name == name && group.access.owner.uid == uid;
        let mut found = state.groups.values().filter(is_it);
        found
            .next()
            .filter(|_| found.next().is_none())
            .map(|group| group.id)
    }

    /// Returns the group `name` of a directory, if the caller made it and it is empty.
    pub fn made_by(&self, parent: Directory, name: &str, caller: Caller) -> Option<Directory> {
        let directory = self.subdirectory(parent, name).ok()?;
        let Entity::Group(id) = directory.whose() else {
            return None;
        };
        let state = self.state.lock();
        let group = state.groups.get(&id)?;
        (group.maker == caller.uid && group.is_empty()).then_some(directory)
    }

    pub fn has_group(&self, id: GroupId) -> bool {
        self.state.lock().groups.contains_key(&id)
    }

    /// Returns the lowest priority number that users other than root may set for a process with these
    /// settings in a group, on all devices together.
    pub fn least_priority(&self, settings: &Settings, group: Option<GroupId>) -> u32 {
        self.state.lock().least_priority(settings, group, None)
    }

    /// Returns whether processes that start in a group can swap without having asked: root has set
    /// `memory.swap.max` of the group, or else of the nearest one above, to more than 0.
    pub fn enables_swap(&self, group: Option<GroupId>) -> bool {
        let state = self.state.lock();
        let groups = state.chain(group).into_iter();
        let mut set = groups.filter_map(|id| state.groups.get(&id)?.settings.root(MEMORY_SWAP_MAX, None));
        set.next().is_some_and(|bytes| bytes.number() != 0)
    }

    /// Returns the persistent state of a process, or `None` if it has left.
    pub fn saved(&self, id: ProcessId) -> Option<Saved> {
        let state = self.state.lock();
        Some(Saved::of_process(state.processes.get(&id)?, &state.devices))
    }

    /// Restores the root and the groups after a daemon restart, without notices. A group whose parent does
    /// not exist is dropped.
    pub fn restore(&self, root: Saved, groups: BTreeMap<GroupId, Saved>) {
        let mut state = self.state.lock();
        let last = groups
            .last_key_value()
            .map_or(GroupId::FIRST, |(id, _)| GroupId(id.0 + 1));
        state.next_group = last.max(root.next_group.unwrap_or(last)).min(GroupId::END);
        state.departed = root.departed();
        state.contexts.restore(root.contexts);
        state.configured = root.configured;
        state.root = root.settings;
        state.access = root.access;
        // A group's number is higher than its parent's, so parents come first.
        for (id, saved) in groups {
            let Some(mut saved) = state.retained.restore(id, saved) else {
                continue;
            };
            let Some(creation) = saved.creation.take() else {
                continue;
            };
            let parent = saved.group;
            let is_free = check_name(&creation.name).is_ok()
                && state.child(parent, &creation.name).is_ok_and(|id| id.is_none());
            if !is_free || !(GroupId::FIRST..GroupId::END).contains(&id) {
                continue;
            }
            let access = saved.access.unwrap_or(Access {
                owner: state.owner,
                mode: DIRECTORY_MODE,
            });
            let mut group = Group::new(id, parent, &creation, access);
            saved.restore_group(&mut group, &state.devices);
            state.add_group(group, &mut Vec::new());
        }
    }
}

impl State {
    fn make_group(
        &mut self,
        new: &NewGroup<'_>,
        transient: Option<Transient>,
        notices: &mut Vec<Notice>,
    ) -> Result<GroupId> {
        let NewGroup {
            parent,
            name,
            caller,
            mode,
        } = *new;
        let above = match (parent.whose(), parent.device) {
            (Entity::Root, None) => None,
            (Entity::Group(id), None) => Some(id),
            _ => return Err(Error::FixedShape),
        };
        check_name(name)?;
        if self.child(above, name)?.is_some() {
            return Err(Error::Exists);
        }
        if self.chain(above).len() >= MAX_DEPTH {
            return Err(Error::TooDeep(MAX_DEPTH));
        }
        let id = self.new_group_id(caller.uid)?;
        let mut access = Access {
            owner: Owner {
                uid: caller.uid,
                gid: caller.gid,
            },
            mode: mode & 0o777,
        };
        let origins = transient.as_ref().map(|transient| transient.origins.clone());
        access.owner = transient
            .as_ref()
            .map_or(access.owner, |transient| transient.owner);
        let creation = Creation {
            name: name.to_owned(),
            by: caller.uid,
            is_transient: transient.is_some(),
            job: transient.as_ref().and_then(|transient| transient.job.clone()),
            is_requested: transient.as_ref().is_some_and(|transient| transient.is_requested),
            ..Creation::default()
        };
        let mut group = Group::new(id, above, &creation, access);
        group.settings = transient.map(|transient| transient.settings).unwrap_or_default();
        group.origins = origins.unwrap_or_default();
        self.add_group(group, notices);
        let path = self.path(Some(id));
        self.retained.drop_path(&path, notices);
        notices.push(Notice::GroupChanged(id));
        Ok(id)
    }

    /// Returns the number of a group to be made by a user.
    ///
    /// # Errors
    /// `EAGAIN` if there are too many groups in all or of the user.
    pub(super) fn new_group_id(&mut self, uid: u32) -> Result<GroupId> {
        let (nr_made, nr_all) = (self.nr_made.of(uid), self.groups.len());
        let is_root = uid == 0 || uid == self.owner.uid;
        if nr_all >= MAX_GROUPS
            || (!is_root && (nr_made >= MAX_PER_UID || nr_all >= MAX_OTHERS))
            || self.next_group >= GroupId::END
        {
            return Err(Error::TooMany {
                per_user: MAX_PER_UID,
                all: MAX_GROUPS,
            });
        }
        let id = self.next_group;
        self.next_group = GroupId(id.0 + 1);
        Ok(id)
    }

    pub(super) fn add_group(&mut self, mut group: Group, notices: &mut Vec<Notice>) {
        let (id, name) = (group.id, group.name.clone());
        let above = group.parent.and_then(|parent| self.groups.get(&parent));
        let above = above.map_or_else(Inherited::nothing, |above| above.inherited.clone());
        self.holders.note(&group.settings.holds, id.0);
        group.inherited = Arc::new(above.through(&group.settings, &self.devices));
        group.note_standing(self.devices.len());
        group.stalls = Stalls::new(self.now());
        self.nr_made.add(group.maker);
        match group.parent.and_then(|parent| self.groups.get_mut(&parent)) {
            Some(parent) => parent.children.insert(name, id),
            None => self.top.insert(name, id),
        };
        self.grants.add_group(id, group.parent);
        self.swap_grants.add_group(id, group.parent);
        let job = group.job.clone().filter(|job| !job.has_ended);
        self.groups.insert(id, group);
        if let Some(job) = job {
            self.holders.note_job(job.pid, job.start_time, id);
            self.count_holds(id, |nr_holds| nr_holds + 1, notices);
        }
        self.arm_lease(id, notices);
        self.note_quotas(id.0);
        let places = [None].into_iter().chain((0..self.devices.len()).map(Some));
        places.for_each(|place| self.bound_group(id, place));
    }

    pub(super) fn remove_group(&mut self, id: GroupId, notices: &mut Vec<Notice>) -> Result<Group> {
        let group = self.groups.get(&id).ok_or(Error::NotFound)?;
        if !group.is_empty() {
            return Err(Error::NotEmpty);
        }
        if let Some(line) = group.job_line() {
            notices.push(Notice::JobEnded {
                path: self.path(Some(id)),
                uid: group.access.owner.uid,
                line,
            });
        }
        self.leave_stalls_of_group(id);
        self.pass_orphaned(id);
        let group = self.groups.remove(&id).ok_or(Error::NotFound)?;
        self.note_quotas(id.0);
        self.leases.remove(&id);
        self.holders.drop_target(&group.settings.holds, id.0);
        self.grants.remove_group(id);
        self.swap_grants.remove_group(id);
        match group.parent.and_then(|parent| self.groups.get_mut(&parent)) {
            Some(parent) => parent.children.remove(&group.name),
            None => self.top.remove(&group.name),
        };
        self.nr_made.remove(group.maker);
        // The root's record comes first: it has the next group number, which must outlive the last group.
        notices.push(Notice::RootChanged);
        notices.push(Notice::GroupChanged(id));
        notices.push(Notice::Removed(id));
        Ok(group)
    }

    /// Returns the group `name` in a group, or in the root.
    ///
    /// # Errors
    /// [`Error::Gone`] if the parent group does not exist.
    pub(super) fn child(&self, parent: Option<GroupId>, name: &str) -> Result<Option<GroupId>> {
        let children = match parent {
            None => &self.top,
            Some(id) => &self.groups.get(&id).ok_or(Error::Gone)?.children,
        };
        Ok(children.get(name).copied())
    }

    /// Returns a group and its ancestors, the group first.
    pub(super) fn chain(&self, group: Option<GroupId>) -> Vec<GroupId> {
        let above = |group: &&Group| group.parent.and_then(|parent| self.groups.get(&parent));
        std::iter::successors(group.and_then(|id| self.groups.get(&id)), above)
            .map(|group| group.id)
            .collect()
    }

    pub(super) fn path(&self, group: Option<GroupId>) -> String {
        let names = self.chain(group).into_iter().rev();
        let names = names.filter_map(|id| Some(self.groups.get(&id)?.name.as_str()));
        names.collect::<Vec<_>>().join("/")
    }

    /// Returns the lowest priority number that users other than root may set for a process or group with
    /// these settings in the group `above`: on one device, or as a whole, where the bounds of every device
    /// apply.
    pub(super) fn least_priority(
        &self,
        settings: &Settings,
        above: Option<GroupId>,
        device: Option<usize>,
    ) -> u32 {
        let group = above.and_then(|above| self.groups.get(&above));
        let inherited = group.map_or_else(Inherited::nothing, |group| group.inherited.clone());
        let on = |device: &Device| {
            let above = inherited.rank(Some(device.index));
            settings.rank(Some(&device.uuid_text), above).least()
        };
        if let Some(device) = device.and_then(|index| self.devices.get(index)) {
            return on(device);
        }
        let whole = settings.rank(None, inherited.rank(None)).least();
        self.devices.iter().map(on).fold(whole, u32::max)
    }

    /// Applies a group's settings to all groups and processes below.
    pub(super) fn hand_down(&mut self, id: GroupId, notices: &mut Vec<Notice>) {
        let mut left = vec![id];
        while let Some(id) = left.pop() {
            let Some(group) = self.groups.get(&id) else {
                continue;
            };
            let above = group.parent.and_then(|parent| self.groups.get(&parent));
            let above = above.map_or_else(Inherited::nothing, |above| above.inherited.clone());
            let inherited = above.through(&group.settings, &self.devices);
            if inherited == *group.inherited {
                continue;
            }
            let Some(group) = self.groups.get_mut(&id) else {
                continue;
            };
            group.inherited = Arc::new(inherited);
            if group.note_standing(self.devices.len()) {
                notices.push(Notice::GroupEvents(id));
            }
            left.extend(group.children.values());
            let (inherited, members) = (group.inherited.clone(), group.members.clone());
            for id in members {
                self.inherit(id, inherited.clone(), notices);
            }
        }
    }

    /// Applies to a process what it inherits from its groups.
    pub(super) fn inherit(&mut self, id: ProcessId, inherited: Arc<Inherited>, notices: &mut Vec<Notice>) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        process.inherited = inherited;
        if enforce::settings(process, &self.devices) {
            notices.push(Notice::Ring(id));
        }
        self.note_events(id, notices);
    }
}
