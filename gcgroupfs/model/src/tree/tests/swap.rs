//! `memory.swap.max` of groups: the bound of what their processes swap out together.

use gcgroup_abi::NO_LIMIT;

use super::*;
use crate::tree::ProcessId;

#[test]
fn swap_is_enabled_by_roots_nearest_bound_alone() {
    let world = World::new(1);
    let (team, below) = (world.group("team"), world.group("team/a"));
    let enables = || [team, below].map(|group| world.tree.enables_swap(Some(group)));
    assert_eq!(enables(), [false, false]);
    assert!(!world.tree.enables_swap(None));
    world.store("team/memory.swap.max", ROOT, "1G").unwrap();
    assert_eq!(enables(), [true, true]);
    world.store("team/a/memory.swap.max", ROOT, "0").unwrap();
    assert_eq!(enables(), [true, false]);
    world.store("team/a/memory.swap.max", ROOT, "max").unwrap();
    assert_eq!(enables(), [true, true]);
    world.store("team/memory.swap.max", ROOT, "0").unwrap();
    assert_eq!(enables(), [false, true]);
    let given = world.group("given");
    let owner = (Some(OWNER.uid), None);
    let _ = world.tree.set_access(Directory::group(given), ROOT, owner, None);
    world.store("given/memory.swap.max", OWNER, "1G").unwrap();
    assert!(!world.tree.enables_swap(Some(given)), "set by another user");
}

/// Requests as the hook does. Returns the grant in bytes if answered, and whether it was refused.
fn ask_to_swap(world: &World, id: ProcessId, bytes: u64) -> (Option<u64>, bool) {
    let (usage, control) = (&world.usage(id).devices[0], &world.control(id).devices[0]);
    usage.swap_wanted.store(bytes, Relaxed);
    let number = usage.swap_request.fetch_add(1, Relaxed) + 1;
    world.tree.rung(id);
    let is_answered = control.swap_answer.load(Relaxed) == number;
    let granted = usage.swap_granted.load(Relaxed);
    (
        is_answered.then_some(granted),
        control.swap_refused.load(Relaxed) == number,
    )
}

#[test]
fn swap_is_granted_within_the_limits_of_the_groups_above() {
    let world = World::new(1);
    world.group("a/b");
    let ids = [world.join(100), world.join(101)];
    for (id, pid, group) in [(ids[0], "100", "a"), (ids[1], "101", "a/b")] {
        world.usage(id).can_swap.store(1, Relaxed);
        world
            .store(&format!("{pid}/memory.swap.max"), ROOT, "max")
            .unwrap();
        world.store(&format!("{group}/gcgroup.procs"), ROOT, pid).unwrap();
    }
    assert_eq!(
        ask_to_swap(&world, ids[0], 5000),
        (Some(NO_LIMIT), false),
        "without a bound"
    );
    world.store("a/memory.swap.max", ROOT, "1000").unwrap();
    world.store("a/b/0/memory.swap.max", ROOT, "300").unwrap();
    assert_eq!(ask_to_swap(&world, ids[0], 1001), (Some(0), true));
    assert_eq!(ask_to_swap(&world, ids[1], 301), (Some(0), true));
    assert_eq!(ask_to_swap(&world, ids[1], 300), (Some(300), false));
    let charge = |id, bytes| world.usage(id).devices[0].swap_charged.fetch_add(bytes, Relaxed);
    charge(ids[1], 300);
    assert_eq!(ask_to_swap(&world, ids[0], 701), (Some(0), true));
    assert_eq!(ask_to_swap(&world, ids[0], 700), (Some(700), false));
    charge(ids[0], 700);
    // A process that is killed leaves its part.
    world.tree.leave(ids[1], 0);
    assert_eq!(ask_to_swap(&world, ids[0], 300), (Some(1000), false));
    world.store("a/memory.swap.max", ROOT, "max").unwrap();
    assert_eq!(
        world.usage(ids[0]).devices[0].swap_granted.load(Relaxed),
        NO_LIMIT
    );
}

#[test]
fn swap_is_granted_once_all_have_registered_again() {
    let world = World::new(1);
    let group = world.group("a");
    world.store("a/memory.swap.max", ROOT, "1000").unwrap();
    world.tree.await_member(group);
    let id = world.join(100);
    world.usage(id).devices[0].swap_charged.store(100, Relaxed);
    world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    assert_eq!(ask_to_swap(&world, id, 50), (None, false));
    assert_eq!(world.usage(id).devices[0].swap_granted.load(Relaxed), 100);
    world.tree.member_told(group);
    assert_eq!(world.usage(id).devices[0].swap_granted.load(Relaxed), 150);
}

#[test]
fn swap_pool_of_others_is_recalled_when_room_is_short() {
    let world = World::new(2);
    world.group("a");
    world.store("a/memory.swap.max", ROOT, "1000").unwrap();
    let ids = [100, 101].map(|pid| {
        let id = world.join(pid);
        world.usage(id).can_swap.store(1, Relaxed);
        world.store("a/gcgroup.procs", ROOT, &pid.to_string()).unwrap();
        id
    });
    let keeper = &world.usage(ids[0]).devices[1];
    assert_eq!(ask_to_swap(&world, ids[0], 1000), (Some(1000), false));
    world.usage(ids[0]).devices[0].swap_charged.store(1000, Relaxed);
    let recalls = || world.control(ids[0]).devices[0].swap_recall.load(Relaxed);
    let recalled = || world.control(ids[1]).devices[0].swap_recalled.load(Relaxed);
    world.take_notices();
    assert_eq!(ask_to_swap(&world, ids[1], 1), (Some(0), true));
    assert_eq!((recalls(), recalled()), (0, 0), "the pool is empty");
    keeper.swap_pool.store(1, Relaxed);
    world.take_notices();
    assert_eq!(ask_to_swap(&world, ids[1], 1), (Some(0), true));
    assert_eq!((recalls(), recalled()), (1, 2));
    assert!(world.take_notices().contains(&Notice::Ring(ids[0])));
}
