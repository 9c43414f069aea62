//! Holds: values of settings that a process holds on processes and groups while it lives, or that an expired
//! lease holds on its group; and groups that are held for jobs.
//!
//! A hold belongs to a process, identified by pid and start time, and is stored with the settings of what it
//! holds. So it outlives the connection that it was made on, the program that the holder executes, and the
//! daemon. It ends with its holder: the server watches each, and asks for those of earlier daemons at its
//! start. Values of several holders and the written one apply together: the strictest is in force.

use std::collections::{BTreeMap, BTreeSet};

use super::holders::{max_on_target, too_many};
use super::settings::{Hold, Holder, SETTINGS, Setting};
use super::{Caller, Change, Directory, Edit, GroupId, Notice, Saved, State, Tree};
use crate::error::Result;

/// A value to be held in a directory, in the format of its control file.
#[derive(Debug, Clone, Copy)]
pub struct NewHold<'a> {
    pub directory: Directory,
    pub setting: &'static Setting,
    pub text: &'a str,
}

impl Tree {
    /// Holds values for a process, all or none of them, until [`end_holder`](Self::end_holder). A value that
    /// the process holds already in the same place is replaced.
    ///
    /// # Errors
    /// `EACCES` if the caller owns not all of them; as writing the control files;
    /// [`TooManyHolds`](crate::error::Error::TooManyHolds).
    pub fn hold(&self, holder: Holder, caller: Caller, new: &[NewHold<'_>]) -> Result<Change> {
        let mut notices = Vec::new();
        self.state.lock().add_holds(holder, caller, new, &mut notices)?;
        Ok(Change::new(notices))
    }

    /// Ends all holds of a process, and releases the groups of its jobs. Does nothing if it has none.
    pub fn end_holder(&self, pid: u32, start_time: u64) {
        self.update(|state, notices| {
            let (targets, jobs) = state.holders.end(pid, start_time);
            let is_its = |hold: &Hold| (hold.holder.pid, hold.holder.start_time) == (pid, start_time);
            for target in targets {
                state.change_holds(target, |holds| holds.retain(|hold| !is_its(hold)), notices);
            }
            // Inner groups first: an outer one is not removed before them.
            jobs.into_iter()
                .rev()
                .for_each(|group| state.end_job(group, notices));
        });
    }

    /// Returns the pids and start times of the processes that hold values or groups.
    pub fn holders(&self) -> BTreeSet<(u32, u64)> {
        self.state.lock().holders.all()
    }

    /// Returns the innermost group that is held for a job of the process with this pid, and whether the job
    /// was started by a governed process. Without a start time, the pid decides.
    pub fn job_of_process(&self, pid: u32, start_time: Option<u64>) -> Option<(GroupId, bool)> {
        let state = self.state.lock();
        let group = state.holders.job_of(pid, start_time)?;
        let job = state.groups.get(&group)?.job.as_ref()?;
        Some((group, job.is_inherited))
    }

    /// Takes the holders in the record of a process over from an earlier daemon. They count as living until
    /// [`end_holder`](Self::end_holder).
    pub fn know_holders(&self, saved: &Saved) {
        let mut state = self.state.lock();
        let holds = saved.settings.holds.iter();
        holds.for_each(|hold| state.holders.add(hold.holder));
    }
}

impl State {
    fn add_holds(
        &mut self,
        holder: Holder,
        caller: Caller,
        new: &[NewHold<'_>],
        notices: &mut Vec<Notice>,
    ) -> Result<()> {
        let mut holds: BTreeMap<u64, Vec<Hold>> = BTreeMap::new();
        for NewHold {
            directory,
            setting,
            text,
        } in new
        {
            self.check_owner(directory.whole(), caller)?;
            let edit = Edit::new(self, *directory, caller);
            let (value, device) = edit.parse_held(setting, text)?;
            let there = holds.entry(directory.entity);
            let there = there.or_insert_with(|| {
                edit.settings()
                    .map_or_else(|_| Vec::new(), |own| own.holds.clone())
            });
            let new = Hold {
                holder,
                device,
                setting: setting.key.to_owned(),
                value,
            };
            there.retain(|old| !old.is_replaced_by(&new));
            there.push(new);
        }
        let is_root = self.is_root(caller);
        (self.holders).admit(holder, is_root, &holds.keys().copied().collect())?;
        let is_full = |holds: &Vec<Hold>| {
            let processes = holds.iter().filter(|hold| !hold.holder.is_lease());
            processes.count() > max_on_target(is_root)
        };
        if holds.values().any(is_full) {
            return Err(too_many(is_root));
        }
        for (entity, new) in holds {
            self.holders.note(&new, entity);
            self.change_holds(entity, |holds| *holds = new, notices);
        }
        Ok(())
    }

    /// Changes the holds on a process or group, and applies the change as a write of the settings.
    pub(super) fn change_holds(
        &mut self,
        entity: u64,
        change: impl FnOnce(&mut Vec<Hold>),
        notices: &mut Vec<Notice>,
    ) {
        let daemon = Caller {
            uid: self.owner.uid,
            gid: self.owner.gid,
            pid: 0,
        };
        let whole = Directory { entity, device: None };
        let devices = 0..self.devices.len();
        let mut edit = Edit::new(self, whole, daemon);
        let Ok(before) = edit.settings().cloned() else {
            return;
        };
        // Cannot fail: the process or group exists, and the values have been checked.
        let _ = edit.change(|settings, _| {
            change(&mut settings.holds);
            Ok(())
        });
        for directory in [Some(whole)]
            .into_iter()
            .chain(devices.map(|device| whole.on(device)))
            .flatten()
        {
            edit.directory = directory;
            for setting in SETTINGS.iter().filter(|setting| setting.hold_option.is_some()) {
                let _ = edit.follow_up(setting, &before);
            }
        }
        notices.extend(edit.into_notices());
    }
}
