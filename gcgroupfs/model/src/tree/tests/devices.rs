//! Devices that appear while processes run.

use super::*;
use crate::tree::fixture::device;
use crate::tree::{MEMORY_LIMIT, Value};

#[test]
fn added_device_has_settings_made_before() {
    let world = World::new(1);
    world.group("a/b");
    let mut settings = Settings::default();
    settings
        .set(MEMORY_LIMIT, Some("GPU-1"), Value::Number(77), true)
        .unwrap();
    let id = world.join_with(100, blocks(), settings);
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    world.store("a/memory.limit", ROOT, "1000").unwrap();
    world.store("a/compute.freeze", ROOT, "1").unwrap();
    let usage = world.usage(id);
    usage.devices[1].memory_current.store(30, Relaxed);
    world.take_notices();
    // The first one exists already.
    world.tree.add_devices([device(0), device(1)]);
    assert!(world.take_notices().contains(&Notice::Ring(id)));
    assert_eq!(world.show("devices").lines().count(), 2);
    let control = world.control(id);
    assert_eq!(control.nr_devices.load(Relaxed), 2);
    let added = &control.devices[1];
    assert_eq!(
        (added.uuid[0].load(Relaxed), added.memory_total.load(Relaxed)),
        (u64::from_le_bytes([1; 8]), crate::tree::fixture::TOTAL)
    );
    assert_eq!(added.memory_limit.load(Relaxed), 77);
    assert_eq!(added.group_limit.load(Relaxed), 1000);
    assert_eq!(Gate::from_word(added.gate.load(Relaxed)), Gate::Frozen);
    assert_eq!(usage.devices[1].memory_granted.load(Relaxed), 30);
    for path in ["100/1", "a/1", "a/b/1", "a"] {
        assert_eq!(world.show(&format!("{path}/memory.current")), "30\n", "{path}");
    }
    world.store("a/b/1/memory.limit", ROOT, "20").unwrap();
    assert_eq!(added.group_limit.load(Relaxed), 20);
    world.store("a/compute.freeze", ROOT, "0").unwrap();
    assert_ne!(Gate::from_word(added.gate.load(Relaxed)), Gate::Frozen);
}

#[test]
fn add_devices_stops_at_number_of_slots() {
    let world = World::new(1);
    let id = world.join(100);
    world.tree.add_devices((1..200).map(device));
    assert_eq!(world.tree.nr_devices(), OTHER_DEVICE);
    let told = world.control(id).nr_devices.load(Relaxed);
    assert_eq!(told as usize, OTHER_DEVICE);
}
