//! The contest for one GPU: a tree in which each group is one competitor among its siblings.
//!
//! A competitor's *part* of the GPU is that of its parent, divided among the siblings that compete by the
//! weights of their priorities. Siblings below which all processes have equal parts form a bundle; the
//! hardware divides its time among them. Bundles take turns. Virtual times are compared among siblings only,
//! so a group pays for what any of its processes has used.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::Settings;
use super::parts::{Child, WHOLE, children, each_node, is_near, part_of, scaled};
use super::place::Place;
use super::policy::Time;
use super::settings::LONGEST_DEBT;

/// Virtual times are compared in units of this many nanoseconds.
const ROUNDING: u128 = 1000;

/// A process or group among its siblings, as remembered from decision to decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Nanoseconds of GPU time used, each divided by the part at that time.
    pub(super) virtual_time: u128,
    /// Part when it last competed; 0: it has never done so.
    pub(super) part: u64,
    competes: bool,
    /// Whether it competed at the decision before.
    competed: bool,
}

/// Standings of the groups of a GPU's processes.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Highest least virtual time of the root's children so far.
    floor: u128,
    all: BTreeMap<u64, Group>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Group {
    own: Standing,
    /// Highest least virtual time of its children so far.
    floor: u128,
    /// Since when it has no process on the GPU.
    empty_since: Option<Time>,
}

/// Processes that compete.
#[derive(Debug)]
pub(super) struct Divided {
    pub(super) now: Time,
    /// Their indices, from [`in_order`].
    pub(super) order: Vec<usize>,
    /// Parts of all processes.
    pub(super) parts: Vec<u64>,
    /// GPU time by which one may have had less than another of its bundle, nanoseconds.
    pub(super) slack: u64,
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
    /// Index of its first process, which tells bundles apart.
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
        self.virtual_time = self.virtual_time.saturating_add(scaled(nsec, self.part));
    }

    fn rest(&mut self) {
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
    /// Charges a process and the groups that it is in with GPU time.
    pub(super) fn charge(&mut self, place: &Place, leaf: &mut Standing, nsec: u64) {
        leaf.charge(nsec);
        for group in place.groups() {
            if let Some(group) = self.all.get_mut(&group).filter(|group| group.own.part > 0) {
                group.own.charge(nsec);
            }
        }
    }

    /// Sets what each competitor competes for. A competitor that begins to compete, or has used less than it
    /// could, is placed beside its siblings: unused time is not saved. `leaves` are the standings of all
    /// processes.
    pub(super) fn settle(&mut self, places: &[Place], leaves: &mut [Standing], divided: &Divided) {
        let Divided {
            now,
            order,
            parts,
            slack,
        } = divided;
        let here: BTreeSet<u64> = places.iter().flat_map(Place::groups).collect();
        // A group whose processes end and start again still pays for what they have used.
        self.all.retain(|id, group| {
            let since = (!here.contains(id)).then(|| group.empty_since.unwrap_or(*now));
            group.empty_since = since;
            since.is_none_or(|since| *now < since.saturating_add(LONGEST_DEBT))
        });
        self.all.values_mut().for_each(|group| group.own.rest());
        leaves.iter_mut().for_each(Standing::rest);
        let all = &mut self.all;
        let root = &mut self.floor;
        each_node(places, order, (None, 0), &mut |parent, children| {
            let floor = parent.map_or(*root, |id| all.entry(id).or_default().floor);
            let mut least: Option<u128> = None;
            for bundle in sorted(children, parts).chunk_by(is_alike) {
                let mut most = None;
                for (_, child) in bundle {
                    let standing = child.standing(all, leaves);
                    standing.compete(child.part(parts), floor);
                    let known = standing.competed.then_some(standing.virtual_time);
                    most = most.max(known);
                }
                least = [least, most].into_iter().flatten().min();
            }
            let floor = floor.max(least.unwrap_or(0));
            for child in children {
                let standing = child.standing(all, leaves);
                if standing.virtual_time < floor {
                    let slack = match standing.competed {
                        true => scaled(*slack, standing.part),
                        false => 0,
                    };
                    standing.virtual_time = standing.virtual_time.max(floor.saturating_sub(slack));
                }
            }
            match parent {
                None => *root = floor,
                Some(id) => all.entry(id).or_default().floor = floor,
            }
        });
    }

    /// Returns the virtual times of a process's groups from a level on, and its own.
    fn virtual_times(&self, place: &Place, own: Standing, level: usize) -> impl Iterator<Item = u128> {
        let groups = place.groups().skip(level).filter_map(|id| self.all.get(&id));
        let groups = groups.map(|group| group.own.virtual_time);
        groups.chain([own.virtual_time])
    }

    /// Returns the classes that compete, the one with the next turn first. Arguments as in
    /// [`Self::settle`].
    pub(super) fn classes(
        &self,
        places: &[Place],
        order: &[usize],
        leaves: &[Standing],
        settings: &Settings,
    ) -> Vec<Class> {
        let parts: Vec<u64> = leaves.iter().map(|leaf| leaf.part).collect();
        let mut classes = Vec::new();
        let mut left = vec![(order, 0, Vec::new())];
        while let Some((order, depth, levels)) = left.pop() {
            let children = children(places, order, depth);
            let sorted = sorted(&children, &parts);
            let is_one = sorted.chunk_by(is_alike).nth(1).is_none();
            for bundle in sorted.chunk_by(is_alike) {
                let is_uniform = bundle.iter().all(|(each, _)| each.is_some());
                let children = || bundle.iter().map(|(_, child)| *child);
                let mut below: Vec<usize> = children().flat_map(|child| child.leaves).copied().collect();
                let times = |leaf: &usize| self.virtual_times(&places[*leaf], leaves[*leaf], depth);
                below.sort_by(|one, other| times(one).cmp(times(other)));
                let part = below
                    .iter()
                    .fold(0, |sum: u64, leaf| sum.saturating_add(parts[*leaf]));
                let mut levels = levels.clone();
                let first = below.first().copied().unwrap_or(0);
                if !(is_one && is_uniform) {
                    let standing = |child: &Child<'_>| match child.group {
                        Some(id) => self.all.get(&id).map(|group| group.own),
                        None => leaves.get(*child.leaves.first()?).copied(),
                    };
                    let standings = || children().filter_map(standing);
                    // The maximum, so that a competitor that uses little of the common turns does not prolong
                    // them for the others.
                    let virtual_time = standings().map(|one| one.virtual_time).max().unwrap_or(0);
                    // Without the rounding of divisions, so that the priority decides between equals.
                    let virtual_time = virtual_time.saturating_add(ROUNDING / 2) / ROUNDING * ROUNDING;
                    let is_large = part_of(settings.cycle, part) >= settings.window;
                    let owed = if is_large {
                        0
                    } else {
                        scaled(settings.window, part)
                    };
                    levels.push(Level {
                        tag: virtual_time.saturating_add(owed),
                        priority: children().map(|child| child.priority).min().unwrap_or(0),
                        part: Reverse(part),
                        virtual_time,
                        is_large,
                        has_woken: standings().any(|one| !one.competed),
                        first,
                    });
                }
                match bundle {
                    [(_, child)] if !is_uniform => left.push((child.leaves, depth + 1, levels)),
                    _ => classes.push(Class {
                        leaves: below,
                        part,
                        levels,
                    }),
                }
            }
        }
        classes.sort_by(|one, other| one.levels.cmp(&other.levels));
        classes
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

impl Child<'_> {
    fn standing<'a>(
        &self,
        groups: &'a mut BTreeMap<u64, Group>,
        leaves: &'a mut [Standing],
    ) -> &'a mut Standing {
        match self.group {
            Some(id) => &mut groups.entry(id).or_default().own,
            None => &mut leaves[self.leaves[0]],
        }
    }
}

/// A child with the part of each process below it, if these are equal.
type Uniform<'a, 'b> = (Option<u64>, &'b Child<'a>);

/// Sorts children so that those of a bundle are neighbours, which [`is_alike`] tells: those below which all
/// processes have the same part, and each other one by itself.
fn sorted<'a, 'b>(children: &'b [Child<'a>], parts: &[u64]) -> Vec<Uniform<'a, 'b>> {
    let mut sorted: Vec<Uniform<'a, 'b>> = children.iter().map(|child| (child.each(parts), child)).collect();
    sorted.sort_by_key(|(each, _)| *each);
    sorted
}

fn is_alike((one, _): &Uniform<'_, '_>, (other, _): &Uniform<'_, '_>) -> bool {
    one.zip(*other).is_some_and(|(one, other)| is_near(one, other))
}
