//! Parts of one GPU: what each competitor has of it, in a tree in which a group is one competitor among its
//! siblings.

use super::place::Place;
use super::policy::{Policy, Weigh};
use super::tree::Tree;

/// The part that is all of the GPU.
pub(super) const WHOLE: u64 = 1 << 62;

/// Parts that differ by less than one in so many count as equal.
const PRECISION: u64 = 1024;

/// Returns GPU time in virtual time.
pub(super) fn scaled(nsec: u64, part: u64) -> u128 {
    u128::from(nsec) * u128::from(WHOLE) / u128::from(part.max(1))
}

/// Returns what a part has of so many nanoseconds, rounded.
pub(super) fn part_of(nsec: u64, part: u64) -> u64 {
    let whole = u128::from(WHOLE);
    u64::try_from((u128::from(nsec) * u128::from(part) + whole / 2) / whole).unwrap_or(nsec)
}

/// Returns a part of another one as a part of the whole.
fn ratio(part: u64, of: u64) -> u64 {
    let part = u128::from(part) * u128::from(WHOLE) / u128::from(of.max(1));
    u64::try_from(part).unwrap_or(WHOLE)
}

/// Returns a part in percent, rounded.
pub(super) fn percent(part: u64) -> u64 {
    (part_of(1000, part) + 5) / 10
}

/// Returns whether two parts count as equal.
pub(super) fn is_near(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= one.max(other) / PRECISION
}

/// Returns the part of each node if the processes for which `is_in` holds compete; 0 where none does.
pub(super) fn parts(tree: &Tree, is_in: impl Fn(usize) -> bool, weigh: Weigh) -> Vec<u64> {
    let mut parts = tree.joined(|process| if is_in(process) { WHOLE } else { 0 }, u64::max);
    for (parent, node) in tree.parents() {
        let of_parent = parts[parent];
        let compete = |child: &usize| parts[*child] > 0;
        let children: Vec<usize> = node.children.clone().filter(compete).collect();
        let priorities = children.iter().map(|child| tree[*child].priority);
        let best = priorities.min().unwrap_or(0);
        let weight = |child: &usize| u128::from(weigh(tree[*child].priority - best));
        let sum: u128 = children.iter().map(weight).sum();
        for child in children {
            let part = u128::from(of_parent) * weight(&child) / sum.max(1);
            parts[child] = u64::try_from(part).unwrap_or(WHOLE).max(1);
        }
    }
    parts
}

/// A process or one of its groups among its siblings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Competitor {
    /// Number of the group; `None`: the process.
    pub group: Option<u64>,
    pub priority: u32,
    /// Percentage of its parent's part.
    pub percent: u64,
    pub nr_siblings: usize,
}

/// Returns the competitors on the way from the root to one of the processes with these places.
pub fn competitors(places: &[Place], own: usize, policy: &Policy) -> Vec<Competitor> {
    let tree = Tree::new(places);
    let parts = parts(&tree, |_| true, policy.weigh);
    let competitor = |node: usize| {
        let parent = tree[node].parent?;
        Some(Competitor {
            group: tree[node].group,
            priority: tree[node].priority,
            percent: percent(ratio(parts[node], parts[parent])),
            nr_siblings: tree[parent].children.len() - 1,
        })
    };
    let mut way: Vec<Competitor> = tree.up(tree.leaf(own)).filter_map(competitor).collect();
    way.reverse();
    way
}
