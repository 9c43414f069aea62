//! The rows of the screen in their order: processes in a tree of groups, or processes alone.

use std::collections::BTreeSet;

use super::activity::Activities;
use super::columns::Sorting;
use super::row::Row;
use super::target::Target;
use crate::cli::format::time_left;
use gcgroup_client::node::{Below, Group, Lease, OnDevice, Process, Snapshot};
use gcgroupfs_model::text::word;

/// Choice of the rows, and their order.
#[derive(Debug)]
pub(super) struct Selection {
    pub(super) sorting: Sorting,
    pub(super) is_tree: bool,
    /// In lower case; empty: everything.
    pub(super) filter: String,
    /// Paths of the groups whose contents are not shown.
    pub(super) folded: BTreeSet<String>,
}

impl Selection {
    /// Returns the rows in their order.
    pub(super) fn rows(&self, snapshot: &Snapshot, activities: &Activities) -> Vec<Row> {
        let mut rows = Vec::new();
        if self.is_tree {
            let tree = Tree {
                selection: self,
                below: Below::of(snapshot),
                activities,
            };
            tree.push("", 0, &mut rows);
        } else {
            let all = snapshot
                .processes
                .iter()
                .map(|process| of_process(process, activities));
            rows.extend(all.filter(|row| row.matches(&self.filter)));
            self.sorting.sort(&mut rows);
        }
        rows
    }
}

struct Tree<'a> {
    selection: &'a Selection,
    below: Below<'a>,
    activities: &'a Activities,
}

impl Tree<'_> {
    /// Adds the processes in a group and the groups in it with what is below. A group stays if it, or one of
    /// those below, matches the filter.
    fn push(&self, path: &str, depth: usize, rows: &mut Vec<Row>) {
        let processes = self.below.processes(path);
        let processes = processes.map(|process| of_process(process, self.activities));
        let mut siblings: Vec<Row> = processes
            .filter(|row| row.matches(&self.selection.filter))
            .collect();
        self.selection.sorting.sort(&mut siblings);
        rows.extend(siblings.into_iter().map(|row| Row { depth, ..row }));

        let groups = self
            .below
            .groups(path)
            .map(|group| of_group(group, self.activities));
        let mut groups: Vec<Row> = groups.collect();
        self.selection.sorting.sort(&mut groups);
        for row in groups {
            let path = row.target.path();
            let is_folded = self.selection.folded.contains(&path);
            let is_shown = row.matches(&self.selection.filter);
            let start = rows.len();
            rows.push(Row {
                depth,
                is_folded,
                ..row
            });
            self.push(&path, depth + 1, rows);
            if !is_shown && rows.len() == start + 1 {
                rows.truncate(start);
            } else if is_folded {
                rows.truncate(start + 1);
            }
        }
    }
}

fn of_process(process: &Process, activities: &Activities) -> Row {
    let target = Target::Process(process.pid);
    Row {
        depth: 0,
        name: word(&process.comm).to_string(),
        user: word(&process.user).to_string(),
        group: process
            .group
            .as_ref()
            .map_or_else(String::new, |path| format!("/{}", word(path))),
        gpus: gpus(&process.devices),
        usage: process.usage.clone(),
        activity: activities.of(&target),
        is_folded: false,
        lease: String::new(),
        target,
    }
}

fn of_group(group: &Group, activities: &Activities) -> Row {
    let target = Target::Group(group.path.clone());
    let name = group.path.rsplit('/').next().unwrap_or_default();
    Row {
        depth: 0,
        name: word(name).to_string(),
        user: word(&group.user).to_string(),
        group: format!("/{}", word(&group.path)),
        gpus: gpus(&group.devices),
        usage: group.usage.clone(),
        activity: activities.of(&target),
        is_folded: false,
        lease: group.lease.as_ref().map_or_else(String::new, lease),
        target,
    }
}

/// Describes the rest of a lease.
fn lease(lease: &Lease) -> String {
    let action = &lease.action;
    match lease.expired {
        true => format!("lease expired ({action})"),
        false => format!("lease {} ({action})", time_left(lease.seconds)),
    }
}

fn gpus(devices: &[OnDevice]) -> Vec<usize> {
    devices.iter().map(|on| on.index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroup_client::node::fixture;

    fn shown(selection: &Selection) -> Vec<String> {
        let rows = selection.rows(&fixture::snapshot(), &Activities::default());
        rows.iter()
            .map(|row| format!("{}{}", " ".repeat(row.depth), row.target.path()))
            .collect()
    }

    fn selection() -> Selection {
        Selection {
            sorting: Sorting::default(),
            is_tree: true,
            filter: String::new(),
            folded: BTreeSet::new(),
        }
    }

    #[test]
    fn tree_nests_sorts_folds_and_filters() {
        let all = selection();
        assert_eq!(shown(&all), ["101", "a", " a/b", "  7", "  100", "c"]);
        let reversed = Selection {
            sorting: Sorting {
                is_reverse: true,
                ..Sorting::default()
            },
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
            is_tree: false,
            ..selection()
        };
        assert_eq!(shown(&flat), ["7", "100", "101"]);
    }
}
