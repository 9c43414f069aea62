#![allow(clippy::unwrap_used, reason = "for tests")]

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::*;
use crate::tree::Entity;
use crate::tree::fixture::{OTHER_USER, OWNER, ROOT, World, set_now};

const MIB: u64 = 1 << 20;

fn killed(world: &World) -> Vec<GroupId> {
    let notices = world.take_notices().into_iter();
    let groups = notices.filter_map(|notice| match notice {
        Notice::KillAsked(directory, _) => match directory.whose() {
            Entity::Group(id) => Some(id),
            other => panic!("{other:?}"),
        },
        _ => None,
    });
    groups.collect()
}

fn nr_kills(world: &World, group: &str) -> u64 {
    let text = world.show(&format!("{group}/memory.events"));
    let count = text.lines().find_map(|line| line.strip_prefix("oom_group_kill "));
    count.unwrap().parse().unwrap()
}

/// Asks for a grant on the first device, as the hook does.
fn ask(world: &World, id: ProcessId, bytes: u64) {
    let usage = world.usage(id);
    usage.devices[0].grant_wanted.store(bytes, Relaxed);
    usage.devices[0].grant_request.fetch_add(1, Release);
    world.tree.rung(id);
}

/// Counts a refusal by a group, as the hook does when it gives up.
fn give_up(world: &World, id: ProcessId) {
    let usage = world.usage(id);
    usage.devices[0].nr_group_max.fetch_add(1, Relaxed);
    usage.devices[0].nr_alloc_fail.fetch_add(1, Relaxed);
    world.tree.rung(id);
}

fn join(world: &World, pid: u32, group: &str) -> ProcessId {
    let id = world.join(pid);
    world.group(group);
    world
        .store(&format!("{group}/gcgroup.procs"), ROOT, &pid.to_string())
        .unwrap();
    killed(world);
    id
}

#[test]
fn outermost_group_within_the_limit_is_killed_once() {
    let world = World::new(1);
    let id = join(&world, 100, "a/b/c");
    world.store("a/memory.limit", ROOT, "64M").unwrap();
    ask(&world, id, 65 * MIB);
    give_up(&world, id);
    assert_eq!(killed(&world), [], "0 is the default");
    for group in ["a/b", "a/b/c"] {
        world
            .store(&format!("{group}/memory.oom.group"), ROOT, "1")
            .unwrap();
    }
    // Refused, and granted after all: pools were trimmed.
    ask(&world, id, 65 * MIB);
    ask(&world, id, MIB);
    assert_eq!(killed(&world), []);
    ask(&world, id, 65 * MIB);
    give_up(&world, id);
    assert_eq!(killed(&world), [world.group("a/b")]);
    assert_eq!(
        ["a", "a/b", "a/b/c"].map(|group| nr_kills(&world, group)),
        [1, 1, 0]
    );
    // A refusal from before the write does not kill.
    world.store("a/b/memory.oom.group", ROOT, "0").unwrap();
    world.store("a/b/c/memory.oom.group", ROOT, "0").unwrap();
    ask(&world, id, 65 * MIB);
    world.store("a/b/c/memory.oom.group", ROOT, "1").unwrap();
    give_up(&world, id);
    assert_eq!(killed(&world), []);
    world.store("a/b/memory.oom.group", ROOT, "1").unwrap();
    // A group above the limit is not concerned.
    world.store("a/memory.limit", ROOT, "max").unwrap();
    world.store("a/b/c/memory.limit", ROOT, "64M").unwrap();
    ask(&world, id, 65 * MIB);
    give_up(&world, id);
    assert_eq!(killed(&world), [world.group("a/b/c")]);
}

#[test]
fn claim_without_a_refusal_kills_nothing() {
    let world = World::new(1);
    let id = join(&world, 100, "a");
    world.store("a/memory.limit", ROOT, "64M").unwrap();
    world.store("a/memory.oom.group", ROOT, "1").unwrap();
    give_up(&world, id);
    ask(&world, id, MIB);
    give_up(&world, id);
    assert_eq!((killed(&world), nr_kills(&world, "a")), (vec![], 0));
    // One refusal is one kill, whatever is counted.
    ask(&world, id, 65 * MIB);
    give_up(&world, id);
    give_up(&world, id);
    assert_eq!((killed(&world).len(), nr_kills(&world, "a")), (1, 1));
    // What is counted long after the refusal has another cause.
    set_now(1);
    ask(&world, id, 65 * MIB);
    set_now(1 + GIVES_UP_WITHIN);
    give_up(&world, id);
    assert_eq!(nr_kills(&world, "a"), 1);
    // A process that has left the group since.
    ask(&world, id, 65 * MIB);
    world.store("gcgroup.procs", ROOT, "100").unwrap();
    give_up(&world, id);
    assert_eq!((killed(&world), nr_kills(&world, "a")), (vec![], 1));
    // Its own limit and a full device.
    let other = join(&world, 101, "a");
    for counter in [&world.usage(other).devices[0].nr_oom, &world.usage(other).nr_oom] {
        counter.fetch_add(1, Relaxed);
        world.usage(other).devices[0].nr_alloc_fail.fetch_add(1, Relaxed);
        world.tree.rung(other);
    }
    assert_eq!(killed(&world), []);
}

#[test]
fn oom_group_is_written_by_those_who_may_kill() {
    let world = World::new(1);
    join(&world, 100, "a");
    for value in ["2", "", "-1", "max", "1 1"] {
        let error = world.store("a/memory.oom.group", ROOT, value).unwrap_err();
        assert!([libc::EINVAL, libc::ERANGE].contains(&error.errno()), "{value:?}");
    }
    for file in ["memory.oom.group", "gcgroup.kill"] {
        for user in [OTHER_USER, OWNER] {
            let error = world.store(&format!("a/{file}"), user, "1").unwrap_err();
            assert_eq!(error.errno(), libc::EACCES, "{file}");
        }
    }
    for absent in ["memory.oom.group", "100/memory.oom.group", "a/0/memory.oom.group"] {
        assert!(crate::file::resolve(&world.tree, absent).is_err(), "{absent}");
    }
    assert_eq!(world.show("a/memory.oom.group"), "0\n");
}
