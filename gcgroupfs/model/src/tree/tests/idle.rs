//! Idle processes that leave the GPU.

use std::time::Duration;

use super::*;
use crate::tree::ProcessId;
use crate::tree::fixture::set_uptime;

/// Time of the tests' start on the clock since boot, seconds.
const NOW: u64 = 86_400;

fn at(seconds: u64) {
    set_uptime(Duration::from_secs(NOW + seconds));
}

/// Returns a world in which a process that can swap, and has memory on device 1, is in the group `team/job`.
fn world() -> (World, ProcessId) {
    at(0);
    let world = World::new(2);
    world.group("team/job");
    let id = world.join(100);
    let usage = world.usage(id);
    usage.can_swap.store(1, Relaxed);
    usage.tells_wanted.store(1, Relaxed);
    usage.devices[1].movable.store(4096, Relaxed);
    world.store("team/job/gcgroup.procs", ROOT, "100").unwrap();
    (world, id)
}

fn is_frozen(world: &World, id: ProcessId) -> bool {
    let devices = &world.control(id).devices;
    (0..2).all(|device| devices[device].gate.load(Relaxed) == Gate::Frozen as u32)
}

/// Lets the library acknowledge the freeze.
fn drain(world: &World, id: ProcessId) {
    let (control, usage) = (world.control(id), world.usage(id));
    for (control, usage) in control.devices.iter().zip(&usage.devices) {
        let generation = control.freeze_generation.load(Relaxed);
        usage.drained_generation.store(generation, Relaxed);
    }
    world.tree.rung(id);
}

/// Lets the library move out what is requested.
fn move_out(world: &World, id: ProcessId) {
    let (control, usage) = (world.control(id), world.usage(id));
    for (control, usage) in control.devices.iter().zip(&usage.devices) {
        let generation = control.reclaim_generation.load(Relaxed);
        usage.reclaim_generation.store(generation, Relaxed);
    }
    world.tree.rung(id);
}

/// Lets a call say that it needs the GPU.
fn want(world: &World, id: ProcessId) {
    let number = world.control(id).idle_generation.load(Relaxed);
    world.usage(id).wanted_generation.store(number, Relaxed);
    world.tree.rung(id);
}

fn reclaimed(world: &World, id: ProcessId) -> u64 {
    world.control(id).devices[1].reclaim_bytes.load(Relaxed)
}

fn events(world: &World) -> String {
    world.show("100/gcgroup.events")
}

/// Lets the process leave at `seconds`.
fn leave(world: &World, id: ProcessId, seconds: u64) {
    at(seconds);
    world.tree.judge_idle();
    assert!(is_frozen(world, id));
    drain(world, id);
    assert!(events(world).contains("frozen 1\n") && events(world).contains("away 0\n"));
    move_out(world, id);
    assert!(events(world).contains("away 1\n"));
}

#[test]
fn idle_process_leaves_once_drained_and_returns_when_wanted() {
    let (world, id) = world();
    assert_eq!(world.tree.judge_idle(), None);
    world.store("100/gcgroup.idle", ROOT, "30 reclaim").unwrap();
    assert!(events(&world).contains("away 0\n"));
    at(29);
    assert_eq!(world.tree.judge_idle(), Some(1000));
    world.submit(id, 1, 1);
    at(58);
    assert_eq!(world.tree.judge_idle(), Some(30_000), "it has submitted");
    at(88);
    assert_eq!(world.tree.judge_idle(), None);
    assert!(is_frozen(&world, id));
    assert_eq!(reclaimed(&world, id), 0, "its work has not completed");
    assert!(events(&world).contains("away 0\n"));
    drain(&world, id);
    assert_eq!(reclaimed(&world, id), gcgroup_abi::NO_LIMIT);
    assert!(events(&world).contains("away 0\n"), "it has not moved out");
    assert!(world.show("100/memory.events").contains("idle 1\n"));
    world.tree.rung(id);
    assert!(is_frozen(&world, id), "no call needs the GPU");
    want(&world, id);
    assert!(!is_frozen(&world, id));
    assert_eq!(reclaimed(&world, id), 0, "the request is withdrawn");
    assert!(events(&world).contains("away 0\n"));
    at(117);
    assert_eq!(
        world.tree.judge_idle(),
        Some(30_000),
        "time counts from the first look"
    );
    leave(&world, id, 147);
    assert!(world.show("team/memory.events").contains("idle 2\n"));
}

#[test]
fn strictest_rule_of_process_and_groups_holds() {
    let (world, id) = world();
    world.store("team/gcgroup.idle", ROOT, "30 reclaim").unwrap();
    world.store("team/job/gcgroup.idle", ROOT, "60 reclaim").unwrap();
    world.store("100/gcgroup.idle", ROOT, "90 reclaim").unwrap();
    world.tree.judge_idle();
    leave(&world, id, 30);
    world.store("team/gcgroup.idle", ROOT, "max").unwrap();
    assert!(is_frozen(&world, id), "other rules hold");
    for place in ["team/job", "100"] {
        world
            .store(&format!("{place}/gcgroup.idle"), ROOT, "max")
            .unwrap();
    }
    assert!(!is_frozen(&world, id), "no rule is left");
    assert!(!events(&world).contains("away"));
    world.store("team/gcgroup.idle", ROOT, "30 reclaim").unwrap();
    leave(&world, id, 60);
    world.store("gcgroup.procs", ROOT, "100").unwrap();
    world.tree.judge_idle();
    assert!(!is_frozen(&world, id), "it has left the group");
}

#[test]
fn process_that_works_waits_or_is_stopped_does_not_leave() {
    let (world, id) = world();
    world.store("100/gcgroup.idle", ROOT, "1 reclaim").unwrap();
    let usage = &world.usage(id).devices[0];
    let mut now = 0;
    let mut stays = |set: &dyn Fn(bool), why: &str| {
        set(true);
        for _ in 0..2 {
            now += 10;
            at(now);
            assert_eq!(world.tree.judge_idle(), Some(1000), "{why}");
        }
        set(false);
        assert!(!events(&world).contains("away 1\n"), "{why}");
    };
    stays(&|is| usage.busy_since.store(is.into(), Relaxed), "it works");
    stays(&|is| usage.nr_waiting.store(is.into(), Relaxed), "a thread waits");
    for file in ["100/compute.freeze", "team/compute.freeze"] {
        let set = |is: bool| world.store(file, ROOT, if is { "1" } else { "0" }).unwrap();
        stays(&set, file);
    }
    let set = |is: bool| {
        world
            .store("team/gcgroup.suspend", ROOT, if is { "1" } else { "0" })
            .unwrap()
    };
    stays(&set, "it is to be suspended");
    world.tree.judge_idle();
    leave(&world, id, now + 1);
}

#[test]
fn written_freeze_outlives_the_return_and_the_other_way_round() {
    let (world, id) = world();
    world.store("100/gcgroup.idle", ROOT, "1 reclaim").unwrap();
    leave(&world, id, 1);
    world.store("100/compute.freeze", ROOT, "1").unwrap();
    want(&world, id);
    assert!(is_frozen(&world, id));
    assert!(events(&world).contains("away 0\n"));
    world.store("100/compute.freeze", ROOT, "0").unwrap();
    assert!(!is_frozen(&world, id));
    world.tree.judge_idle();
    leave(&world, id, 2);
    world.store("100/compute.freeze", ROOT, "1").unwrap();
    world.store("100/compute.freeze", ROOT, "0").unwrap();
    assert!(is_frozen(&world, id), "it is still away");
}

#[test]
fn process_that_cannot_leave_is_told_why() {
    let (world, id) = world();
    world.store("team/gcgroup.idle", ROOT, "1 reclaim").unwrap();
    let stays = |why: &str| {
        at(10);
        world.tree.judge_idle();
        assert!(!is_frozen(&world, id), "{why}");
        let told = world.tree.explain(Directory::process(id), &[].into());
        let told = format!("{told:?}");
        assert!(told.contains(why), "{why}: {told}");
    };
    world.usage(id).tells_wanted.store(0, Relaxed);
    stays("its library is older");
    world.usage(id).can_swap.store(0, Relaxed);
    stays("was not started with --swap");
}

#[test]
fn number_that_a_process_wrote_before_does_not_bring_it_back() {
    let (world, id) = world();
    world.store("100/gcgroup.idle", ROOT, "1 reclaim").unwrap();
    for (round, number) in [1, 2, 0, u32::MAX].into_iter().enumerate() {
        world.usage(id).wanted_generation.store(number, Relaxed);
        world.tree.judge_idle();
        leave(&world, id, 10 * (round as u64 + 1));
        world.tree.rung(id);
        assert!(is_frozen(&world, id), "{number}");
        want(&world, id);
        assert!(!is_frozen(&world, id), "{number}");
    }
}

#[test]
fn process_that_registers_again_is_back() {
    let (world, id) = world();
    world.store("100/gcgroup.idle", ROOT, "1 reclaim").unwrap();
    leave(&world, id, 1);
    let (saved, blocks) = (world.tree.saved(id).unwrap(), world.tree.blocks(id).unwrap());
    world.tree.leave(id, 0);
    let after = World::new(2);
    after.group("team/job");
    let id = after.join_with(100, blocks, saved);
    assert!(!is_frozen(&after, id));
    after.tree.judge_idle();
    leave(&after, id, 2);
}
