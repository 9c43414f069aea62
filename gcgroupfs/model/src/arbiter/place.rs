//! Where a process competes for a GPU: its groups from the root down, and the priority of each among its
//! siblings.

use std::cmp::Ordering;

use crate::tree::MAX_DEPTH;

/// A group among its siblings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// Number of the group.
    pub group: u64,
    /// Priority of the group among its siblings.
    pub priority: u32,
}

/// Position of a process in the tree of competitors of one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// The groups that the process is in, the outermost first; only the first `depth` are used.
    steps: [Step; MAX_DEPTH],
    depth: usize,
    /// Priority of the process among the members of the innermost group.
    priority: u32,
}

impl Place {
    /// Returns the place of a process of that priority in these groups, the outermost first.
    pub fn new(groups: &[Step], priority: u32) -> Self {
        let depth = groups.len().min(MAX_DEPTH);
        let mut steps = [Step::default(); MAX_DEPTH];
        steps[..depth].copy_from_slice(&groups[..depth]);
        Self {
            steps,
            depth,
            priority,
        }
    }

    /// Returns the groups that the process is in, the outermost first.
    pub(super) fn groups(&self) -> impl Iterator<Item = u64> {
        self.steps[..self.depth].iter().map(|step| step.group)
    }

    /// Returns whether a process with that place is in the same innermost group.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.groups().eq(other.groups())
    }

    /// Compares the places of two processes in the tree, and their priorities where they are siblings.
    pub(super) fn in_order(&self, other: &Self) -> Ordering {
        let groups = self.groups().cmp(other.groups());
        groups.then(self.priority.cmp(&other.priority))
    }

    /// Returns the competitor on a level, 0 being that of the root's children: a group, or `None` for the
    /// process itself, with its priority.
    pub(super) fn at(&self, level: usize) -> (Option<u64>, u32) {
        match self.steps[..self.depth].get(level) {
            Some(step) => (Some(step.group), step.priority),
            None => (None, self.priority),
        }
    }

    /// Returns whether this process is of higher priority than another one where their ways part.
    pub(super) fn is_above(&self, other: &Self) -> bool {
        let pairs = (0..=self.depth.min(other.depth)).map(|level| (self.at(level), other.at(level)));
        let apart = pairs.skip_while(|((one, _), (other, _))| one.is_some() && one == other);
        apart.take(1).any(|((_, one), (_, other))| one < other)
    }
}
