//! Sizes of contexts, and growth beyond limits.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use gcgroup_abi::ContextKind;

use super::lasting::kept;
use super::*;
use crate::tree::fixture::{TOTAL, set_uptime};
use crate::tree::{Measured, ProcessId};

/// Reports a new context, as the hook does. Returns the number of the request to measure it.
fn report(world: &World, id: ProcessId, kind: Option<ContextKind>, estimated: u64) -> u32 {
    let usage = world.usage(id);
    usage.devices[0]
        .context_kind
        .store(ContextKind::asked(kind), Relaxed);
    usage.devices[0].context_estimated.store(estimated, Relaxed);
    let before = usage.devices[0].context_request.fetch_add(1, Relaxed);
    world.tree.rung(id);
    before + 1
}

fn answer(world: &World, id: ProcessId, request: u32, missing: i64) {
    let measured = Measured {
        request,
        missing,
        is_exact: true,
    };
    world.tree.answer_context(id, 0, measured);
}

/// Reports a new context of that kind, of which `missing` bytes are found to be missing in the charge.
fn make(world: &World, id: ProcessId, kind: Option<ContextKind>, (estimated, missing): (u64, i64)) {
    let request = report(world, id, kind, estimated);
    let awaited = world.tree.awaited_sizes();
    assert_eq!(awaited.len(), 1);
    assert_eq!(awaited[0].0, 0);
    answer(world, id, request, missing);
    let control = world.control(id);
    assert_eq!(
        control.devices[0].context_missing.load(Relaxed),
        missing.cast_unsigned()
    );
    assert!(world.tree.awaited_sizes().is_empty());
}

fn estimates(world: &World, id: ProcessId, device: usize) -> [u64; 3] {
    let control = world.control(id);
    [0, 1, 2].map(|kind| control.devices[device].context_estimate[kind].load(Relaxed))
}

#[test]
fn measured_size_is_estimate_for_all_processes_of_the_user() {
    let world = World::new(2);
    let (one, other) = (world.join(100), world.join(101));
    let stranger = Identity {
        uid: 7,
        ..identity(102)
    };
    let stranger = world.tree.join(stranger, blocks(), Settings::default());
    world.take_notices();
    let request = report(&world, one, Some(ContextKind::Created), 0);
    assert!(world.take_notices().contains(&Notice::ContextMade));
    answer(&world, one, request, 70);
    let answered = [Notice::Answered { id: one, device: 0 }, Notice::Ring(one)];
    assert_eq!(world.take_notices(), answered);
    make(&world, one, Some(ContextKind::Primary), (100, -40));
    make(&world, one, None, (0, 5));
    for id in [one, other, world.join(103)] {
        assert_eq!(estimates(&world, id, 0), [60, 70, 0]);
        assert_eq!(estimates(&world, id, 1), [0; 3]);
    }
    assert_eq!(estimates(&world, stranger, 0), [0; 3]);
    make(&world, other, Some(ContextKind::Primary), (u64::MAX, i64::MAX));
    assert_eq!(
        estimates(&world, one, 0),
        [TOTAL, 70, 0],
        "larger than the device"
    );
}

#[test]
fn default_is_expected_where_user_had_no_such_context() {
    let world = World::new(1);
    world.tree.set_default_context(100);
    let id = world.join(100);
    assert_eq!(estimates(&world, id, 0), [100, 100, 0]);
    make(&world, id, Some(ContextKind::Created), (100, -1));
    assert_eq!(estimates(&world, id, 0), [100, 99, 0]);
}

#[test]
fn request_hurries_for_a_while_and_waits_for_its_own_answer() {
    let world = World::new(1);
    let id = world.join(100);
    let first = report(&world, id, Some(ContextKind::Primary), 60);
    let second = report(&world, id, None, 60);
    answer(&world, id, first, 5);
    assert_eq!(world.tree.awaited_sizes().len(), 1);
    assert_eq!(estimates(&world, id, 0), [0; 3], "of several contexts");
    set_uptime(Duration::from_secs(86_401));
    assert!(
        world.tree.awaited_sizes().is_empty(),
        "measured with everything else"
    );
    answer(&world, id, second, 5);
    let answered = world.control(id).devices[0].context_answer.load(Relaxed);
    assert_eq!(answered, second);
}

#[test]
fn context_larger_than_estimate_is_counted_over_limits() {
    let world = World::new(1);
    world.group("a");
    let id = world.join(100);
    world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    for path in ["100", "a"] {
        world
            .store(&format!("{path}/memory.limit"), ROOT, "1000")
            .unwrap();
    }
    for (missing, nr_over) in [(900, 0), (1100, 1)] {
        let request = report(&world, id, Some(ContextKind::Primary), 0);
        answer(&world, id, request, missing);
        // A group counts those of its processes as well.
        for (path, nr_over) in [("100", nr_over), ("a", 2 * nr_over)] {
            let line = format!("over_limit {nr_over}\n");
            let events = world.show(&format!("{path}/memory.events"));
            assert!(events.contains(&line), "{path}: {events}");
        }
        assert_eq!(world.show("a/memory.current"), "0\n", "the process charges it");
    }
}

#[test]
fn sizes_are_written_once_and_restored() {
    let world = World::new(1);
    let id = world.join(100);
    world.tree.write_some_counts();
    world.take_notices();
    make(&world, id, Some(ContextKind::Green), (0, 9));
    world.tree.write_some_counts();
    assert!(world.take_notices().contains(&Notice::RootChanged));
    make(&world, id, Some(ContextKind::Green), (9, 0));
    world.tree.write_some_counts();
    assert!(!world.take_notices().contains(&Notice::RootChanged));
    let (root, groups) = kept(&world, &[]);
    let next = World::new(1);
    next.tree.restore(root, groups);
    let id = next.join(100);
    assert_eq!(estimates(&next, id, 0), [0, 0, 9]);
}

#[test]
fn sizes_of_few_users_are_kept() {
    let world = World::new(1);
    for uid in 0..100 {
        let identity = Identity {
            uid,
            ..identity(100 + uid)
        };
        let id = world.tree.join(identity, blocks(), Settings::default());
        make(&world, id, Some(ContextKind::Primary), (0, 5));
    }
    let kept = world.tree.state.lock().contexts.saved().len();
    assert_eq!(kept, 64);
    let identity = Identity {
        uid: 99,
        ..identity(500)
    };
    let id = world.tree.join(identity, blocks(), Settings::default());
    assert_eq!(estimates(&world, id, 0), [5, 0, 0]);
}

#[test]
fn growth_beyond_limits_is_counted_once() {
    let world = World::new(1);
    world.group("a/b");
    let id = world.join(100);
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    for path in ["100", "100/0", "a/b"] {
        world
            .store(&format!("{path}/memory.limit"), ROOT, "1000")
            .unwrap();
    }
    let counts = || {
        ["100", "100/0", "a/b", "a"].map(|path| {
            let events = world.show(&format!("{path}/memory.events"));
            let count = events.lines().find_map(|line| line.strip_prefix("over_limit "));
            count.unwrap().parse::<u32>().unwrap()
        })
    };
    let before = counts();
    for (bytes, more) in [(1000, 0), (1001, 1), (2000, 1), (900, 1), (1001, 2)] {
        world.tree.set_overhead(id, 0, bytes);
        // A process counts those of its devices as well, and a group those of its processes.
        let now = counts().into_iter().zip(before).map(|(now, before)| now - before);
        assert_eq!(now.collect::<Vec<_>>(), [2 * more, more, 3 * more, 3 * more]);
    }
}

#[test]
fn contexts_are_shown_in_the_charge() {
    let world = World::new(1);
    let id = world.join(100);
    let usage = world.usage(id);
    let store = |word: &AtomicU64, bytes| word.store(bytes, Relaxed);
    store(&usage.devices[0].memory_current, 100);
    store(&usage.devices[0].context_charged, 60);
    store(&usage.devices[0].context_estimated, 20);
    world.tree.set_overhead(id, 0, 7);
    let stat = world.show("100/0/memory.stat");
    for line in ["context 67", "context_estimated 20", "pinned_unswappable 40"] {
        assert!(stat.lines().any(|other| other == line), "{stat}");
    }
    assert_eq!(world.show("100/memory.current"), "107\n");
    store(&usage.devices[0].context_charged, u64::MAX);
    store(&usage.devices[0].context_estimated, u64::MAX);
    let stat = world.show("100/memory.stat");
    assert!(stat.contains("context 107\ncontext_estimated 100\n"), "{stat}");
}
