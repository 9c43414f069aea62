//! Row of `gcgroupfs ls`: a process or a group on a GPU that it uses.

use gcgroup_client::node::{Group, OnDevice, Process, Snapshot, Suspension, Usage};

#[derive(Debug, Clone, Copy)]
pub(super) enum What<'a> {
    Process(&'a Process),
    Group(&'a Group),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) what: What<'a>,
    /// `None` if no device is used.
    pub(super) on: Option<&'a OnDevice>,
    /// Number of groups above it that are shown; 0 in a table.
    pub(super) depth: usize,
    pub(super) snapshot: &'a Snapshot,
}

impl<'a> Row<'a> {
    /// Returns the numbers of this row.
    pub(super) fn usage(&self) -> &'a Usage {
        self.on.map_or_else(|| self.whole(), |on| &on.usage)
    }

    /// Returns the numbers of the process or group as a whole.
    pub(super) fn whole(&self) -> &'a Usage {
        match self.what {
            What::Process(process) => &process.usage,
            What::Group(group) => &group.usage,
        }
    }

    /// Returns the path of the group, or of the process's group; `None` if the client may not see it.
    pub(super) fn group(&self) -> Option<&'a str> {
        match self.what {
            What::Process(process) => process.group.as_deref(),
            What::Group(group) => Some(&group.path),
        }
    }

    pub(super) fn frozen(&self) -> &'static str {
        let (whole, here) = (self.whole(), self.usage());
        let above = self.group().is_some_and(|group| self.snapshot.is_freezing(group));
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
            .group()
            .is_some_and(|group| self.snapshot.is_suspending(group));
        match self.whole().suspension(above) {
            Suspension::Complete => "yes",
            Suspension::Requested => "soon",
            Suspension::Failed => "failed",
            Suspension::None => "no",
        }
    }
}
