//! Tests movable memory that other devices use: network adapters, and peers.

use support::{Config, Mount, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 6 * MIB;
/// `CU_POINTER_ATTRIBUTE_*`.
const P2P_TOKENS: u32 = 5;
const SYNC_MEMOPS: u32 = 6;
const IS_GPU_DIRECT_RDMA_CAPABLE: u32 = 15;
/// `CU_CTX_SYNC_MEMOPS`.
const CTX_SYNC_MEMOPS: u64 = 0x80;

fn mount(devices: u64, quirks: &str) -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_DEVICES", devices)
            .env("SIMGPU_QUIRKS", quirks)
            .env("GCGROUP_SWAP", "max"),
    )
}

#[track_caller]
fn move_out_and_back(dir: &Dir<'_>) {
    dir.write("memory.limit", MIB);
    wait_until("the memory is swapped out", || dir.number("memory.current") == 0);
    dir.write("memory.limit", "max");
    wait_until("the memory is swapped in", || {
        dir.number("memory.swap.current") == 0
    });
}

#[test]
fn adapters_use_memory_where_device_offers_it() {
    for (quirks, is_capable) in [("rdma", true), ("rdma-refused", false), ("", false)] {
        let mount = mount(1, quirks);
        let mut calls = Calls::start(&mount);
        let dir = Dir::of(&mount, calls.pid());
        calls.ok(&format!("cuMemAlloc_v2 &block {SIZE}"));
        for round in 0..2 {
            calls.put("capable", 0, 8, 0);
            calls.ok(&format!(
                "cuPointerGetAttribute &capable {IS_GPU_DIRECT_RDMA_CAPABLE} $block"
            ));
            assert_eq!(calls.get("capable") == 1, is_capable, "{quirks} {round}");
            move_out_and_back(&dir);
        }
        assert_eq!(mount.truth().used(calls.pid(), 0), SIZE, "{quirks}");
        // Registered memory does not move any more.
        calls.put("tokens", 0, 8, 0);
        let registered = calls.call(&format!("cuPointerGetAttribute &tokens {P2P_TOKENS} $block"));
        assert_eq!(registered.is_ok(), is_capable, "{quirks}");
        dir.write("memory.reclaim", "max");
        wait_until("the request is answered", || {
            dir.key("memory.stat", "pinned_unswappable") == SIZE
        });
        assert_eq!(dir.number("memory.current"), SIZE);
    }
}

#[test]
fn synchronous_operations_can_be_requested_for_mapped_memory() {
    for quirks in ["", "vmm-attributes"] {
        let mount = mount(1, quirks);
        let mut calls = Calls::start(&mount);
        calls.ok(&format!("cuMemAlloc_v2 &block {SIZE}"));
        let mut set = |value| {
            calls.put("value", 0, 4, value);
            calls.ok(&format!("cuPointerSetAttribute &value {SYNC_MEMOPS} $block"));
            calls.put("flags", 0, 8, 0);
            calls.ok("cuCtxGetFlags &flags");
            calls.get("flags") & CTX_SYNC_MEMOPS != 0
        };
        assert!(!set(0), "{quirks}");
        assert_eq!(set(1), !quirks.is_empty(), "{quirks}");
    }
    // Memory of the program itself is not concerned: the driver's answer stays.
    let mount = mount(1, "vmm-attributes");
    let mut calls = Calls::start(&mount);
    calls.put("value", 0, 4, 1);
    assert!(
        calls
            .call(&format!("cuPointerSetAttribute &value {SYNC_MEMOPS} 4096"))
            .is_err()
    );
}

/// Returns the rights of device 1 at `block`.
fn rights(calls: &mut Calls, block: &str) -> u64 {
    calls.put("location", 0, 4, 1);
    calls.put("location", 4, 4, 1);
    calls.put("rights", 0, 8, 77);
    calls.ok(&format!("cuMemGetAccess &rights &location ${block}"));
    calls.get("rights")
}

#[test]
fn peer_has_access_once_the_program_enables_it() {
    let mount = mount(2, "");
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok(&format!("cuMemAlloc_v2 &block {SIZE}"));
    calls.ok("cuDevicePrimaryCtxRetain &other 1");
    assert_eq!(rights(&mut calls, "block"), 0);
    move_out_and_back(&dir.gpu(0));
    assert_eq!(rights(&mut calls, "block"), 0);
    // The other direction does not matter.
    calls.ok("cuCtxEnablePeerAccess $other 0");
    assert_eq!(rights(&mut calls, "block"), 0);
    calls.ok("cuCtxSetCurrent $other");
    calls.ok("cuCtxEnablePeerAccess $context 0");
    calls.ok("cuCtxSetCurrent $context");
    assert_eq!(rights(&mut calls, "block"), 3);
    calls.ok(&format!("cuMemAlloc_v2 &later {SIZE}"));
    assert_eq!(rights(&mut calls, "later"), 3);
    move_out_and_back(&dir.gpu(0));
    for block in ["block", "later"] {
        assert_eq!(rights(&mut calls, block), 3, "{block}");
    }
}

/// Tests that a full device at the first allocation does not decide for the later ones.
#[test]
fn adapters_use_memory_after_the_trial_lacked_memory() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_QUIRKS", "rdma")
            .env("SIMGPU_FAULTS", "cuMemCreate=2@1")
            .env("GCGROUP_SWAP", "max"),
    );
    let mut calls = Calls::start(&mount);
    for is_capable in [false, true] {
        calls.ok(&format!("cuMemAlloc_v2 &block {SIZE}"));
        calls.put("capable", 0, 8, 0);
        calls.ok(&format!(
            "cuPointerGetAttribute &capable {IS_GPU_DIRECT_RDMA_CAPABLE} $block"
        ));
        assert_eq!(calls.get("capable") == 1, is_capable);
    }
}
