//! Tests freezing a single device, whichever device is current in the submitting thread.

use support::wait_until;

use super::{Devices, MIB, gpus};
use crate::driver::Dir;

#[test]
fn frozen_device_holds_submissions_from_any_context() {
    let mount = gpus(2);
    let mut devices = Devices::on(&mount, 2);
    let dir = Dir::of(&mount, devices.0.pid());
    let (frozen, other) = (dir.gpu(0), dir.gpu(1));
    let waits = || frozen.key("compute.stat", "nr_frozen");

    let (there, there_too) = (
        devices.ok(&format!("alloc {MIB}")),
        devices.ok(&format!("alloc {MIB}")),
    );
    let stream_there = devices.ok("stream 1");
    devices.ok("current 0");
    let (here, here_too) = (
        devices.ok(&format!("alloc {MIB}")),
        devices.ok(&format!("alloc {MIB}")),
    );
    let stream_here = devices.ok("stream 1");
    let array = devices.ok("array 4096");
    let managed = devices.ok(&format!("managed {MIB}"));
    devices.ok(&format!("fill {here} 5"));
    devices.ok("spin 0 null");
    devices.ok("sync");
    devices.ok("current 1");
    devices.ok(&format!("fill {there} 6"));

    let concerns_it = [
        format!("copy {here_too} {here} 4096 {stream_here}"),
        format!("copy {here_too} {here} 4096 null"),
        format!("copy {there_too} {there} 4096 {stream_here}"),
        format!("peer {there} 1 {here} 0 4096 sync"),
        format!("peer {there} 1 {here} 0 4096 {stream_there}"),
        format!("copy3d {there} 1 {here} 0 4096"),
        format!("copy2d {here_too} {here} 4096"),
        format!("toarray {array} {there} 4096"),
        format!("fromarray {there_too} {array} 4096"),
        format!("batch {stream_there} 4096 {there_too} {there} {here_too} {here}"),
        format!("batch3d {stream_there} 4096 {there_too} {array}"),
        format!("one3d {stream_there} 4096 {there_too} {array}"),
        format!("prefetch device {stream_there} 4096 {managed} 0"),
        format!("prefetch location {stream_there} 4096 {managed} 0"),
        format!("prefetch batch {stream_there} 4096 {managed} 0"),
        format!("prefetch both {stream_there} 4096 {managed} 0"),
        format!("prefetch location {stream_here} 4096 {managed} 1"),
        format!("discard {stream_here} 4096 {managed}"),
        format!("together 0 {stream_there} {stream_here}"),
        format!("word {here}"),
        format!("fill {here_too} 9"),
    ];
    for command in &concerns_it {
        frozen.freeze();
        assert!(!other.is_frozen() && !dir.is_frozen(), "{command}");
        let (submitted, waited) = (other.launches(), waits());
        devices.ok("spin 0 null");
        devices.ok(&format!("spin 0 {stream_there}"));
        devices.ok(&format!("copy {there_too} {there} 4096 {stream_there}"));
        devices.ok("sync");
        devices.ok(&format!("copy2d {there_too} {there} 4096"));
        assert_eq!(
            devices.ok(&format!("word {there}")),
            devices.ok(&format!("word {there_too}"))
        );
        assert_eq!(
            (other.launches() - submitted, waits()),
            (2, waited),
            "the freeze of one device held the other"
        );

        let answer = devices.waits_for(&frozen, command);
        assert!(answer.starts_with('0'), "{command}: {answer}");
    }
    assert_eq!(devices.ok(&format!("word {there}")), 5);
    assert_eq!(frozen.launches(), 1);
}

#[test]
fn process_thaw_keeps_a_device_frozen_by_itself() {
    let mount = gpus(2);
    let mut devices = Devices::on(&mount, 2);
    let dir = Dir::of(&mount, devices.0.pid());
    devices.ok("current 0");
    let (to, from) = (
        devices.ok(&format!("alloc {MIB}")),
        devices.ok(&format!("alloc {MIB}")),
    );
    let stream = devices.ok("stream 0");
    devices.ok("current 1");
    dir.gpu(0).write("compute.freeze", 1);
    dir.freeze();
    dir.write("compute.freeze", 0);
    let copy = format!("copy {to} {from} 4096 {stream}");
    assert_eq!(devices.waits_for(&dir.gpu(0), &copy), "0");
}

#[test]
fn threads_copying_across_devices_all_freeze_and_resume() {
    const THREADS: u64 = 4;
    let mount = gpus(2);
    let mut devices = Devices::on(&mount, 2);
    let dir = Dir::of(&mount, devices.0.pid());
    let (to, from) = (devices.ok("alloc 4096"), devices.ok("alloc 4096"));
    let streams: Vec<u64> = (0..THREADS).map(|_| devices.ok("stream 1")).collect();
    devices.ok("current 0");
    for stream in streams {
        devices.ok(&format!("churn {to} {from} {stream}"));
    }
    let made = |devices: &mut Devices| devices.ask("progress")[0];
    for round in 0..20 {
        let before = made(&mut devices);
        wait_until("the threads have made 100 copies", || {
            made(&mut devices) > before + 100
        });
        dir.gpu(1).freeze();
        // A thread whose last call has returned may still have to count it.
        let still = made(&mut devices);
        for _ in 0..20 {
            devices.ok("spin 0 null");
        }
        assert!(made(&mut devices) <= still + THREADS, "round {round}");
        dir.gpu(1).write("compute.freeze", 0);
    }
    let least = made(&mut devices);
    let copies = |index| dir.gpu(index).key("compute.stat", "nr_copies");
    assert!(
        copies(0) >= least && copies(1) == 0,
        "the copies are not counted on the submitting device"
    );
}
