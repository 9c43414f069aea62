//! Where the values of settings come from: kept in memory for people to read, one entry for each value.

use std::collections::BTreeMap;

use super::{Directory, Entity, SETTINGS, Setting, Settings, State};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A write to the control file. `pid` is 0 if it is not known.
    Written { uid: u32, pid: u32 },
    /// A rule of the configuration, by number, name and line.
    Rule(Box<str>),
    /// The program asked for it when it started: `gcgroupfs run`, or a variable of its environment.
    Asked,
    /// Root has set `memory.swap.max` for a group above, which enables swap.
    Group,
}

/// A value's origin, and when it was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) origin: Origin,
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub(super) at: u64,
}

/// Origins of a process's or group's values, by setting and device. A value without one was set under an
/// earlier daemon, or before the process executed its program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<(&'static str, Option<usize>), Noted>);

impl Origins {
    pub(super) fn get(&self, setting: &Setting, device: Option<usize>) -> Option<&Noted> {
        self.0.get(&(setting.name, device))
    }

    fn set(&mut self, setting: &'static Setting, device: Option<usize>, noted: Noted) {
        if device.is_none() && setting.inherits {
            // The values on devices have been replaced.
            self.0.retain(|(name, _), _| *name != setting.name);
        }
        self.0.insert((setting.name, device), noted);
    }

    /// Notes at `now` that the rule made all of these settings, unless the program asked for them.
    pub fn of_rule(rule: Option<&str>, ruled: &Settings, now: u64) -> Self {
        let mut origins = Self::default();
        let Some(rule) = rule else { return origins };
        for setting in SETTINGS
            .iter()
            .filter(|setting| ruled.own(setting, None).is_some())
        {
            let origin = Origin::Rule(rule.into());
            origins.set(setting, None, Noted { origin, at: now });
        }
        origins
    }

    /// Notes at `now` the origin of each setting that is in `after` and not in `before`.
    pub fn note_difference(&mut self, before: &Settings, after: &Settings, origin: &Origin, now: u64) {
        for setting in SETTINGS {
            let value = after.own(setting, None);
            if value.is_some() && value != before.own(setting, None) {
                let (origin, at) = (origin.clone(), now);
                self.set(setting, None, Noted { origin, at });
            }
        }
    }
}

impl State {
    /// Stores the writer of a setting of a process or group.
    pub(super) fn note_writer(&mut self, directory: Directory, setting: &'static Setting, origin: Origin) {
        let at = (self.devices.host.now)();
        let origins = match directory.whose() {
            Entity::Root => None,
            Entity::Process(id) => self.processes.get_mut(&id).map(|process| &mut process.origins),
            Entity::Group(id) => self.groups.get_mut(&id).map(|group| &mut group.origins),
        };
        if let Some(origins) = origins {
            origins.set(setting, directory.device.map(usize::from), Noted { origin, at });
        }
    }
}
