//! Settles virtual times at a decision: what is forgiven, and which competitors lead too far for that.

use std::ops::Range;

use super::super::parts::scaled;
use super::{Field, Standing};

impl Field<'_> {
    /// Sets what each competitor competes for. A competitor that begins to compete, or has used less than it
    /// could, is placed beside its siblings: unused time is not saved. `slack`: nanoseconds of GPU time by
    /// which one may have had less than another of its bundle. One that leads by more joins no bundle.
    pub(in crate::arbiter) fn settle(&mut self, slack: u64) {
        self.standings.iter_mut().for_each(Standing::rest);
        let tree = self.tree;
        let parents = tree.parents().filter(|(parent, _)| self.parts[*parent] > 0);
        let parents: Vec<(usize, Range<usize>)> = parents
            .map(|(parent, node)| (parent, node.children.clone()))
            .collect();
        for (parent, children) in parents.iter().cloned() {
            self.forgive(children.clone(), slack);
            // Also of one that has had all, and competes no more.
            let competed = children.clone().map(|child| &self.standings[child]);
            let competed = competed.filter(|one| one.competed).map(|one| one.virtual_time);
            let floor = self.standings[parent].floor.max(competed.min().unwrap_or(0));
            self.standings[parent].floor = floor;
            for child in children.clone().filter(|child| self.parts[*child] > 0) {
                self.standings[child].compete(self.parts[child], floor);
            }
            self.compare(children, floor, slack);
        }
        // No bundle either for a group in which turns are needed.
        for (child, node) in tree.nodes().rev() {
            let takes_turns = self.parts[child] > 0 && (self.leads[child] || self.each[child].is_none());
            if let Some(parent) = node.parent.filter(|_| takes_turns) {
                self.each[parent] = None;
            }
        }
        for (parent, children) in parents {
            self.bundle(children.clone());
            self.place(parent, children, slack);
        }
    }

    /// Places siblings that have been of a bundle since the last decision beside each other, up to `slack`.
    fn forgive(&mut self, children: Range<usize>, slack: u64) {
        let mut most = vec![0; children.len()];
        for standing in &self.standings[children.clone()] {
            if let Some(most) = standing.bundle.and_then(|bundle| most.get_mut(bundle)) {
                *most = standing.virtual_time.max(*most);
            }
        }
        for standing in &mut self.standings[children] {
            if let Some(most) = standing.bundle.take().and_then(|bundle| most.get(bundle)) {
                let least = most.saturating_sub(scaled(slack, standing.part));
                standing.virtual_time = standing.virtual_time.max(least);
            }
        }
    }

    /// Determines which groups have had more than a sibling that competes, by more than `slack`. A single
    /// process can only delay others by what it has queued.
    fn compare(&mut self, children: Range<usize>, floor: u128, slack: u64) {
        let competing = || self.standings[children.clone()].iter().filter(|one| one.competes);
        let time = |one: &Standing| one.virtual_time.max(if one.competed { 0 } else { floor });
        let least = competing().map(time).min().unwrap_or(floor);
        let nr_competing = competing().count();
        for child in children.clone() {
            let own = self.standings[child];
            let most = least.saturating_add(scaled(slack, own.part));
            let has_others = nr_competing > usize::from(own.competes);
            let can_lead = self.tree[child].leaf.is_none() && has_others;
            self.leads[child] = can_lead && own.part > 0 && own.virtual_time > most;
        }
    }

    /// Determines the bundles of siblings.
    fn bundle(&mut self, children: Range<usize>) {
        let order = |child: &usize| (self.parts[*child] == 0, self.leads[*child], self.each[*child]);
        self.sorted[children.clone()].sort_by_key(order);
        let (mut bundle, mut before) = (0, None);
        for at in children.clone() {
            let child = self.sorted[at];
            if self.parts[child] == 0 {
                break;
            }
            if !before.is_some_and(|before| self.is_alike(before, child)) {
                bundle = at - children.start;
            }
            self.standings[child].bundle = Some(bundle);
            before = Some(child);
        }
    }

    /// Places those of the siblings that have used less than the bundle that has used least.
    fn place(&mut self, parent: usize, children: Range<usize>, slack: u64) {
        let known = |child: &usize| Some(self.standings[*child]).filter(|one| one.competed);
        let time = |bundle: &[usize]| bundle.iter().filter_map(known).map(|one| one.virtual_time).max();
        let floor = self.bundles(parent).filter_map(time).min().unwrap_or(0);
        let floor = floor.max(self.standings[parent].floor);
        for standing in self.standings[children].iter_mut().filter(|one| one.competes) {
            let slack = if standing.competed {
                scaled(slack, standing.part)
            } else {
                0
            };
            if standing.virtual_time < floor {
                standing.virtual_time = standing.virtual_time.max(floor.saturating_sub(slack));
            }
        }
        self.standings[parent].floor = floor;
    }

    /// Returns whether a process would have to wait if it began: a group that it is in leads.
    pub(in crate::arbiter) fn is_ahead(&self, process: usize) -> bool {
        let mut way = self.tree.up(self.tree.leaf(process));
        way.any(|node| self.leads[node])
    }
}
