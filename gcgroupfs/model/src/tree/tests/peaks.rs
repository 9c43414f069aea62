//! Peaks of groups.

use super::groups::hold;
use super::*;
use crate::tree::fixture::TOTAL;

#[test]
fn reset_peak_restarts_at_current() {
    let world = World::new(1);
    world.group("a");
    let id = world.join(100);
    world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    hold(&world, id, 0, 500);
    world.tree.rung(id);
    hold(&world, id, 0, 100);
    assert_eq!(world.show("a/memory.peak"), "500\n");
    world.take_notices();
    world.tree.look_at([id]);
    assert_eq!(world.take_notices(), [Notice::GroupChanged(world.group("a"))]);
    world.tree.look_at([id]);
    assert_eq!(world.take_notices(), [], "written already");
    world.store("a/memory.peak", ROOT, "0").unwrap();
    assert_eq!(world.show("a/memory.peak"), "100\n");
    assert_eq!(world.show("a/0/memory.peak"), "500\n");
}

#[test]
fn usage_at_different_times_is_not_added_to_peak() {
    let world = World::new(1);
    world.group("a/x");
    world.group("a/y");
    let [first, second] = [100, 101].map(|pid| world.join(pid));
    world.store("a/x/gcgroup.procs", ROOT, "100").unwrap();
    world.store("a/y/gcgroup.procs", ROOT, "101").unwrap();
    hold(&world, first, 0, 1000);
    world.tree.rung(first);
    // Without a ring.
    hold(&world, first, 0, 0);
    hold(&world, second, 0, 900);
    world.tree.rung(second);
    let peaks = ["a", "a/0", "a/x", "a/y"].map(|path| world.show(&format!("{path}/memory.peak")));
    assert_eq!(peaks, ["1000\n", "1000\n", "1000\n", "900\n"]);
    hold(&world, first, 0, 200);
    world.tree.look_at([second, first]);
    hold(&world, first, 0, 0);
    assert_eq!(world.show("a/memory.peak"), "1100\n");
}

#[test]
fn peak_is_at_least_what_was_shown() {
    let world = World::new(1);
    world.group("a");
    let pids = [100, 101];
    let ids = pids.map(|pid| world.join(pid));
    for (id, pid) in ids.into_iter().zip(pids) {
        world.store("a/gcgroup.procs", ROOT, &pid.to_string()).unwrap();
        hold(&world, id, 0, 500);
    }
    assert_eq!(world.show("a/0/memory.current"), "1000\n");
    assert_eq!(world.show("a/memory.peak"), "1000\n");
    ids.into_iter().for_each(|id| hold(&world, id, 0, 0));
    assert_eq!(world.show("a/memory.peak"), "1000\n");
    assert_eq!(world.show("a/0/memory.peak"), "1000\n");
}

#[test]
fn granted_bytes_count_in_peak_with_those_of_others() {
    let world = World::new(1);
    world.group("a");
    let [first, second] = [100, 101].map(|pid| world.join(pid));
    for pid in ["100", "101"] {
        world.store("a/gcgroup.procs", ROOT, pid).unwrap();
    }
    world.store("a/memory.limit", ROOT, "10000").unwrap();
    let ask = |id, bytes| {
        let usage = world.usage(id);
        usage.devices[0].grant_wanted.store(bytes, Relaxed);
        usage.devices[0].grant_request.fetch_add(1, Relaxed);
        world.tree.rung(id);
    };
    ask(first, 3000);
    hold(&world, first, 0, 3000);
    ask(second, 4000);
    // It has charged and freed them before the next look.
    hold(&world, first, 0, 0);
    world.tree.rung(first);
    assert_eq!(world.show("a/memory.peak"), "7000\n");
    assert_eq!(world.show("a/0/memory.peak"), "7000\n");
    ask(second, 20_000);
    assert_eq!(world.show("a/memory.peak"), "7000\n", "the request was refused");
}

#[test]
fn claims_of_many_processes_are_bounded_by_the_devices() {
    let world = World::new(2);
    world.group("a");
    for pid in 100..160 {
        let id = world.join(pid);
        for device in 0..2 {
            world.usage(id).devices[device]
                .memory_current
                .store(TOTAL - 1, Relaxed);
        }
        if pid % 2 == 0 {
            world.store("a/gcgroup.procs", ROOT, &pid.to_string()).unwrap();
        }
    }
    for (file, most) in [
        ("memory.current", 2 * TOTAL),
        ("a/memory.current", 2 * TOTAL),
        ("a/1/memory.current", TOTAL),
        ("a/memory.peak", 2 * TOTAL),
    ] {
        assert_eq!(world.show(file), format!("{most}\n"), "{file}");
    }
    for file in ["memory.stat", "a/memory.stat"] {
        let text = world.show(file);
        let bytes = text
            .lines()
            .filter_map(|line| line.split_once(' ')?.1.parse::<u64>().ok());
        assert!(bytes.max() <= Some(2 * TOTAL), "{text}");
    }
    assert!(
        world
            .show("devices.stat")
            .contains(&format!("memory_charged={TOTAL} "))
    );
}
