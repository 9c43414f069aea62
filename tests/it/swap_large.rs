//! Tests allocations larger than 256 MiB: they move in parts of at most that size, and are one allocation to
//! the program.

use simgpu::Held;
use support::{Config, Mount, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
/// Two parts of 256 MiB, and one of 6 MiB.
const ASKED: u64 = 517 * MIB + 4;
const SIZE: u64 = 518 * MIB;
const PART: u64 = 256 * MIB;

fn mount() -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("GCGROUP_SWAP", "max"),
    )
}

/// Writes each part's number near its ends, and across the boundaries.
fn fill(calls: &mut Calls) {
    for (at, value) in marks() {
        let address = calls.get("block") + at;
        calls.put("word", 0, 8, value);
        calls.ok(&format!("cuMemcpyHtoD_v2 {address} &word 8"));
    }
}

#[track_caller]
fn assert_filled(calls: &mut Calls) {
    for (at, value) in marks() {
        let address = calls.get("block") + at;
        calls.put("word", 0, 8, 0);
        calls.ok(&format!("cuMemcpyDtoH_v2 &word {address} 8"));
        assert_eq!(calls.get("word"), value, "{at}");
    }
}

fn marks() -> impl Iterator<Item = (u64, u64)> {
    [0, PART - 4, PART + 8, 2 * PART - 4, 2 * PART + 8, ASKED - 8]
        .into_iter()
        .zip(100..)
}

#[test]
fn part_of_allocation_moves_out_and_back() {
    let mount = mount();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok(&format!("cuMemAlloc_v2 &block {ASKED}"));
    assert_eq!(dir.number("memory.current"), SIZE);
    assert_eq!(dir.key("memory.stat", "linear"), SIZE);
    let allocations = dir.key("memory.stat", "nr_alloc");
    fill(&mut calls);
    // One byte too much: one part leaves.
    dir.write("memory.limit", SIZE - 1);
    wait_until("one part is on the host", || {
        dir.number("memory.current") == SIZE - PART
    });
    assert_eq!(dir.number("memory.swap.current"), PART);
    assert_eq!(dir.key("memory.stat", "linear"), SIZE - PART);
    let truth = mount.truth();
    assert_eq!(truth.used(calls.pid(), 0), SIZE - PART);
    assert_filled(&mut calls);
    dir.write("memory.reclaim", "max");
    wait_until("all parts are on the host", || dir.number("memory.current") == 0);
    assert_eq!(dir.key("memory.events", "swap_out"), 3);
    wait_until("the host has what is charged", || {
        truth.held(calls.pid(), 0, Held::HostPhysical) == SIZE
    });
    assert_filled(&mut calls);
    dir.write("memory.limit", "max");
    wait_until("all parts are on the device", || {
        dir.number("memory.swap.current") == 0
    });
    assert_filled(&mut calls);
    assert_eq!(dir.key("memory.stat", "nr_alloc"), allocations, "one allocation");
    calls.ok("cuMemFree_v2 $block");
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.key("memory.stat", "linear"), 0);
    assert_eq!(truth.used(calls.pid(), 0), 0);
}

#[test]
fn program_sees_one_allocation() {
    let mount = mount();
    let mut calls = Calls::start(&mount);
    calls.ok(&format!("cuMemAlloc_v2 &block {ASKED}"));
    let base = calls.get("block");
    for at in [0, PART, ASKED - 1] {
        calls.ok(&format!("cuMemGetAddressRange_v2 &base &bytes {}", base + at));
        assert_eq!([calls.get("base"), calls.get("bytes")], [base, ASKED], "{at}");
    }
    for at in [4096, PART] {
        assert!(
            calls.call(&format!("cuMemFree_v2 {}", base + at)).is_err(),
            "{at}"
        );
    }
    calls.ok("cuMemFree_v2 $block");
}

#[test]
fn allocation_beyond_limit_is_on_host_and_failed_one_leaves_nothing() {
    let mount = mount();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    // Less than any part, so that none moves in.
    dir.write("memory.limit", 2 * MIB);
    calls.ok(&format!("cuMemAlloc_v2 &block {ASKED}"));
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.number("memory.swap.current"), SIZE);
    fill(&mut calls);
    assert_filled(&mut calls);
    dir.write("memory.swap.max", SIZE + PART);
    assert!(calls.call(&format!("cuMemAlloc_v2 &other {ASKED}")).is_err());
    assert_eq!(dir.number("memory.swap.current"), SIZE);
    calls.ok("cuMemFree_v2 $block");
    assert_eq!(dir.number("memory.swap.current"), 0);
    let truth = mount.truth();
    wait_until("the host memory is released", || {
        truth.held(calls.pid(), 0, Held::HostPhysical) == 0
    });
    assert_eq!(dir.key("memory.stat", "swap_pool"), 0);
}

/// Tests a driver that fails at one call for one of several parts.
#[test]
fn allocation_that_fails_half_way_is_served_otherwise() {
    for fault in ["cuMemCreate=999@2", "cuMemMap=999@2", "cuMemSetAccess=999@3"] {
        let mount = Mount::with(
            Config::default()
                .env("SIMGPU_CONTEXT_MEMORY", 0)
                .env("SIMGPU_FAULTS", fault)
                .env("GCGROUP_SWAP", "max"),
        );
        let mut calls = Calls::start(&mount);
        let dir = Dir::of(&mount, calls.pid());
        calls.ok(&format!("cuMemAlloc_v2 &block {ASKED}"));
        fill(&mut calls);
        assert_filled(&mut calls);
        let (truth, used) = (mount.truth(), dir.number("memory.current"));
        assert!(used >= ASKED, "{fault}: {used}");
        assert_eq!(truth.used(calls.pid(), 0), used, "{fault}");
        calls.ok("cuMemFree_v2 $block");
        assert_eq!(truth.used(calls.pid(), 0), 0, "{fault}");
        assert_eq!(dir.number("memory.current"), 0, "{fault}");
    }
}

/// Tests a driver that does not unmap the first part: the others are freed, and it is freed when the program
/// tries again.
#[test]
fn free_that_fails_for_one_part_frees_the_others() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_FAULTS", "cuMemUnmap=999@1,cuMemUnmap=999@2")
            .env("GCGROUP_SWAP", "max"),
    );
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok(&format!("cuMemAlloc_v2 &block {ASKED}"));
    let truth = mount.truth();
    for left in [PART, 0] {
        assert_eq!(calls.call("cuMemFree_v2 $block").is_err(), left > 0, "{left}");
        assert_eq!(dir.number("memory.current"), left);
        assert_eq!(dir.key("memory.stat", "linear"), left);
        assert_eq!(truth.used(calls.pid(), 0), left);
    }
}

/// Other processes need the memory that parts would take until the last of them failed.
#[test]
fn allocation_that_fits_nowhere_takes_no_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let (trace, meminfo) = (directory.path().join("trace"), directory.path().join("meminfo"));
    let megabytes = |size: u64| size * 1024;
    let text = format!(
        "MemTotal: {} kB\nMemAvailable: {} kB\n",
        megabytes(8192),
        megabytes(1024 + 512)
    );
    std::fs::write(&meminfo, text).expect("a file");
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_MEMORY", "1G")
            .env("SIMGPU_TRACE", trace.display())
            .env("GCGROUP_MEMINFO", meminfo.display())
            .env("GCGROUP_SWAP", "max"),
    );
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    let created = || {
        let lines = std::fs::read_to_string(&trace).expect("the trace");
        lines
            .lines()
            .filter(|line| line.contains(" cuMemCreate "))
            .count()
    };
    let before = created();
    assert!(
        calls
            .call(&format!("cuMemAlloc_v2 &block {}", 2048 * MIB))
            .is_err()
    );
    assert_eq!(created(), before, "memory was taken");
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.number("memory.swap.current"), 0);
    assert_eq!(dir.key("memory.stat", "swap_pool"), 0);
    calls.ok(&format!("cuMemAlloc_v2 &block {}", 768 * MIB));
    assert_ne!(created(), before);
}
