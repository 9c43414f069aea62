#![allow(clippy::unwrap_used, reason = "for tests")]

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::file::{self, Node};
use crate::tree::fixture::{self, ROOT, TOTAL, World};

const GIB: u64 = 1 << 30;

/// A process of that priority that can swap so much.
fn swapping(world: &World, pid: u32, priority: u32, bytes: u64) -> ProcessId {
    let id = world.join(pid);
    let usage = world.usage(id);
    usage.can_swap.store(1, Relaxed);
    for (file, value) in [
        ("memory.swap.max", "max".to_owned()),
        ("compute.priority", priority.to_string()),
    ] {
        world.store(&format!("{pid}/{file}"), ROOT, &value).unwrap();
    }
    usage.devices[0].swappable.store(bytes, Relaxed);
    usage.devices[0].memory_current.store(bytes, Relaxed);
    id
}

/// Asks for room; a second has passed since the last time.
fn want(world: &World, id: ProcessId, bytes: u64) {
    ask(world, id, bytes);
    look(world, &blind());
}

fn ask(world: &World, id: ProcessId, bytes: u64) {
    let device = &world.usage(id).devices[0];
    device.pressure_wanted.store(bytes, Relaxed);
    device.pressure_request.fetch_add(1, Relaxed);
    world.tree.rung(id);
}

thread_local! {
    static NOW: std::cell::Cell<Instant> = std::cell::Cell::new(Instant::now());
}

/// Serves all requests, 300 ms after the last time.
fn look(world: &World, sight: &Sight) {
    NOW.set(NOW.get() + Duration::from_millis(300));
    world.tree.pressed_devices();
    world.tree.relieve(&Sight {
        at: NOW.get(),
        ..sight.clone()
    });
}

/// NVML's answer: these bytes are free, and these processes hold these bytes.
fn sight(free: u64, held: &[(u32, u64)]) -> Sight {
    let held: HashMap<_, _> = held.iter().map(|(pid, bytes)| (*pid, Some(*bytes))).collect();
    Sight {
        free: Some(free),
        held: Some(held),
        ..blind()
    }
}

/// An NVML that does not answer.
fn blind() -> Sight {
    Sight {
        device: 0,
        at: NOW.get(),
        free: None,
        held: None,
    }
}

/// The answer and the refusal of the last request.
fn told(world: &World, id: ProcessId) -> (u32, u32) {
    let device = &world.control(id).devices[0];
    (
        device.pressure_answer.load(Relaxed),
        device.pressure_refused.load(Relaxed),
    )
}

fn asked(world: &World, id: ProcessId) -> (u32, u64) {
    let device = &world.control(id).devices[0];
    let is_lent = device.reclaim_is_lent.load(Relaxed);
    (is_lent, device.reclaim_bytes.load(Relaxed))
}

fn give(world: &World, id: ProcessId) {
    say_given(world, id);
    look(world, &blind());
}

fn say_given(world: &World, id: ProcessId) {
    let generation = world.control(id).devices[0].reclaim_generation.load(Relaxed);
    world.usage(id).devices[0]
        .reclaim_generation
        .store(generation, Relaxed);
    world.tree.rung(id);
}

#[test]
fn the_least_important_are_asked_first_and_the_answer_waits_for_all_of_them() {
    let world = World::new(1);
    let asker = swapping(&world, 1, 3, GIB);
    let equal = swapping(&world, 2, 3, GIB);
    let lesser = swapping(&world, 3, 4, 2 * GIB);
    let [small, large] = [(4, GIB), (5, 2 * GIB)].map(|(pid, bytes)| swapping(&world, pid, 9, bytes));
    want(&world, asker, 4 * GIB);
    assert_eq!(asked(&world, large), (1, 2 * GIB));
    assert_eq!(asked(&world, small), (1, GIB));
    assert_eq!(asked(&world, lesser), (1, GIB));
    assert_eq!(asked(&world, equal), (0, 0));
    assert_eq!(asked(&world, asker), (0, 0));
    for id in [small, lesser] {
        give(&world, id);
        assert_eq!(told(&world, asker), (0, 0));
    }
    world.take_notices();
    give(&world, large);
    assert_eq!(told(&world, asker), (1, 0));
    assert!(world.take_notices().contains(&Notice::Ring(asker)));
}

#[test]
fn wait_for_room_names_the_donor_until_the_answer() {
    let world = World::new(1);
    let (asker, donor) = (swapping(&world, 1, 3, GIB), swapping(&world, 2, 9, 2 * GIB));
    let team = world.group("team");
    world.store("team/gcgroup.procs", ROOT, "1").unwrap();
    want(&world, asker, GIB);
    assert_eq!(asked(&world, donor).1, GIB);
    let line = |usec, now| format!("2 gpu=0 for=room usec={usec} now={now} priority=9 comm=a\\040program\n");
    assert_eq!(world.show("1/gcgroup.waits"), line(0, 1));
    fixture::set_now(fixture::START + 500_000_000);
    look(&world, &blind());
    assert_eq!(world.show("1/gcgroup.waits"), line(500_000, 1));
    let Ok(Node::Dir(directory)) = file::resolve(&world.tree, "team") else {
        panic!("a group")
    };
    let explained = world.tree.explain(directory, &BTreeSet::from([team])).unwrap();
    let waits = explained.sections.iter().find(|section| section.title == "Waits");
    assert_eq!(
        waits.unwrap().lines[0].text,
        "process 1 (a\\040program) waits: process 2 (a\\040program, priority 9) has memory that is to move out \
         on GPU 0; waited for it 0.500 s so far"
    );
    give(&world, donor);
    assert_eq!(told(&world, asker), (1, 0));
    assert_eq!(world.show("1/gcgroup.waits"), line(500_000, 0));
}

#[test]
fn equals_and_the_requester_give_way_to_what_cannot_move() {
    let world = World::new(1);
    let asker = swapping(&world, 1, 3, GIB);
    let equal = swapping(&world, 2, 3, 2 * GIB);
    let above = swapping(&world, 3, 2, 4 * GIB);
    want(&world, asker, 3 * GIB);
    assert_eq!(told(&world, asker), (1, 1), "a movable allocation");
    world.usage(asker).nr_asking_fixed.store(1, Relaxed);
    want(&world, asker, 3 * GIB);
    assert_eq!(asked(&world, equal), (1, 2 * GIB));
    assert_eq!(asked(&world, asker), (1, GIB));
    assert_eq!(asked(&world, above), (0, 0));
    give(&world, equal);
    give(&world, asker);
    assert_eq!(told(&world, asker), (2, 1));
}

#[test]
fn who_cannot_be_helped_is_told_at_once_and_nobody_is_asked() {
    let world = World::new(1);
    let asker = world.join(1);
    let victim = swapping(&world, 2, 9, GIB);
    for (request, wanted) in [(1, 2 * GIB), (2, TOTAL + 1), (3, u64::MAX), (4, 0)] {
        want(&world, asker, wanted);
        assert_eq!(told(&world, asker), (request, request), "{wanted}");
        assert_eq!(asked(&world, victim), (0, 0), "{wanted}");
    }
    world.store("2/memory.swap.max", ROOT, "512M").unwrap();
    want(&world, asker, GIB);
    assert_eq!(told(&world, asker), (5, 5), "it may not swap so much");
}

#[test]
fn one_that_leaves_is_not_waited_for() {
    let world = World::new(1);
    let asker = world.join(1);
    let victim = swapping(&world, 2, 9, GIB);
    want(&world, asker, GIB);
    assert_eq!(told(&world, asker), (0, 0));
    world.tree.leave(victim, 0);
    look(&world, &blind());
    assert_eq!(told(&world, asker), (1, 0));
    let other = swapping(&world, 3, 9, GIB);
    want(&world, asker, GIB);
    world.tree.leave(asker, 0);
    give(&world, other);
    let again = world.join(1);
    assert_eq!(told(&world, again), (0, 0));
}

#[test]
fn what_was_asked_for_to_stay_out_stays_out() {
    let world = World::new(1);
    let asker = world.join(1);
    let victim = swapping(&world, 2, 9, 2 * GIB);
    world.store("2/memory.reclaim", ROOT, "1G").unwrap();
    assert_eq!(asked(&world, victim), (0, GIB));
    want(&world, asker, GIB);
    assert_eq!(asked(&world, victim), (0, 2 * GIB));
    give(&world, victim);
    want(&world, asker, GIB);
    assert_eq!(asked(&world, victim), (1, GIB));
    world.store("2/memory.reclaim", ROOT, "1G").unwrap();
    assert_eq!(asked(&world, victim), (0, 2 * GIB));
}

#[test]
fn where_memory_is_not_short_nobody_is_asked() {
    let world = World::new(1);
    let asker = world.join(1);
    let victim = swapping(&world, 2, 9, GIB);
    let margin = TOTAL / SHORT_PART;
    for (request, free, size, is_asked) in [
        (1, TOTAL - GIB, 0, false),
        (2, GIB + margin, 0, false),
        (3, TOTAL - GIB, TOTAL - GIB - margin, false),
        (4, TOTAL - GIB, TOTAL + 1, false),
        (5, TOTAL - GIB, TOTAL, true),
    ] {
        ask(&world, asker, GIB);
        world.usage(asker).devices[0].pressure_size.store(size, Relaxed);
        look(&world, &sight(free, &[(2, GIB)]));
        assert_eq!(told(&world, asker) == (request, request), !is_asked, "{request}");
        assert_eq!(asked(&world, victim).1 != 0, is_asked, "{request}");
    }
}

#[test]
fn donors_give_no_more_than_nvml_shows_them_to_hold() {
    let world = World::new(1);
    let asker = world.join(1);
    let liar = swapping(&world, 2, 15, 4 * GIB);
    let honest = swapping(&world, 3, 9, 2 * GIB);
    ask(&world, asker, 2 * GIB);
    look(&world, &sight(0, &[(3, 2 * GIB)]));
    assert_eq!((asked(&world, liar).1, asked(&world, honest)), (0, (1, 2 * GIB)));
    look(&world, &sight(2 * GIB, &[]));
    assert_eq!(told(&world, asker), (1, 0), "it is there, whatever anybody says");
}

#[test]
fn the_next_is_asked_after_a_second_and_one_that_did_not_deliver_is_not_asked_again() {
    let world = World::new(1);
    let asker = world.join(1);
    let idle = swapping(&world, 2, 15, 2 * GIB);
    let next = swapping(&world, 3, 9, 4 * GIB);
    let before = sight(0, &[(2, 2 * GIB), (3, 4 * GIB)]);
    ask(&world, asker, GIB);
    for _ in 0..4 {
        look(&world, &before);
        assert_eq!((asked(&world, idle).1, asked(&world, next).1), (GIB, 0));
    }
    look(&world, &before);
    assert_eq!(asked(&world, next), (1, GIB));
    look(&world, &sight(GIB, &[(2, 2 * GIB), (3, 3 * GIB)]));
    assert_eq!(told(&world, asker), (1, 0));
    give(&world, next);
    // It says that it has given, and has not.
    say_given(&world, idle);
    ask(&world, asker, GIB);
    look(&world, &sight(0, &[(1, GIB), (2, 2 * GIB), (3, 3 * GIB)]));
    assert_eq!(
        (asked(&world, idle).1, asked(&world, next).1),
        (GIB, GIB),
        "no more"
    );
}

#[test]
fn donor_that_delivered_its_part_is_asked_again_after_a_second() {
    let world = World::new(1);
    let asker = world.join(1);
    let _stopped = swapping(&world, 2, 15, GIB);
    let donor = swapping(&world, 3, 9, 4 * GIB);
    ask(&world, asker, 2 * GIB);
    look(&world, &sight(0, &[(2, GIB), (3, 4 * GIB)]));
    assert_eq!(asked(&world, donor), (1, GIB));
    say_given(&world, donor);
    for _ in 0..4 {
        look(&world, &sight(GIB, &[(2, GIB), (3, 3 * GIB)]));
    }
    assert_eq!(asked(&world, donor), (1, GIB), "another GiB");
    look(&world, &sight(2 * GIB, &[(2, GIB), (3, 2 * GIB)]));
    assert_eq!(told(&world, asker), (1, 0));
}

#[test]
fn donors_that_do_not_deliver_are_passed_within_the_hooks_patience() {
    let world = World::new(1);
    let asker = world.join(1);
    let mut held = vec![(100, 2 * GIB)];
    for pid in 2..26 {
        // A few bytes at a time are no delivery.
        swapping(&world, pid, 15, GIB);
        held.push((pid, GIB));
    }
    let donor = swapping(&world, 100, 9, 2 * GIB);
    ask(&world, asker, GIB);
    let begun = NOW.get();
    while asked(&world, donor).1 == 0 {
        held.iter_mut().skip(1).for_each(|(_, bytes)| *bytes -= 4096);
        look(&world, &sight(0, &held));
        assert!(NOW.get() - begun < Duration::from_secs(9), "it is never asked");
    }
    held[0].1 = GIB;
    look(&world, &sight(0, &held));
    assert_eq!(told(&world, asker), (1, 0));
}

/// Donors that stand still, trickle or deliver, at random: a request whose donors hold enough succeeds within
/// the patience of the hook.
#[test]
fn random_donors_that_hold_enough_together_satisfy_every_request() {
    for seed in 1..50_u64 {
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let world = World::new(1);
        let asker = world.join(1);
        let donors: Vec<(u32, ProcessId, bool)> = (2..3 + u32::try_from(random(20)).unwrap())
            .map(|pid| {
                let priority = 9 + u32::try_from(random(7)).unwrap();
                let id = swapping(&world, pid, priority, (1 + random(4)) * GIB / 4);
                (pid, id, random(3) == 0)
            })
            .collect();
        let held = |id| world.usage(id).devices[0].memory_current.load(Relaxed);
        let movable: u64 = donors
            .iter()
            .filter(|(.., moves)| *moves)
            .map(|(_, id, _)| held(*id))
            .sum();
        if movable == 0 {
            continue;
        }
        let wanted = 1 + random(movable);
        ask(&world, asker, wanted);
        let begun = NOW.get();
        let mut free = 0;
        while told(&world, asker) == (0, 0) {
            for (_, id, _) in donors.iter().filter(|(.., moves)| *moves) {
                let control = &world.control(*id).devices[0];
                let generation = control.reclaim_generation.load(Relaxed);
                let usage = &world.usage(*id).devices[0];
                if usage.reclaim_generation.load(Relaxed) != generation && random(2) == 0 {
                    let moved = control.reclaim_bytes.load(Relaxed).min(held(*id));
                    for bytes in [&usage.memory_current, &usage.swappable] {
                        bytes.fetch_sub(moved, Relaxed);
                    }
                    control.reclaim_bytes.store(0, Relaxed);
                    free += moved;
                    say_given(&world, *id);
                }
            }
            let seen: Vec<_> = donors.iter().map(|(pid, id, _)| (*pid, held(*id))).collect();
            look(&world, &sight(free, &seen));
            assert!(NOW.get() - begun < Duration::from_secs(10), "seed {seed}");
        }
        assert_eq!(told(&world, asker), (1, 0), "seed {seed}");
    }
}

#[test]
fn one_that_says_that_it_has_delivered_is_checked() {
    let world = World::new(1);
    let asker = world.join(1);
    let liar = swapping(&world, 2, 15, 2 * GIB);
    let before = sight(0, &[(2, 2 * GIB)]);
    ask(&world, asker, GIB);
    look(&world, &before);
    say_given(&world, liar);
    look(&world, &before);
    assert_eq!(
        told(&world, asker),
        (0, 0),
        "it may have said so since NVML was asked"
    );
    look(&world, &before);
    assert_eq!(told(&world, asker), (1, 1));
    ask(&world, asker, GIB);
    look(&world, &before);
    assert_eq!(told(&world, asker), (2, 2), "nobody is left to ask");
}

#[test]
fn a_requester_that_takes_nothing_is_refused_for_a_while() {
    let world = World::new(1);
    let asker = world.join(1);
    let victim = swapping(&world, 2, 9, GIB);
    let full = sight(0, &[(2, GIB)]);
    for request in 1..=3 {
        ask(&world, asker, GIB);
        look(&world, &full);
        look(&world, &sight(GIB, &[]));
        assert_eq!(told(&world, asker), (request, 0));
        // It does not take it, and the victim comes back.
        say_given(&world, victim);
        (0..4).for_each(|_| look(&world, &full));
    }
    let nr_asked = world.control(victim).devices[0].reclaim_generation.load(Relaxed);
    ask(&world, asker, GIB);
    look(&world, &full);
    assert_eq!(told(&world, asker), (4, 4));
    (0..4).for_each(|_| look(&world, &full));
    ask(&world, asker, GIB);
    look(&world, &full);
    assert_eq!(told(&world, asker), (4, 4), "it is asked for once more");
    assert_eq!(
        world.control(victim).devices[0].reclaim_generation.load(Relaxed),
        nr_asked + 1
    );
    look(&world, &sight(GIB, &[]));
    look(&world, &sight(0, &[(1, GIB)]));
    say_given(&world, victim);
    ask(&world, asker, GIB);
    look(&world, &sight(0, &[(1, GIB), (2, GIB)]));
    assert_eq!(
        told(&world, asker),
        (5, 4),
        "it has taken it, and is believed again"
    );
}

#[test]
fn without_nvml_a_users_requests_have_a_pause_between_them() {
    let world = World::new(1);
    let askers = [1, 2].map(|pid| world.join(pid));
    let victim = swapping(&world, 3, 9, 4 * GIB);
    askers.into_iter().for_each(|id| ask(&world, id, GIB));
    look(&world, &blind());
    assert_eq!(asked(&world, victim).1, GIB);
    look(&world, &blind());
    assert_eq!(asked(&world, victim).1, 2 * GIB);
}

/// A process whose hook prepares so much of its memory on the device, to move it in.
fn bringing_in(world: &World, pid: u32, bytes: u64) -> ProcessId {
    let id = swapping(world, pid, 8, 0);
    world.usage(id).moving_in.store(bytes, Relaxed);
    let device = &world.usage(id).devices[0];
    device.movable.store(bytes, Relaxed);
    device.memory_current.store(bytes, Relaxed);
    id
}

#[test]
fn memory_on_its_way_in_makes_room_for_what_cannot_move() {
    let world = World::new(1);
    let donor = bringing_in(&world, 100, GIB);
    let requester = world.join(101);
    world.usage(requester).nr_asking_fixed.store(1, Relaxed);
    want(&world, requester, GIB / 4);
    assert_eq!(asked(&world, donor), (1, GIB / 4));
    assert_eq!(told(&world, requester), (0, 0));
    give(&world, donor);
    look(&world, &blind());
    assert_eq!(told(&world, requester), (1, 0));
}

#[test]
fn fixed_memory_waits_for_a_slow_donor_and_movable_memory_does_not() {
    let world = World::new(1);
    let slow = swapping(&world, 100, 9, GIB);
    let [first, fixed, movable] = [101, 102, 103].map(|pid| world.join(pid));
    world.usage(fixed).nr_asking_fixed.store(1, Relaxed);
    let holds = |bytes| sight(0, &[(100, bytes), (101, 0), (102, 0), (103, 0)]);
    ask(&world, first, GIB / 4);
    for _ in 0..6 {
        look(&world, &holds(GIB));
    }
    for requester in [fixed, movable] {
        ask(&world, requester, GIB / 4);
        look(&world, &holds(GIB));
    }
    assert_eq!(told(&world, movable), (1, 1), "refused");
    assert_eq!(told(&world, fixed), (0, 0), "waits");
    assert_eq!(asked(&world, slow), (1, GIB / 4), "not asked again");
    look(&world, &holds(GIB / 4 * 3));
    look(&world, &holds(GIB / 4 * 3));
    assert_eq!(asked(&world, slow), (1, GIB / 2), "asked once it delivers");
    look(&world, &holds(GIB / 2));
    assert_eq!(told(&world, fixed), (1, 0));
    // Without a donor that has enough no request waits.
    ask(&world, fixed, 4 * GIB);
    look(&world, &holds(GIB / 2));
    assert_eq!(told(&world, fixed), (2, 2));
}
