//! Decides for which other process each waiting process waits.

use super::member::{Member, Seen};
use super::memory_turns::MemoryTurn;
use crate::tree::{GateOrder, WaitsFor};

/// Sets `waits_for` of each process with threads at its gate: the owner of the memory turn, or a process that
/// has the turn, one with work if there is any. A process that waits for a quota waits for no other.
pub(super) fn set<Id: Copy>(orders: &mut [GateOrder<Id>], members: &[(Id, Member)], seen: &[Seen<Id>]) {
    if seen.iter().all(|one| one.nr_waiting == 0) {
        return;
    }
    let runs = |at: &usize| members[*at].1.has_turn && members[*at].1.competes();
    let is_busy = |at: &usize| members[*at].1.is_busy && !members[*at].1.is_held;
    let all = || 0..members.len();
    let turn = all().find(|at| runs(at) && is_busy(at));
    let turn = turn.or_else(|| all().find(runs)).or_else(|| all().find(is_busy));
    let owner = orders
        .iter()
        .position(|order| order.memory.turn == MemoryTurn::Owner);
    for (at, ((order, (_, member)), one)) in orders.iter_mut().zip(members).zip(seen).enumerate() {
        let awaited = match (order.memory.is_parked, member.waits()) {
            (true, _) => owner.map(|place| (place, WaitsFor::Memory)),
            (false, true) => turn.map(|place| (place, WaitsFor::Turn)),
            (false, false) => None,
        };
        let waits = one.nr_waiting > 0 && !one.is_frozen;
        let awaited = awaited.filter(|(place, _)| waits && *place != at);
        order.waits_for = awaited.map(|(place, what)| (members[place].0, what));
    }
}
