//! Groups: nesting, members, sums, and inherited settings.

use super::*;
use crate::file;
use crate::tree::fixture::{OTHER_USER, new_group};
use crate::tree::{Caller, NewGroup};

pub(super) fn errno<T: std::fmt::Debug>(result: crate::error::Result<T>) -> i32 {
    result.map(drop).unwrap_err().errno()
}

fn make(world: &World, path: &str, caller: Caller) -> crate::error::Result<Directory> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let file::Node::Dir(parent) = file::resolve(&world.tree, parent)? else {
        panic!("{parent}")
    };
    let new = NewGroup {
        caller,
        ..new_group(parent, name)
    };
    let (made, change) = file::make_group(&world.tree, &new)?;
    world.tree.finish(change);
    Ok(made)
}

pub(super) fn remove(world: &World, path: &str) -> crate::error::Result<()> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let file::Node::Dir(parent) = file::resolve(&world.tree, parent)? else {
        panic!("{parent}")
    };
    let removed = world.tree.remove_group(parent, name);
    removed.map(|change| world.tree.finish(change))
}

pub(super) fn hold(world: &World, id: crate::tree::ProcessId, device: usize, bytes: u64) {
    world.usage(id).devices[device]
        .memory_current
        .store(bytes, Relaxed);
}

#[test]
fn mkdir_and_rmdir_report_errors() {
    let world = World::new(1);
    world.join(100);
    make(&world, "a", ROOT).unwrap();
    make(&world, "a/b", ROOT).unwrap();
    for (path, expected) in [
        ("a", libc::EEXIST),
        ("7", libc::EINVAL),
        ("a/7", libc::EINVAL),
        ("memory.current", libc::EEXIST),
        ("a/memory.limit", libc::EEXIST),
        ("a/devices", libc::EINVAL),
        ("100/x", libc::EPERM),
        ("100/0/x", libc::EPERM),
        ("a/0/x", libc::EPERM),
    ] {
        assert_eq!(errno(make(&world, path, ROOT)), expected, "{path}");
    }
    for (path, expected) in [
        ("a", libc::EBUSY),
        ("b", libc::ENOENT),
        ("100", libc::EPERM),
        ("100/0", libc::EPERM),
        ("a/0", libc::EPERM),
    ] {
        assert_eq!(errno(remove(&world, path)), expected, "{path}");
    }
    remove(&world, "a/b").unwrap();
    remove(&world, "a").unwrap();
    assert_eq!(errno(remove(&world, "a")), libc::ENOENT);
}

#[test]
fn groups_nest_to_eight_levels() {
    let world = World::new(1);
    let deepest = "a/b/c/d/e/f/g/h";
    let id = world.group(deepest);
    assert_eq!(world.tree.path(Some(id)), deepest);
    assert_eq!(errno(make(&world, &format!("{deepest}/i"), ROOT)), libc::EMLINK);
    world.join(100);
    world
        .store(&format!("{deepest}/gcgroup.procs"), ROOT, "100")
        .unwrap();
    assert_eq!(world.show("a/gcgroup.procs"), "");
    assert!(world.show("a/gcgroup.events").starts_with("populated 1\n"));
    assert_eq!(world.show(&format!("{deepest}/gcgroup.procs")), "100\n");
    assert_eq!(errno(remove(&world, deepest)), libc::EBUSY);
}

#[test]
fn user_cannot_make_more_than_1024_groups() {
    let world = World::new(1);
    let id = world.group("mine");
    let given = world
        .tree
        .set_access(Directory::group(id), ROOT, (Some(OWNER.uid), None), None);
    world.tree.finish(given.unwrap());
    let made = (0..)
        .take_while(|n| make(&world, &format!("mine/g{n}"), OWNER).is_ok())
        .count();
    assert_eq!(made, 1024);
    make(&world, "mine/another", ROOT).unwrap();
    remove(&world, "mine/g7").unwrap();
    make(&world, "mine/again", OWNER).unwrap();
}

#[test]
fn moved_process_takes_memory_and_leaves_counts() {
    let world = World::new(2);
    world.group("a/x");
    world.group("a/y");
    let (id, other) = (world.join(100), world.join(101));
    hold(&world, id, 0, 10);
    hold(&world, id, 1, 200);
    hold(&world, other, 1, 3000);
    world.submit(id, 0, 7);
    world.usage(id).devices[0].nr_ended.store(3, Relaxed);
    let stat = |path: &str| {
        let text = world.show(&format!("{path}/gcgroup.stat"));
        let numbers: Vec<u64> = text
            .lines()
            .filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
            .collect();
        (numbers[0], numbers[1], numbers[2])
    };
    let current = |path: &str| world.show(&format!("{path}/memory.current"));
    world.store("a/x/gcgroup.procs", ROOT, "100").unwrap();
    world.store("a/y/gcgroup.procs", ROOT, "101").unwrap();
    assert_eq!(
        [
            current("a/x"),
            current("a/x/0"),
            current("a/y"),
            current("a"),
            current("a/1")
        ],
        ["210\n", "10\n", "3000\n", "3210\n", "3200\n"]
    );
    assert_eq!(stat("a/x"), (4, 0, 4), "pending kernels come along");
    world.submit(id, 0, 5);
    world.usage(id).devices[0].nr_ended.store(6, Relaxed);
    assert_eq!(stat("a/x"), (9, 3, 6));
    world.store("a/y/gcgroup.procs", ROOT, "100").unwrap();
    assert_eq!(stat("a/x"), (9, 9, 0), "kernels that left count as completed");
    assert_eq!(stat("a/y"), (6, 0, 6));
    assert_eq!(stat("a"), (9, 3, 6), "unchanged in the common group");
    assert_eq!([current("a/x"), current("a/y")], ["0\n", "3210\n"]);
    assert_eq!(world.show("a/x/memory.peak"), "210\n");
    world.tree.leave(id, 0);
    assert_eq!(stat("a/y"), (6, 6, 0));
    assert_eq!(stat("a"), (9, 9, 0));
    assert_eq!(world.show("a/memory.peak"), "3210\n");
    assert_eq!(world.show("a/y/gcgroup.procs"), "101\n");
    world.store("gcgroup.procs", ROOT, "101").unwrap();
    assert_eq!(current("a"), "0\n");
    assert_eq!(world.show("gcgroup.procs"), "101\n");
}

#[test]
fn move_needs_process_and_common_ancestor() {
    let world = World::new(1);
    let (mine, theirs) = (world.group("mine"), world.group("theirs"));
    for name in ["mine/a", "mine/b"] {
        world.group(name);
    }
    let give = |id, caller: Caller| {
        let to = (Some(caller.uid), Some(caller.gid));
        let given = world.tree.set_access(Directory::group(id), ROOT, to, None);
        world.tree.finish(given.unwrap());
    };
    give(mine, OWNER);
    give(theirs, OTHER_USER);
    for path in ["mine/a", "mine/b"] {
        give(world.group(path), OWNER);
    }
    world.join(100);
    let put = |path: &str, caller| world.store(&format!("{path}/gcgroup.procs"), caller, "100");
    assert_eq!(
        errno(put("mine", OWNER)),
        libc::EPERM,
        "root owns the common ancestor"
    );
    put("mine", ROOT).unwrap();
    put("mine/a", OWNER).unwrap();
    put("mine/b", OWNER).unwrap();
    assert_eq!(errno(put("theirs", OWNER)), libc::EACCES);
    assert_eq!(errno(put("mine/a", OTHER_USER)), libc::EACCES);
    give(mine, OTHER_USER);
    assert_eq!(
        errno(put("mine/a", OWNER)),
        libc::EPERM,
        "another user owns the common ancestor"
    );
    give(mine, OWNER);
    give(world.group("mine/a"), OTHER_USER);
    assert_eq!(
        errno(put("mine/a", OTHER_USER)),
        libc::EPERM,
        "another user owns the process"
    );
    for (text, expected) in [
        ("101", libc::ESRCH),
        ("99999999999", libc::ESRCH),
        ("x", libc::EINVAL),
        ("-1", libc::EINVAL),
    ] {
        assert_eq!(
            errno(world.store("mine/gcgroup.procs", ROOT, text)),
            expected,
            "{text}"
        );
    }
    assert_eq!(
        errno(world.store("100/gcgroup.procs", ROOT, "100")),
        libc::EOPNOTSUPP
    );
    assert_eq!(world.show("mine/b/gcgroup.procs"), "100\n");
}

#[test]
fn group_freeze_closes_all_gates_before_ringing() {
    let world = World::new(2);
    world.group("a/b");
    let ids = [world.join(100), world.join(101)];
    world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    world.store("a/b/gcgroup.procs", ROOT, "101").unwrap();
    let gate = |id, device: usize| Gate::from_word(world.control(id).devices[device].gate.load(Relaxed));
    world.take_notices();
    world.store("a/compute.freeze", ROOT, "1").unwrap();
    assert!(
        ids.iter()
            .all(|id| gate(*id, 0) == Gate::Frozen && gate(*id, OTHER_DEVICE) == Gate::Frozen)
    );
    let notices = world.take_notices();
    assert!(
        ids.iter().all(|id| notices.contains(&Notice::Ring(*id))),
        "{notices:?}"
    );
    assert_eq!(
        world.show("101/compute.freeze"),
        "0\n",
        "not set for the process itself"
    );
    world.store("101/compute.freeze", OWNER, "0").unwrap();
    assert_eq!(gate(ids[1], 0), Gate::Frozen);
    let acknowledge = |id| {
        for device in [0, 1, OTHER_DEVICE] {
            let generation = world.control(id).devices[device].freeze_generation.load(Relaxed);
            world.usage(id).devices[device]
                .drained_generation
                .store(generation, Relaxed);
        }
        world.tree.rung(id);
    };
    acknowledge(ids[1]);
    let events = |path: &str| world.show(&format!("{path}/gcgroup.events"));
    assert_eq!(events("a/b"), "populated 1\nfrozen 1\nsuspended 0\n");
    assert_eq!(events("a"), "populated 1\nfrozen 0\nsuspended 0\ndraining 100\n");
    assert_eq!(
        events("a/1"),
        "populated 1\nfrozen 0\nsuspended 0\ndraining 100\n"
    );
    world.take_notices();
    acknowledge(ids[0]);
    assert_eq!(events("a"), "populated 1\nfrozen 1\nsuspended 0\n");
    assert!(
        world
            .take_notices()
            .contains(&Notice::GroupEvents(world.group("a")))
    );
    assert!(events("101").contains("frozen 1"));
    // A hook that has lost its daemon opens the gates after the grace time.
    world.tree.set_hook(ids[0], false);
    assert_eq!(events("a"), "populated 1\nfrozen 0\nsuspended 0\ndraining 100\n");
    assert!(events("100").contains("frozen 0\nsuspended 0\nhook lost"));
    world.tree.set_hook(ids[0], true);
    assert_eq!(events("a"), "populated 1\nfrozen 1\nsuspended 0\n");
    // A process that leaves the frozen group goes on, one that enters is frozen.
    world.store("gcgroup.procs", ROOT, "100").unwrap();
    assert_eq!(gate(ids[0], 0), Gate::Run);
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    assert_eq!(gate(ids[0], 0), Gate::Frozen);
    assert_eq!(events("a"), "populated 1\nfrozen 0\nsuspended 0\ndraining 100\n");
    world.store("a/compute.freeze", ROOT, "0").unwrap();
    assert_eq!((gate(ids[0], 0), gate(ids[1], 1)), (Gate::Run, Gate::Run));
    world.store("a/b/1/compute.freeze", ROOT, "1").unwrap();
    assert_eq!((gate(ids[1], 0), gate(ids[1], 1)), (Gate::Run, Gate::Frozen));
}

#[test]
fn nearest_priority_applies_to_processes_without_one() {
    let world = World::new(2);
    world.group("a/b");
    let id = world.join(100);
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    let in_force = || [0, 1].map(|device: usize| world.control(id).devices[device].priority.load(Relaxed));
    assert_eq!(in_force(), [8, 8]);
    world.store("a/compute.priority", ROOT, "3").unwrap();
    assert_eq!(in_force(), [3, 3]);
    assert_eq!(world.show("100/compute.priority"), "3\n");
    world.store("a/b/1/compute.priority", ROOT, "5").unwrap();
    assert_eq!(in_force(), [3, 5]);
    world.store("100/0/compute.priority", ROOT, "12").unwrap();
    assert_eq!(in_force(), [12, 5]);
    world.store("100/compute.priority", ROOT, "8").unwrap();
    assert_eq!(in_force(), [8, 8], "an explicit 8 is not the default");
}

#[test]
fn root_group_priority_bounds_users_whole_and_per_device() {
    let world = World::new(2);
    world.group("a/b");
    let id = world.join(100);
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    let in_force = || [0, 1].map(|device: usize| world.control(id).devices[device].priority.load(Relaxed));
    world.store("a/compute.priority", ROOT, "10").unwrap();
    world.store("a/b/1/compute.priority", ROOT, "4").unwrap();
    for (path, least) in [("100", 10), ("100/0", 10), ("100/1", 4)] {
        let file = format!("{path}/compute.priority");
        let below = world.store(&file, OWNER, &(least - 1).to_string());
        assert_eq!(errno(below), libc::EPERM, "{path}");
        world.store(&file, OWNER, &least.to_string()).unwrap();
    }
    assert_eq!(in_force(), [10, 4]);
    world.store("a/compute.priority", ROOT, "12").unwrap();
    assert_eq!(in_force(), [12, 4], "raised to the bound in force");
    world.store("gcgroup.procs", ROOT, "100").unwrap();
    assert_eq!(
        in_force(),
        [10, 8],
        "raised to the default where root has set none"
    );
    world.store("100/compute.priority", ROOT, "2").unwrap();
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    assert_eq!(
        in_force(),
        [2, 2],
        "root's priority for the process is nearer than the group's"
    );
}

#[test]
fn limit_below_usage_counts_here_and_above() {
    let world = World::new(1);
    world.group("a/b");
    let id = world.join(100);
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    hold(&world, id, 0, 500);
    world.store("a/b/memory.limit", ROOT, "499").unwrap();
    world.store("100/memory.limit", ROOT, "400").unwrap();
    let over = |path: &str| {
        let text = world.show(&format!("{path}/memory.events"));
        text.lines()
            .find_map(|line| line.strip_prefix("over_limit ")?.parse::<u64>().ok())
            .unwrap()
    };
    assert_eq!([over("100"), over("a/b"), over("a"), over("a/0")], [1, 2, 2, 0]);
    world.tree.leave(id, 0);
    assert_eq!([over("a/b"), over("a")], [2, 2]);
}

#[test]
fn group_owner_is_bounded_by_root() {
    let world = World::new(1);
    let id = world.group("a");
    let access = world.tree.access(Directory::group(id)).unwrap();
    assert_eq!((access.owner.uid, access.mode), (0, 0o755));
    let given = world.tree.set_access(
        Directory::group(id),
        ROOT,
        (Some(OWNER.uid), Some(7)),
        Some(0o2770),
    );
    world.tree.finish(given.unwrap());
    let access = world.tree.access(Directory::group(id)).unwrap();
    assert_eq!(
        (access.owner.uid, access.owner.gid, access.mode),
        (OWNER.uid, 7, 0o770)
    );
    world.store("a/memory.limit", ROOT, "100").unwrap();
    world.store("a/memory.limit", OWNER, "50").unwrap();
    assert_eq!(errno(world.store("a/memory.limit", OWNER, "101")), libc::EPERM);
    assert_eq!(
        errno(world.store("a/memory.limit", OTHER_USER, "10")),
        libc::EACCES
    );
    let set = |caller, uid, mode| {
        world
            .tree
            .set_access(Directory::group(id), caller, (uid, None), mode)
    };
    assert_eq!(errno(set(OWNER, Some(OTHER_USER.uid), None)), libc::EPERM);
    assert_eq!(errno(set(OTHER_USER, None, Some(0o777))), libc::EPERM);
    world.tree.finish(set(OWNER, None, Some(0o775)).unwrap());
    world.join(100);
    let process = file::resolve(&world.tree, "100").unwrap();
    let file::Node::Dir(process) = process else {
        panic!()
    };
    let of_process = |caller| world.tree.set_access(process, caller, (None, None), Some(0o777));
    assert_eq!(errno(of_process(OWNER)), libc::EPERM);
    world.tree.finish(of_process(ROOT).unwrap());
    assert_eq!(world.tree.access(process).unwrap().mode, 0o777);
    let id = world.tree.find(100).unwrap();
    world.tree.leave(id, 0);
    world.join(100);
    let file::Node::Dir(process) = file::resolve(&world.tree, "100").unwrap() else {
        panic!()
    };
    assert_eq!(world.tree.access(process).unwrap().mode, 0o755, "a new directory");
}
