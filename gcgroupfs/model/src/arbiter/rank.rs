//! Ranks: what priorities mean among processes, where their paths from the root part.

use super::parts::{Child, each_node};
use super::place::Place;
use super::policy::{MAX_PRIORITY, Time};

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

/// Returns what processes mean for each other, whether or not they have work, and whether siblings may have
/// different numbers of processes with work. `order`: all, from [`super::parts::in_order`]; `runs`: whether a
/// process may run; `gap`: until when others may use the pause that it makes.
pub(super) fn ranks(
    places: &[Place],
    order: &[usize],
    runs: impl Fn(usize) -> bool,
    gap: impl Fn(usize) -> Option<Time>,
) -> (Vec<Rank>, bool) {
    let mut ranks = vec![Rank::default(); places.len()];
    let mut is_uneven = false;
    each_node(places, order, (None, 0), &mut |_, children| {
        let (mut nr_running, mut most) = (0, 0);
        let mut bounds: Option<(u32, u32)> = None;
        // The first gap that a priority makes.
        let mut gaps: [Option<Time>; LOWEST + 1] = [None; LOWEST + 1];
        for child in children {
            let number = child.leaves.iter().filter(|at| runs(**at)).count();
            if number == 0 {
                continue;
            }
            (nr_running, most) = (nr_running + 1, number.max(most));
            let (best, last) = bounds.unwrap_or((child.priority, child.priority));
            bounds = Some((best.min(child.priority), last.max(child.priority)));
            let first = &mut gaps[place(child)];
            *first = earlier(*first, child.leaves.iter().filter_map(|at| gap(*at)).min());
        }
        is_uneven |= nr_running > 1 && most > 1;
        for at in 1..gaps.len() {
            gaps[at] = earlier(gaps[at], gaps[at - 1]);
        }
        for child in children {
            let above = place(child).checked_sub(1).and_then(|at| gaps[at]);
            for at in child.leaves {
                let rank = &mut ranks[*at];
                rank.is_below |= bounds.is_some_and(|(best, _)| best < child.priority);
                rank.is_above |= bounds.is_some_and(|(_, last)| child.priority < last);
                rank.gap_until = earlier(rank.gap_until, above);
            }
        }
    });
    (ranks, is_uneven)
}

fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    [one, other].into_iter().flatten().min()
}

/// Returns the index of a competitor's priority in a list of all.
fn place(child: &Child<'_>) -> usize {
    usize::try_from(child.priority).map_or(LOWEST, |priority| priority.min(LOWEST))
}

/// Returns which processes are of lower priority than one that runs, where their ways part.
pub(super) fn below(places: &[Place], order: &[usize], running: &[bool]) -> Vec<bool> {
    let mut below = vec![false; places.len()];
    each_node(places, order, (None, 0), &mut |_, children| {
        let runs = children
            .iter()
            .filter(|child| child.leaves.iter().any(|at| running[*at]));
        let best = runs.map(|child| child.priority).min();
        let after = children
            .iter()
            .filter(|child| best.is_some_and(|best| best < child.priority));
        for at in after.flat_map(|child| child.leaves) {
            below[*at] = true;
        }
    });
    below
}
