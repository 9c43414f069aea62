//! Persistence of groups and processes over daemon restarts, and the life of transient groups.

use std::collections::BTreeMap;

use super::groups::{errno, hold, remove};
use super::*;
use crate::file;
use crate::tree::fixture::{START, new_group, set_now};
use crate::tree::{COMPUTE_PRIORITY, GroupId, Job, MEMORY_LIMIT, Origins, Owner, Transient, Value};

/// Returns the records of groups and the root, serialised and read back.
pub(super) fn kept(world: &World, paths: &[&str]) -> (Saved, BTreeMap<GroupId, Saved>) {
    let again = |saved: &Saved| serde_json::from_str(&serde_json::to_string(saved).unwrap()).unwrap();
    let groups = paths.iter().map(|path| world.group(path));
    let groups = groups
        .map(|id| (id, again(&world.tree.saved_group(id))))
        .collect();
    (again(&world.tree.saved_root()), groups)
}

#[test]
fn restored_groups_are_as_before() {
    let world = World::new(1);
    let gone = world.group("gone");
    let inner = world.group("a/b");
    let id = world.join(100);
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    world.store("a/memory.limit", ROOT, "1G").unwrap();
    world.store("a/b/0/compute.freeze", ROOT, "1").unwrap();
    let given = world.tree.set_access(
        Directory::group(inner),
        ROOT,
        (Some(OWNER.uid), None),
        Some(0o700),
    );
    world.tree.finish(given.unwrap());
    world.submit(id, 0, 7);
    world.tree.leave(id, 0);
    let (root, mut groups) = kept(&world, &["a", "a/b"]);
    remove(&world, "gone").unwrap();
    groups.insert(gone, world.tree.saved_group(gone));
    groups.insert(
        GroupId(gone.0 + 100),
        Saved {
            group: Some(gone),
            ..groups[&inner].clone()
        },
    );

    let after = World::new(1);
    after.tree.restore(root, groups);
    assert_eq!(after.show("a/memory.limit"), "1073741824\n");
    assert_eq!(after.show("a/b/0/compute.freeze"), "1\n");
    assert!(after.show("a/compute.stat").contains("nr_launches 7\n"));
    assert!(after.show("a/b/0/compute.stat").contains("nr_launches 7\n"));
    assert_eq!(after.tree.access(Directory::group(inner)).unwrap().mode, 0o700);
    assert_eq!(errno(file::resolve(&after.tree, "gone")), libc::ENOENT);
    assert!(after.group("new").0 > gone.0 + 100, "numbers are not reused");
    // A process that registers again is where it was.
    let saved = Saved {
        group: Some(inner),
        ..Saved::default()
    };
    let id = after.join_with(100, blocks(), saved);
    assert_eq!(after.show("a/b/gcgroup.procs"), "100\n");
    let gate = after.control(id).devices[0].gate.load(Relaxed);
    assert_eq!(Gate::from_word(gate), Gate::Frozen);
    let saved = Saved {
        group: Some(gone),
        ..Saved::default()
    };
    after.join_with(101, blocks(), saved);
    assert_eq!(after.show("gcgroup.procs"), "100\n101\n");
}

#[test]
fn process_counts_survive_restart() {
    let world = World::new(1);
    let id = world.join(100);
    hold(&world, id, 0, 500);
    world.store("100/0/memory.limit", ROOT, "1").unwrap();
    world.store("100/memory.peak", ROOT, "0").unwrap();
    let saved = serde_json::to_string(&world.tree.saved(id).unwrap()).unwrap();
    let after = World::new(1);
    after.join_with(100, blocks(), serde_json::from_str::<Saved>(&saved).unwrap());
    assert!(after.show("100/memory.events").contains("over_limit 1\n"));
    assert!(after.show("100/0/memory.events").contains("over_limit 1\n"));
    assert_eq!(after.show("100/memory.peak"), "500\n");
}

#[test]
fn transient_group_is_removed_with_last_process() {
    let world = World::new(1);
    let mut settings = Settings::default();
    settings
        .set(MEMORY_LIMIT, None, Value::Number(4096), true)
        .unwrap();
    settings
        .set(COMPUTE_PRIORITY, None, Value::Number(3), true)
        .unwrap();
    let transient = |settings| Transient {
        is_requested: false,
        job: None,
        owner: Owner { uid: 7, gid: 8 },
        settings,
        origins: Origins::default(),
    };
    let outer = world
        .tree
        .make_transient_group(&new_group(Directory::ROOT, "job"), transient(settings))
        .unwrap();
    assert_eq!(
        world
            .tree
            .make_transient_group(&new_group(Directory::ROOT, "job"), transient(Settings::default())),
        Ok(outer)
    );
    let inner = world
        .tree
        .make_transient_group(
            &new_group(Directory::group(outer), "step"),
            transient(Settings::default()),
        )
        .unwrap();
    assert_eq!(world.tree.owner(Directory::group(inner)).unwrap().uid, 7);
    let id = world.join(100);
    world.store("job/step/gcgroup.procs", ROOT, "100").unwrap();
    let control = world.control(id);
    let device = &control.devices[0];
    assert_eq!(
        (device.group_limit.load(Relaxed), device.priority.load(Relaxed)),
        (4096, 3)
    );
    world.take_notices();
    world.tree.leave(id, 0);
    assert!(!world.tree.has_group(outer) && !world.tree.has_group(inner));
    let notices = world.take_notices();
    for group in [inner, outer] {
        assert!(notices.contains(&Notice::Removed(group)), "{notices:?}");
    }
}

#[test]
fn held_group_stays_until_released() {
    let world = World::new(1);
    let transient = Transient {
        is_requested: false,
        job: None,
        owner: Owner { uid: 0, gid: 0 },
        settings: Settings::default(),
        origins: Origins::default(),
    };
    let make = || {
        world
            .tree
            .make_transient_group(&new_group(Directory::ROOT, "job"), transient.clone())
    };
    let job = make().unwrap();
    assert!(world.tree.hold_group(job) && world.tree.hold_group(job));
    let id = world.join(100);
    world.store("job/gcgroup.procs", ROOT, "100").unwrap();
    world.tree.leave(id, 0);
    world.tree.reap_transient(None);
    assert_eq!(
        errno(world.tree.remove_group(Directory::ROOT, "job")),
        libc::EBUSY
    );
    world.tree.release_group(job);
    assert_eq!(make(), Ok(job));
    world.tree.release_group(job);
    assert!(!world.tree.has_group(job));
    assert!(!world.tree.hold_group(job));
}

/// Returns the line that is logged at the end of a job.
fn job_line(world: &World) -> Option<String> {
    world.take_notices().into_iter().find_map(|notice| match notice {
        Notice::JobEnded { line, .. } => Some(line),
        _ => None,
    })
}

/// A process of `bytes` bytes that is in the group for `seconds` from `from` on.
fn live_in(world: &World, (pid, group): (u32, GroupId), bytes: u64, (from, seconds): (u64, u64)) {
    const SECOND: u64 = 1_000_000_000;
    set_now(START + from * SECOND);
    let saved = Saved {
        group: Some(group),
        ..Saved::default()
    };
    let id = world.join_with(pid, blocks(), saved);
    world.usage(id).devices[0].memory_current.store(bytes, Relaxed);
    set_now(START + (from + seconds) * SECOND);
    world.tree.leave(id, 0);
}

#[test]
fn job_whose_command_has_ended_is_one_after_a_restart() {
    let world = World::new(1);
    let transient = Transient {
        is_requested: false,
        job: Some(Job {
            pid: 1,
            start_time: 1,
            wish: None,
            is_inherited: false,
            has_ended: false,
        }),
        owner: Owner { uid: 7, gid: 8 },
        settings: Settings::default(),
        origins: Origins::default(),
    };
    let id = world
        .tree
        .make_job_group(&new_group(Directory::ROOT, "job"), transient)
        .unwrap();
    live_in(&world, (100, id), 1000, (0, 4));
    let child = Saved {
        group: Some(id),
        ..Saved::default()
    };
    world.join_with(101, blocks(), child);
    let (_, before) = kept(&world, &["job"]);
    world.tree.end_holder(1, 1);
    let (_, ended) = kept(&world, &["job"]);
    assert_eq!(job_line(&world), None, "a process is left");
    // A record of an earlier version has neither of the fields, and more than 64 bits are read back.
    let mut old = serde_json::to_value(&before[&id]).unwrap();
    let made = old["made"].as_object_mut().unwrap();
    assert!(made.remove("is_job").is_some() && made.remove("byte_seconds").is_some());
    let mut huge = ended[&id].clone();
    huge.creation.as_mut().unwrap().byte_seconds = u128::from(u64::MAX) + 1;
    let huge = serde_json::from_str(&serde_json::to_string(&huge).unwrap()).unwrap();

    let rows = [
        (ended[&id].clone(), "2500"),
        (serde_json::from_value(old).unwrap(), "500"),
        (huge, "18446744073709552116"),
    ];
    for (saved, byte_seconds) in rows {
        let after = World::new(1);
        after.tree.restore(Saved::default(), [(id, saved)].into());
        live_in(&after, (101, id), 500, (10, 2));
        after.tree.end_holder(1, 1);
        let line = job_line(&after).unwrap();
        assert!(
            line.contains(&format!(" memory.byte_seconds={byte_seconds} ")),
            "{line}"
        );
    }
}
