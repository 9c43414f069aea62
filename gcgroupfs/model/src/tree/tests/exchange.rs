//! Resumption on another GPU: what is refused, what is charged, and what the record keeps.

use super::*;
use crate::tree::fixture::device;
use crate::tree::{Device, Exchange, Pending, ProcessId, Step};

const BYTES: u64 = 64 << 20;
const THERE: Exchange = Exchange { from: 0, to: 1 };

fn pending(world: &World, id: ProcessId) -> Option<Pending> {
    let mut all = world.tree.pending_suspensions().into_iter();
    all.find(|one| one.id == id)
}

/// Joins a process with [`BYTES`] on device 0, in the group `team`, and suspends it.
fn suspended(world: &World) -> ProcessId {
    world.group("team");
    let id = world.join(100);
    world.store("team/gcgroup.procs", ROOT, "100").unwrap();
    let usage = world.usage(id);
    usage.devices[0].memory_current.store(BYTES, Relaxed);
    world.store("100/gcgroup.suspend", ROOT, "1").unwrap();
    world.tree.set_suspended(id);
    id
}

/// The library moves its charges from device 0 to device 1.
fn follow(world: &World, id: ProcessId) {
    let usage = world.usage(id);
    usage.devices[1].memory_current.store(BYTES, Relaxed);
    usage.devices[0].memory_current.store(0, Relaxed);
}

fn current(world: &World) -> [String; 2] {
    [0, 1].map(|device| {
        world
            .show(&format!("team/{device}/memory.current"))
            .trim()
            .to_owned()
    })
}

#[test]
fn charge_moves_to_the_other_device_when_the_library_counts_there() {
    let world = World::new(2);
    world.group("team");
    for device in [0, 1] {
        let path = format!("team/{device}/memory.limit");
        world.store(&path, ROOT, &BYTES.to_string()).unwrap();
    }
    let id = suspended(&world);
    world.store("100/gcgroup.suspend", ROOT, "0 gpu=1").unwrap();
    assert_eq!(world.show("100/gcgroup.suspend"), "0\n");
    let one = pending(&world, id).unwrap();
    assert_eq!(one.exchange, Some((THERE, [[0; 16], [1; 16]])));
    assert_eq!(one.moved, Some(vec![(1, BYTES)]));
    assert!(world.tree.charge_resumed(&one));
    // Another process finds no room where the first will be.
    let other = world.join(101);
    world.store("team/gcgroup.procs", ROOT, "101").unwrap();
    let granted = |device: usize| world.usage(other).devices[device].memory_granted.load(Relaxed);
    assert_eq!(granted(1), 0);
    assert_eq!(world.show("100/memory.current"), "0\n");
    follow(&world, id);
    world.tree.set_resumed(id);
    world.tree.set_suspend_locked(id, false);
    assert_eq!(current(&world), ["0".to_owned(), BYTES.to_string()]);
    assert!(pending(&world, id).is_none());
    world.store("100/gcgroup.suspend", ROOT, "1").unwrap();
    assert_eq!(
        pending(&world, id).unwrap().exchange,
        None,
        "for one resumption only"
    );
}

#[test]
fn request_that_changes_while_room_is_looked_for_is_looked_for_again() {
    let world = World::new(3);
    let id = suspended(&world);
    world.store("100/gcgroup.suspend", ROOT, "0 gpu=1").unwrap();
    let older = pending(&world, id).unwrap();
    world.store("100/gcgroup.suspend", ROOT, "0 gpu=2").unwrap();
    assert!(!world.tree.charge_resumed(&older));
    let newer = pending(&world, id).unwrap();
    assert!(world.tree.charge_resumed(&newer));
    let late = world.store("100/gcgroup.suspend", ROOT, "0 gpu=1").unwrap_err();
    assert!(late.to_string().contains("already"), "{late}");
    world.store("100/gcgroup.suspend", ROOT, "0").unwrap();
    assert_eq!(pending(&world, id).unwrap().exchange, newer.exchange);
    world.tree.uncharge_resumed(id);
    world.store("100/gcgroup.suspend", ROOT, "0").unwrap();
    assert_eq!(pending(&world, id).unwrap().exchange, None);
}

#[test]
fn restored_process_is_listed_until_the_library_counts_it() {
    let world = World::new(2);
    let id = suspended(&world);
    world.store("100/gcgroup.suspend", ROOT, "0 gpu=1").unwrap();
    let one = pending(&world, id).unwrap();
    assert!(world.tree.charge_resumed(&one));
    world.tree.set_restored(id);
    world
        .tree
        .fail_suspension(&one, Step::Identify, "no answer".to_owned());
    assert!(
        world
            .show("100/gcgroup.events")
            .contains("suspend_error identify\n")
    );
    world.store("100/gcgroup.suspend", ROOT, "0").unwrap();
    assert!(pending(&world, id).is_some_and(|one| one.is_restored && one.exchange.is_some()));
    follow(&world, id);
    world.tree.set_resumed(id);
    assert_eq!(world.show("100/1/memory.current"), format!("{BYTES}\n"));
}

#[test]
fn record_keeps_the_requested_gpu() {
    let world = World::new(2);
    let id = suspended(&world);
    world.store("100/gcgroup.suspend", ROOT, "0 gpu=1").unwrap();
    let record = world.tree.leave(id, 0).unwrap();
    let text = serde_json::to_string(&record).unwrap();
    let read: Saved = serde_json::from_str(&text).unwrap();
    assert_eq!(read, record);
    let again = world.tree.join(identity(100), blocks(), read);
    let one = pending(&world, again).unwrap();
    assert_eq!(one.exchange.map(|(exchange, _)| exchange), Some(THERE));
}

#[test]
fn each_reason_refuses_another_gpu_and_changes_nothing() {
    let world = World::new(2);
    let id = suspended(&world);
    let refused = |reason: &str| {
        let error = world.store("100/gcgroup.suspend", ROOT, "0 gpu=1").unwrap_err();
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(world.show("100/gcgroup.suspend"), "1\n");
    };
    world.tree.set_driver(Some(579));
    refused("older than 580");
    world.tree.set_driver(Some(580));
    world.store("100/1/memory.limit", ROOT, "1M").unwrap();
    refused("memory.limit of the process");
    world.store("100/1/memory.limit", ROOT, "max").unwrap();
    world.store("team/1/memory.limit", ROOT, "1M").unwrap();
    refused("memory.limit of a group");
    world.store("team/1/memory.limit", ROOT, "max").unwrap();
    world.store("team/gcgroup.devices", ROOT, "0").unwrap();
    refused("gcgroup.devices");
    world.store("team/gcgroup.devices", ROOT, "all").unwrap();
    world.store("100/gcgroup.suspend", ROOT, "0 gpu=0").unwrap();
    assert_eq!(pending(&world, id).unwrap().exchange, None, "it is its own");
    world.store("100/gcgroup.suspend", ROOT, "0 gpu=1").unwrap();
    let group = world.store("team/gcgroup.suspend", ROOT, "0 gpu=1");
    assert!(group.is_ok(), "{group:?}");
    world.tree.add_devices([Device {
        uuid: [9; 16],
        uuid_text: "MIG-9".to_owned(),
        ..device(2)
    }]);
    world.store("100/gcgroup.suspend", ROOT, "1").unwrap();
    refused("MIG");
    world.tree.set_resumed(id);
    refused("not suspended");
}
