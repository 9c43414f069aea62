//! Transient groups: made on demand, and removed with the last process and the last child group.

use super::creation::Job;
use super::{Entity, Group, GroupId, NewGroup, Notice, Origins, Owner, Settings, State, Tree};
use crate::error::{Error, Result};

/// Initial state of a transient group.
#[derive(Debug, Clone)]
pub struct Transient {
    pub owner: Owner,
    pub settings: Settings,
    /// Where the settings come from.
    pub origins: Origins,
    /// The command for which the group is held until [`Tree::end_holder`].
    pub job: Option<Job>,
    /// Whether a process or a job asked for the group.
    pub is_requested: bool,
}

impl Tree {
    /// Makes a transient group for a job and holds it until [`end_holder`](Self::end_holder).
    ///
    /// # Errors
    /// As [`make_group`](Self::make_group).
    pub fn make_job_group(&self, new: &NewGroup<'_>, transient: Transient) -> Result<GroupId> {
        let (id, change) = self.make(new, Some(transient))?;
        self.finish(change);
        Ok(id)
    }

    /// Makes a transient group, charged to the caller's number of groups whatever its owner. An existing
    /// group of that name is returned as it is.
    ///
    /// # Errors
    /// As [`make_group`](Self::make_group), without `EEXIST` for a group.
    pub fn make_transient_group(&self, new: &NewGroup<'_>, transient: Transient) -> Result<GroupId> {
        match self.make(new, Some(transient)) {
            Ok((id, change)) => {
                self.finish(change);
                Ok(id)
            }
            Err(Error::Exists) => match self.subdirectory(new.parent, new.name)?.whose() {
                Entity::Group(id) => Ok(id),
                _ => Err(Error::Exists),
            },
            Err(error) => Err(error),
        }
    }

    /// Keeps a group from being removed until it is released as often. Returns whether it exists.
    pub fn hold_group(&self, id: GroupId) -> bool {
        self.update(|state, notices| {
            let is_there = state.groups.contains_key(&id);
            state.count_holds(id, |nr_holds| nr_holds + 1, notices);
            is_there
        })
    }

    /// Undoes one [`hold_group`](Self::hold_group).
    pub fn release_group(&self, id: GroupId) {
        self.update(|state, notices| state.release_group(id, notices));
    }

    /// Removes all empty transient groups except `but`.
    pub fn reap_transient(&self, but: Option<GroupId>) {
        self.update(|state, notices| {
            let transient = state
                .groups
                .values()
                .filter(|group| group.is_transient && !state.orphaned.is_any_in(group.id));
            let mut transient: Vec<GroupId> = transient.map(|group| group.id).collect();
            // A group's number is higher than its parent's, so children come first.
            transient.sort_unstable_by(|one, other| other.cmp(one));
            for id in transient.into_iter().filter(|id| Some(*id) != but) {
                // Fails for groups that are not empty.
                let _ = state.retire_group(id, notices);
            }
        });
    }
}

impl State {
    /// Releases the group that was held for a job.
    pub(super) fn end_job(&mut self, id: GroupId, notices: &mut Vec<Notice>) {
        if let Some(job) = self.groups.get_mut(&id).and_then(|group| group.job.as_mut()) {
            job.has_ended = true;
            notices.push(Notice::GroupChanged(id));
            self.release_group(id, notices);
        }
    }

    /// Undoes one [`hold_group`](Tree::hold_group).
    pub(super) fn release_group(&mut self, id: GroupId, notices: &mut Vec<Notice>) {
        self.count_holds(id, |nr_holds| nr_holds.saturating_sub(1), notices);
        self.reap(Some(id), notices);
    }

    /// Changes the number of holds of a group and of those above. A held group counts as populated.
    pub(super) fn count_holds(
        &mut self,
        id: GroupId,
        count: impl Fn(usize) -> usize,
        notices: &mut Vec<Notice>,
    ) {
        self.change_standing(id, |group| group.nr_holds = count(group.nr_holds), notices);
    }

    /// Changes a group and those above, and adds notices where `gcgroup.events` changes.
    pub(super) fn change_standing(
        &mut self,
        id: GroupId,
        change: impl Fn(&mut Group),
        notices: &mut Vec<Notice>,
    ) {
        let nr_devices = self.devices.len();
        self.each_above(Some(id), |group| {
            change(group);
            if group.note_standing(nr_devices) {
                notices.push(Notice::GroupEvents(group.id));
            }
        });
    }

    /// Removes empty transient groups, from `from` upwards.
    pub(super) fn reap(&mut self, from: Option<GroupId>, notices: &mut Vec<Notice>) {
        let mut at = from;
        while let Some(group) = at.and_then(|id| self.groups.get(&id)) {
            let (id, parent) = (group.id, group.parent);
            let stays = !group.is_transient || self.orphaned.is_any_in(id);
            if stays || self.retire_group(id, notices).is_err() {
                break;
            }
            at = parent;
        }
    }
}
