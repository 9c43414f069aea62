//! Charges of groups for shared memory of processes that have ended.

use super::*;
use crate::tree::{Ending, ProcessId};

/// Registers a process in the group that has shared 30 of 50 bytes, and ends it.
fn end_owner(world: &World, pid: u32, group: &str) -> ProcessId {
    let id = world.join(pid);
    let path = format!("{group}/gcgroup.procs");
    world.store(&path, ROOT, &pid.to_string()).unwrap();
    let usage = world.usage(id);
    usage.devices[0].memory_current.store(50, Relaxed);
    usage.nr_shared.store(1, Relaxed);
    world.tree.rung(id);
    world.tree.leave(id, Ending::default());
    id
}

fn current(world: &World, group: &str) -> String {
    world.show(&format!("{group}/0/memory.current"))
}

#[test]
fn group_is_charged_for_ended_owner_until_measured() {
    let world = World::new(2);
    world.group("a/b");
    world.store("a/memory.limit", ROOT, "100").unwrap();
    let ended = end_owner(&world, 100, "a/b");
    assert_eq!(current(&world, "a/b"), "50\n");
    assert_eq!(world.show("memory.current"), "50\n");
    assert_eq!(world.show("a/b/1/memory.current"), "0\n");
    let owners = world.tree.ended_owners();
    let [owner] = owners[..] else { panic!("{owners:?}") };
    assert_eq!((owner.id, owner.device, owner.bytes), (ended, 0, 50));
    // One that ends after the measurement began is not measured.
    end_owner(&world, 101, "a/b");
    assert_eq!(current(&world, "a"), "100\n");
    world.tree.set_orphaned(0, 40, &[(ended, 30)], &[]);
    assert_eq!(current(&world, "a"), "80\n");
    // A process in the group that is charged for the same memory.
    let running = world.join(102);
    world.store("a/b/gcgroup.procs", ROOT, "102").unwrap();
    let last = world.tree.ended_owners()[0].id;
    world.tree.set_orphaned(0, 40, &[(last, 0)], &[(running, 20)]);
    assert_eq!(current(&world, "a"), "20\n");
    world.tree.set_orphaned(0, 5, &[], &[]);
    assert_eq!(current(&world, "a"), "5\n");
    assert!(world.tree.ended_owners().is_empty());
    world.tree.set_orphaned(0, 0, &[], &[]);
    assert_eq!(
        (current(&world, "a"), world.tree.has_orphaned()),
        ("0\n".to_owned(), false)
    );
    assert_eq!(world.show("a/memory.peak"), "100\n");
}

#[test]
fn charge_of_removed_group_goes_to_group_above() {
    let world = World::new(1);
    world.group("a/b");
    let measured = end_owner(&world, 100, "a/b");
    world.tree.set_orphaned(0, 40, &[(measured, 40)], &[]);
    let ended = end_owner(&world, 101, "a/b");
    let a = world.tree.subdirectory(Directory::ROOT, "a").unwrap();
    let _ = world.tree.remove_group(a, "b").unwrap();
    assert_eq!(current(&world, "a"), "90\n");
    world.tree.set_orphaned(0, 90, &[(ended, 50)], &[]);
    assert_eq!(current(&world, "a"), "90\n");
    let _ = world.tree.remove_group(Directory::ROOT, "a").unwrap();
    assert_eq!(
        (world.show("memory.current"), world.tree.has_orphaned()),
        ("0\n".to_owned(), false)
    );
}
