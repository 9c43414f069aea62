#![allow(clippy::unwrap_used, reason = "for tests")]

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::tree::fixture::{OTHER_USER, OWNER, ROOT, World};

const GIB: u64 = 1 << 30;

fn source(id: u64, priority: u32, held: u64, (min, low): (u64, u64)) -> Source {
    Source {
        id: ProcessId(id),
        device: 0,
        priority,
        held,
        movable: held,
        protected: Protected { min, low, above: 0 },
    }
}

/// Returns a source that holds 10 bytes, `above` of them beyond `memory.high`.
fn above(id: u64, priority: u32, above: u64, protection: (u64, u64)) -> Source {
    let source = source(id, priority, 10, protection);
    let protected = Protected {
        above,
        ..source.protected
    };
    Source { protected, ..source }
}

fn asked(sources: &[Source], wanted: u64) -> Vec<(u64, u64)> {
    choose(sources, wanted)
        .into_iter()
        .map(|(source, bytes)| (source.id.0, bytes))
        .collect()
}

/// The properties that decide, each pair of which is compared with the other one first in the list.
#[test]
fn order_is_by_protection_then_priority_then_size() {
    let plain = source(1, 8, 10, (0, 0));
    let rows = [
        ("lower priority", source(2, 9, 10, (0, 0)), plain),
        ("more memory", source(2, 8, 11, (0, 0)), plain),
        ("lower priority, less memory", source(2, 9, 5, (0, 0)), plain),
        ("beyond low before within", plain, source(2, 9, 10, (0, 10))),
        (
            "beyond low before within, less memory",
            plain,
            source(2, 8, 20, (0, 20)),
        ),
        (
            "both within low: lower priority",
            source(2, 9, 10, (0, 10)),
            source(1, 8, 10, (0, 10)),
        ),
        (
            "both within low: more memory",
            source(2, 8, 11, (0, 11)),
            source(1, 8, 10, (0, 10)),
        ),
        (
            "within low before within min",
            source(2, 0, 10, (0, 10)),
            source(1, 15, 10, (10, 0)),
        ),
        ("beyond min before within", plain, source(2, 15, 10, (10, 0))),
        (
            "above high before within",
            above(1, 0, 5, (0, 0)),
            source(2, 15, 20, (0, 0)),
        ),
        (
            "above high before within low",
            above(1, 0, 5, (0, 0)),
            source(2, 15, 20, (0, 20)),
        ),
        (
            "above high before within min",
            above(1, 0, 5, (0, 0)),
            source(2, 15, 20, (20, 0)),
        ),
        (
            "both above high: lower priority",
            above(2, 9, 5, (0, 0)),
            above(1, 8, 9, (0, 0)),
        ),
        (
            "both above high: more above it",
            above(2, 8, 6, (0, 0)),
            above(1, 8, 5, (0, 0)),
        ),
        ("above high, but within low", plain, above(2, 15, 10, (0, 10))),
        (
            "above high and within low before within min",
            above(2, 0, 10, (0, 10)),
            source(1, 15, 10, (10, 0)),
        ),
    ];
    for (why, first, second) in rows {
        for sources in [[first, second], [second, first]] {
            assert_eq!(asked(&sources, 1), [(first.id.0, 1)], "{why}");
            let all: u64 = sources.iter().map(|one| one.held - one.protected.min).sum();
            let got: u64 = asked(&sources, u64::MAX).iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(got, all, "{why}: all but what memory.min protects");
        }
    }
}

#[test]
fn nothing_within_low_is_taken_before_all_beyond_it() {
    let sources = [source(1, 15, 10, (2, 6)), source(2, 0, 10, (0, 7))];
    assert_eq!(asked(&sources, 4), [(1, 4)]);
    assert_eq!(asked(&sources, 7), [(1, 4), (2, 3)]);
    assert_eq!(asked(&sources, 8), [(1, 5), (2, 3)]);
    assert_eq!(asked(&sources, 12), [(1, 8), (2, 4)]);
    assert_eq!(asked(&sources, 100), [(1, 8), (2, 10)]);
    let pinned = Source {
        movable: 3,
        ..source(1, 8, 10, (8, 9))
    };
    assert_eq!(
        asked(&[pinned], 100),
        [(1, 2)],
        "what cannot move counts as protected first"
    );
}

#[test]
fn nothing_within_high_is_taken_before_all_beyond_it() {
    let sources = [
        above(1, 15, 3, (0, 4)),
        above(2, 0, 5, (0, 8)),
        source(3, 15, 9, (0, 0)),
    ];
    assert_eq!(asked(&sources, 3), [(1, 3)]);
    assert_eq!(asked(&sources, 5), [(1, 3), (2, 2)], "of what is not within low");
    assert_eq!(asked(&sources, 6), [(1, 3), (2, 2), (3, 1)]);
    assert_eq!(asked(&sources, 17), [(1, 6), (2, 2), (3, 9)]);
}

/// A source is found again by its process and its device together.
#[test]
fn each_source_is_asked_once_on_each_device() {
    let on = |id: u64, device: usize, low: u64| Source {
        device,
        ..source(id, 8, 10, (0, low))
    };
    let sources = [on(1, 0, 4), on(1, 1, 10), on(2, 0, 10), on(2, 1, 6)];
    let mut got: Vec<_> = choose(&sources, u64::MAX)
        .into_iter()
        .map(|(one, bytes)| (one.id.0, one.device, bytes))
        .collect();
    assert_eq!(
        got[..2],
        [(1, 0, 10), (2, 1, 10)],
        "first those beyond memory.low"
    );
    got.sort_unstable();
    assert_eq!(got, [(1, 0, 10), (1, 1, 10), (2, 0, 10), (2, 1, 10)]);
    assert_eq!(choose(&sources, 0), []);
    assert_eq!(
        choose(&sources, 17).iter().map(|(_, bytes)| bytes).sum::<u64>(),
        17
    );
}

fn holding(world: &World, pid: u32, group: &str, bytes: u64) -> ProcessId {
    let id = world.join(pid);
    world.usage(id).devices[0].memory_current.store(bytes, Relaxed);
    if !group.is_empty() {
        world.group(group);
        world
            .store(&format!("{group}/gcgroup.procs"), ROOT, &pid.to_string())
            .unwrap();
    }
    id
}

fn protected(world: &World, within: Option<&str>, id: ProcessId) -> (u64, u64) {
    let within = within.map(|path| world.group(path));
    let all = world.tree.state.lock().protected(within, 0);
    let Protected { min, low, .. } = all.get(&id).copied().unwrap_or_default();
    (min / GIB, low / GIB)
}

#[test]
fn protection_of_a_group_is_passed_down_in_proportion() {
    let world = World::new(2);
    let (one, other) = (holding(&world, 1, "a/b", 3 * GIB), holding(&world, 2, "a/c", GIB));
    let free = holding(&world, 3, "", 2 * GIB);
    assert_eq!(protected(&world, None, one), (0, 0));
    world.store("a/memory.min", ROOT, "2G").unwrap();
    world.store("a/0/memory.low", ROOT, "4G").unwrap();
    // The groups below claim nothing: by what they hold, 3 to 1.
    assert_eq!(
        (protected(&world, None, one), protected(&world, None, other)),
        ((1, 3), (0, 1))
    );
    // A claim is served first.
    world.store("a/c/memory.min", ROOT, "1G").unwrap();
    assert_eq!(
        (protected(&world, None, one).0, protected(&world, None, other).0),
        (1, 1)
    );
    // Claims beyond what the group has are cut in proportion.
    world.store("a/b/memory.min", ROOT, "3G").unwrap();
    assert_eq!(
        (protected(&world, None, one).0, protected(&world, None, other).0),
        (1, 0)
    );
    assert_eq!(protected(&world, None, free), (0, 0));
    world.store("3/memory.low", ROOT, "1G").unwrap();
    assert_eq!(protected(&world, None, free), (0, 1));
    // For room within the group its own value and those above do not count.
    assert_eq!(protected(&world, Some("a"), one).0, 3);
    assert_eq!(protected(&world, Some("a/b"), one).0, 0);
}

fn own(world: &World, path: &str, uid: u32) {
    let directory = crate::tree::Directory::group(world.group(path));
    let given = world.tree.set_access(directory, ROOT, (Some(uid), None), None);
    world.tree.finish(given.unwrap());
}

#[track_caller]
fn refuses(world: &World, path: &str) {
    let error = world.store(path, OWNER, "1G").unwrap_err();
    assert_eq!(error.errno(), libc::EPERM, "{path}");
    assert_eq!(
        error.to_string(),
        "only root and the owner of the group above can protect memory"
    );
    world.store(path, OWNER, "0").unwrap();
    assert_eq!(world.show(path), "0\n", "{path}");
}

#[test]
fn only_root_protects_memory_at_the_top() {
    let world = World::new(1);
    world.join(5);
    own(&world, "a", OWNER.uid);
    for path in ["a/memory.min", "a/0/memory.low", "5/memory.min"] {
        refuses(&world, path);
    }
    world.store("a/memory.min", ROOT, "1G").unwrap();
    assert_eq!(world.store("a/memory.min", OWNER, "2G").unwrap_err().errno(), 1);
    world.store("a/memory.min", OWNER, "500M").unwrap();
}

#[test]
fn group_of_another_user_lets_only_root_protect() {
    let world = World::new(1);
    let one = holding(&world, 1, "jobs/mine", 4 * GIB);
    let two = holding(&world, 2, "jobs", 4 * GIB);
    own(&world, "jobs/mine", OWNER.uid);
    for owner in [ROOT.uid, OTHER_USER.uid] {
        own(&world, "jobs", owner);
        for path in ["2/memory.min", "2/0/memory.low", "jobs/mine/memory.low"] {
            refuses(&world, path);
        }
    }
    // Within the own group it is allowed, and protects nothing from the group above.
    world.store("1/memory.min", OWNER, "max").unwrap();
    assert_eq!(protected(&world, Some("jobs"), one).0, 0);
    assert_eq!(protected(&world, Some("jobs/mine"), one).0, 4);
    // Root's value is the bound.
    world.store("2/memory.min", ROOT, "2G").unwrap();
    world.store("2/memory.min", OWNER, "3G").unwrap_err();
    world.store("2/memory.min", OWNER, "1G").unwrap();
    assert_eq!(protected(&world, Some("jobs"), two).0, 1);
}

#[test]
fn value_of_a_user_does_not_count_outside_the_own_group() {
    let world = World::new(1);
    let user = holding(&world, 1, "mine", 4 * GIB);
    let kept = holding(&world, 2, "jobs", 2 * GIB);
    own(&world, "mine", OWNER.uid);
    world.store("1/memory.min", OWNER, "max").unwrap();
    world.store("2/memory.min", ROOT, "2G").unwrap();
    world.store("jobs/memory.min", ROOT, "2G").unwrap();
    assert_eq!(protected(&world, Some("mine"), user).0, 4);
    assert_eq!(protected(&world, None, user).0, 0);
    // The claim takes nothing from what root protects in the same group.
    world.store("jobs/gcgroup.procs", ROOT, "1").unwrap();
    assert_eq!(protected(&world, Some("jobs"), user).0, 0);
    assert_eq!(protected(&world, None, kept).0, 2);
    // Nothing bounds the value in the root.
    world.store("gcgroup.procs", ROOT, "1").unwrap();
    assert_eq!(protected(&world, None, user).0, 0);
    // Neither does another owner of the group.
    world.store("mine/gcgroup.procs", ROOT, "1").unwrap();
    assert_eq!(protected(&world, Some("mine"), user).0, 4);
    own(&world, "mine", OTHER_USER.uid);
    assert_eq!(protected(&world, Some("mine"), user).0, 0);
}

#[test]
fn limit_of_a_group_reclaims_what_its_member_claims() {
    let world = World::new(1);
    let id = holding(&world, 1, "jobs", 4 * GIB);
    let usage = world.usage(id);
    usage.can_swap.store(1, Relaxed);
    usage.devices[0].swappable.store(4 * GIB, Relaxed);
    own(&world, "jobs", OWNER.uid);
    world.store("1/memory.min", OWNER, "max").unwrap();
    own(&world, "jobs", ROOT.uid);
    world.store("jobs/memory.limit", ROOT, "1G").unwrap();
    let wanted = world.control(id).devices[0].reclaim_bytes.load(Relaxed);
    assert_eq!(wanted, 3 * GIB);
}
