//! Tests the functions from before CUDA 3.2, with 32-bit addresses and sizes: charged like their successors.

use support::{Mount, Truth};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;

const MIB: u64 = 1 << 20;

#[test]
fn old_allocations_are_charged_limited_and_uncharged() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    let truth = Truth::of(&mount.simgpu_dir());
    let pid = calls.pid();
    let held = || {
        let current = dir.number("memory.current");
        assert_eq!(current, truth.used(pid, 0));
        current
    };
    dir.write("memory.limit", 8 * MIB);
    // 8-bit elements, one channel: as a plain and as a three-dimensional array.
    for (variable, numbers) in [
        ("plain", [9 << 20, 0, 1, 1, 0, 0]),
        ("deep", [4096, 4096, 0, 1, 1, 0]),
    ] {
        for (at, number) in numbers.into_iter().enumerate() {
            calls.put(variable, 4 * at, 4, number);
        }
    }
    for refused in [
        format!("cuMemAlloc &none {}", 9 * MIB),
        format!("cuMemAllocPitch &none &pitch {MIB} 9 4"),
        "cuArrayCreate &none &plain".to_owned(),
        "cuArray3DCreate &none &deep".to_owned(),
    ] {
        assert_eq!(calls.call(&refused), OUT_OF_MEMORY, "{refused}");
        assert_eq!(held(), 0, "{refused}");
    }
    calls.ok(&format!("cuMemAlloc &block {MIB}"));
    assert_eq!(held(), MIB);
    calls.ok("cuMemFree $block");
    assert_eq!(held(), 0);
    calls.ok("cuMemAllocPitch &rows &pitch 1000 100 4");
    let pitch = calls.get("pitch");
    assert!(pitch > 1000);
    assert_eq!(held(), 100 * pitch, "the charge does not include the padding");
    calls.ok("cuMemFree $rows");
    calls.put("plain", 0, 4, 4 * MIB);
    calls.put("deep", 4, 4, 1024);
    for (create, bytes) in [
        ("cuArrayCreate &array &plain", 4 * MIB),
        ("cuArray3DCreate &array &deep", 4 * MIB),
    ] {
        calls.ok(create);
        assert_eq!(held(), bytes, "{create}");
        calls.ok("cuArrayDestroy $array");
        assert_eq!(held(), 0, "{create}");
    }
    calls.ok(&format!("cuMemAllocHost &host {MIB}"));
    assert_eq!(dir.key("memory.stat", "host"), MIB);
    calls.ok("cuMemFreeHost $host");
    calls.ok("cuMemAlloc &block 4096");
    calls.ok("cuMemGetInfo &free &total");
    assert_eq!(calls.get("free"), 8 * MIB - 4096);
    assert_eq!(calls.get("total"), 8 * MIB);
}
