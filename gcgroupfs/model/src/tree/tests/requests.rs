//! Requests for larger grants by processes in groups.

use gcgroup_abi::NO_LIMIT;

use super::*;
use crate::tree::ProcessId;

/// Requests as the hook does. Returns the request's number, and whether it is granted if it has been
/// answered.
fn ask(world: &World, id: ProcessId, device: usize, bytes: u64) -> (u32, Option<bool>) {
    let (usage, control) = (world.usage(id), world.control(id));
    usage.devices[device].grant_wanted.store(bytes, Relaxed);
    let number = usage.devices[device].grant_request.fetch_add(1, Relaxed) + 1;
    world.tree.rung(id);
    let control = &control.devices[device];
    let is_answered = control.grant_answer.load(Relaxed) == number;
    let is_granted = control.grant_refused.load(Relaxed) != number;
    (number, is_answered.then_some(is_granted))
}

fn granted(world: &World, id: ProcessId, device: usize) -> u64 {
    world.usage(id).devices[device].memory_granted.load(Relaxed)
}

#[test]
fn refusal_counts_once_in_full_group_and_above() {
    let world = World::new(2);
    world.group("a/b");
    let id = world.join(100);
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    assert_eq!(granted(&world, id, 0), NO_LIMIT);
    world.store("a/b/0/memory.limit", ROOT, "1000").unwrap();
    assert_eq!((granted(&world, id, 0), granted(&world, id, 1)), (0, NO_LIMIT));
    world.take_notices();
    assert_eq!(ask(&world, id, 0, 1000), (1, Some(true)));
    assert_eq!(granted(&world, id, 0), 1000);
    let answered = Notice::Answered { id, device: 0 };
    assert_eq!(world.take_notices(), [answered, Notice::Rung(id)]);
    // Repeated after pools were trimmed; counted when the process gives up, and read before it has rung.
    for number in 2..5 {
        assert_eq!(ask(&world, id, 0, 1001), (number, Some(false)));
    }
    assert!(world.show("a/memory.events").contains("oom 0\n"));
    let counts = &world.usage(id).devices[0];
    counts.nr_group_max.fetch_add(1, Relaxed);
    counts.nr_alloc_fail.fetch_add(1, Relaxed);
    for (path, count) in [
        ("a/b/0", 1),
        ("a/b", 1),
        ("a", 1),
        ("a/0", 1),
        ("a/b/1", 0),
        ("a/1", 0),
    ] {
        let events = world.show(&format!("{path}/memory.events"));
        for key in ["max", "oom"] {
            assert!(events.contains(&format!("{key} {count}\n")), "{path}: {events}");
        }
    }
    let own = world.show("100/memory.events");
    assert!(own.contains("oom 0\n"), "{own}");
    // A process claims no more refusals than it had.
    counts.nr_group_max.fetch_add(100, Relaxed);
    counts.nr_alloc_fail.fetch_add(1, Relaxed);
    world.tree.leave(id, 9);
    assert!(world.show("a/memory.events").contains("oom 3\n"));
}

#[test]
fn restored_limit_applies_to_returning_process() {
    let world = World::new(1);
    world.group("a");
    world.store("a/memory.limit", ROOT, "1000").unwrap();
    let group = world.tree.group_of(world.join(100)).unwrap();
    assert_eq!(group, None);
    world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    let saved = world.tree.saved(world.tree.find(100).unwrap()).unwrap();
    let kept = world.tree.saved_group(saved.group.unwrap());

    let next = World::new(1);
    let groups = [(saved.group.unwrap(), kept)].into_iter().collect();
    next.tree.restore(world.tree.saved_root(), groups);
    next.tree.await_member(saved.group.unwrap());
    let first = next.tree.join(identity(101), blocks(), saved.clone());
    next.take_notices();
    assert_eq!(ask(&next, first, 0, 100), (1, None), "a process is awaited");
    let old = blocks();
    old.usage().raw().devices[0].memory_current.store(950, Relaxed);
    old.usage().raw().devices[0]
        .memory_overhead_before
        .store(10, Relaxed);
    let second = next.tree.join(identity(100), old, saved.clone());
    next.take_notices();
    next.tree.member_told(saved.group.unwrap());
    let answered = Notice::Answered { id: first, device: 0 };
    assert!(next.take_notices().contains(&answered));
    assert_eq!(next.control(first).devices[0].grant_refused.load(Relaxed), 1);
    assert_eq!(granted(&next, second, 0), 950);
    assert_eq!(next.show("100/memory.current"), "960\n");
    assert_eq!(ask(&next, first, 0, 41), (2, Some(false)));
    assert_eq!(ask(&next, first, 0, 40), (3, Some(true)));
}

#[test]
fn limit_below_usage_reclaims_from_largest_first() {
    let world = World::new(1);
    world.group("a");
    for (pid, swappable) in [(100, 300), (101, 500), (102, 0)] {
        let id = world.join(pid);
        let usage = world.usage(id);
        usage.can_swap.store(u32::from(swappable > 0), Relaxed);
        usage.devices[0].memory_current.store(600, Relaxed);
        usage.devices[0].swappable.store(swappable, Relaxed);
        world.store("a/gcgroup.procs", ROOT, &pid.to_string()).unwrap();
    }
    let asked = |pid| {
        let control = world.control(world.tree.find(pid).unwrap());
        let device = &control.devices[0];
        (
            device.reclaim_bytes.load(Relaxed),
            device.reclaim_generation.load(Relaxed),
        )
    };
    world.store("a/memory.limit", ROOT, "1200").unwrap();
    assert_eq!([asked(101), asked(100), asked(102)], [(500, 1), (100, 1), (0, 0)]);
    assert!(world.show("a/memory.events").contains("over_limit 1\n"));
}

#[test]
fn held_bytes_move_and_leave_with_process() {
    let world = World::new(1);
    world.group("a");
    world.group("b");
    let id = world.join(100);
    world.tree.set_overhead(id, 0, 100);
    world.store("a/memory.limit", ROOT, "1000").unwrap();
    world.store("b/memory.limit", ROOT, "1000").unwrap();
    world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    assert_eq!(ask(&world, id, 0, 900), (1, Some(true)));
    let usage = world.usage(id);
    usage.devices[0].memory_current.store(900, Relaxed);
    world.store("b/gcgroup.procs", ROOT, "100").unwrap();
    let other = world.join(101);
    world.store("a/gcgroup.procs", ROOT, "101").unwrap();
    assert_eq!(ask(&world, other, 0, 1000), (1, Some(true)));
    world.store("b/gcgroup.procs", ROOT, "101").unwrap();
    assert_eq!(ask(&world, other, 0, 1), (2, Some(false)));
    world.tree.leave(id, 9);
    assert_eq!(ask(&world, other, 0, 1000), (3, Some(true)));
}
