//! Row of `gcgroupfs ls` and `top`.

use std::borrow::Cow;
use std::rc::Rc;

use gcgroup_client::node::{
    Activity, Group, Host, OnDevice, Process, Snapshot, Suspension, Target, Usage, ancestors,
};
use gcgroupfs_model::text::word;

/// A process or a group; in a table, on one GPU that it uses.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) snapshot: Rc<Snapshot>,
    pub(super) target: Target,
    /// Index in the snapshot's processes or groups.
    pub(super) index: usize,
    /// Index in its devices; `None`: it uses none, or the row is of all of them.
    pub(super) on: Option<usize>,
    /// Number of groups above it that are shown; 0 unless in a tree.
    pub(super) depth: usize,
    pub(super) activity: Activity,
    pub(super) is_folded: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum What<'a> {
    Process(&'a Process),
    Group(&'a Group),
}

impl Row {
    pub(super) fn what(&self) -> What<'_> {
        match self.target {
            Target::Process(_) => What::Process(&self.snapshot.processes[self.index]),
            Target::Group(_) => What::Group(&self.snapshot.groups[self.index]),
        }
    }

    pub(super) fn is_group(&self) -> bool {
        matches!(self.target, Target::Group(_))
    }

    /// Returns the numbers of the process or group as a whole.
    pub(super) fn whole(&self) -> &Usage {
        match self.what() {
            What::Process(process) => &process.usage,
            What::Group(group) => &group.usage,
        }
    }

    /// Returns the GPUs that it uses or has used.
    pub(super) fn devices(&self) -> &[OnDevice] {
        match self.what() {
            What::Process(process) => &process.devices,
            What::Group(group) => &group.devices,
        }
    }

    /// Returns the GPU of the row; `None` for a row of all of them.
    pub(super) fn on(&self) -> Option<&OnDevice> {
        self.devices().get(self.on?)
    }

    /// Returns the numbers of this row.
    pub(super) fn usage(&self) -> &Usage {
        self.on().map_or_else(|| self.whole(), |on| &on.usage)
    }

    /// Returns the program's name, or the last part of the group's path, in printable characters.
    pub(super) fn name(&self) -> String {
        word(match self.what() {
            What::Process(process) => &process.comm,
            What::Group(group) => group.path.rsplit('/').next().unwrap_or_default(),
        })
        .to_string()
    }

    /// Returns what the kernel tells of the process.
    pub(super) fn host(&self) -> Option<&Host> {
        match self.what() {
            What::Process(process) => process.host.as_ref(),
            What::Group(_) => None,
        }
    }

    /// Returns the process's user, or the group's owner.
    pub(super) fn user(&self) -> &str {
        match self.what() {
            What::Process(process) => &process.user,
            What::Group(group) => &group.user,
        }
    }

    /// Returns the path of the group, or of the process's group; `None` if the client may not see it.
    pub(super) fn group(&self) -> Option<&str> {
        match self.what() {
            What::Process(process) => process.group.as_deref(),
            What::Group(group) => Some(&group.path),
        }
    }

    /// Returns the path of the group above; `None` if there is none that the client may see.
    fn above(&self) -> Option<&str> {
        match self.what() {
            What::Process(process) => process.group.as_deref(),
            What::Group(group) => ancestors(&group.path).nth(1),
        }
    }

    pub(super) fn frozen(&self) -> &'static str {
        let (whole, here) = (self.whole(), self.usage());
        let above = self.above().is_some_and(|group| self.snapshot.is_freezing(group));
        match (
            here.events.frozen,
            whole.compute.freeze || here.compute.freeze || above,
        ) {
            (true, _) => "yes",
            (false, true) => "soon",
            (false, false) => "no",
        }
    }

    pub(super) fn suspended(&self) -> &'static str {
        let above = self
            .above()
            .is_some_and(|group| self.snapshot.is_suspending(group));
        match self.whole().suspension(above) {
            Suspension::Complete => "yes",
            Suspension::Requested => "soon",
            Suspension::Failed => "failed",
            Suspension::None => "no",
        }
    }

    /// Returns whether the row has the text, in lower case, in its name, pid, user or group.
    pub(super) fn matches(&self, text: &str) -> bool {
        if text.is_empty() {
            return true;
        }
        let group = self
            .group()
            .map_or_else(String::new, |path| format!("/{}", word(path)));
        let own: [Cow<'_, str>; 4] = [
            self.target.path().into(),
            self.name().into(),
            self.user().into(),
            group.into(),
        ];
        own.iter().any(|own| own.to_lowercase().contains(text))
    }
}
