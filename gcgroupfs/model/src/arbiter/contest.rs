//! The contest for one GPU: a tree in which each group is one competitor among its siblings.
//!
//! A competitor's *part* of the GPU is that of its parent, divided among the siblings that compete by the
//! weights of their priorities. Siblings below which all processes have equal parts form a bundle; the
//! hardware divides its time among them. Bundles take turns. Virtual times are compared among siblings only,
//! so a group pays for what any of its processes has used.

mod settle;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Settings;
use super::parts::{WHOLE, is_near, part_of, scaled};
use super::policy::Time;
use super::settings::LONGEST_DEBT;
use super::tree::{Node, Tree};

/// Virtual times are compared in units of this many nanoseconds.
const ROUNDING: u128 = 1000;

/// A competitor among its siblings, as remembered from decision to decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Nanoseconds of GPU time used, each divided by the part at that time.
    pub(super) virtual_time: u128,
    /// Part when it last competed; 0: it has never done so.
    pub(super) part: u64,
    competes: bool,
    /// Whether it competed at the decision before, and its bundle then, unless more than that has used time.
    competed: bool,
    bundle: Option<usize>,
    /// Highest least virtual time of its children so far.
    floor: u128,
}

/// Standings of the root (`None`) and of the groups of a GPU's processes.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<Option<u64>, Group>);

#[derive(Debug, Clone, Copy, Default)]
struct Group {
    own: Standing,
    /// Since when it has no process on the GPU.
    empty_since: Option<Time>,
}

/// The competitors at one decision. All lists are by node of the tree.
#[derive(Debug)]
pub(super) struct Field<'a> {
    tree: &'a Tree,
    /// 0: no process below competes.
    parts: Vec<u64>,
    /// Part of each competing process below, if these are equal.
    each: Vec<Option<u64>>,
    standings: Vec<Standing>,
    /// Whether it is a group that has had so much more than a sibling that competes that it is of no bundle,
    /// where that would be forgiven.
    leads: Vec<bool>,
    /// Children of each node, those of a bundle beside each other, and at last those that do not compete.
    sorted: Vec<usize>,
}

/// A bundle on the way from the root to a class. The least has the next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level {
    /// Its virtual time, or that at which it is owed a window if its share of a cycle is less.
    pub(super) tag: u128,
    pub(super) priority: u32,
    part: Reverse<u64>,
    pub(super) virtual_time: u128,
    is_large: bool,
    pub(super) has_woken: bool,
    /// Its first node, which tells bundles apart.
    first: usize,
}

/// The processes that share a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Class {
    /// Their indices in the list of all processes, those that have had least first.
    pub(super) leaves: Vec<usize>,
    /// Sum of their parts.
    pub(super) part: u64,
    pub(super) levels: Vec<Level>,
}

impl Standing {
    fn charge(&mut self, nsec: u64) {
        if self.part > 0 {
            self.virtual_time = self.virtual_time.saturating_add(scaled(nsec, self.part));
        }
    }

    /// Competes no more.
    pub(super) fn rest(&mut self) {
        self.competed = std::mem::take(&mut self.competes);
    }

    /// Competes for a part. What it has had more than its siblings remains as much GPU time, up to
    /// [`LONGEST_DEBT`].
    fn compete(&mut self, part: u64, floor: u128) {
        self.competes = true;
        if part == self.part {
            return;
        }
        let most = scaled(LONGEST_DEBT, self.part);
        let ahead = self.virtual_time.saturating_sub(floor).min(most);
        let nsec = ahead * u128::from(self.part) / u128::from(WHOLE);
        let ahead = scaled(u64::try_from(nsec).unwrap_or(LONGEST_DEBT), part);
        self.virtual_time = self.virtual_time.min(floor).saturating_add(ahead);
        self.part = part;
    }
}

impl Groups {
    /// Returns the standings of all nodes; `of_process`: those of the processes.
    pub(super) fn standings(&self, tree: &Tree, of_process: impl Fn(usize) -> Standing) -> Vec<Standing> {
        let of_group = |id| self.0.get(&id).map_or(Standing::default(), |group| group.own);
        let standing = |(_, node): (_, &Node)| node.leaf.map_or_else(|| of_group(node.group), &of_process);
        tree.nodes().map(standing).collect()
    }

    /// Charges groups and the root with GPU time of a process that has left.
    pub(super) fn charge(&mut self, groups: &[u64], nsec: u64) {
        for id in groups.iter().copied().map(Some).chain([None]) {
            if let Some(group) = self.0.get_mut(&id) {
                group.own.charge(nsec);
                group.own.bundle = None;
            }
        }
    }

    /// Keeps the standings of all groups. A group whose processes end and start again still pays for what
    /// they have used, for `kept` nanoseconds without any.
    pub(super) fn keep(&mut self, now: Time, kept: u64, tree: &Tree, standings: &[Standing]) {
        for group in self.0.values_mut() {
            group.empty_since = group.empty_since.or(Some(now));
        }
        for (own, (_, node)) in standings.iter().zip(tree.nodes()) {
            if node.leaf.is_none() {
                let (own, empty_since) = (*own, None);
                self.0.insert(node.group, Group { own, empty_since });
            }
        }
        let is_kept = |since: Time| now < since.saturating_add(kept);
        self.0.retain(|_, group| group.empty_since.is_none_or(is_kept));
    }
}

impl<'a> Field<'a> {
    /// Returns the field of competitors with these parts and standings.
    pub(super) fn new(tree: &'a Tree, parts: Vec<u64>, standings: Vec<Standing>) -> Self {
        let range = |process: usize| {
            Some(parts[tree.leaf(process)])
                .filter(|part| *part > 0)
                .map(|part| (part, part))
        };
        let wider = |one: Option<(u64, u64)>, other: Option<(u64, u64)>| match (one, other) {
            (Some((least, most)), Some((low, high))) => Some((least.min(low), most.max(high))),
            _ => one.or(other),
        };
        let each = tree.joined(range, wider).into_iter();
        let each = each.map(|range| {
            range
                .filter(|(least, most)| is_near(*least, *most))
                .map(|(_, most)| most)
        });
        Self {
            tree,
            each: each.collect(),
            leads: vec![false; parts.len()],
            parts,
            standings,
            sorted: tree.nodes().map(|(node, _)| node).collect(),
        }
    }

    /// Returns the standings of all nodes.
    pub(super) fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// Returns the virtual times on the way from the root to a process, by which it is compared with others.
    pub(super) fn times(&self, process: usize) -> Vec<u128> {
        let way = self.tree.up(self.tree.leaf(process));
        let mut times: Vec<u128> = way.map(|node| self.standings[node].virtual_time).collect();
        times.reverse();
        times
    }

    /// Charges a process and the groups that it is in with GPU time. Returns false if it has no part by which
    /// to do so.
    pub(super) fn charge(&mut self, process: usize, nsec: u64) -> bool {
        let leaf = self.tree.leaf(process);
        if self.standings[leaf].part == 0 {
            return false;
        }
        let counted = self.standings[leaf].competes;
        for node in self.tree.up(leaf) {
            let standing = &mut self.standings[node];
            standing.charge(nsec);
            // More than the processes that made its bundle have used.
            standing.bundle = standing.bundle.filter(|_| counted);
        }
        true
    }

    /// Returns whether two siblings are of a bundle.
    fn is_alike(&self, one: usize, other: usize) -> bool {
        let both = self.each[one].zip(self.each[other]);
        !(self.leads[one] || self.leads[other]) && both.is_some_and(|(one, other)| is_near(one, other))
    }

    /// Returns the children of a node that compete, by bundle.
    fn bundles(&self, node: usize) -> impl Iterator<Item = &[usize]> {
        let children = &self.sorted[self.tree[node].children.clone()];
        let nr_competing = children.partition_point(|child| self.parts[*child] > 0);
        children[..nr_competing].chunk_by(|one, other| self.is_alike(*one, *other))
    }

    /// Appends the competing processes below some siblings, those with the least virtual time first.
    fn gather(&self, siblings: &[usize], to: &mut Vec<usize>) {
        let mut siblings: Vec<usize> = siblings
            .iter()
            .copied()
            .filter(|node| self.parts[*node] > 0)
            .collect();
        siblings.sort_by_key(|node| self.standings[*node].virtual_time);
        for node in siblings {
            match self.tree[node].leaf {
                Some(leaf) => to.push(leaf),
                None => self.gather(&self.sorted[self.tree[node].children.clone()], to),
            }
        }
    }

    /// Returns the classes that compete, the one with the next turn first.
    pub(super) fn classes(&self, settings: &Settings) -> Vec<Class> {
        let mut classes = Vec::new();
        let mut left = vec![(0, Vec::new())];
        while let Some((node, levels)) = left.pop() {
            let is_one = self.bundles(node).nth(1).is_none();
            for bundle in self.bundles(node) {
                let is_uniform = bundle.iter().all(|child| self.each[*child].is_some());
                let mut levels: Vec<Level> = levels.clone();
                if !(is_one && is_uniform) {
                    levels.push(self.level(bundle, settings));
                }
                match bundle {
                    [child] if !is_uniform => left.push((*child, levels)),
                    _ => {
                        let mut leaves = Vec::new();
                        self.gather(bundle, &mut leaves);
                        classes.push(Class {
                            leaves,
                            part: self.part(bundle),
                            levels,
                        });
                    }
                }
            }
        }
        classes.sort_by(|one, other| one.levels.cmp(&other.levels));
        classes
    }

    fn part(&self, bundle: &[usize]) -> u64 {
        let parts = bundle.iter().map(|child| self.parts[*child]);
        parts.fold(0, u64::saturating_add)
    }

    fn level(&self, bundle: &[usize], settings: &Settings) -> Level {
        let part = self.part(bundle);
        let standings = || bundle.iter().map(|child| self.standings[*child]);
        // The maximum, so that a competitor that uses little of the common turns does not prolong them for
        // the others.
        let virtual_time = standings().map(|one| one.virtual_time).max().unwrap_or(0);
        // Without the rounding of divisions, so that the priority decides between equals.
        let virtual_time = virtual_time.saturating_add(ROUNDING / 2) / ROUNDING * ROUNDING;
        let is_large = part_of(settings.cycle, part) >= settings.window;
        let owed = if is_large {
            0
        } else {
            scaled(settings.window, part)
        };
        let priorities = bundle.iter().map(|child| self.tree[*child].priority);
        Level {
            tag: virtual_time.saturating_add(owed),
            priority: priorities.min().unwrap_or(0),
            part: Reverse(part),
            virtual_time,
            is_large,
            has_woken: standings().any(|one| !one.competed),
            first: bundle.iter().min().copied().unwrap_or(0),
        }
    }
}

impl Level {
    pub(super) fn part(&self) -> u64 {
        self.part.0
    }

    /// Returns for how many nanoseconds this bundle has the turn until `other` is due.
    pub(super) fn until_due(&self, other: &Self) -> u64 {
        if other.is_large {
            return 0;
        }
        let ahead = other.tag.saturating_sub(self.virtual_time);
        part_of(u64::try_from(ahead).unwrap_or(u64::MAX), self.part())
    }
}

impl Class {
    /// Returns the bundles of two classes where their ways from the root part.
    pub(super) fn apart<'a>(&'a self, other: &'a Self) -> Option<(&'a Level, &'a Level)> {
        let mut levels = self.levels.iter().zip(&other.levels);
        levels.find(|(one, other)| one != other)
    }
}
