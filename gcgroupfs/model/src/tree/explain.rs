//! Explains to people what bounds a process or a group, where that comes from, what was refused, and what can
//! be done. Times are ages, since this module knows no wall clock.

mod advice;
mod bounds;
mod held;
mod waits;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use self::bounds::bounds;
use super::group::Group;
use super::origin::{Noted, Origin};
use super::process::Process;
use super::refused::{Cause, Refused};
use super::settings::{Kind, Setting, Value};
use super::{Directory, Entity, GroupId, Settings, State, Tree, usage};
use crate::error::{Error, Result};
use crate::text::{size, word};

/// Answer to an explain request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The process or group.
    pub title: String,
    pub sections: Vec<Section>,
}

/// Lines of one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    pub title: String,
    pub lines: Vec<Line>,
}

/// A fact.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Seconds since it came about, if that is known.
    pub age: Option<u64>,
    pub text: String,
}

impl Line {
    fn new(text: impl Into<String>) -> Self {
        Self {
            age: None,
            text: text.into(),
        }
    }
}

impl Tree {
    /// Returns the groups that a process or a group is in, itself included, the nearest first.
    pub fn groups_of(&self, directory: Directory) -> Vec<GroupId> {
        let state = self.state.lock();
        match directory.whose() {
            Entity::Root => Vec::new(),
            Entity::Process(id) => state.chain(state.processes.get(&id).and_then(|process| process.group)),
            Entity::Group(id) => state.chain(Some(id)),
        }
    }

    /// Explains a process or a group. Other groups than the `visible` ones are not named.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::IsDirectory`] at the root.
    pub fn explain(&self, directory: Directory, visible: &BTreeSet<GroupId>) -> Result<Explanation> {
        // Refusals whose doorbell has not been handled yet.
        self.update(|state, notices| state.note_events_below(directory, notices));
        let state = self.state.lock();
        let subject = match directory.whose() {
            Entity::Root => return Err(Error::NotSupported("name a process or a group")),
            Entity::Process(id) => Subject::Process(state.processes.get(&id).ok_or(Error::Gone)?),
            Entity::Group(id) => Subject::Group(state.groups.get(&id).ok_or(Error::Gone)?),
        };
        let case = Case {
            state: &state,
            subject,
            visible,
            now: (state.devices.host.now)(),
        };
        Ok(case.explain())
    }
}

#[derive(Clone, Copy)]
enum Subject<'a> {
    Process(&'a Process),
    Group(&'a Group),
}

/// One directory that settings can be made in: of the subject or of a group above, as a whole or on a
/// device.
#[derive(Clone, Copy)]
struct Place<'a> {
    entity: Subject<'a>,
    device: Option<usize>,
}

/// An explanation that is being made.
struct Case<'a> {
    state: &'a State,
    subject: Subject<'a>,
    visible: &'a BTreeSet<GroupId>,
    /// `CLOCK_MONOTONIC` in nanoseconds.
    now: u64,
}

impl<'a> Place<'a> {
    fn settings(self) -> &'a Settings {
        match self.entity {
            Subject::Process(process) => &process.settings,
            Subject::Group(group) => &group.settings,
        }
    }

    fn origin(self, setting: &Setting) -> Option<&'a Noted> {
        match self.entity {
            Subject::Process(process) => process.origins.get(setting, self.device),
            Subject::Group(group) => group.origins.get(setting, self.device),
        }
    }
}

impl<'a> Case<'a> {
    fn explain(&self) -> Explanation {
        let mut sections = vec![
            ("Limits and settings in force", bounds(self)),
            ("Usage", self.usage()),
            ("Waits", self.waits()),
            ("Last refusals", self.refusals()),
        ];
        let advice = self.advice();
        if !advice.is_empty() {
            sections.push(("What can be done", advice));
        }
        let sections = sections.into_iter().map(|(title, lines)| Section {
            title: title.to_owned(),
            lines,
        });
        Explanation {
            title: self.title(),
            sections: sections.collect(),
        }
    }

    fn title(&self) -> String {
        match self.subject {
            Subject::Process(process) => {
                let identity = &process.identity;
                let place = match process.group {
                    None => "no group".to_owned(),
                    Some(group) => format!("group {}", self.name(group)),
                };
                let (pid, comm, uid) = (identity.pid, &identity.comm, identity.uid);
                format!("process {pid} ({comm}) of uid {uid}, in {place}")
            }
            Subject::Group(group) => {
                let uid = group.access.owner.uid;
                let nr = group.nr_members;
                format!("group {} of uid {uid}, processes: {nr}", self.name(group.id))
            }
        }
    }

    /// Returns a group's path with a leading slash, as one word, unless the asker may not see it.
    fn name(&self, group: GroupId) -> String {
        if !self.state.groups.contains_key(&group) {
            return "(removed group)".to_owned();
        }
        if !self.visible.contains(&group) {
            return "(hidden group)".to_owned();
        }
        format!("/{}", word(&self.state.path(Some(group))))
    }

    /// Returns the path of a setting's control file.
    fn file(&self, place: Place<'_>, name: &str) -> String {
        let entity = match place.entity {
            Subject::Process(process) => process.identity.pid.to_string(),
            Subject::Group(group) => self.name(group.id),
        };
        match place.device {
            None => format!("{entity}/{name}"),
            Some(device) => format!("{entity}/{device}/{name}"),
        }
    }

    fn uuid(&self, device: Option<usize>) -> Option<&'a str> {
        let device = self.state.devices.get(device?)?;
        Some(device.uuid_text.as_str())
    }

    /// Returns the bytes charged in a place.
    fn used(&self, place: Place<'_>) -> u64 {
        match place.entity {
            Subject::Process(process) => usage::current(process, place.device, &self.state.devices),
            Subject::Group(group) => self.state.current_in(Some(group.id), place.device),
        }
    }

    /// Returns the places whose settings apply, the nearest first, and of each entity its devices first.
    fn places(&self) -> Vec<Place<'a>> {
        let (first, above) = match self.subject {
            Subject::Process(process) => (Some(self.subject), process.group),
            Subject::Group(group) => (None, Some(group.id)),
        };
        let groups = self.state.chain(above).into_iter();
        let groups = groups.filter_map(|id| Some(Subject::Group(self.state.groups.get(&id)?)));
        let devices = || (0..self.state.devices.len()).map(Some).chain([None]);
        let entities = first.into_iter().chain(groups);
        entities
            .flat_map(|entity| devices().map(move |device| Place { entity, device }))
            .collect()
    }

    fn age(&self, at: u64) -> Option<u64> {
        Some(self.now.saturating_sub(at) / 1_000_000_000)
    }

    fn usage(&self) -> Vec<Line> {
        let devices = &self.state.devices;
        let of = |device| Place {
            entity: self.subject,
            device,
        };
        let mut lines = vec![Line::new(format!("memory.current {}", size(self.used(of(None)))))];
        for device in devices.iter() {
            let used = self.used(of(Some(device.index)));
            if used != 0 {
                let (index, total) = (device.index, size(device.total));
                lines.push(Line::new(format!(
                    "memory.current {} on GPU {index}, which has {total}",
                    size(used)
                )));
            }
        }
        if let Subject::Process(process) = self.subject {
            lines.push(Line::new(format!(
                "memory.peak {}",
                size(usage::peak(process, None, devices))
            )));
            let swapped = usage::swapped(process, None, devices);
            if swapped != 0 {
                lines.push(Line::new(format!("memory.swap.current {}", size(swapped))));
            }
        }
        lines
    }

    fn refusals(&self) -> Vec<Line> {
        let refusals = match self.subject {
            Subject::Process(process) => &process.refusals.last,
            Subject::Group(group) => &group.refusals,
        };
        let lines = refusals.iter().rev().map(|refused| Line {
            age: self.age(refused.at),
            text: self.refusal(refused),
        });
        lines.collect()
    }

    fn refusal(&self, refused: &Refused) -> String {
        let mut text = "refused".to_owned();
        match (refused.count, refused.bytes) {
            (..=1, 0) => {}
            (..=1, bytes) => text += &format!(" {}", size(bytes)),
            (count, 0) => text += &format!(" {count} allocations"),
            (count, bytes) => text += &format!(" {count} allocations, the last of {}", size(bytes)),
        }
        match self.state.devices.get(refused.device) {
            Some(device) => text += &format!(" on GPU {}", device.index),
            None => text += " on a GPU that the daemon does not know",
        }
        let file = match refused.cause {
            Cause::Memory => {
                return text + ": not by a limit; the memory of the GPU or of the host was used up";
            }
            Cause::Process => "memory.limit of the process".to_owned(),
            Cause::Device => "memory.limit of the process on the GPU".to_owned(),
            Cause::Group(group, None) => format!("{} limit", self.name(group)),
            Cause::Group(group, Some(_)) => format!("{} limit on the GPU", self.name(group)),
        };
        format!(
            "{text}: {file} {}, used {}",
            size(refused.limit),
            size(refused.used)
        )
    }
}

/// Formats a value for people.
fn shown(setting: &Setting, value: Value) -> String {
    match (setting.kind, value) {
        (Kind::Bytes, Value::Number(bytes)) => size(bytes),
        (_, value) => setting.show(value).trim_end().to_owned(),
    }
}

/// Says where a value comes from.
fn told(origin: Option<&Noted>) -> String {
    match origin.map(|noted| &noted.origin) {
        None => "set before the daemon was started".to_owned(),
        Some(Origin::Written { uid, pid: 0 }) => format!("written by uid {uid}"),
        Some(Origin::Written { uid, pid }) => format!("written by uid {uid}, pid {pid}"),
        Some(Origin::Rule(rule)) => rule.to_string(),
        Some(Origin::Asked) => "asked for by the program when it started".to_owned(),
        Some(Origin::Group) => "enabled by memory.swap.max of a group".to_owned(),
    }
}
