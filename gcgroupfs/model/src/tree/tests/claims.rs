//! Effects of false claims on other processes.

use super::groups::hold;
use super::*;
use crate::tree::ProcessId;
use crate::tree::fixture::{HOST, TOTAL};

const GIB: u64 = 1 << 30;

/// Makes `p` with 4 GiB, containing `p/a` with 1 GiB and `p/b`.
fn world() -> World {
    let world = World::new(1);
    world.group("p/a");
    world.group("p/b");
    world.store("p/memory.limit", ROOT, "4G").unwrap();
    world.store("p/a/memory.limit", ROOT, "1G").unwrap();
    world
}

fn member(world: &World, pid: u32, group: &str) -> ProcessId {
    let id = world.join(pid);
    world
        .store(&format!("{group}/gcgroup.procs"), ROOT, &pid.to_string())
        .unwrap();
    id
}

/// Requests `bytes` more; returns whether they are granted.
fn is_granted(world: &World, id: ProcessId, bytes: u64) -> bool {
    let usage = world.usage(id);
    let device = &usage.devices[0];
    device.grant_wanted.store(bytes, Relaxed);
    let number = device.grant_request.fetch_add(1, Relaxed) + 1;
    world.tree.rung(id);
    let control = world.control(id);
    assert_eq!(control.devices[0].grant_answer.load(Relaxed), number);
    control.devices[0].grant_refused.load(Relaxed) != number
}

fn number(world: &World, path: &str) -> u64 {
    world.show(path).trim().parse().unwrap()
}

fn stat(world: &World, path: &str, key: &str) -> u64 {
    let text = world.show(path);
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{key} ")));
    line.unwrap().parse().unwrap()
}

#[test]
fn false_claims_cost_other_groups_no_more_than_the_limit() {
    let world = world();
    let liars = [100, 101, 102].map(|pid| member(&world, pid, "p/a"));
    let honest = member(&world, 200, "p/b");
    for word in [1 << 40, u64::MAX, 1 << 63] {
        for id in liars {
            world.fill_usage(id, word);
            world.tree.rung(id);
            world.tree.look_at([id]);
        }
        for path in ["p/a", "p", "p/0", "p/a/0"] {
            assert_eq!(
                number(&world, &format!("{path}/memory.current")),
                GIB,
                "{path} {word}"
            );
        }
        if word == 1 << 40 {
            // The honest process has been granted nothing yet.
            assert_eq!(number(&world, "p/memory.peak"), GIB);
        }
        assert_eq!(number(&world, "p/a/memory.peak"), GIB);
        assert!(is_granted(&world, honest, 3 * GIB), "{word}");
        assert!(!is_granted(&world, honest, 3 * GIB + 1), "{word}");
    }
    hold(&world, honest, 0, 2 * GIB);
    assert_eq!(number(&world, "p/memory.current"), 3 * GIB);
    for id in liars {
        world.tree.leave(id, 0);
    }
    assert_eq!(number(&world, "p/memory.current"), 2 * GIB);
    assert!(number(&world, "p/memory.peak") <= 4 * GIB);
    assert!(is_granted(&world, honest, GIB));
}

#[test]
fn false_counts_of_exited_are_bounded_by_age() {
    let world = world();
    let id = member(&world, 100, "p/a");
    world.fill_usage(id, u64::MAX);
    world.tree.rung(id);
    let most = crate::tree::claims::Counts::since(0, &HOST);
    world.tree.leave(id, 0);
    for path in ["p/a", "p", ""] {
        let stat = |key| stat(&world, &format!("{path}/memory.stat"), key);
        assert!(stat("nr_alloc") <= 2 * most.calls, "{path}");
        assert_eq!((stat("linear"), stat("context")), (0, 0), "{path}");
    }
}

#[test]
fn unlimited_claims_are_bounded_by_device_and_own_limit() {
    let world = World::new(2);
    world.group("a/b");
    let id = member(&world, 100, "a/b");
    world.store("100/memory.limit", ROOT, "1M").unwrap();
    world.fill_usage(id, u64::MAX);
    for path in ["a/b", "a"] {
        let current = number(&world, &format!("{path}/memory.current"));
        assert_eq!(
            current,
            3 * (1 << 20),
            "{path}: the process's own limit, three times"
        );
    }
    world.store("100/memory.limit", ROOT, "max").unwrap();
    assert_eq!(number(&world, "a/memory.current"), 2 * TOTAL);
    assert_eq!(number(&world, "a/1/memory.current"), TOTAL);
}

#[test]
fn memory_shown_by_nvml_is_believed_beyond_limit() {
    let world = World::new(1);
    world.group("p/a");
    world.store("p/memory.limit", ROOT, "4G").unwrap();
    // Set before the restart: less than what the process has.
    world.store("p/a/memory.limit", ROOT, "1G").unwrap();
    let blocks = blocks();
    blocks.usage().raw().devices[0]
        .memory_current
        .store(3 * GIB, Relaxed);
    let saved = Saved {
        group: Some(world.group("p/a")),
        ..Saved::default()
    };
    let id = world.join_with(100, blocks, saved);
    assert_eq!(number(&world, "p/memory.current"), GIB);
    world.tree.show_held(0, &[(id, 2 * GIB)]);
    assert_eq!(number(&world, "p/memory.current"), 2 * GIB);
    world.tree.show_held(0, &[(id, 5 * GIB)]);
    assert_eq!(
        number(&world, "p/a/memory.current"),
        3 * GIB,
        "no more than is claimed"
    );
    let other = member(&world, 200, "p");
    assert!(is_granted(&world, other, GIB) && !is_granted(&world, other, GIB + 1));
    world.tree.show_held(0, &[(id, 0)]);
    assert!(is_granted(&world, other, 3 * GIB));
}

#[test]
fn memory_before_first_limit_is_trusted_until_nvml() {
    let world = World::new(1);
    world.group("p/a");
    let id = member(&world, 100, "p/a");
    hold(&world, id, 0, 3 * GIB);
    world.store("p/a/memory.limit", ROOT, "1G").unwrap();
    world.store("p/memory.limit", ROOT, "4G").unwrap();
    for path in ["p/a", "p"] {
        assert_eq!(
            number(&world, &format!("{path}/memory.current")),
            3 * GIB,
            "{path}"
        );
    }
    world.tree.show_held(0, &[(id, 0)]);
    for path in ["p/a", "p"] {
        assert_eq!(number(&world, &format!("{path}/memory.current")), GIB, "{path}");
    }
}

#[test]
fn swap_claims_are_bounded_by_host_and_limit() {
    let world = World::new(1);
    world.group("p/a");
    world.store("p/memory.swap.max", ROOT, "4G").unwrap();
    world.store("p/a/memory.swap.max", ROOT, "1G").unwrap();
    let id = member(&world, 100, "p/a");
    let honest = member(&world, 200, "p");
    for id in [id, honest] {
        world.usage(id).can_swap.store(1, Relaxed);
    }
    let usage = world.usage(id);
    usage.devices[0].swap_charged.store(1 << 60, Relaxed);
    usage.devices[0].swap_current.store(1 << 60, Relaxed);
    world.tree.rung(id);
    assert_eq!(number(&world, "p/memory.swap.current"), GIB);
    let usage = world.usage(honest);
    usage.devices[0].swap_wanted.store(3 * GIB, Relaxed);
    usage.devices[0].swap_request.store(1, Relaxed);
    world.tree.rung(honest);
    assert_eq!(usage.devices[0].swap_granted.load(Relaxed), 3 * GIB);
}
