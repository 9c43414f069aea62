//! Groups above and below each other, by their paths.

use std::collections::HashMap;

use super::{Group, Snapshot};

/// Indices of processes and groups, by the nearest group above them that is in the snapshot.
#[derive(Debug)]
pub struct Below<'a> {
    processes: HashMap<&'a str, Vec<usize>>,
    groups: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Below<'a> {
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let parent = |path: &'a str| {
            let mut known = ancestors(path).filter(|path| snapshot.group(path).is_some());
            known.next().unwrap_or_default()
        };
        let mut below = Self {
            processes: HashMap::new(),
            groups: HashMap::new(),
        };
        for (index, process) in snapshot.processes.iter().enumerate() {
            let group = process.group.as_deref().map(parent).unwrap_or_default();
            below.processes.entry(group).or_default().push(index);
        }
        for (index, group) in snapshot.groups.iter().enumerate() {
            let above = ancestors(&group.path).nth(1).map(parent).unwrap_or_default();
            below.groups.entry(above).or_default().push(index);
        }
        below
    }

    /// Returns the processes directly in a group; the empty path is the root.
    pub fn processes(&self, group: &str) -> &[usize] {
        self.processes.get(group).map_or(&[], Vec::as_slice)
    }

    /// Returns the groups directly in a group; the empty path is the root.
    pub fn groups(&self, group: &str) -> &[usize] {
        self.groups.get(group).map_or(&[], Vec::as_slice)
    }
}

/// Returns the paths of a group and of those above it, without the root.
pub fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let first = Some(path).filter(|path| !path.is_empty());
    std::iter::successors(first, |path| Some(path.rsplit_once('/')?.0))
}

impl Snapshot {
    /// Returns the group of a path; `None` if the client may not see it.
    pub fn group(&self, path: &str) -> Option<&Group> {
        self.groups.get(self.find(path)?)
    }

    /// Returns the index of the group of a path; `None` if the client may not see it.
    pub(super) fn find(&self, path: &str) -> Option<usize> {
        let group = |group: &Group| group.path.as_str().cmp(path);
        self.groups.binary_search_by(group).ok()
    }

    /// Returns whether a freeze is requested for a group or for one above it that the client may see.
    pub fn is_freezing(&self, path: &str) -> bool {
        let mut groups = ancestors(path).filter_map(|path| self.group(path));
        groups.any(|group| group.usage.compute.freeze)
    }

    /// Returns whether a suspension is requested for a group or for one above it that the client may see.
    pub fn is_suspending(&self, path: &str) -> bool {
        let mut groups = ancestors(path).filter_map(|path| self.group(path));
        groups.any(|group| group.usage.suspend == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_begin_with_the_group_itself() {
        let of = |path| ancestors(path).collect::<Vec<_>>();
        assert_eq!(of("a/b/c"), ["a/b/c", "a/b", "a"]);
        assert_eq!(of("a"), ["a"]);
        assert_eq!(of(""), Vec::<&str>::new());
    }
}
