//! Holds: values of settings that a process holds on processes and groups while it lives.
//!
//! A hold belongs to a process, identified by pid and start time, and is stored with the record of what it
//! holds. So it outlives the connection that it was made on, the program that the holder executes, and the
//! daemon. It ends with its holder: the server watches each, and asks for those of earlier daemons at its
//! start. Values of several holders and the written one apply together: the strictest is in force.

use std::collections::BTreeMap;

use super::holders::{Hold, Holder, max_on_target, too_many};
use super::lease;
use super::settings::{HeldValue, HeldValues, SETTINGS, Setting, Settings};
use super::{Caller, Change, Directory, Edit, Entity, Notice, Process, Saved, State, Tree, enforce};
use crate::error::Result;

/// A value to be held in a directory, in the format of its control file.
#[derive(Debug, Clone, Copy)]
pub struct NewHold<'a> {
    pub directory: Directory,
    pub setting: &'static Setting,
    pub text: &'a str,
}

/// Returns whether one of the values in `new` takes the place of `old`.
fn is_replaced(old: &Hold, new: &[Hold]) -> bool {
    let mut new = new.iter();
    new.any(|new| (new.holder, &new.device, &new.setting) == (old.holder, &old.device, &old.setting))
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

    /// Ends all holds of a process. Does nothing if it has none.
    pub fn end_holder(&self, pid: u32, start_time: u64) {
        self.update(|state, notices| {
            for target in state.holders.end(pid, start_time) {
                let whole = Directory {
                    entity: target,
                    device: None,
                };
                let is_its = |hold: &Hold| (hold.holder.pid, hold.holder.start_time) == (pid, start_time);
                state.change_holds(whole, |holds| holds.retain(|hold| !is_its(hold)), notices);
            }
        });
    }

    /// Returns all holders.
    pub fn holders(&self) -> Vec<Holder> {
        self.state.lock().holders.all().collect()
    }

    /// Takes the holders in the record of a process over from an earlier daemon. They count as living until
    /// [`end_holder`](Self::end_holder).
    pub fn know_holders(&self, saved: &Saved) {
        let mut state = self.state.lock();
        saved.holds.iter().for_each(|hold| state.holders.add(hold.holder));
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
            let new = Hold {
                holder,
                device,
                setting: setting.key.to_owned(),
                value,
            };
            let there = holds.entry(directory.entity).or_default();
            there.retain(|old| !is_replaced(old, std::slice::from_ref(&new)));
            there.push(new);
        }
        let is_root = self.is_root(caller);
        (self.holders).admit(holder, is_root, &holds.keys().copied().collect())?;
        for (entity, new) in &holds {
            let there = self.holds_on(*entity).iter();
            let nr_others = there.filter(|old| !is_replaced(old, new)).count();
            if nr_others + new.len() > max_on_target(is_root) {
                return Err(too_many(is_root));
            }
        }
        for (entity, new) in holds {
            self.holders.note(holder, entity);
            let whole = Directory { entity, device: None };
            let add = |holds: &mut Vec<Hold>| {
                holds.retain(|old| !is_replaced(old, &new));
                holds.extend(new.iter().cloned());
            };
            self.change_holds(whole, add, notices);
        }
        Ok(())
    }

    /// Returns the values that are held on a process or group.
    fn holds_on(&self, entity: u64) -> &[Hold] {
        let whole = Directory { entity, device: None };
        match whole.whose() {
            Entity::Root => &[],
            Entity::Process(id) => self.processes.get(&id).map_or(&[], |process| &process.holds),
            Entity::Group(id) => self.groups.get(&id).map_or(&[], |group| &group.holds),
        }
    }

    /// Changes the holds on a process or group, and applies the change.
    fn change_holds(
        &mut self,
        whole: Directory,
        change: impl FnOnce(&mut Vec<Hold>),
        notices: &mut Vec<Notice>,
    ) {
        let (holds, notice) = match whole.whose() {
            Entity::Root => return,
            Entity::Process(id) => match self.processes.get_mut(&id) {
                Some(process) => (&mut process.holds, Notice::SettingsChanged(id)),
                None => return,
            },
            Entity::Group(id) => match self.groups.get_mut(&id) {
                Some(group) => (&mut group.holds, Notice::GroupChanged(id)),
                None => return,
            },
        };
        change(holds);
        notices.push(notice);
        self.renew_held(whole, notices);
    }

    /// Returns the values that follow from holds.
    fn held_values(&self, holds: &[Hold]) -> HeldValues {
        let mut held = HeldValues::default();
        for hold in holds {
            if let Some(setting) = hold.setting() {
                held.add(HeldValue {
                    setting,
                    device: hold.device.clone(),
                    value: hold.value,
                    by_root: hold.holder.uid == 0 || hold.holder.uid == self.owner.uid,
                });
            }
        }
        held
    }

    /// Computes again what is held on a process or group, by holders or its lease, and applies what has
    /// changed.
    pub(super) fn renew_held(&mut self, whole: Directory, notices: &mut Vec<Notice>) {
        let before: Settings;
        match whole.whose() {
            Entity::Root => return,
            Entity::Process(id) => {
                let Some(process) = self.processes.get(&id) else {
                    return;
                };
                let held = self.held_values(&process.holds);
                let Some(process) = self.processes.get_mut(&id) else {
                    return;
                };
                before = process.settings.clone();
                if !process.settings.set_held(held) {
                    return;
                }
                if enforce::settings(process, &self.devices) {
                    notices.push(Notice::Ring(id));
                }
            }
            Entity::Group(id) => {
                let Some(group) = self.groups.get(&id) else {
                    return;
                };
                let mut held = self.held_values(&group.holds);
                lease::held(group).into_iter().for_each(|value| held.add(value));
                let Some(group) = self.groups.get_mut(&id) else {
                    return;
                };
                before = group.settings.clone();
                if !group.settings.set_held(held) {
                    return;
                }
                self.hand_down(id, notices);
            }
        }
        self.follow_up(whole, &before, notices);
    }

    /// Does what must be done after a write, for each value of a process or group that differs from `before`.
    fn follow_up(&mut self, whole: Directory, before: &Settings, notices: &mut Vec<Notice>) {
        let daemon = Caller {
            uid: self.owner.uid,
            gid: self.owner.gid,
            pid: 0,
        };
        let devices = (0..self.devices.len()).filter_map(|device| whole.on(device));
        for directory in [whole].into_iter().chain(devices.collect::<Vec<_>>()) {
            for setting in SETTINGS.iter().filter(|setting| setting.hold_option.is_some()) {
                let mut edit = Edit::new(self, directory, daemon);
                // Cannot fail: the directory exists, and the values have been checked.
                let _ = edit.follow_up(setting, before);
                notices.extend(edit.into_notices());
            }
        }
    }

    /// Puts the holds of its record on a process that joins, without those of holders that have ended.
    pub(super) fn restore_holds(&self, saved: &Saved, process: &mut Process) {
        let living = saved.holds.iter().filter(|hold| self.holders.has(hold.holder));
        process.holds = living.cloned().collect();
        process.settings.set_held(self.held_values(&process.holds));
    }

    /// Notes the holds on a process or group that is new in the tree.
    pub(super) fn note_holds(&mut self, holds: &[Hold], target: u64) {
        holds
            .iter()
            .for_each(|hold| self.holders.note(hold.holder, target));
    }

    /// Notes that a process or group is gone, with the holds on it.
    pub(super) fn drop_holds(&mut self, holds: &[Hold], target: u64) {
        self.holders.drop_target(holds, target);
    }

    /// Computes what is held on a group that is not in the tree yet.
    pub(super) fn first_held(&self, group: &mut super::Group) {
        let mut held = self.held_values(&group.holds);
        lease::held(group).into_iter().for_each(|value| held.add(value));
        group.settings.set_held(held);
    }
}
