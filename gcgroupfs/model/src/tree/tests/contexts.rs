//! Sizes of contexts, and growth beyond limits.

use std::sync::atomic::AtomicU64;

use gcgroup_abi::{CONTEXT_UNKNOWN, ContextKind};

use super::lasting::kept;
use super::*;
use crate::tree::fixture::TOTAL;
use crate::tree::{Measured, ProcessId};

/// Reports a new context, or one that was refused, as the hook does.
fn report(world: &World, id: ProcessId, word: u32, estimated: u64) {
    let usage = world.usage(id);
    usage.devices[0].context_kind.store(word, Relaxed);
    usage.devices[0].context_estimated.store(estimated, Relaxed);
    usage.devices[0].context_request.fetch_add(1, Relaxed);
    world.tree.rung(id);
}

/// Reports a new context of that kind, of which `missing` bytes are found to be missing in the charge.
fn make(world: &World, id: ProcessId, kind: Option<ContextKind>, (estimated, missing): (u64, i64)) {
    report(world, id, ContextKind::asked(kind), estimated);
    let requests = world.tree.context_requests();
    assert_eq!(requests.len(), 1);
    world
        .tree
        .answer_context(&requests[0], Measured::Missing(missing));
    let control = world.control(id);
    assert_eq!(
        control.devices[0].context_missing.load(Relaxed),
        missing.cast_unsigned()
    );
    assert!(world.tree.context_requests().is_empty());
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
    report(&world, one, ContextKind::asked(Some(ContextKind::Created)), 0);
    assert!(world.take_notices().contains(&Notice::ContextMade));
    let request = &world.tree.context_requests()[0];
    world.tree.answer_context(request, Measured::Missing(70));
    let answered = Notice::Answered { id: one, device: 0 };
    assert_eq!(world.take_notices(), [answered]);
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
fn refused_estimate_is_forgotten() {
    let world = World::new(1);
    let id = world.join(100);
    for (refused, left) in [(Some(ContextKind::Primary), [0, 70, 0]), (None, [0; 3])] {
        make(&world, id, Some(ContextKind::Primary), (0, 60));
        make(&world, id, Some(ContextKind::Created), (0, 70));
        report(&world, id, ContextKind::refused(refused), 0);
        assert!(world.tree.context_requests().is_empty(), "no thread waits");
        assert_eq!(estimates(&world, id, 0), left);
        let missing = world.control(id).devices[0].context_missing.load(Relaxed);
        assert_eq!(missing, CONTEXT_UNKNOWN);
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
    next.tree.measure_contexts();
    let id = next.join(100);
    assert_eq!(estimates(&next, id, 0), [0, 0, 9]);
    assert_eq!(next.control(id).measures_contexts.load(Relaxed), 1);
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
