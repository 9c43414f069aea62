//! What processes of different priorities mean for each other, where their ways from the root part.

use super::parts::{Child, each_node, in_order};
use super::place::Place;
use super::policy::Time;

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
/// different numbers of processes with work. `runs`: whether a process may run; `gap`: until when others may
/// use the pause that it makes.
pub(super) fn ranks(
    places: &[Place],
    runs: impl Fn(usize) -> bool,
    gap: impl Fn(usize) -> Option<Time>,
) -> (Vec<Rank>, bool) {
    let mut ranks = vec![Rank::default(); places.len()];
    let mut is_uneven = false;
    let order = in_order(places, |_| true);
    each_node(places, &order, (None, 0), &mut |_, children| {
        let nr_running = |child: &Child<'_>| child.leaves.iter().filter(|at| runs(**at)).count();
        let mut running: Vec<&Child<'_>> = children.iter().filter(|child| nr_running(child) > 0).collect();
        running.sort_by_key(|child| child.priority);
        is_uneven |= running.len() > 1 && running.iter().any(|child| nr_running(child) > 1);
        let last = running.last().map_or(0, |child| child.priority);
        let gaps = |child: &Child<'_>| child.leaves.iter().filter_map(|at| gap(*at)).min();
        // The gap before each, by priority.
        let mut gap_until: Vec<(u32, Option<Time>)> = Vec::new();
        for child in &running {
            let above = gap_until.last().and_then(|(_, gap)| *gap);
            gap_until.push((child.priority, [above, gaps(child)].into_iter().flatten().min()));
        }
        for child in children {
            let above = gap_until.partition_point(|(priority, _)| *priority < child.priority);
            let above = above.checked_sub(1).map(|at| gap_until[at].1);
            for at in child.leaves {
                let rank = &mut ranks[*at];
                rank.is_below |= above.is_some();
                rank.is_above |= child.priority < last;
                rank.gap_until = [rank.gap_until, above.flatten()].into_iter().flatten().min();
            }
        }
    });
    (ranks, is_uneven)
}

/// Returns which processes are of lower priority than one that runs, where their ways part.
pub(super) fn below(places: &[Place], running: &[bool]) -> Vec<bool> {
    let mut below = vec![false; places.len()];
    let order = in_order(places, |_| true);
    each_node(places, &order, (None, 0), &mut |_, children| {
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
