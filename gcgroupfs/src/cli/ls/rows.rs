//! Rows of `gcgroupfs ls`: a process or a group on each GPU that it uses, in a table or a tree.

use std::cmp::Ordering;

use super::columns::Column;
use crate::cli::view::{Below, Group, OnDevice, Process, Snapshot, Suspension, Usage};

/// Column by which the rows are sorted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    pub(super) column: &'static Column,
    pub(super) is_reverse: bool,
}

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
    snapshot: &'a Snapshot,
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

/// Returns the rows. Unless sorted otherwise, groups are in the order of their paths, each before its
/// processes, and those in the order of their pids.
pub(super) fn rows(snapshot: &Snapshot, order: Option<Order>, is_tree: bool) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let tree = Tree {
        snapshot,
        below: Below::of(snapshot),
        order: order.filter(|_| is_tree),
        is_tree,
    };
    tree.push("", 0, &mut rows);
    if let Some(order) = order.filter(|_| !is_tree) {
        rows.sort_by(|one, other| order.compare(one, other));
    }
    rows
}

impl Order {
    fn compare(self, one: &Row<'_>, other: &Row<'_>) -> Ordering {
        let value = self.column.value;
        let order = value(one).cmp(&value(other));
        if self.is_reverse { order.reverse() } else { order }
    }
}

struct Tree<'a> {
    snapshot: &'a Snapshot,
    below: Below<'a>,
    order: Option<Order>,
    is_tree: bool,
}

impl<'a> Tree<'a> {
    /// Adds the rows of the processes in a group, then those of the groups in it, each with what is below.
    fn push(&self, path: &str, depth: usize, rows: &mut Vec<Row<'a>>) {
        let row = |what, on| Row {
            what,
            on,
            depth: if self.is_tree { depth } else { 0 },
            snapshot: self.snapshot,
        };
        // A row for each device in use, or one row if none is.
        let on_each = |what, devices: &'a [OnDevice]| -> Vec<Row<'a>> {
            match devices {
                [] => vec![row(what, None)],
                devices => devices.iter().map(|on| row(what, Some(on))).collect(),
            }
        };
        let processes = self.below.processes(path);
        let rows_of = |process: &'a Process| on_each(What::Process(process), &process.devices);
        let mut siblings: Vec<Row<'a>> = processes.flat_map(rows_of).collect();
        self.sort(&mut siblings);
        rows.append(&mut siblings);

        let groups = self.below.groups(path);
        let mut groups: Vec<Row<'a>> = groups.map(|group| row(What::Group(group), None)).collect();
        self.sort(&mut groups);
        for group in groups {
            if let What::Group(group) = group.what {
                rows.extend(on_each(What::Group(group), &group.devices));
                self.push(&group.path, depth + 1, rows);
            }
        }
    }

    fn sort(&self, rows: &mut [Row<'a>]) {
        if let Some(order) = self.order {
            rows.sort_by(|one, other| order.compare(one, other));
        }
    }
}
