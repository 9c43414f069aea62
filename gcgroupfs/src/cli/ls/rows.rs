//! The rows of `gcgroupfs ls` in their order, in a table or a tree.

use super::columns::Order;
use super::row::{Row, What};
use gcgroup_client::node::{Below, OnDevice, Process, Snapshot};

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
