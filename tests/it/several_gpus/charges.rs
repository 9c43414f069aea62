//! Tests that memory is charged to the device it is on, whichever device is current.

use super::{Charges, Devices, INVALID_CONTEXT, MIB, gpus};
use crate::calls::Calls;
use crate::driver::Dir;

#[test]
fn memory_is_charged_to_current_contexts_device() {
    let mount = gpus(3);
    let mut devices = Devices::on(&mount, 3);
    let charges = Charges::of(&mount, &devices, 3);
    devices.ok(&format!("alloc {}", 4 * MIB));
    devices.ok("current 0");
    let first = devices.ok(&format!("alloc {MIB}"));
    devices.ok("push 1");
    let second = devices.ok(&format!("array {}", 2 * MIB));
    assert_eq!(charges.since(), [1, 2, 4]);
    devices.ok("pop");
    devices.ok(&format!("managed {}", 8 * MIB));
    assert_eq!(
        charges.since(),
        [9, 2, 4],
        "the charge is not on the first device again"
    );
    for _ in 0..3 {
        devices.ok("pop");
    }
    assert_eq!(devices.ask(&format!("alloc {MIB}"))[0], INVALID_CONTEXT);
    assert_eq!(
        charges.since(),
        [9, 2, 4],
        "an allocation without a context is charged"
    );

    // Memory is uncharged where it was charged, whichever context frees it.
    devices.ok("current 2");
    devices.ok(&format!("free {first}"));
    assert_eq!(charges.since(), [8, 2, 4]);
    devices.ok(&format!("thread free {second}"));
    assert_eq!(charges.since(), [8, 0, 4]);
    devices.ok("destroy 0");
    assert_eq!(
        charges.since(),
        [0, 0, 4],
        "the destroyed context's memory is charged"
    );
    devices.ok("retain 1");
    devices.ok("current 3");
    devices.ok(&format!("alloc {MIB}"));
    devices.ok("current 2");
    assert_eq!(charges.since(), [0, 1, 4]);
    devices.ok("reset 1");
    assert_eq!(charges.since(), [0, 0, 4]);
}

#[test]
fn graphics_context_is_current_once_created() {
    let mount = gpus(2);
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    let linear = || [0, 1].map(|gpu| dir.gpu(gpu).key("memory.stat", "linear"));
    calls.ok(&format!("cuMemAlloc_v2 &first {MIB}"));
    for create in ["cuGLCtxCreate", "cuGLCtxCreate_v2"] {
        calls.ok(&format!("{create} &graphics 0 1"));
        calls.ok(&format!("cuMemAlloc_v2 &second {MIB}"));
        assert_eq!(linear(), [MIB, MIB], "{create}");
        calls.ok("cuCtxDestroy_v2 $graphics");
        assert_eq!(linear(), [MIB, 0], "{create}");
    }
}

#[test]
fn second_thread_is_charged_on_its_own_device() {
    let mount = gpus(2);
    let mut devices = Devices::on(&mount, 2);
    let charges = Charges::of(&mount, &devices, 2);
    devices.ask(&format!("thread alloc {MIB}"));
    assert_eq!(
        charges.since(),
        [0, 0],
        "a new thread's failed allocation is charged"
    );
    devices.ok("current 0");
    devices.ok(&format!("alloc {MIB}"));
    assert_eq!(charges.since(), [1, 0]);
    devices.ok("thread push 1");
    devices.ok(&format!("alloc {MIB}"));
    assert_eq!(
        charges.since(),
        [2, 0],
        "the charge followed another thread's context"
    );
}

#[test]
fn physical_memory_and_pools_charge_their_named_device() {
    let mount = gpus(3);
    let mut devices = Devices::start(&mount);
    let charges = Charges::of(&mount, &devices, 3);
    let physical = devices.ok(&format!("vmm 2 {}", 4 * MIB));
    assert_eq!(
        charges.since(),
        [0, 0, 4],
        "physical memory needs a context to be charged"
    );
    devices.contexts(2);
    devices.ok("current 0");
    devices.ok(&format!("vmm 1 {}", 2 * MIB));
    assert_eq!(charges.since(), [0, 2, 4]);
    devices.ok(&format!("free {physical}"));

    let pool = devices.ok("pool 1");
    let reserved = |devices: &mut Devices| devices.ok(&format!("attribute {pool} 5")) / MIB;
    let taken = devices.ask(&format!("from {pool} {} null", 2 * MIB));
    assert_eq!(charges.since(), [0, 2 + reserved(&mut devices), 0], "{taken:?}");
    Dir::of(&mount, devices.0.pid())
        .gpu(1)
        .write("memory.limit", 4 * MIB);
    devices.refused(&format!("from {pool} {} null", 64 * MIB));
    devices.refused(&format!("vmm 1 {}", 64 * MIB));
    devices.ok(&format!("alloc {}", 64 * MIB));
}

#[test]
fn stream_ordered_allocation_charges_streams_device() {
    let mount = gpus(2);
    let mut devices = Devices::on(&mount, 2);
    let charges = Charges::of(&mount, &devices, 2);
    let stream = devices.ok("stream 0");
    devices.ok("current 0");
    let memory = devices.ok(&format!("async {} {stream}", 2 * MIB));
    let [first, second] = charges.since()[..] else {
        panic!()
    };
    assert_eq!(first, 0);
    assert!(second >= 2);
    Dir::of(&mount, devices.0.pid())
        .gpu(1)
        .write("memory.limit", 64 * MIB);
    devices.refused(&format!("async {} {stream}", 128 * MIB));
    devices.ok(&format!("async {} null", 128 * MIB));
    devices.ok(&format!("free {memory}"));
}

#[test]
fn peer_access_works_and_charges_nothing() {
    let mount = gpus(2);
    let mut devices = Devices::on(&mount, 2);
    let there = devices.ok(&format!("alloc {MIB}"));
    devices.ok("current 0");
    let here = devices.ok(&format!("alloc {MIB}"));
    let charges = Charges::of(&mount, &devices, 2);
    let dir = Dir::of(&mount, devices.0.pid());
    let copies = |index| dir.gpu(index).key("compute.stat", "nr_copies");
    let before = [copies(0), copies(1)];

    assert_eq!(devices.ok("can 0 1"), 1);
    devices.ok("enable 1");
    devices.ok(&format!("fill {here} 7"));
    devices.ok(&format!("peer {there} 1 {here} 0 4096 sync"));
    assert_eq!(devices.ok(&format!("word {there}")), 7);
    devices.ok(&format!("fill {here} 8"));
    let stream = devices.ok("stream 0");
    devices.ok(&format!("peer {there} 1 {here} 0 4096 {stream}"));
    devices.ok("sync");
    assert_eq!(devices.ok(&format!("word {there}")), 8);
    assert_eq!(charges.since(), [0, 0]);
    // Counted on the submitting device: two sets, two copies between the devices, two word writes.
    assert_eq!([copies(0) - before[0], copies(1) - before[1]], [6, 0]);
    devices.ok("disable 1");
}
