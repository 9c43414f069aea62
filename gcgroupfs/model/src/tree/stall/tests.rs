use gcgroup_abi::Stall;

use super::*;
use crate::tree::fixture::{ROOT, START, World, blocks, set_now};

const MSEC: u64 = 1_000_000;
const SECOND: u64 = 1000 * MSEC;

/// Sets the clock to so many milliseconds after the start of the test.
fn at(msec: u64) -> u64 {
    let now = START + msec * MSEC;
    set_now(now);
    now
}

fn stall(world: &World, id: ProcessId, use_it: impl FnOnce(&Stall)) {
    use_it(&world.usage(id).stalls[Pressure::Compute as usize]);
}

/// Returns the totals that a pressure file shows, milliseconds.
fn totals(world: &World, path: &str) -> [u64; 2] {
    let text = world.show(&format!("{path}/compute.pressure"));
    let total = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit_once("total=").unwrap().1.parse::<u64>().unwrap() / 1000
    };
    [total("some"), total("full")]
}

fn join_in(world: &World, pid: u32, group: &str) -> ProcessId {
    let id = world.join(pid);
    world.group(group);
    let procs = format!("{group}/gcgroup.procs");
    world.store(&procs, ROOT, &pid.to_string()).unwrap();
    id
}

#[test]
fn file_has_two_lines_and_shows_a_wait_in_progress() {
    let now = at(0);
    let world = World::new(1);
    let id = world.join(100);
    let nothing = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n\
                   full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    for file in ["compute.pressure", "memory.pressure"] {
        assert_eq!(world.show(file), nothing);
        assert_eq!(world.show(&format!("100/{file}")), nothing);
    }
    stall(&world, id, |stall| assert!(stall.enter(now)));
    for period in 1..=5 {
        at(2000 * period);
        world.tree.average_pressure();
    }
    let waits = "some avg10=63.18 avg60=15.32 avg300=3.37 total=10000000\n\
                 full avg10=63.18 avg60=15.32 avg300=3.37 total=10000000\n";
    assert_eq!(world.show("100/compute.pressure"), waits);
    assert_eq!(world.show("compute.pressure"), waits);
    assert_eq!(world.show("100/memory.pressure"), nothing);
}

#[test]
fn group_waits_while_a_member_does_and_fully_while_none_runs() {
    let now = at(0);
    let world = World::new(1);
    let (one, other) = (join_in(&world, 100, "a"), join_in(&world, 101, "a/b"));
    let (group, outer) = (|| totals(&world, "a/b"), || totals(&world, "a"));
    stall(&world, one, |stall| assert!(stall.enter(now)));
    at(1000);
    assert_eq!(
        (outer(), group()),
        ([1000, 1000], [0, 0]),
        "the other does nothing"
    );
    world.submit(other, 0, 1);
    at(2000);
    assert_eq!(outer(), [2000, 1000], "the other runs");
    stall(&world, other, |stall| assert!(stall.enter(at(2000))));
    at(3000);
    assert_eq!((outer(), group()), ([3000, 2000], [1000, 1000]), "both wait");
    stall(&world, one, |stall| stall.leave(at(3000)));
    stall(&world, other, |stall| stall.leave(at(3000)));
    at(9000);
    assert_eq!((outer(), group()), ([3000, 2000], [1000, 1000]), "neither waits");
    assert_eq!(totals(&world, ""), [3000, 2000]);
}

#[test]
fn members_waiting_at_unknown_times_count_as_independent() {
    at(0);
    let world = World::new(1);
    for id in [100, 101].map(|pid| join_in(&world, pid, "a")) {
        stall(&world, id, |stall| {
            assert!(stall.enter(START));
            stall.leave(START + 500 * MSEC);
        });
    }
    at(1000);
    // Somewhere between 500, both at once, and 1000, one after the other.
    assert_eq!(totals(&world, "a"), [750, 750]);
    for (id, pid) in [100, 101].iter().map(|pid| (world.tree.find(*pid).unwrap(), pid)) {
        world.submit(id, 0, 1);
        stall(&world, id, |stall| {
            assert!(stall.enter(START + 1000 * MSEC));
            stall.leave(START + 1500 * MSEC);
        });
        at(2000);
        assert_eq!(totals(&world, &pid.to_string()), [1000, 1000]);
    }
    assert_eq!(
        totals(&world, "a"),
        [1500, 1000],
        "of full a quarter: both ran in between"
    );
}

#[test]
fn totals_survive_exits_moves_and_removed_groups() {
    let now = at(0);
    let world = World::new(1);
    let id = join_in(&world, 100, "a/b");
    stall(&world, id, |stall| assert!(stall.enter(now)));
    at(1000);
    world.group("c");
    world.store("c/gcgroup.procs", ROOT, "100").unwrap();
    at(3000);
    for (path, total) in [("100", 3000), ("a/b", 1000), ("a", 1000), ("c", 2000), ("", 3000)] {
        assert_eq!(totals(&world, path), [total; 2], "{path}");
    }
    at(4000);
    world.tree.leave(id, 1);
    at(5000);
    assert_eq!((totals(&world, "c"), totals(&world, "")), ([3000; 2], [4000; 2]));
    for (parent, name) in [("", "c"), ("a", "b"), ("", "a")] {
        let parent = match parent {
            "" => Directory::ROOT,
            parent => Directory::group(world.group(parent)),
        };
        world.tree.finish(world.tree.remove_group(parent, name).unwrap());
        assert_eq!(totals(&world, ""), [4000; 2], "without {name}");
    }
}

/// A directory with many processes is not looked at when one leaves.
#[test]
fn totals_of_a_crowd_survive_exits_and_removed_groups() {
    let now = at(0);
    let world = World::new(1);
    for pid in 200..300 {
        world.join(pid);
    }
    let (direct, below) = (world.join(100), join_in(&world, 101, "a"));
    stall(&world, direct, |stall| assert!(stall.enter(now)));
    at(1000);
    world.tree.leave(direct, 1);
    at(2000);
    assert_eq!(totals(&world, ""), [1000; 2]);
    stall(&world, below, |stall| assert!(stall.enter(at(2000))));
    at(2500);
    world.tree.leave(below, 1);
    world
        .tree
        .finish(world.tree.remove_group(Directory::ROOT, "a").unwrap());
    at(3000);
    assert_eq!(totals(&world, ""), [1500; 2]);
}

#[test]
fn members_frozen_together_wait_together() {
    at(0);
    let world = World::new(1);
    let ids = [100, 101].map(|pid| join_in(&world, pid, "a"));
    for (msec, text) in [(10_000, "1"), (70_000, "0")] {
        let now = at(msec);
        for id in ids {
            stall(&world, id, |stall| match text {
                "1" => assert!(stall.enter(now)),
                _ => stall.leave(now),
            });
        }
        world.store("a/compute.freeze", ROOT, text).unwrap();
    }
    at(200_000);
    assert_eq!(totals(&world, "a"), [60_000; 2]);
    assert_eq!(totals(&world, ""), [60_000; 2]);
}

#[test]
fn wait_before_this_daemon_is_shown_for_the_process_alone() {
    let now = at(0);
    let world = World::new(1);
    let blocks = blocks();
    let stall = &blocks.usage().raw().stalls[0];
    assert!(stall.enter(now - SECOND));
    world.join_with(100, blocks.clone(), crate::tree::Settings::default());
    at(500);
    assert_eq!(totals(&world, "100"), [1500; 2]);
    assert_eq!(totals(&world, ""), [500; 2]);
    let average = world.show("100/compute.pressure");
    assert!(average.starts_with("some avg10=0.00 "), "{average}");
}

#[test]
fn wait_that_was_over_before_counts_nowhere_above() {
    let now = at(0);
    let world = World::new(1);
    let blocks = blocks();
    let stall = &blocks.usage().raw().stalls[0];
    assert!(stall.enter(now - SECOND));
    stall.leave(now);
    world.join_with(100, blocks.clone(), crate::tree::Settings::default());
    at(2000);
    assert_eq!((totals(&world, "100"), totals(&world, "")), ([1000; 2], [0; 2]));
}

#[test]
fn lying_process_gains_at_most_the_time_that_passes() {
    at(0);
    let world = World::new(1);
    let liar = join_in(&world, 100, "a");
    let honest = join_in(&world, 101, "a");
    let mut before = [0; 2];
    let words = [
        u64::MAX,
        0,
        1 << 63,
        1,
        u64::MAX >> 1,
        1 << 17,
        12345 << 17,
        u64::MAX - 1,
    ];
    for (word, second) in words.into_iter().zip(1..) {
        for clock in world
            .usage(liar)
            .stalls
            .iter()
            .flat_map(|stall| [&stall.some, &stall.full])
        {
            clock.forge(word);
        }
        at(1000 * second);
        for path in ["100", "a", ""] {
            let now = totals(&world, path);
            let bound = 1000 * second;
            assert!(now[1] <= now[0] && now[0] <= bound, "{path} {word:x}: {now:?}");
        }
        let now = totals(&world, "a");
        assert!(
            (0..2).all(|at| now[at] >= before[at]),
            "{word:x}: {before:?} {now:?}"
        );
        before = now;
    }
    assert_eq!(totals(&world, "101"), [0; 2]);
    world.tree.leave(honest, 1);
}

#[test]
fn liar_that_registers_has_waited_no_longer_than_it_lives() {
    at(0);
    let world = World::new(1);
    let blocks = blocks();
    blocks.usage().raw().stalls[0].some.forge(u64::MAX >> 1);
    world.join_with(100, blocks, crate::tree::Settings::default());
    assert!(totals(&world, "100")[0] <= 86_400_000 + 20);
    assert_eq!(totals(&world, ""), [0; 2]);
}

#[test]
fn averages_are_kept_up_to_date_only_while_they_are_read() {
    at(0);
    let world = World::new(1);
    let id = world.join(100);
    assert_eq!(world.tree.average_pressure(), None);
    world.take_notices();
    world.show("100/compute.pressure");
    world.show("100/memory.pressure");
    assert_eq!(world.take_notices(), [Notice::PressureWatched], "told once");
    assert_eq!(world.tree.average_pressure(), Some(2 * SECOND));
    at(1500);
    assert_eq!(world.tree.average_pressure(), Some(SECOND / 2));
    at(1900);
    assert_eq!(world.tree.average_pressure(), Some(SECOND / 2), "not sooner");
    at(599_999);
    assert!(world.tree.average_pressure().is_some());
    at(600_000);
    assert_eq!(world.tree.average_pressure(), None);
    world.show("100/compute.pressure");
    world.tree.leave(id, 1);
    assert_eq!(world.tree.average_pressure(), None, "the process is gone");
}
