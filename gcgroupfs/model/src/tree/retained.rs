//! Records of transient groups that were removed with their last known process, for processes that name such
//! a group later: a launcher may end before its worker uses CUDA. The group is made again with its settings
//! and counts.
//!
//! A record is a group's record with the path and the time until which it is kept. It stays in the journal
//! in place of the group's.

use std::collections::BTreeMap;

use super::creation::Retained;
use super::{Caller, Group, GroupId, Notice, Saved, Settings, State, Tree};

/// Time for which a record is kept, ms.
const KEPT_MSEC: u64 = 24 * 60 * 60 * 1000;

/// Maximum number of records of one owner's groups, and of all.
const MAX_PER_UID: usize = 256;
const MAX: usize = 4096;

/// The records by path.
#[derive(Debug, Default)]
pub(super) struct RetainedGroups(BTreeMap<String, Record>);

#[derive(Debug)]
struct Record {
    /// Number that the group had.
    id: GroupId,
    until: u64,
    saved: Saved,
}

impl Record {
    fn owner(&self) -> u32 {
        self.saved.access.map_or(0, |access| access.owner.uid)
    }
}

impl RetainedGroups {
    /// Takes over the record of an earlier daemon; returns it if it is that of a group that exists.
    pub(super) fn restore(&mut self, id: GroupId, saved: Saved) -> Option<Saved> {
        let Some(Retained { path, until }) = saved
            .creation
            .as_ref()
            .and_then(|creation| creation.retained.clone())
        else {
            return Some(saved);
        };
        self.0.insert(path, Record { id, until, saved });
        None
    }

    /// Returns the record of a removed group.
    pub(super) fn of_group(&self, id: GroupId) -> Option<&Saved> {
        let record = self.0.values().find(|record| record.id == id)?;
        Some(&record.saved)
    }

    /// Drops the record of a group, because another group takes its path.
    pub(super) fn drop_path(&mut self, path: &str, notices: &mut Vec<Notice>) {
        let dropped = self.0.remove(path);
        notices.extend(dropped.map(|record| Notice::GroupChanged(record.id)));
    }

    fn has_below(&self, path: &str) -> bool {
        let below = format!("{path}/");
        let next = self.0.range(below.clone()..).next();
        next.is_some_and(|(path, _)| path.starts_with(&below))
    }

    /// Adds a record. Drops those whose time is over, and beyond the bounds the oldest of the owner, or of
    /// all, that has no other below it.
    fn add(&mut self, path: String, record: Record, now: u64, notices: &mut Vec<Notice>) {
        let owner = record.owner();
        let over: Vec<String> = self
            .0
            .iter()
            .filter(|(_, one)| one.until <= now)
            .map(|(path, _)| path.clone())
            .collect();
        over.iter()
            .chain([&path])
            .for_each(|path| self.drop_path(path, notices));
        loop {
            let nr_own = self.0.values().filter(|one| one.owner() == owner).count();
            if nr_own < MAX_PER_UID && self.0.len() < MAX {
                break;
            }
            let all = self
                .0
                .iter()
                .filter(|(path, one)| (nr_own == 0 || one.owner() == owner) && !self.has_below(path));
            let Some(oldest) = all.min_by_key(|(_, one)| one.until).map(|(path, _)| path.clone()) else {
                break;
            };
            self.drop_path(&oldest, notices);
        }
        self.0.insert(path, record);
    }
}

impl Tree {
    /// Makes the removed groups on a path again, with their settings and counts, if there is a record of the
    /// last and it belongs to the caller.
    pub fn revive(&self, path: &str, caller: Caller) {
        self.update(|state, notices| {
            state.revive(path.trim_matches('/'), caller, notices);
        });
    }

    /// Returns the group that was asked for when the job with the group at `path` was started; `None` if
    /// there is no such job. The command of the job may have ended, and its group may have been removed.
    pub fn job_wish(&self, path: &str) -> Option<Option<String>> {
        let path = path.trim_matches('/');
        let state = self.state.lock();
        let mut group = None;
        for name in path.split('/') {
            group = state.child(group, name).ok()?;
            if group.is_none() {
                break;
            }
        }
        let job = match group.and_then(|id| state.groups.get(&id)) {
            Some(group) => group.job.as_ref(),
            None => state.retained.0.get(path)?.saved.creation.as_ref()?.job.as_ref(),
        };
        Some(job?.wish.clone())
    }
}

impl State {
    /// Removes an empty transient group, and keeps its record if a process may name it later.
    ///
    /// # Errors
    /// As [`remove_group`](Self::remove_group).
    pub(super) fn retire_group(
        &mut self,
        id: GroupId,
        notices: &mut Vec<Notice>,
    ) -> crate::error::Result<()> {
        let path = self.path(Some(id));
        let is_retained = |group: &&Group| {
            let mut settings = group.settings.clone();
            settings.holds.clear();
            settings.given_access.clear();
            let has_settings = settings != Settings::default();
            group.is_job || group.is_requested && has_settings || self.retained.has_below(&path)
        };
        let saved = self.groups.get(&id).filter(is_retained).map(|group| {
            let mut saved = Saved::of_group(group, &self.devices);
            saved.origins = group.origins.clone();
            saved
        });
        self.remove_group(id, notices)?;
        if let Some(mut saved) = saved {
            let now = self.since_boot();
            let until = now.saturating_add(KEPT_MSEC);
            if let Some(creation) = &mut saved.creation {
                let path = path.clone();
                creation.retained = Some(Retained { path, until });
            }
            self.retained.add(path, Record { id, until, saved }, now, notices);
        }
        Ok(())
    }

    fn revive(&mut self, path: &str, caller: Caller, notices: &mut Vec<Notice>) -> Option<()> {
        let last = self.retained.0.get(path)?;
        let is_allowed = last.owner() == caller.uid || self.is_root(caller);
        if !is_allowed || last.until <= self.since_boot() {
            return None;
        }
        let (mut above, mut end) = (None, 0);
        for name in path.split('/') {
            end += name.len();
            above = Some(match self.child(above, name).ok()? {
                Some(id) => id,
                None => self.make_again(path.get(..end)?, above, notices)?,
            });
            end += 1;
        }
        Some(())
    }

    fn make_again(
        &mut self,
        path: &str,
        parent: Option<GroupId>,
        notices: &mut Vec<Notice>,
    ) -> Option<GroupId> {
        let maker = self.retained.0.get(path)?.saved.creation.as_ref()?.by;
        let id = self.new_group_id(maker).ok()?;
        let Record {
            id: old, mut saved, ..
        } = self.retained.0.remove(path)?;
        saved.settings.holds.retain(|hold| self.holders.has(hold.holder));
        let (mut creation, access) = (saved.creation.take()?, saved.access?);
        creation.retained = None;
        let mut group = Group::new(id, parent, &creation, access);
        group.former = Some(old);
        group.origins = saved.origins.clone();
        saved.restore_group(&mut group, &self.devices);
        self.add_group(group, notices);
        notices.extend([
            Notice::RootChanged,
            Notice::GroupChanged(old),
            Notice::GroupChanged(id),
        ]);
        Some(id)
    }
}
