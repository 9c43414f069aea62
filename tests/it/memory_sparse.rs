//! Tests sparse arrays: memory is charged where it is created and held by its mappings.

use support::{Mount, Truth, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
const SPARSE: u64 = 0x40;
const DEFERRED: u64 = 0x80;
/// `CU_MEM_CREATE_USAGE_TILE_POOL`.
const TILE_POOL: u64 = 1;

/// Creates an array of 256 x 256 floats.
fn array(calls: &mut Calls, flags: u64) {
    for (word, value) in [256, 256, 0, 0x20 | 1 << 32, flags].into_iter().enumerate() {
        calls.put("descriptor", 8 * word, 8, value);
    }
    calls.ok("cuArray3DCreate_v2 &array &descriptor");
}

/// Maps a part of `array` to `pool`, or unmaps it, on the default stream.
fn map(calls: &mut Calls, is_mapped: bool, corner: [u64; 2], extent: [u64; 3]) {
    map_on(calls, "0", is_mapped, corner, extent);
}

/// Maps a part of `array` to `pool`, or unmaps it, when a stream reaches the call.
fn map_on(
    calls: &mut Calls,
    stream: &str,
    is_mapped: bool,
    [x, y]: [u64; 2],
    [width, height, depth]: [u64; 3],
) {
    let (array, pool) = (calls.get("array"), calls.get("pool"));
    for (offset, size, value) in [
        (8, 8, array),
        (32, 4, x),
        (36, 4, y),
        (44, 4, width),
        (48, 4, height),
        (52, 4, depth),
        (56, 4, if is_mapped { 1 } else { 2 }),
        (64, 8, if is_mapped { pool } else { 0 }),
        (80, 4, 1),
    ] {
        calls.put("info", offset, size, value);
    }
    calls.ok(&format!("cuMemMapArrayAsync &info 1 {stream}"));
}

#[test]
fn tiles_hold_memory_until_the_last_is_unmapped() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    let truth = Truth::of(&mount.simgpu_dir());
    let pid = calls.pid();
    let held = |expected: u64, why: &str| {
        assert_eq!(dir.number("memory.current"), expected, "{why}");
        assert_eq!(truth.used(pid, 0), expected, "{why}");
    };
    for (offset, size, value) in [(0, 4, 1), (8, 4, 1), (26, 2, TILE_POOL)] {
        calls.put("properties", offset, size, value);
    }
    array(&mut calls, SPARSE);
    held(0, "the array has no memory of its own");
    calls.ok(&format!("cuMemCreate &pool {} &properties 0", 2 * MIB));
    map(&mut calls, true, [128, 0], [128, 256, 1]);
    calls.ok("cuMemRelease $pool");
    held(2 * MIB, "two tiles hold it");
    map(&mut calls, false, [128, 0], [128, 128, 1]);
    calls.ok("cuCtxSynchronize");
    held(2 * MIB, "one does still");
    map(&mut calls, false, [128, 128], [128, 128, 1]);
    calls.ok("cuCtxSynchronize");
    held(0, "none does");
    // The remaining mappings go with the array.
    calls.ok(&format!("cuMemCreate &pool {} &properties 0", 2 * MIB));
    map(&mut calls, true, [0, 0], [256, 256, 1]);
    calls.ok("cuStreamSynchronize 0");
    calls.ok("cuMemRelease $pool");
    held(2 * MIB, "all of it");
    calls.ok("cuArrayDestroy $array");
    held(0, "the array is gone");
}

#[test]
fn deferred_mapping_array_holds_its_mapped_memory() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    for (offset, size, value) in [(0, 4, 1), (8, 4, 1)] {
        calls.put("properties", offset, size, value);
    }
    array(&mut calls, DEFERRED);
    calls.ok(&format!("cuMemCreate &pool {} &properties 0", 2 * MIB));
    map(&mut calls, true, [0, 0], [0, 0, 0]);
    calls.ok("cuCtxSynchronize");
    calls.ok("cuMemRelease $pool");
    assert_eq!(dir.number("memory.current"), 2 * MIB);
    map(&mut calls, false, [0, 0], [0, 0, 0]);
    calls.ok("cuCtxSynchronize");
    assert_eq!(dir.number("memory.current"), 0);
}

#[test]
fn tiles_unmapped_on_a_destroyed_stream_hold_memory_until_its_work_ends() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let (dir, truth, pid) = (Dir::of(&mount, calls.pid()), mount.truth(), calls.pid());
    for (offset, size, value) in [(0, 4, 1), (8, 4, 1), (26, 2, TILE_POOL)] {
        calls.put("properties", offset, size, value);
    }
    array(&mut calls, SPARSE);
    calls.ok("cuMemAlloc_v2 &word 4");
    calls.ok("cuMemsetD32_v2 $word 0 1");
    calls.ok(&format!("cuMemCreate &pool {} &properties 0", 2 * MIB));
    calls.ok("cuStreamCreate &stream 1");
    map_on(&mut calls, "$stream", true, [0, 0], [128, 256, 1]);
    calls.ok("cuStreamSynchronize $stream");
    calls.ok("cuMemRelease $pool");
    calls.ok("cuStreamWaitValue32_v2 $stream $word 1 0");
    map_on(&mut calls, "$stream", false, [0, 0], [128, 256, 1]);
    calls.ok("cuStreamDestroy_v2 $stream");
    calls.ok("cuStreamCreate &other 1");
    calls.ok("cuStreamSynchronize $other");
    let used = || (dir.number("memory.current"), truth.used(pid, 0));
    assert_eq!(used(), (2 * MIB + 4, 2 * MIB + 4));
    calls.ok("cuMemsetD32_v2 $word 1 1");
    wait_until("the device has freed it", || truth.used(pid, 0) == 4);
    // The program has not waited for it.
    dir.write("memory.limit", 2 * MIB + 4);
    calls.ok(&format!("cuMemAlloc_v2 &block {}", 2 * MIB));
    calls.ok("cuMemFree_v2 $block");
    assert_eq!(used(), (4, 4));
}
