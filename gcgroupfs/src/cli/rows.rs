//! Rows of `gcgroupfs ls` and `top`: processes and groups, in a tree, a table, or processes alone.

use std::collections::BTreeSet;
use std::rc::Rc;

use gcgroup_client::node::{Activities, Below, Snapshot, Target};

use super::columns::Order;
use super::row::Row;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Each group is followed by its processes and the groups in it, which are sorted among themselves.
    Tree,
    /// All rows are sorted together.
    Table,
    /// A table without groups.
    Processes,
}

/// Choice of the rows, and their order.
#[derive(Debug)]
pub(super) struct Selection {
    /// `None`: by pid and path.
    pub(super) order: Option<Order>,
    pub(super) shape: Shape,
    /// Whether there is a row for each GPU in use.
    pub(super) is_per_device: bool,
    /// In lower case; empty: everything.
    pub(super) filter: String,
    /// Paths of the groups whose contents are not shown.
    pub(super) folded: BTreeSet<String>,
}

impl Selection {
    /// Returns the rows in their order.
    pub(super) fn rows(&self, snapshot: &Rc<Snapshot>, activities: &Activities) -> Vec<Row> {
        let tree = Tree {
            selection: self,
            snapshot,
            below: Below::of(snapshot),
            activities,
        };
        let mut rows = match self.shape {
            Shape::Processes => tree.processes(&(0..snapshot.processes.len()).collect::<Vec<_>>()),
            Shape::Tree | Shape::Table => {
                let mut rows = Vec::new();
                tree.push("", 0, &mut rows);
                rows
            }
        };
        if self.shape != Shape::Tree {
            self.sort(&mut rows);
        }
        rows
    }

    fn sort(&self, rows: &mut [Row]) {
        if let Some(order) = self.order {
            order.sort(rows);
        }
    }
}

struct Tree<'a> {
    selection: &'a Selection,
    snapshot: &'a Rc<Snapshot>,
    below: Below<'a>,
    activities: &'a Activities,
}

impl Tree<'_> {
    /// Adds the processes in a group and the groups in it with what is below. A group stays if it, or one of
    /// those below, matches the filter.
    fn push(&self, path: &str, depth: usize, rows: &mut Vec<Row>) {
        let is_tree = self.selection.shape == Shape::Tree;
        let depth_shown = if is_tree { depth } else { 0 };
        let mut processes = self.processes(self.below.processes(path));
        let groups = self.below.groups(path).iter().map(|index| {
            let path = &self.snapshot.groups[*index].path;
            self.row(Target::Group(path.clone()), *index)
        });
        let mut groups: Vec<Row> = groups.collect();
        if is_tree {
            self.selection.sort(&mut processes);
            self.selection.sort(&mut groups);
        }
        for row in &mut processes {
            row.depth = depth_shown;
        }
        rows.append(&mut processes);
        for mut row in groups {
            let path = &self.snapshot.groups[row.index].path;
            row.depth = depth_shown;
            row.is_folded = self.selection.folded.contains(path);
            let (is_folded, is_shown) = (row.is_folded, row.matches(&self.selection.filter));
            let start = rows.len();
            rows.extend(self.on_each(row));
            let end = rows.len();
            self.push(path, depth + 1, rows);
            if !is_shown && rows.len() == end {
                rows.truncate(start);
            } else if is_folded {
                rows.truncate(end);
            }
        }
    }

    /// Returns the rows of processes that match the filter.
    fn processes(&self, indices: &[usize]) -> Vec<Row> {
        let rows = indices.iter().map(|index| {
            let pid = self.snapshot.processes[*index].pid;
            self.row(Target::Process(pid), *index)
        });
        let rows = rows.filter(|row| row.matches(&self.selection.filter));
        rows.flat_map(|row| self.on_each(row)).collect()
    }

    fn row(&self, target: Target, index: usize) -> Row {
        Row {
            snapshot: Rc::clone(self.snapshot),
            activity: self.activities.of(&target),
            target,
            index,
            on: None,
            depth: 0,
            is_folded: false,
        }
    }

    /// Returns a row for each GPU in use, if they are asked for and there is one; otherwise the row.
    fn on_each(&self, row: Row) -> Vec<Row> {
        let count = if self.selection.is_per_device {
            row.devices().len()
        } else {
            0
        };
        let mut rows = vec![row; count.max(1)];
        for (at, row) in rows.iter_mut().enumerate() {
            row.on = (count > 0).then_some(at);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroup_client::node::fixture;

    fn shown(selection: &Selection) -> Vec<String> {
        let rows = selection.rows(&Rc::new(fixture::snapshot()), &Activities::default());
        rows.iter()
            .map(|row| format!("{}{}", " ".repeat(row.depth), row.target.path()))
            .collect()
    }

    fn selection() -> Selection {
        Selection {
            order: None,
            shape: Shape::Tree,
            is_per_device: false,
            filter: String::new(),
            folded: BTreeSet::new(),
        }
    }

    #[test]
    fn tree_nests_sorts_folds_and_filters() {
        let all = selection();
        assert_eq!(shown(&all), ["101", "a", " a/b", "  7", "  100", "c"]);
        let reversed = Selection {
            order: Some(Order {
                is_flipped: true,
                ..Order::default()
            }),
            ..selection()
        };
        assert_eq!(shown(&reversed), ["101", "c", "a", " a/b", "  100", "  7"]);
        let folded = Selection {
            folded: ["a/b".to_owned()].into(),
            ..selection()
        };
        assert_eq!(shown(&folded), ["101", "a", " a/b", "c"]);
        let filtered = |filter: &str| {
            shown(&Selection {
                filter: filter.to_owned(),
                ..selection()
            })
        };
        assert_eq!(filtered("100"), ["a", " a/b", "  100"]);
        assert_eq!(filtered("/c"), ["c"]);
        assert_eq!(filtered("nothing"), Vec::<String>::new());
        let flat = Selection {
            shape: Shape::Processes,
            ..selection()
        };
        assert_eq!(shown(&flat), ["7", "100", "101"]);
    }
}
