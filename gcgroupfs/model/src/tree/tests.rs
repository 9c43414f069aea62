//! Joining, leaving, and what is kept afterwards.

mod claims;
mod contexts;
mod counter_records;
mod devices;
mod exchange;
mod explain;
mod groups;
mod holds;
mod host_claims;
mod idle;
mod lasting;
mod leases;
mod orphaned;
mod peaks;
mod requests;
mod retained;
mod settings;
mod suspend;
mod swap;
mod writes;

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{DEFAULT_PRIORITY, Gate, NO_LIMIT, OTHER_DEVICE};

use super::fixture::{OWNER, ROOT, World, blocks, identity};
use super::{
    COMPUTE_FREEZE, COMPUTE_PRIORITY, Directory, Identity, Level, MEMORY_LIMIT, Notice, Saved, Settings,
    Value,
};
use crate::error::Error;

#[test]
fn published_block_is_complete() {
    let world = World::new(2);
    let mut settings = Settings::default();
    settings
        .set(MEMORY_LIMIT, Some("GPU-1"), Value::Number(77), true)
        .unwrap();
    settings
        .set(COMPUTE_PRIORITY, None, Value::Number(3), true)
        .unwrap();
    settings
        .set(COMPUTE_FREEZE, Some("GPU-0"), Value::Flag(true), true)
        .unwrap();
    let id = world.join_with(100, blocks(), settings);
    let control = world.control(id);
    assert!(control.is_understood());
    assert_eq!(control.nr_devices.load(Relaxed), 2);
    assert_eq!(
        (control.generation.load(Relaxed), control.pid.load(Relaxed)),
        (id.0, 100)
    );
    assert_eq!(control.memory_limit.load(Relaxed), NO_LIMIT);
    let devices = [0, 1, OTHER_DEVICE].map(|index| &control.devices[index]);
    assert_eq!(
        devices.map(|device| device.memory_limit.load(Relaxed)),
        [NO_LIMIT, 77, NO_LIMIT]
    );
    assert_eq!(devices.map(|device| device.priority.load(Relaxed)), [3, 3, 3]);
    let gates = devices.map(|device| Gate::from_word(device.gate.load(Relaxed)));
    assert_eq!(gates, [Gate::Frozen, Gate::Run, Gate::Run]);
    assert_eq!(
        devices[1].uuid.each_ref().map(|half| half.load(Relaxed)),
        [0x0101_0101_0101_0101; 2]
    );
    assert_eq!(devices[1].memory_total.load(Relaxed), super::fixture::TOTAL);
    assert_eq!(world.show("100/1/compute.priority"), "3\n");
    assert_eq!(world.show("100/0/compute.freeze"), "1\n");
}

#[test]
fn new_process_has_the_defaults() {
    let world = World::new(1);
    world.join(100);
    assert_eq!(world.show("100/memory.limit"), "max\n");
    assert_eq!(
        world.show("100/0/compute.priority"),
        format!("{DEFAULT_PRIORITY}\n")
    );
    assert_eq!(world.show("100/compute.freeze"), "0\n");
    assert_eq!(
        world.show("100/gcgroup.events"),
        "populated 1\nfrozen 0\nsuspended 0\nhook ok\n"
    );
}

#[test]
fn reused_pid_gets_a_new_id_and_the_directory() {
    let world = World::new(1);
    let first = world.join(100);
    let second = world.join(100);
    assert_ne!(first, second);
    assert_eq!(world.tree.find(100), Some(second));
    assert_eq!(world.tree.level(Directory::process(first)), Err(Error::Gone));
    assert_eq!(world.tree.level(Directory::process(second)), Ok(Level::Process));
    let joined = |id| Notice::Joined {
        id,
        pid: 100,
        start_time: 1100,
    };
    let left = |id| Notice::Left {
        id,
        pid: 100,
        start_time: 1100,
    };
    let told = || {
        let mut notices = world.take_notices();
        notices.retain(|notice| !matches!(notice, Notice::Departed { .. }));
        notices
    };
    assert_eq!(told(), [joined(first), left(first), joined(second)]);
    world.tree.leave(first, 0);
    assert_eq!(world.tree.find(100), Some(second));
    world.tree.leave(second, 0);
    assert_eq!(told(), [left(second)]);
    assert_eq!(world.tree.find(100), None);
}

#[test]
fn settings_survive_another_registration() {
    let world = World::new(1);
    let id = world.join(100);
    world.store("100/memory.limit", ROOT, "1G").unwrap();
    world.store("100/0/compute.freeze", ROOT, "1").unwrap();
    let saved = world.tree.saved(id).unwrap();
    world.tree.leave(id, 0);
    let json = serde_json::to_string(&saved).unwrap();
    world.join_with(100, blocks(), serde_json::from_str::<Saved>(&json).unwrap());
    assert_eq!(world.show("100/memory.limit"), "1073741824\n");
    assert_eq!(
        world.store("100/memory.limit", OWNER, "2G").unwrap_err().errno(),
        libc::EPERM
    );
    assert_eq!(
        world
            .store("100/0/compute.freeze", OWNER, "0")
            .unwrap_err()
            .errno(),
        libc::EPERM
    );
}

#[test]
fn old_acknowledgement_does_not_confirm_a_new_freeze() {
    for drained in [0, 1, 2, 3, u32::MAX] {
        for at_start in [false, true] {
            let world = World::new(1);
            let blocks = blocks();
            for device in &blocks.usage().raw().devices {
                device.drained_generation.store(drained, Relaxed);
            }
            let mut settings = Settings::default();
            settings
                .set(COMPUTE_FREEZE, None, Value::Flag(at_start), true)
                .unwrap();
            world.join_with(100, blocks, settings);
            world.store("100/compute.freeze", ROOT, "1").unwrap();
            assert!(
                world.show("100/gcgroup.events").contains("frozen 0\n"),
                "{drained} {at_start}"
            );
            assert!(
                world.show("100/0/gcgroup.events").contains("frozen 0\n"),
                "{drained} {at_start}"
            );
        }
    }
}

#[test]
fn peak_outlives_the_registration() {
    let world = World::new(1);
    let blocks = blocks();
    let usage = blocks.usage().raw();
    usage.peak_generation.store(4, Relaxed);
    usage.memory_peak.store(1234, Relaxed);
    usage.devices[0].peak_generation.store(9, Relaxed);
    usage.devices[0].memory_peak.store(1233, Relaxed);
    world.join_with(100, blocks, Settings::default());
    assert_eq!(world.show("100/memory.peak"), "1234\n");
    assert_eq!(world.show("100/0/memory.peak"), "1233\n");
}

#[test]
fn totals_keep_counts_of_ended_processes_not_charges() {
    let world = World::new(1);
    let id = world.join(100);
    world.submit(id, 0, 5);
    world.usage(id).devices[0].memory_current.store(4096, Relaxed);
    world.usage(id).devices[0].nr_alloc.store(3, Relaxed);
    assert_eq!(world.show("memory.current"), "4096\n");
    world.tree.leave(id, 0);
    assert_eq!(world.show("memory.current"), "0\n");
    assert!(world.show("memory.stat").contains("nr_alloc 3\n"));
    assert_eq!(
        world.show("gcgroup.stat"),
        "nr_submitted_kernels: 5\nnr_ended_kernels: 5\nnr_pending_kernels: 0\n"
    );
}

#[test]
fn one_user_does_not_displace_all_others_from_exited() {
    let world = World::new(1);
    let leave = |pid, uid| {
        let identity = Identity { uid, ..identity(pid) };
        let id = world.tree.join(identity, blocks(), Settings::default());
        world.tree.leave(id, 9);
    };
    let pids = || -> Vec<u32> {
        let exited = world.show("exited");
        let pids = exited
            .lines()
            .map(|line| line.split(' ').next().unwrap().parse().unwrap());
        pids.collect()
    };
    (1..=20).for_each(|pid| leave(pid, 1000));
    leave(21, 1001);
    (1000..3000).for_each(|pid| leave(pid, 1002));
    let left = pids();
    assert_eq!(left.len(), 64);
    assert_eq!(left[..43], (2957..3000).rev().collect::<Vec<u32>>());
    assert_eq!(left[43..], (1..=21).rev().collect::<Vec<u32>>());
    (31..=90).for_each(|pid| leave(pid, 1000));
    let nr_of = |range: std::ops::Range<u32>| pids().into_iter().filter(|pid| range.contains(pid)).count();
    assert_eq!(
        (nr_of(21..22), nr_of(1000..3000)),
        (1, 31),
        "each of both has half"
    );
}

#[test]
fn exited_lists_the_last_64_latest_first() {
    let world = World::new(1);
    for pid in 1..=70 {
        let id = world.join(pid);
        world.tree.leave(id, u64::from(pid));
    }
    let exited = world.show("exited");
    assert_eq!(exited.lines().count(), 64);
    assert!(
        exited.starts_with("70 ") && exited.lines().last().unwrap().starts_with("7 "),
        "{exited}"
    );
}

#[test]
fn process_freezes_without_devices() {
    let world = World::new(0);
    let id = world.join(100);
    world.store("100/compute.freeze", ROOT, "1").unwrap();
    let slot = &world.control(id).devices[OTHER_DEVICE];
    assert_eq!(Gate::from_word(slot.gate.load(Relaxed)), Gate::Frozen);
    world.usage(id).devices[OTHER_DEVICE]
        .drained_generation
        .store(slot.freeze_generation.load(Relaxed), Relaxed);
    assert!(world.show("100/gcgroup.events").contains("frozen 1\n"));
}

#[test]
fn lost_hook_or_overwritten_block_is_shown() {
    let world = World::new(1);
    let id = world.join(100);
    world.take_notices();
    world.tree.set_hook(id, false);
    assert_eq!(world.take_notices(), [Notice::Events(id)]);
    assert!(world.show("100/gcgroup.events").ends_with("hook lost\n"));
    world.tree.set_hook(id, true);
    assert!(world.show("100/0/gcgroup.events").ends_with("hook ok\n"));
}

#[test]
fn program_that_registers_again_keeps_its_directory() {
    let world = World::new(1);
    let identity = identity(100);
    let first = world.tree.join(identity.clone(), blocks(), Settings::default());
    world.take_notices();
    let again = world.tree.join(identity.clone(), blocks(), Settings::default());
    assert_eq!(first, again);
    assert!(
        world
            .take_notices()
            .iter()
            .all(|notice| !matches!(notice, Notice::Left { .. }))
    );
    let other = Identity {
        image: Some((1, 2)),
        ..identity
    };
    let other = world.tree.join(other, blocks(), Settings::default());
    assert_ne!(first, other);
    let left = |notice: &Notice| matches!(notice, Notice::Left { id, .. } if *id == first);
    assert!(world.take_notices().iter().any(left));
}
