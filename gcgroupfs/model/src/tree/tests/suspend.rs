//! Requests for suspension, and what is stored of failures.

use gcgroup_abi::Kind;

use super::*;
use crate::tree::{Pending, ProcessId, Step};

fn pending(world: &World, id: ProcessId) -> Option<Pending> {
    let mut all = world.tree.pending_suspensions().into_iter();
    all.find(|one| one.id == id)
}

fn errno(result: crate::error::Result<()>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn failure_of_an_older_request_does_not_end_a_newer_one() {
    let world = World::new(1);
    let id = world.join(100);
    world.store("100/gcgroup.suspend", ROOT, "1").unwrap();
    let older = pending(&world, id).unwrap();
    world.tree.set_suspend_locked(id, true);
    world.store("100/gcgroup.suspend", ROOT, "0").unwrap();
    world
        .tree
        .fail_suspension(&older, Step::Checkpoint, "late".to_owned());
    let newer = pending(&world, id).unwrap();
    assert!(older.is_wanted && !newer.is_wanted && newer.is_locked);
    assert!(!world.show("100/gcgroup.events").contains("suspend_error"));
    world
        .tree
        .fail_suspension(&newer, Step::Unlock, "its own".to_owned());
    assert!(pending(&world, id).is_none());
    assert!(
        world
            .show("100/gcgroup.events")
            .contains("suspend_error unlock\n")
    );
}

#[test]
fn process_that_cannot_move_does_not_prevent_that_of_its_group() {
    let world = World::new(1);
    world.group("team");
    let ids = [100, 101].map(|pid| world.join(pid));
    for pid in ["100", "101"] {
        world.store("team/gcgroup.procs", ROOT, pid).unwrap();
    }
    let managed = &world.usage(ids[0]).devices[0].kinds[Kind::Managed as usize];
    managed.store(4096, Relaxed);
    world.tree.set_driver(Some(575));
    assert_eq!(
        errno(world.store("100/gcgroup.suspend", ROOT, "1")),
        libc::EOPNOTSUPP
    );
    world.store("team/gcgroup.suspend", ROOT, "1").unwrap();
    assert!(ids.iter().all(|id| pending(&world, *id).is_some()));
    let refusals = ids.map(|id| world.tree.suspend_refusal(id).is_some());
    assert_eq!(refusals, [true, false]);
    world.store("team/gcgroup.suspend", ROOT, "0").unwrap();
    world.tree.set_driver(Some(565));
    for path in ["team", "101"] {
        let refused = world.store(&format!("{path}/gcgroup.suspend"), ROOT, "1");
        assert_eq!(errno(refused), libc::EOPNOTSUPP, "{path}");
    }
}

#[test]
fn process_that_shares_memory_or_uses_mps_is_refused_unchanged() {
    let world = World::new(1);
    let id = world.join(100);
    let refused = || {
        let result = world.store("100/gcgroup.suspend", ROOT, "1");
        assert_eq!(world.show("100/gcgroup.suspend"), "0\n");
        assert!(pending(&world, id).is_none());
        let error = result.unwrap_err();
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
        error.to_string()
    };
    world.tree.set_driver(Some(609));
    world.usage(id).nr_shared.store(2, Relaxed);
    assert!(refused().contains("CUDA IPC"));
    world.tree.set_driver(Some(610));
    world.usage(id).uses_mps.store(1, Relaxed);
    assert!(refused().contains("MPS"));
    world.usage(id).uses_mps.store(0, Relaxed);
    world.store("100/gcgroup.suspend", ROOT, "1").unwrap();
    assert!(pending(&world, id).is_some());
}

#[test]
fn process_stays_in_a_group_that_root_stopped() {
    let world = World::new(1);
    for path in ["mine", "mine/a", "mine/b"] {
        let to = (Some(OWNER.uid), Some(OWNER.gid));
        let given = world
            .tree
            .set_access(Directory::group(world.group(path)), ROOT, to, None);
        world.tree.finish(given.unwrap());
    }
    world.join(100);
    world.store("mine/a/gcgroup.procs", ROOT, "100").unwrap();
    for file in ["compute.freeze", "gcgroup.suspend"] {
        let path = format!("mine/a/{file}");
        world.store(&path, ROOT, "1").unwrap();
        let moved = world.store("mine/b/gcgroup.procs", OWNER, "100");
        assert_eq!(errno(moved), libc::EPERM, "{file}");
        world.store(&path, ROOT, "0").unwrap();
        world.store(&path, OWNER, "1").unwrap();
        world.store("mine/b/gcgroup.procs", OWNER, "100").unwrap();
        world.store("mine/a/gcgroup.procs", OWNER, "100").unwrap();
        world.store(&path, OWNER, "0").unwrap();
    }
    world
        .store("mine/a/gcgroup.lease.action", ROOT, "suspend")
        .unwrap();
    world.store("mine/a/gcgroup.lease", ROOT, "0").unwrap();
    world.tree.expire_leases();
    let moved = world.store("mine/b/gcgroup.procs", OWNER, "100");
    assert_eq!(errno(moved), libc::EPERM, "by the lease");
}
