//! Protection of memory by `memory.min` and `memory.low`, with the meaning of cgroup v2, and the order in
//! which memory is moved out: first what is beyond `memory.high`.
//!
//! A protection is effective as far as the groups above have it as well: each passes its own down, to its
//! children and processes in proportion to what they hold within their own values, and the rest in proportion
//! to what else they hold (`effective_protection` in the kernel's mm/page_counter.c, with
//! `memory_recursiveprot`). That of a group for which room is made is not considered, nor those above it.
//!
//! The owner of a group decides how its protection is divided, as with cgroup v2's delegation: a value of
//! another user counts up to the value that root has set in the same place ([`State::claim`]).

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use super::process::Process;
use super::settings::{MEMORY_LOW, MEMORY_MIN, Setting, Value};
use super::{Edit, Entity, GroupId, ProcessId, Settings, State};
use crate::error::{Error, Result};

/// A class of memory, by its protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Beyond `memory.high`, and beyond `memory.low` and `memory.min`.
    AboveHigh,
    /// Beyond `memory.low` and `memory.min`.
    Unprotected,
    /// Within `memory.low`, beyond `memory.min`.
    Low,
}

/// Classes in the order in which memory is moved out: nothing of one before all of those above it has been
/// asked for. Memory within `memory.min` is in none of them. Within a class the lowest priority is first,
/// and among equals the process with the most memory of that class.
const ORDER: &[Class] = &[Class::AboveHigh, Class::Unprotected, Class::Low];

/// Bytes of one process on one device that are protected, or beyond `memory.high`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Protected {
    pub(super) min: u64,
    pub(super) low: u64,
    /// Beyond `memory.high` of the process or of a group above.
    pub(super) above: u64,
}

impl Protected {
    /// Returns the bytes of a class among `movable` ones of a process that holds `held`.
    fn of_class(self, class: Class, held: u64, movable: u64) -> u64 {
        let beyond = |protected: u64| movable.min(held.saturating_sub(protected));
        let unprotected = beyond(self.low.max(self.min));
        let above = unprotected.min(self.above);
        match class {
            Class::AboveHigh => above,
            Class::Unprotected => unprotected - above,
            Class::Low => beyond(self.min) - unprotected,
        }
    }
}

/// A process that can move memory out of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) id: ProcessId,
    pub(super) device: usize,
    pub(super) priority: u32,
    /// Bytes on the device.
    pub(super) held: u64,
    /// Those that can be moved.
    pub(super) movable: u64,
    pub(super) protected: Protected,
}

/// Returns how many bytes each source is asked for so that it is `wanted` together, or all that is not
/// protected by `memory.min`: in the order in which they are asked, each source once.
pub(super) fn choose(sources: &[Source], wanted: u64) -> Vec<(Source, u64)> {
    let (mut left, mut chosen): (u64, Vec<(Source, u64)>) = (wanted, Vec::new());
    // The index in `chosen`, so that the time does not grow with the square of the number of sources.
    let mut at: HashMap<(ProcessId, usize), usize> = HashMap::new();
    for class in ORDER {
        if left == 0 {
            break;
        }
        let of_class = |source: &Source| {
            let bytes = source.protected.of_class(*class, source.held, source.movable);
            (bytes != 0).then_some((*source, bytes))
        };
        let mut some: Vec<_> = sources.iter().filter_map(of_class).collect();
        some.sort_by_key(|(source, bytes)| Reverse((source.priority, *bytes)));
        for (source, bytes) in some {
            let bytes = bytes.min(left);
            if bytes == 0 {
                break;
            }
            left -= bytes;
            match at.entry((source.id, source.device)) {
                Entry::Occupied(before) => {
                    if let Some((_, before)) = chosen.get_mut(*before.get()) {
                        *before += bytes;
                    }
                }
                Entry::Vacant(new) => {
                    new.insert(chosen.len());
                    chosen.push((source, bytes));
                }
            }
        }
    }
    chosen
}

impl State {
    /// Returns what is protected, and what is beyond `memory.high`, of the processes in a group, or of all,
    /// on a device. Processes without either are not listed.
    pub(super) fn protected(&self, within: Option<GroupId>, device: usize) -> BTreeMap<ProcessId, Protected> {
        let mut all: BTreeMap<ProcessId, Protected> = BTreeMap::new();
        for (id, above) in self.beyond_high(within, device) {
            let protected = all.entry(id).or_default();
            protected.above = protected.above.max(above);
        }
        for (setting, place) in [
            (MEMORY_MIN, Some(device)),
            (MEMORY_MIN, None),
            (MEMORY_LOW, Some(device)),
            (MEMORY_LOW, None),
        ] {
            if !self.is_protecting(setting, place) {
                continue;
            }
            let mut found = Vec::new();
            self.pass_down(within, u64::MAX, (setting, place), &mut found);
            for (id, bytes) in found {
                let Some(process) = self.processes.get(&id) else {
                    continue;
                };
                // The part on this device of what is protected on all together.
                let (here, everywhere) = (
                    self.current_of(process, Some(device)),
                    self.current_of(process, None),
                );
                let bytes = match place {
                    Some(_) => bytes,
                    None => share(bytes, here, everywhere),
                };
                let protected = all.entry(id).or_default();
                let word = match *setting == *MEMORY_MIN {
                    true => &mut protected.min,
                    false => &mut protected.low,
                };
                *word = (*word).max(bytes);
            }
        }
        all
    }

    /// Returns whether any group or process has a value for a place.
    fn is_protecting(&self, setting: &Setting, place: Option<usize>) -> bool {
        let uuid = place.and_then(|place| self.uuid(place));
        if place.is_some() && uuid.is_none() {
            return false;
        }
        let groups = self.groups.values().map(|group| &group.settings);
        let processes = self.processes.values().map(|process| &process.settings);
        let mut all = groups.chain(processes);
        all.any(|settings| {
            settings
                .own(setting, uuid)
                .is_some_and(|value| value.number() != 0)
        })
    }

    pub(super) fn uuid(&self, device: usize) -> Option<&str> {
        self.devices.get(device).map(|device| device.uuid_text.as_str())
    }

    /// Divides the protection `above` of a group, or of the root, among its processes and child groups.
    /// Returns what is effective for each process.
    fn pass_down(
        &self,
        within: Option<GroupId>,
        above: u64,
        (setting, place): (&'static Setting, Option<usize>),
        found: &mut Vec<(ProcessId, u64)>,
    ) {
        let uuid = place.and_then(|place| self.uuid(place));
        let group = within.and_then(|id| self.groups.get(&id));
        let children = group.map_or(&self.top, |group| &group.children);
        let groups = children.values().filter_map(|id| {
            let child = self.groups.get(id)?;
            let own = self.claim(within, child.access.owner.uid, &child.settings, (setting, uuid));
            Some((Entity::Group(*id), own, self.current_in(Some(*id), place)))
        });
        let members: Vec<&Process> = match group {
            Some(group) => group
                .members
                .iter()
                .filter_map(|id| self.processes.get(id).map(AsRef::as_ref))
                .collect(),
            None => self
                .processes
                .values()
                .map(AsRef::as_ref)
                .filter(|process| process.group.is_none())
                .collect(),
        };
        let processes = members.into_iter().map(|process| {
            let own = self.claim(within, process.identity.uid, &process.settings, (setting, uuid));
            (Entity::Process(process.id), own, self.current_of(process, place))
        });
        let all: Vec<(Entity, u64, u64)> = groups.chain(processes).collect();
        let sum = |of: fn(&(Entity, u64, u64)) -> u64| all.iter().map(of).fold(0, u64::saturating_add);
        let claimed = sum(|(_, own, held)| *own.min(held));
        let held = sum(|(_, _, held)| *held);
        for (entity, own, has) in &all {
            let own = *own.min(has);
            let bytes = match above {
                // Nothing is above the root, and what is above the group does not count.
                u64::MAX => own,
                above if claimed > above => share(above, own, claimed),
                above => own + share(above.min(held) - claimed, has - own, held - claimed),
            };
            match *entity {
                Entity::Group(id) if bytes != 0 => self.pass_down(Some(id), bytes, (setting, place), found),
                Entity::Process(id) if bytes != 0 => found.push((id, bytes)),
                _ => {}
            }
        }
    }

    /// Returns the part of a value that counts, of a process or group in the group `above`: all of it if its
    /// owner also owns the group above, else what is within root's value.
    ///
    /// Owners are compared at each request, since the value may have been written in another group, or before
    /// the group above got another owner.
    fn claim(
        &self,
        above: Option<GroupId>,
        owner: u32,
        settings: &Settings,
        (setting, uuid): (&'static Setting, Option<&str>),
    ) -> u64 {
        let bytes = |value: Option<Value>| value.map_or(0, Value::number);
        let own = bytes(settings.own(setting, uuid));
        match self.owns(above, owner) {
            true => own,
            false => own.min(bytes(settings.root(setting, uuid))),
        }
    }

    /// Returns whether a user owns a group. A user to whom the root directory was given does not own it
    /// here: nothing bounds what is protected there.
    fn owns(&self, group: Option<GroupId>, uid: u32) -> bool {
        let group = group.and_then(|id| self.groups.get(&id));
        group.is_some_and(|group| group.access.owner.uid == uid)
    }
}

/// Returns `bytes` times `part` divided by `whole`.
fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

impl Edit<'_> {
    /// Checks a value of `memory.min` or `memory.low`.
    ///
    /// # Errors
    /// `EPERM` if a user other than root protects memory where root has set no value, of a process or group
    /// in the root or in a group of another user.
    pub(super) fn check_protection(&self, setting: &'static Setting, bytes: u64) -> Result<()> {
        let (state, caller) = (self.state(), self.caller());
        let above = match self.directory().whose() {
            Entity::Process(id) => state.processes.get(&id).and_then(|process| process.group),
            Entity::Group(id) => state.groups.get(&id).and_then(|group| group.parent),
            Entity::Root => None,
        };
        let is_bounded = self.settings()?.root(setting, self.uuid().as_deref()).is_some();
        if bytes != 0 && !is_bounded && !state.is_root(caller) && !state.owns(above, caller.uid) {
            return Err(Error::NotYours(
                "only root and the owner of the group above can protect memory",
            ));
        }
        Ok(())
    }
}
