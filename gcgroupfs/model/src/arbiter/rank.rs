//! Ranks: what priorities mean among processes, where their paths from the root part.

use super::policy::{MAX_PRIORITY, Time};
use super::tree::Tree;

/// Largest index in a list of all priorities.
const LOWEST: usize = MAX_PRIORITY as usize;

/// Standing of a process among those that may run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rank {
    /// Whether there is one of higher priority, and one of lower priority, where their ways part.
    pub(super) is_below: bool,
    pub(super) is_above: bool,
    /// When its work is to have ended, because a process of higher priority may have some from then on.
    pub(super) gap_until: Option<Time>,
}

/// Returns what processes mean for each other, whether or not they have work. `runs`: whether a process may
/// run; `gap`: until when others may use the pause that it makes.
pub(super) fn ranks(
    tree: &Tree,
    runs: impl Fn(usize) -> bool,
    gap: impl Fn(usize) -> Option<Time>,
) -> Vec<Rank> {
    let runs = tree.joined(runs, |one, other| one || other);
    let first_gaps = tree.joined(gap, earlier);
    let mut ranks = vec![Rank::default(); runs.len()];
    for (parent, node) in tree.parents() {
        let mut bounds: Option<(u32, u32)> = None;
        // The first gap that a priority makes.
        let mut gaps: [Option<Time>; LOWEST + 1] = [None; LOWEST + 1];
        for child in node.children.clone().filter(|child| runs[*child]) {
            let priority = tree[child].priority;
            let (best, last) = bounds.unwrap_or((priority, priority));
            bounds = Some((best.min(priority), last.max(priority)));
            let first = &mut gaps[place(priority)];
            *first = earlier(*first, first_gaps[child]);
        }
        for at in 1..gaps.len() {
            gaps[at] = earlier(gaps[at], gaps[at - 1]);
        }
        for child in node.children.clone() {
            let (above, priority) = (ranks[parent], tree[child].priority);
            let gap = place(priority).checked_sub(1).and_then(|at| gaps[at]);
            ranks[child] = Rank {
                is_below: above.is_below || bounds.is_some_and(|(best, _)| best < priority),
                is_above: above.is_above || bounds.is_some_and(|(_, last)| priority < last),
                gap_until: earlier(above.gap_until, gap),
            };
        }
    }
    tree.of_processes(&ranks)
}

fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    [one, other].into_iter().flatten().min()
}

/// Returns the index of a priority in a list of all.
fn place(priority: u32) -> usize {
    usize::try_from(priority).map_or(LOWEST, |priority| priority.min(LOWEST))
}

/// Returns which processes are of lower priority than one that runs, where their ways part.
pub(super) fn below(tree: &Tree, runs: impl Fn(usize) -> bool) -> Vec<bool> {
    let runs = tree.joined(runs, |one, other| one || other);
    let mut below = vec![false; runs.len()];
    for (parent, node) in tree.parents() {
        let running = node.children.clone().filter(|child| runs[*child]);
        let best = running.map(|child| tree[child].priority).min();
        for child in node.children.clone() {
            below[child] = below[parent] || best.is_some_and(|best| best < tree[child].priority);
        }
    }
    tree.of_processes(&below)
}
