//! Transient groups that are removed and made again for a process that names them.

use std::time::Duration;

use super::lasting::kept;
use super::*;
use crate::tree::fixture::{OTHER_USER, OWNER, ROOT, World, new_group, set_uptime};
use crate::tree::{Caller, GroupId, Job, NewGroup, Origins, Owner, Transient};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn transient(owner: Caller, pid: Option<u32>) -> Transient {
    Transient {
        is_requested: pid.is_some(),
        owner: Owner {
            uid: owner.uid,
            gid: owner.gid,
        },
        settings: Settings::default(),
        origins: Origins::default(),
        job: pid.map(|pid| Job {
            pid,
            start_time: 1,
            wish: Some("asked".to_owned()),
            is_inherited: false,
            has_ended: false,
        }),
    }
}

/// Makes a job `users/NAME` of [`OWNER`] and returns its group.
fn begin(world: &World, name: &str, pid: u32) -> GroupId {
    let users = new_group(Directory::ROOT, "users");
    let users = world
        .tree
        .make_transient_group(&users, transient(ROOT, None))
        .unwrap();
    let new = NewGroup {
        caller: OWNER,
        ..new_group(Directory::group(users), name)
    };
    world
        .tree
        .make_job_group(&new, transient(OWNER, Some(pid)))
        .unwrap()
}

fn has(world: &World, path: &str) -> bool {
    world
        .tree
        .groups()
        .iter()
        .any(|id| world.tree.path(Some(*id)) == path)
}

#[test]
fn job_that_is_named_again_has_its_settings_and_counts() {
    let world = World::new(1);
    let id = begin(&world, "job", 100);
    for (file, value) in [
        ("memory.limit", "4096"),
        ("compute.max", "50000 100000"),
        ("gcgroup.lease", "60"),
    ] {
        world.store(&format!("users/job/{file}"), OWNER, value).unwrap();
    }
    world.tree.end_holder(100, 1);
    assert!(!has(&world, "users"));
    assert_eq!(world.tree.job_wish("/users/job/"), Some(Some("asked".to_owned())));
    world.tree.revive("users/job", OTHER_USER);
    assert!(!has(&world, "users"), "it is not the other user's");
    world.tree.revive("/users/job", OWNER);
    assert_eq!(world.show("users/job/memory.limit"), "4096\n");
    assert_eq!(world.show("users/job/compute.max"), "50000 100000\n");
    assert_eq!(world.show("users/job/gcgroup.lease"), "60\n");
    let (users, job) = (world.group("users"), world.group("users/job"));
    let owner = |group| world.tree.owner(Directory::group(group)).unwrap().uid;
    assert_eq!((owner(users), owner(job)), (0, OWNER.uid));
    assert!(job != id, "numbers are not used again");
    world.tree.reap_transient(None);
    assert!(!has(&world, "users"));
    world.tree.revive("users/job", ROOT);
    assert_eq!(world.show("users/job/memory.limit"), "4096\n");
}

#[test]
fn removed_job_is_dropped_after_a_day_and_by_a_group_of_its_name() {
    let world = World::new(1);
    begin(&world, "job", 100);
    world.store("users/job/memory.limit", OWNER, "4096").unwrap();
    world.tree.end_holder(100, 1);
    begin(&world, "job", 101);
    assert_eq!(world.show("users/job/memory.limit"), "max\n");
    world.tree.end_holder(101, 1);
    set_uptime(2 * DAY + Duration::from_secs(1));
    world.tree.revive("users/job", OWNER);
    assert!(!has(&world, "users"));
}

#[test]
fn user_with_many_removed_jobs_loses_only_own_ones() {
    let world = World::new(1);
    let other = NewGroup {
        caller: OTHER_USER,
        ..new_group(Directory::ROOT, "other")
    };
    world
        .tree
        .make_job_group(&other, transient(OTHER_USER, Some(99)))
        .unwrap();
    world.tree.end_holder(99, 1);
    for number in 0..300 {
        set_uptime(DAY + Duration::from_secs(number));
        begin(&world, &format!("job{number}"), 100);
        world.tree.end_holder(100, 1);
    }
    let revived = |name: &str| {
        world.tree.revive(name, ROOT);
        has(&world, name)
    };
    assert!(revived("other"));
    assert!(!revived("users/job0") && revived("users/job299"));
    let nr_left = (0..300)
        .filter(|number| revived(&format!("users/job{number}")))
        .count();
    assert_eq!(nr_left, 256);
}

#[test]
fn record_of_a_removed_job_outlives_the_daemon() {
    let world = World::new(1);
    let id = begin(&world, "job", 100);
    let (root, mut groups) = kept(&world, &["users", "users/job"]);
    world.store("users/job/memory.limit", OWNER, "4096").unwrap();
    world.tree.end_holder(100, 1);
    for (id, saved) in &mut groups {
        let text = serde_json::to_string(&world.tree.saved_group(*id)).unwrap();
        *saved = serde_json::from_str(&text).unwrap();
    }
    let after = World::new(1);
    after.tree.restore(root, groups);
    assert!(after.tree.groups().is_empty());
    after.tree.revive("users/job", OWNER);
    assert_eq!(after.show("users/job/memory.limit"), "4096\n");
    assert!(after.tree.saved_group(id).is_default(), "its old record is gone");
}

#[test]
fn group_is_retained_only_where_a_process_may_miss_its_settings() {
    let world = World::new(1);
    let make = |name: &str, is_requested| {
        let transient = Transient {
            is_requested,
            ..transient(OWNER, None)
        };
        world
            .tree
            .make_transient_group(&new_group(Directory::ROOT, name), transient)
            .unwrap()
    };
    for (name, is_requested) in [("ruled", false), ("plain", true), ("set", true)] {
        let id = make(name, is_requested);
        if name != "plain" {
            world
                .store(&format!("{name}/memory.limit"), OWNER, "4096")
                .unwrap();
        }
        world.tree.hold_group(id);
        world.tree.release_group(id);
        assert!(!has(&world, name));
        world.tree.revive(name, OWNER);
        assert_eq!(has(&world, name), name == "set", "{name}");
    }
}
