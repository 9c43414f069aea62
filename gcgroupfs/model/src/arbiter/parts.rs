//! Parts of one GPU: what each competitor has of it, in a tree in which a group is one competitor among its
//! siblings.

use super::place::Place;
use super::policy::{Policy, Weigh};

/// The part that is all of the GPU.
pub(super) const WHOLE: u64 = 1 << 62;

/// Parts that differ by less than one in so many count as equal.
const PRECISION: u64 = 1024;

/// A child of a node, with the processes below it.
#[derive(Debug)]
pub(super) struct Child<'a> {
    /// Their indices in the list of all processes.
    pub(super) leaves: &'a [usize],
    pub(super) priority: u32,
    /// `None`: it is a process.
    pub(super) group: Option<u64>,
}

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

impl Child<'_> {
    pub(super) fn part(&self, parts: &[u64]) -> u64 {
        self.leaves
            .iter()
            .fold(0, |sum, leaf| sum.saturating_add(parts[*leaf]))
    }

    /// Returns the part of each process below if these are equal.
    pub(super) fn each(&self, parts: &[u64]) -> Option<u64> {
        let each = self.leaves.iter().map(|leaf| parts[*leaf]);
        let wider = |(least, most): (u64, u64), part: u64| (least.min(part), most.max(part));
        let (least, most) = each.fold((u64::MAX, 0), wider);
        is_near(least, most).then_some(most)
    }
}

/// Returns whether two parts count as equal.
pub(super) fn is_near(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= one.max(other) / PRECISION
}

/// Returns the indices of the processes in the order of the tree, and of their priority among siblings.
pub(super) fn in_order(places: &[Place]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|one, other| places[*one].in_order(&places[*other]));
    order
}

/// Returns the children on a level of a node with these processes, which are [`in_order`].
pub(super) fn children<'a>(places: &[Place], leaves: &'a [usize], level: usize) -> Vec<Child<'a>> {
    let at = |leaf: &usize| places[*leaf].at(level);
    let is_same = |one: &usize, other: &usize| at(one).0.is_some() && at(one).0 == at(other).0;
    let runs = leaves.chunk_by(is_same);
    let child = |leaves: &'a [usize]| {
        let (group, priority) = at(leaves.first()?);
        Some(Child {
            leaves,
            priority,
            group,
        })
    };
    let mut children = Vec::with_capacity(leaves.len());
    children.extend(runs.filter_map(child));
    children
}

/// Calls `visit` for a node and all below with their groups (`None` for the root) and children. `at` is the
/// group and the level of its children.
pub(super) fn each_node<'a>(
    places: &[Place],
    leaves: &'a [usize],
    at: (Option<u64>, usize),
    visit: &mut impl FnMut(Option<u64>, &[Child<'a>]),
) {
    let (group, level) = at;
    let children = children(places, leaves, level);
    visit(group, &children);
    for child in children.iter().filter(|child| child.group.is_some()) {
        each_node(places, child.leaves, (child.group, level + 1), visit);
    }
}

/// Returns those of the processes in an order for which `is_in` holds.
pub(super) fn only(order: &[usize], is_in: impl Fn(usize) -> bool) -> Vec<usize> {
    order.iter().copied().filter(|leaf| is_in(*leaf)).collect()
}

/// Returns the part of each process; 0 for those not in `order`, which is [`in_order`].
pub(super) fn parts(places: &[Place], order: &[usize], weigh: Weigh) -> Vec<u64> {
    let mut parts = vec![0; places.len()];
    for leaf in order {
        parts[*leaf] = WHOLE;
    }
    each_node(places, order, (None, 0), &mut |_, children| {
        let best = children.iter().map(|child| child.priority).min().unwrap_or(0);
        let weight = |child: &Child<'_>| u128::from(weigh(child.priority - best));
        let sum: u128 = children.iter().map(weight).sum();
        for child in children {
            // Those below a child have equal parts so far.
            let Some(first) = child.leaves.first() else {
                continue;
            };
            let part = u128::from(parts[*first]) * weight(child) / sum.max(1);
            let part = u64::try_from(part).unwrap_or(WHOLE).max(1);
            for leaf in child.leaves {
                parts[*leaf] = part;
            }
        }
    });
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
    let order = in_order(places);
    let parts = parts(places, &order, policy.weigh);
    let mut way = Vec::new();
    each_node(places, &order, (None, 0), &mut |_, children| {
        let all: u64 = children.iter().map(|child| child.part(&parts)).sum();
        let child = children.iter().find(|child| child.leaves.contains(&own));
        way.extend(child.map(|child| Competitor {
            group: child.group,
            priority: child.priority,
            percent: percent(ratio(child.part(&parts), all)),
            nr_siblings: children.len() - 1,
        }));
    });
    way
}
