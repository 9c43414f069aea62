#![allow(clippy::unwrap_used, reason = "for tests")]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::*;
use crate::tree::fixture::{ROOT, World, blocks};
use crate::tree::process::{ASK_PERIOD, Asks};

const MIB: u64 = 1 << 20;

/// Adds a process, in a group unless it is empty.
fn join(world: &World, pid: u32, group: &str) -> ProcessId {
    let id = world.join(pid);
    if !group.is_empty() {
        world.group(group);
        world
            .store(&format!("{group}/gcgroup.procs"), ROOT, &pid.to_string())
            .unwrap();
    }
    id
}

/// Charges as the hook does. Returns the time for which it would wait, microseconds; `None`: it did not ask.
fn allocate(world: &World, id: ProcessId, bytes: u64) -> Option<u32> {
    let (usage, control) = (world.usage(id), world.control(id));
    let (used, set) = (&usage.devices[0], &control.devices[0]);
    let wanted = used.memory_current.load(Relaxed) + bytes;
    let has_asked = wanted > used.memory_granted.load(Relaxed);
    if has_asked {
        used.grant_wanted.store(bytes, Relaxed);
        let number = used.grant_request.fetch_add(1, Release) + 1;
        world.tree.rung(id);
        assert_eq!(set.grant_answer.load(Acquire), number, "it is answered at once");
        assert_ne!(set.grant_refused.load(Relaxed), number, "it is never refused");
        assert!(wanted <= used.memory_granted.load(Relaxed));
    }
    used.memory_current.store(wanted, Relaxed);
    let waits = has_asked.then(|| set.high_wait_usec.load(Relaxed));
    if waits > Some(0) {
        // A waiting thread rings.
        world.tree.rung(id);
        assert_eq!(waits, Some(set.high_wait_usec.load(Relaxed)));
    }
    waits
}

fn nr_high(world: &World, place: &str) -> u64 {
    let text = world.show(&format!("{place}/memory.events"));
    let count = text.lines().find_map(|line| line.strip_prefix("high "));
    count.unwrap().parse().unwrap()
}

#[test]
fn wait_grows_with_excess_up_to_a_second() {
    let above = |excess, high| Above {
        group: None,
        device: None,
        high,
        excess,
    };
    for (excess, high, usec) in [
        (1, 1 << 40, SHORTEST_WAIT),
        (10, 800, 100_000),
        (100, 800, LONGEST_WAIT),
        (u64::MAX, 1, LONGEST_WAIT),
        (1, 0, LONGEST_WAIT),
    ] {
        assert_eq!(
            u64::from(wait_usec(&above(excess, high))),
            usec,
            "{excess} beyond {high}"
        );
    }
}

#[test]
fn growth_of_an_allocation_is_not_counted_again() {
    let world = World::new(1);
    let id = join(&world, 100, "");
    world.store("100/memory.high", ROOT, "64M").unwrap();
    assert!(allocate(&world, id, 65 * MIB) > Some(0));
    assert_eq!(nr_high(&world, "100"), 1);
    // The pool has grown by more than was charged in advance.
    let used = &world.usage(id).devices[0];
    let grow = |flag| {
        used.memory_current.fetch_add(MIB, Relaxed);
        used.grant_wanted.store(flag, Relaxed);
        used.grant_request.fetch_add(1, Release);
        world.tree.rung(id);
        assert!(used.memory_granted.load(Relaxed) >= used.memory_current.load(Relaxed));
        nr_high(&world, "100")
    };
    assert_eq!(grow(gcgroup_abi::WANTED_AGAIN), 1);
    assert_eq!(grow(0), 2, "an allocation that was not expected to grow");
}

#[test]
fn process_waits_beyond_its_high_until_it_has_freed() {
    let world = World::new(1);
    let id = join(&world, 100, "");
    assert_eq!(allocate(&world, id, MIB), None, "nothing bounds it");
    world.store("100/memory.high", ROOT, "8M").unwrap();
    assert_eq!(allocate(&world, id, 7 * MIB), Some(0));
    assert_eq!(nr_high(&world, "100"), 0);
    assert_eq!(allocate(&world, id, MIB), Some(1_000_000));
    assert_eq!(nr_high(&world, "100"), 1);
    world.usage(id).devices[0].memory_current.store(8 * MIB, Relaxed);
    world.tree.rung(id);
    assert_eq!(world.control(id).devices[0].high_wait_usec.load(Relaxed), 0);
    world.store("100/memory.high", ROOT, "max").unwrap();
    assert_eq!(allocate(&world, id, 100 * MIB), None);
    assert_eq!(nr_high(&world, "100"), 1);
}

#[test]
fn raised_high_ends_the_wait() {
    let world = World::new(1);
    let (id, other) = (join(&world, 100, "a/b"), join(&world, 101, "a"));
    world.store("a/memory.high", ROOT, "8M").unwrap();
    allocate(&world, other, 8 * MIB);
    assert!(allocate(&world, id, MIB) > Some(0));
    assert_eq!(["a", "a/b", "100"].map(|place| nr_high(&world, place)), [1, 0, 0]);
    world.store("a/memory.high", ROOT, "9M").unwrap();
    assert_eq!(world.control(id).devices[0].high_wait_usec.load(Relaxed), 0);
    // Of two that are exceeded the innermost is counted, there and above.
    world.store("a/b/0/memory.high", ROOT, "0").unwrap();
    assert_eq!(allocate(&world, id, MIB), Some(1_000_000));
    assert_eq!(
        ["a", "a/b", "a/b/0", "a/0"].map(|place| nr_high(&world, place)),
        [2, 1, 1, 1]
    );
}

#[test]
fn excess_is_asked_out_once() {
    let world = World::new(1);
    let (id, other) = (join(&world, 100, "a"), join(&world, 101, "a"));
    for id in [id, other] {
        world.usage(id).can_swap.store(1, Relaxed);
    }
    allocate(&world, id, 60 * MIB);
    allocate(&world, other, 40 * MIB);
    world.usage(id).devices[0].swappable.store(60 * MIB, Relaxed);
    world.usage(other).devices[0].swappable.store(40 * MIB, Relaxed);
    world.store("101/compute.priority", ROOT, "9").unwrap();
    let asked = |id| {
        let set = world.control(id);
        (
            set.devices[0].reclaim_bytes.load(Relaxed) / MIB,
            set.devices[0].reclaim_is_lent.load(Relaxed),
        )
    };
    world.store("a/memory.high", ROOT, "90M").unwrap();
    assert_eq!(
        (asked(id).0, asked(other)),
        (0, (10, 1)),
        "the lower priority first"
    );
    // What has been asked for is not asked for again.
    allocate(&world, id, 5 * MIB);
    assert_eq!((asked(id).0, asked(other)), (0, (15, 1)));
    // A process beyond its own value is first, whatever its priority.
    world.store("100/memory.high", ROOT, "60M").unwrap();
    assert_eq!(asked(id), (5, 1));
    allocate(&world, other, 5 * MIB);
    assert_eq!((asked(id), asked(other)), ((5, 1), (15, 1)), "20 MiB in all");
    world.store("100/memory.high", ROOT, "50M").unwrap();
    allocate(&world, other, 3 * MIB);
    assert_eq!(asked(id), (15, 1), "what was asked for is not asked for again");
}

#[test]
fn count_and_value_outlive_the_daemon() {
    let world = World::new(1);
    let id = join(&world, 100, "");
    world.store("100/memory.high", ROOT, "1M").unwrap();
    allocate(&world, id, 2 * MIB);
    let saved = world.tree.saved(id).unwrap();
    let after = World::new(1);
    let blocks = blocks();
    blocks.usage().raw().devices[0]
        .memory_current
        .store(2 * MIB, Relaxed);
    let id = after.join_with(100, blocks, saved);
    assert_eq!(after.show("100/memory.high"), "1048576\n");
    assert_eq!(nr_high(&after, "100"), 1);
    assert!(allocate(&after, id, 1) > Some(0));
}

#[test]
fn process_has_memory_moved_out_a_bounded_number_of_times() {
    let mut asks = Asks::default();
    let taken = |asks: &mut Asks, now| (0..100).filter(|_| asks.take(now)).count();
    assert_eq!(taken(&mut asks, 1), 16);
    assert_eq!(taken(&mut asks, ASK_PERIOD - 1), 0);
    assert_eq!(taken(&mut asks, ASK_PERIOD), 16);
}
