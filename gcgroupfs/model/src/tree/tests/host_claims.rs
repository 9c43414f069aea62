//! Claims of the host's memory: each process is told what the others are about to take.

use std::time::Duration;

use gcgroup_abi::NO_LIMIT;

use super::*;
use crate::tree::ProcessId;
use crate::tree::fixture::HOST;

/// Claims as the hook does, at that time, and returns what others have claimed by then.
fn claim_at(world: &World, id: ProcessId, bytes: u64, now: Duration) -> u64 {
    let (usage, control) = (world.usage(id), world.control(id));
    usage.host_claim.store(bytes, Relaxed);
    let number = usage.host_request.fetch_add(1, Relaxed) + 1;
    let mut notices = Vec::new();
    world.tree.state.lock().answer_claim(id, now, &mut notices);
    assert_eq!(notices, [Notice::Ring(id)]);
    assert_eq!(control.host_answer.load(Relaxed), number);
    control.host_claimed.load(Relaxed)
}

#[test]
fn a_claim_counts_for_those_that_come_after_it_until_withdrawn() {
    let world = World::new(1);
    let [first, second, third] = [100, 101, 102].map(|pid| world.join(pid));
    let claim = |id, bytes| claim_at(&world, id, bytes, Duration::ZERO);
    assert_eq!(claim(first, 100), 0);
    assert_eq!(claim(second, 20), 100);
    assert_eq!(claim(third, 3), 120);
    assert_eq!(claim(first, 50), 23, "its own does not count");
    world.usage(second).host_claim.store(0, Relaxed);
    assert_eq!(claim(third, 3), 50);
    world.tree.leave(first, 0);
    assert_eq!(claim(second, 1), 3);
    assert_eq!(claim(third, NO_LIMIT), 1);
    assert_eq!(
        claim(second, NO_LIMIT),
        HOST.memory,
        "at most all that the host has"
    );
}

#[test]
fn a_claim_that_is_kept_expires() {
    let world = World::new(1);
    let [stopped, other] = [100, 101].map(|pid| world.join(pid));
    let begin = Duration::from_secs(7);
    claim_at(&world, stopped, NO_LIMIT, begin);
    let after = |msec| claim_at(&world, other, 1, begin + Duration::from_millis(msec));
    assert_eq!(after(1900), HOST.memory);
    assert_eq!(after(2000), 0);
    assert_eq!(after(2001), 0);
}

#[test]
fn a_ring_answers_a_claim_once_and_only_if_there_is_one() {
    let world = World::new(1);
    let id = world.join(100);
    assert_eq!(world.control(id).answers_claims.load(Relaxed), 1);
    assert_eq!(world.control(id).host_claimed.load(Relaxed), NO_LIMIT);
    world.take_notices();
    world.tree.rung(id);
    assert_eq!(world.take_notices(), [Notice::Rung(id)]);
    world.usage(id).host_claim.store(1, Relaxed);
    world.usage(id).host_request.store(1, Relaxed);
    for notices in [&[Notice::Ring(id), Notice::Rung(id)][..], &[Notice::Rung(id)]] {
        world.tree.rung(id);
        assert_eq!(world.take_notices(), notices);
        assert_eq!(world.control(id).host_claimed.load(Relaxed), 0);
    }
}
