//! Tests queries of movable memory, and which queries pin a block to the device from then on.

use support::{Config, Mount, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
/// Requested bytes, not a multiple of any mapping granularity.
const ASKED: u64 = 5 * MIB + 256;
const SIZE: u64 = 6 * MIB;

fn mount() -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("GCGROUP_SWAP", "max"),
    )
}

/// Moves the only block to the host.
fn out(dir: &Dir<'_>) {
    dir.write("memory.reclaim", "max");
    wait_until("the block is swapped out", || dir.number("memory.current") == 0);
    assert_eq!(dir.number("memory.swap.current"), SIZE);
}

/// Returns the address range and `CUpointer_attribute` values: context, memory type, buffer id, whether
/// managed, ordinal, start and size.
fn attributes(calls: &mut Calls) -> Vec<u64> {
    calls.ok("cuMemGetAddressRange_v2 &base &size $block");
    let mut told = vec![calls.get("base"), calls.get("size")];
    for attribute in [1, 2, 7, 8, 9, 11, 12] {
        calls.put("value", 0, 8, 0);
        calls.ok(&format!("cuPointerGetAttribute &value {attribute} $block"));
        told.push(calls.get("value"));
    }
    told
}

#[test]
fn queries_describe_swapped_block_as_device_memory() {
    let mount = mount();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok(&format!("cuMemAlloc_v2 &block {ASKED}"));
    let (block, context) = (calls.get("block"), calls.get("context"));
    let here = attributes(&mut calls);
    let [base, size, told_context, kind, _, managed, ordinal, start, bytes] = here[..] else {
        panic!("{here:?}")
    };
    assert_eq!((base, size, start, bytes), (block, ASKED, block, ASKED));
    assert_eq!((told_context, kind, managed, ordinal), (context, 2, 0, 0));
    out(&dir);
    assert_eq!(attributes(&mut calls), here);
}

#[test]
fn exported_block_moves_back_first_and_stays() {
    for call in [
        "cuMemRetainAllocationHandle &handle $block",
        "cuPointerGetAttribute &tokens 5 $block",
        "cuMemGetHandleForAddressRange &descriptor $block 2097152 1 0",
    ] {
        let mount = mount();
        let mut calls = Calls::start(&mount);
        let dir = Dir::of(&mount, calls.pid());
        calls.ok(&format!("cuMemAlloc_v2 &block {ASKED}"));
        assert_eq!(dir.key("memory.stat", "pinned_unswappable"), 0, "{call}");
        out(&dir);
        // Whether the driver supports this call does not matter here.
        let _ = calls.call(call);
        assert_eq!(dir.number("memory.current"), SIZE, "{call}");
        assert_eq!(dir.number("memory.swap.current"), 0, "{call}");
        assert_eq!(dir.key("memory.stat", "pinned_unswappable"), SIZE, "{call}");
        dir.write("memory.limit", MIB);
        dir.write("memory.reclaim", "max");
        wait_until("the second reclaim request is counted", || {
            dir.key("memory.events", "reclaim") == 2
        });
        calls.ok("cuCtxSynchronize");
        assert_eq!(dir.number("memory.current"), SIZE, "{call}");
    }
}

#[test]
fn limit_on_one_device_moves_only_its_blocks() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_DEVICES", 2)
            .env("GCGROUP_SWAP", "max"),
    );
    let mut calls = Calls::start(&mount);
    calls.ok(&format!("cuMemAlloc_v2 &block {SIZE}"));
    calls.ok("cuDevicePrimaryCtxRetain &other 1");
    calls.ok("cuCtxSetCurrent $other");
    calls.ok(&format!("cuMemAlloc_v2 &second {SIZE}"));
    let dir = Dir::of(&mount, calls.pid());
    let (first, second) = (dir.gpu(0), dir.gpu(1));
    second.write("memory.limit", MIB);
    wait_until("the second device's block is swapped out", || {
        second.number("memory.current") == 0
    });
    assert_eq!(second.number("memory.swap.current"), SIZE);
    assert_eq!(first.number("memory.current"), SIZE);
    assert_eq!(first.number("memory.swap.current"), 0);
    let truth = mount.truth();
    assert_eq!(
        (truth.used(calls.pid(), 0), truth.used(calls.pid(), 1)),
        (SIZE, 0)
    );
    second.write("memory.limit", "max");
    wait_until("the second device's block is swapped in", || {
        second.number("memory.swap.current") == 0
    });
    assert_eq!(
        (truth.used(calls.pid(), 0), truth.used(calls.pid(), 1)),
        (SIZE, SIZE)
    );
}
