//! Tests operations on movable memory: peers may use it and streams may free it, whether it is on the device
//! or the host.

use support::{Config, Mount, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 6 * MIB;

fn mount(devices: u64) -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_DEVICES", devices)
            .env("GCGROUP_SWAP", "max"),
    )
}

#[track_caller]
fn fill(calls: &mut Calls, block: &str, value: u64) {
    calls.ok(&format!("cuMemsetD32_v2 ${block} {value} {}", SIZE / 4));
    calls.ok("cuCtxSynchronize");
}

/// Returns the first and the last word of a block.
#[track_caller]
fn ends(calls: &mut Calls, block: &str) -> [u64; 2] {
    let base = calls.get(block);
    [base, base + SIZE - 4].map(|address| {
        calls.put("word", 0, 8, 0);
        calls.ok(&format!("cuMemcpyDtoH_v2 &word {address} 4"));
        calls.get("word")
    })
}

#[test]
fn movable_memory_refuses_legacy_ipc_and_reports_it() {
    let mount = mount(1);
    let mut calls = Calls::start(&mount);
    for (bytes, can_be_shared) in [(SIZE, false), (MIB, true)] {
        calls.ok(&format!("cuMemAlloc_v2 &block {bytes}"));
        calls.put("legacy", 0, 8, 0);
        calls.ok("cuPointerGetAttribute &legacy 10 $block");
        assert_eq!(calls.get("legacy") == 1, can_be_shared, "{bytes}");
        let shared = calls.call("cuIpcGetMemHandle &handle $block");
        assert_eq!(shared.is_ok(), can_be_shared, "{bytes}");
    }
}

#[test]
fn is_managed_attribute_writes_as_many_bytes_as_the_driver() {
    let mount = mount(1);
    let (mut calls, mut bare) = (Calls::start(&mount), Calls::start_bare(&mount));
    let told = [&mut calls, &mut bare].map(|program| {
        program.ok(&format!("cuMemAlloc_v2 &block {SIZE}"));
        program.put("told", 0, 8, 0x1111_1111_1111_1111);
        program.ok("cuPointerGetAttribute &told 8 $block");
        program.get("told")
    });
    assert_eq!(told, [0x1111_1111_1111_1100; 2]);
}

#[test]
fn peers_use_block_on_device_or_host() {
    let mount = mount(2);
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok(&format!("cuMemAlloc_v2 &here {SIZE}"));
    calls.ok("cuDevicePrimaryCtxRetain &other 1");
    calls.ok("cuCtxSetCurrent $other");
    calls.ok(&format!("cuMemAlloc_v2 &there {SIZE}"));
    calls.ok("cuCtxEnablePeerAccess $context 0");
    calls.ok("cuCtxSetCurrent $context");
    calls.ok("cuCtxEnablePeerAccess $other 0");
    // First both on the device; then the first on the host, the second, and both.
    for (round, (here, there)) in [(MIB, u64::MAX), (u64::MAX, MIB), (MIB, MIB), (u64::MAX, u64::MAX)]
        .into_iter()
        .enumerate()
    {
        let round = round as u64 * 16;
        for (gpu, limit) in [(0, here), (1, there)] {
            let one = dir.gpu(gpu);
            let (limit, out) = match limit {
                u64::MAX => ("max".to_owned(), 0),
                bytes => (bytes.to_string(), SIZE),
            };
            one.write("memory.limit", limit);
            wait_until("the block is on the expected side", || {
                one.number("memory.swap.current") == out && one.number("memory.current") == SIZE - out
            });
        }
        for (at, copy) in [
            format!("cuMemcpyPeer $there $other $here $context {SIZE}"),
            format!("cuMemcpyPeerAsync $there $other $here $context {SIZE} 0"),
            format!("cuMemcpyDtoD_v2 $there $here {SIZE}"),
            format!("cuMemcpyAsync $there $here {SIZE} 0"),
        ]
        .into_iter()
        .enumerate()
        {
            let value = round + at as u64 + 1;
            calls.ok("cuCtxSetCurrent $context");
            fill(&mut calls, "here", value);
            calls.ok(&copy);
            calls.ok("cuCtxSynchronize");
            calls.ok("cuCtxSetCurrent $other");
            assert_eq!(ends(&mut calls, "there"), [value; 2], "{copy}");
        }
    }
}

#[test]
fn copy_from_swapped_block_waits_for_its_frozen_device() {
    let mount = mount(2);
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok(&format!("cuMemAlloc_v2 &here {SIZE}"));
    fill(&mut calls, "here", 7);
    calls.ok("cuDevicePrimaryCtxRetain &other 1");
    calls.ok("cuCtxSetCurrent $other");
    calls.ok(&format!("cuMemAlloc_v2 &there {SIZE}"));
    let first = dir.gpu(0);
    first.write("memory.limit", MIB);
    wait_until("the block is swapped out", || {
        first.number("memory.swap.current") == SIZE
    });
    first.write("compute.freeze", 1);
    wait_until("the device is frozen and drained", || first.is_frozen());
    let waited = first.key("compute.stat", "nr_frozen");
    calls.tell(&format!("call cuMemcpyDtoD_v2 $there $here {SIZE}"));
    wait_until("the copy waits at the gate", || {
        first.key("compute.stat", "nr_frozen") > waited
    });
    first.write("compute.freeze", 0);
    assert_eq!(calls.line(), "ok");
    assert_eq!(ends(&mut calls, "there"), [7; 2]);
}

#[test]
fn stream_frees_movable_memory_after_its_queued_work() {
    let mount = mount(1);
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok("cuStreamCreate &stream 1");
    for is_out in [false, true] {
        calls.ok(&format!("cuMemAlloc_v2 &block {SIZE}"));
        if is_out {
            dir.write("memory.reclaim", "max");
            wait_until("the block is swapped out", || {
                dir.number("memory.swap.current") == SIZE
            });
        }
        calls.ok(&format!("cuMemsetD32Async $block 9 {} $stream", SIZE / 4));
        calls.ok("cuMemcpyDtoHAsync_v2 &word $block 8 $stream");
        calls.ok("cuMemFreeAsync $block $stream");
        calls.ok("cuStreamSynchronize $stream");
        assert_eq!(calls.get("word"), 9 << 32 | 9);
        assert_eq!(dir.number("memory.current"), 0);
        assert_eq!(dir.number("memory.swap.current"), 0);
        assert_eq!(mount.truth().used(calls.pid(), 0), 0);
        assert!(
            calls.call("cuMemFree_v2 $block").is_err(),
            "the block was freed twice"
        );
    }
}

#[test]
fn graph_captured_before_a_move_works_after_any_move() {
    let mount = mount(1);
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    for block in ["from", "to"] {
        calls.ok(&format!("cuMemAlloc_v2 &{block} {SIZE}"));
    }
    calls.ok("cuStreamCreate &stream 1");
    calls.ok("cuStreamBeginCapture_v2 $stream 0");
    calls.ok(&format!("cuMemcpyDtoDAsync_v2 $to $from {SIZE} $stream"));
    calls.ok(&format!("cuMemsetD32Async $from 7 {} $stream", SIZE / 4));
    calls.ok("cuStreamEndCapture $stream &graph");
    calls.ok("cuGraphInstantiateWithFlags &exec $graph 0");
    // First both on the device, then one on the host, both, and both on the device again.
    for (value, out) in [(100, 0), (200, SIZE), (300, 2 * SIZE), (400, 0)] {
        match out {
            0 => dir.write("memory.limit", "max"),
            out => dir.write("memory.limit", 2 * SIZE - out),
        }
        wait_until("each block is on the expected side", || {
            dir.number("memory.swap.current") == out && dir.number("memory.current") == 2 * SIZE - out
        });
        fill(&mut calls, "from", value);
        calls.ok("cuGraphLaunch $exec $stream");
        calls.ok("cuStreamSynchronize $stream");
        assert_eq!(
            ends(&mut calls, "to"),
            [value, value],
            "the copy is wrong with {out} bytes swapped out"
        );
        assert_eq!(
            ends(&mut calls, "from"),
            [7, 7],
            "the set is wrong with {out} bytes swapped out"
        );
    }
}
