//! Tests graphs with work on other devices than that of the launching stream.

use support::wait_until;

use super::{Devices, gpus};
use crate::driver::Dir;

/// Result of `cuStreamQuery` for a busy stream (CUDA_ERROR_NOT_READY).
const NOT_READY: u64 = 600;

#[test]
fn graph_with_work_on_frozen_device_waits_on_any_stream() {
    let mount = gpus(2);
    let mut devices = Devices::on(&mount, 2);
    let dir = Dir::of(&mount, devices.0.pid());
    let (frozen, other) = (dir.gpu(0), dir.gpu(1));
    let there = devices.ok("alloc 4096");
    let stream = devices.ok("stream 1");
    devices.ok("current 0");
    let here = devices.ok("alloc 4096");
    devices.ok("current 1");
    for graph in [
        "kernel 0".to_owned(),
        "kernel 1".to_owned(),
        "kernel 10".to_owned(),
        "named 0".to_owned(),
        "library 10".to_owned(),
        format!("captured 10 {stream}"),
        format!("fill {here}"),
        format!("copy {here}{there}"),
        format!("copy {there}{here}"),
        "child-kernel 0".to_owned(),
        "if-kernel 10".to_owned(),
        format!("if-fill {here}"),
    ] {
        let number = devices.ok(&format!("graph {graph}"));
        frozen.freeze();
        assert!(!other.is_frozen(), "{graph}");
        let launch = format!("launch {number} {stream}");
        assert_eq!(devices.waits_for(&frozen, &launch), "0", "{graph}");
        devices.ok("sync");
    }
}

#[test]
fn device_drains_graph_launched_on_another_devices_stream() {
    let mount = gpus(2);
    let mut devices = Devices::on(&mount, 2);
    let dir = Dir::of(&mount, devices.0.pid());
    let stream = devices.ok("stream 1");
    let graph = devices.ok("graph kernel 0 null 1000000");
    devices.ok(&format!("launch {graph} {stream}"));
    dir.gpu(0).write("compute.freeze", 1);
    assert_eq!(devices.ask(&format!("query {stream}")), [NOT_READY]);
    wait_until("the device is frozen and drained", || dir.gpu(0).is_frozen());
    assert_eq!(devices.ask(&format!("query {stream}")), [0]);
}
