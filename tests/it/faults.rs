//! Tests driver faults in calls of the program and of the hook: the program gets the driver's answer, as
//! without the library; charges match the allocations; no thread hangs.

use simgpu::Held;
use support::{Config, Mount, Truth, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;
use crate::nvml::{self, Nvml};

const MIB: u64 = 1 << 20;
/// Error code of injected faults. The simulated driver never returns it by itself.
const FAULT: u32 = 46;

/// Every call that charges memory, with its arguments.
const CHARGED: &[&str] = &[
    "cuMemAlloc_v2 &a 4096",
    "cuMemAllocPitch_v2 &a &pitch 1000 10 4",
    "cuMemAllocManaged &a 4096 1",
    "cuMemAllocAsync &a 4096 0",
    "cuMemAllocFromPoolAsync &a 4096 $pool 0",
    "cuMemCreate &a 2097152 &props 0",
    "cuArrayCreate_v2 &a &flat",
    "cuArray3DCreate_v2 &a &deep",
    "cuMipmappedArrayCreate &a &deep 2",
    "cuMemHostAlloc &a 4096 0",
    "cuMemAllocHost_v2 &a 4096",
    "cuMemHostRegister_v2 &a 512 0",
];

/// Every use of memory from allocation to release. Each call is answered, whichever one is made to fail.
const LIFE: &[&str] = &[
    "cuStreamCreate &stream 1",
    "cuMemPoolCreate &pool &props",
    "cuMemAddressReserve &range 33554432 0 0 0",
    "cuMemAlloc_v2 &linear 4096",
    "cuMemAllocPitch_v2 &pitched &pitch 1000 10 4",
    "cuMemAllocManaged &managed 4096 1",
    "cuMemAllocAsync &async 4096 0",
    "cuMemAllocAsync &other 5000000 $stream",
    "cuMemAllocFromPoolAsync &pooled 4096 $pool $stream",
    "cuMemCreate &handle 2097152 &props 0",
    "cuMemMap $range 2097152 0 $handle 0",
    "cuMemRetainAllocationHandle &retained $range",
    "cuArrayCreate_v2 &array &flat",
    "cuArray3DCreate_v2 &array3 &deep",
    "cuMipmappedArrayCreate &mipmapped &deep 2",
    "cuMemHostAlloc &host 4096 0",
    "cuMemGetInfo_v2 &free &total",
    "cuMemsetD8Async $linear 1 4096 $stream",
    "cuMemcpyDtoDAsync_v2 $pitched $linear 100 0",
    "cuMemFree_v2 $linear",
    "cuMemFree_v2 $pitched",
    "cuMemFree_v2 $managed",
    "cuMemFreeAsync $async 0",
    "cuMemFreeAsync $other $stream",
    "cuMemFreeAsync $pooled $stream",
    "cuMemPoolTrimTo $pool 0",
    "cuMemUnmap $range 2097152",
    "cuMemRelease $handle",
    "cuMemRelease $retained",
    "cuArrayDestroy $array",
    "cuArrayDestroy $array3",
    "cuMipmappedArrayDestroy $mipmapped",
    "cuMemFreeHost $host",
    "cuStreamSynchronize $stream",
    "cuStreamDestroy_v2 $stream",
    "cuMemPoolDestroy $pool",
    "cuCtxSynchronize",
];

/// Returns the functions of the driver (`cu`) or of NVML (`nvml`) that the hook itself calls: the rows of its
/// list.
fn own_calls(library: &str) -> Vec<String> {
    let list = std::fs::read_to_string(support::repository().join("hook/src/driver/functions.rs"))
        .expect("the file exists");
    let rows = list
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("fn "));
    let names = rows.filter_map(|row| row.split('(').next());
    let names: Vec<String> = names
        .filter(|name| name.starts_with(library))
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 10, "the names are incomplete: {names:?}");
    names
}

/// Fills the descriptor variables used by the calls above.
fn describe(calls: &mut Calls) {
    for (variable, offset, size, value) in [
        ("props", 0, 4, 1),
        ("props", 8, 4, 1),
        ("flat", 0, 8, 256),
        ("flat", 8, 8, 16),
        ("flat", 16, 4, 1),
        ("flat", 20, 4, 1),
        ("deep", 0, 8, 64),
        ("deep", 8, 8, 64),
        ("deep", 24, 4, 1),
        ("deep", 28, 4, 1),
    ] {
        calls.put(variable, offset, size, value);
    }
}

/// Starts a program with the variables that the calls above use and with injected faults. Results of the
/// setup calls are ignored.
fn start(mount: &Mount, faults: &str, is_governed: bool) -> Calls {
    let mut calls = Calls::with(mount, is_governed, &[("SIMGPU_FAULTS", faults)]);
    for call in [
        "cuInit 0",
        "cuDevicePrimaryCtxRetain &context 0",
        "cuCtxSetCurrent $context",
    ] {
        let _ = calls.call(call);
    }
    describe(&mut calls);
    calls
}

#[test]
fn failed_allocation_returns_error_and_is_not_charged() {
    let mount = Mount::new();
    for call in CHARGED {
        let name = call.split(' ').next().expect("a name");
        // The hook first makes an array without memory to learn its size.
        let is_tried = ["cuArray3DCreate_v2", "cuMipmappedArrayCreate"].contains(&name);
        let first = if is_tried { 3 } else { 2 };
        let mut calls = start(&mount, &format!("{name}={FAULT}@{first}+"), true);
        let dir = Dir::of(&mount, calls.pid());
        calls.ok("cuMemPoolCreate &pool &props");
        // The first call succeeds, so that there is state that could become wrong.
        calls.ok(call);
        let files = ["memory.current", "memory.peak"];
        let before = files.map(|file| dir.number(file));
        let (failed, stat) = (dir.key("memory.stat", "nr_alloc_fail"), dir.read("memory.stat"));
        for failure in 1..=5 {
            assert_eq!(calls.call(call), Err(FAULT), "{call}");
            assert_eq!(
                files.map(|file| dir.number(file)),
                before,
                "charges changed after {failure} failures of {call}\n{stat}"
            );
        }
        if !call.contains("Host") {
            assert_eq!(dir.key("memory.stat", "nr_alloc_fail"), failed + 5, "{call}");
        }
    }
}

#[test]
fn program_survives_failure_of_any_call_of_the_hook() {
    let mount = Mount::new();
    let truth = Truth::of(&mount.simgpu_dir());
    for name in own_calls("cu") {
        let faults = format!("{name}={FAULT}");
        let (mut governed, mut bare) = (start(&mount, &faults, true), start(&mount, &faults, false));
        for call in LIFE {
            assert_eq!(
                governed.call(call),
                bare.call(call),
                "{call} differs while {name} fails"
            );
        }
        let pid = governed.pid();
        let dir = Dir::of(&mount, pid);
        if !dir.exists() {
            assert_eq!(name, "cuInit", "the program is not governed while {name} fails");
            continue;
        }
        for (key, kind) in [
            ("linear", Held::Linear),
            ("managed", Held::Managed),
            ("array", Held::Array),
            ("vmm", Held::Physical),
        ] {
            let (told, is) = (dir.key("memory.stat", key), truth.held(pid, 0, kind));
            assert!(
                told <= is,
                "{told} bytes {key} are charged, {is} are held, while {name} fails"
            );
        }
        // Whether or not draining can be reported, the process is held and released.
        dir.write("compute.freeze", 1);
        governed.tell("call cuMemcpyDtoD_v2 0 0 0");
        dir.write("compute.freeze", 0);
        let bare = bare.ask("call cuMemcpyDtoD_v2 0 0 0");
        assert_eq!(
            governed.line(),
            bare,
            "the call after a freeze differs while {name} fails"
        );
    }
}

#[test]
fn failed_free_leaves_memory_charged() {
    let mount = Mount::new();
    for (make, free, size) in [
        ("cuMemAlloc_v2 &a 4096", "cuMemFree_v2 $a", 4096),
        ("cuMemAllocManaged &a 4096 1", "cuMemFree_v2 $a", 4096),
        ("cuMemCreate &a 2097152 &props 0", "cuMemRelease $a", 2 * MIB),
        ("cuArrayCreate_v2 &a &flat", "cuArrayDestroy $a", 64 << 10),
    ] {
        let name = free.split(' ').next().expect("a name");
        // The hook makes and destroys an array without memory first, to learn the array's size.
        let at = if name == "cuArrayDestroy" { 2 } else { 1 };
        let mut calls = start(&mount, &format!("{name}={FAULT}@{at}"), true);
        let dir = Dir::of(&mount, calls.pid());
        calls.ok(make);
        assert_eq!(dir.number("memory.current"), size, "{make}");
        assert_eq!(calls.call(free), Err(FAULT));
        assert_eq!(
            dir.number("memory.current"),
            size,
            "the failed {free} changed the charge"
        );
        calls.ok(free);
        assert_eq!(dir.number("memory.current"), 0, "{free}");
    }
}

#[test]
fn freeze_with_failing_markers_is_never_falsely_reported() {
    let mount = Mount::new();
    for name in ["cuEventCreate", "cuEventRecord", "cuEventQuery"] {
        let mut calls = start(&mount, &format!("{name}={FAULT}@1"), true);
        let dir = Dir::of(&mount, calls.pid());
        calls.ok("cuMemAlloc_v2 &a 4096");
        calls.ok("cuMemsetD8_v2 $a 1 4096");
        // The first marker fails; the next does not.
        dir.write("compute.freeze", 1);
        wait_until("the process is frozen and drained despite the fault", || {
            dir.is_frozen()
        });
        calls.tell("call cuMemsetD8_v2 $a 2 4096");
        wait_until("the launch waits at the gate", || {
            dir.key("compute.stat", "nr_frozen") == 1
        });
        dir.write("compute.freeze", 0);
        assert_eq!(calls.line(), "ok", "{name}");
    }
}

/// Calls that allocate 8 MiB of device memory each, in every way, and what they need.
const GREEDY: &[&str] = &[
    "cuMemAlloc_v2 &a 8388608",
    "cuMemAllocPitch_v2 &a &pitch 1000 8192 4",
    "cuMemAllocManaged &a 8388608 1",
    "cuMemAllocAsync &a 8388608 0",
    "cuMemAllocAsync &a 8388608 $stream",
    "cuMemAllocFromPoolAsync &a 8388608 $pool $stream",
    "cuMemCreate &a 8388608 &props 0",
    "cuArray3DCreate_v2 &a &large",
    "cuMipmappedArrayCreate &a &large 2",
];

/// Allocates in a graph, which keeps the memory.
const GRAPH: &[&str] = &[
    "cuStreamBeginCapture_v2 $stream 0",
    "cuMemAllocAsync &a 8388608 $stream",
    "cuStreamEndCapture $stream &graph",
    "cuGraphInstantiateWithFlags &exec $graph 0",
    "cuGraphLaunch $exec $stream",
];

/// Takes 8 MiB for modules, for libraries and for stacks.
const GROWING: [&[&str]; 5] = [
    &["cuModuleLoadData &module &code"],
    &[
        "cuModuleLoadData &module &code",
        "cuModuleGetFunction &function $module &entry",
    ],
    &[
        "cuLibraryLoadData &library &code 0 0 0 0 0 0",
        "cuLibraryGetKernel &kernel $library &entry",
    ],
    &[
        "cuLibraryLoadData &library &code 0 0 0 0 0 0",
        "cuLibraryGetModule &module $library",
    ],
    &["cuCtxCreate_v2 &other 0 0", "cuCtxSetLimit 2 16777216"],
];

/// Frees 8 MiB on a stream that waits for `word` and is destroyed.
const DESTROYED: &[&str] = &[
    "cuStreamCreate &gone 1",
    "cuMemAlloc_v2 &a 8388608",
    "cuStreamWaitValue32_v2 $gone $word 1 0",
    "cuMemFreeAsync $a $gone",
    "cuStreamDestroy_v2 $gone",
];

#[test]
fn limit_holds_while_any_call_of_the_hook_fails() {
    const LIMIT: u64 = 256 * MIB;
    /// Growth step of the simulated driver's pools.
    const STEP: u64 = 32 * MIB;
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let truth = Truth::of(&mount.simgpu_dir());
    let mut exceeded = Vec::new();
    for name in own_calls("cu") {
        let mut calls = Calls::with(
            &mount,
            true,
            &[
                ("SIMGPU_FAULTS", &format!("{name}={FAULT}")),
                ("GCGROUP_MEMORY_LIMIT", &LIMIT.to_string()),
            ],
        );
        for call in [
            "cuInit 0",
            "cuDevicePrimaryCtxRetain &context 0",
            "cuCtxSetCurrent $context",
            "cuStreamCreate &stream 1",
        ] {
            let _ = calls.call(call);
        }
        describe(&mut calls);
        calls.put("large", 0, 8, 1024);
        calls.put("large", 8, 8, 2048);
        calls.put("large", 24, 4, 0x20);
        calls.put("large", 28, 4, 1);
        let _ = calls.call("cuMemPoolCreate &pool &props");
        let pid = calls.pid();
        for call in ["cuMemAlloc_v2 &word 4", "cuMemsetD32_v2 $word 0 1"] {
            let _ = calls.call(call);
        }
        for _ in 0..40 {
            // Not on a default stream, if none was made.
            let _ = DESTROYED.iter().try_for_each(|call| calls.call(call));
        }
        let used = truth.used(pid, 0);
        if used > LIMIT {
            exceeded.push(format!("{used} on destroyed streams while {name} fails"));
        }
        for call in ["cuMemsetD32_v2 $word 1 1", "cuCtxSynchronize"] {
            let _ = calls.call(call);
        }
        for call in GREEDY {
            for _ in 0..40 {
                let _ = calls.call(call);
            }
            let used = truth.used(pid, 0);
            if used > LIMIT + STEP {
                exceeded.push(format!("{used} by {call} while {name} fails"));
                break;
            }
        }
        for _ in 0..40 {
            for call in GRAPH {
                let _ = calls.call(call);
            }
        }
        let used = truth.used(pid, 0);
        if used > LIMIT + STEP {
            exceeded.push(format!("{used} with graphs while {name} fails"));
        }
    }
    assert_eq!(exceeded, [""; 0]);
}

#[test]
fn modules_exceed_no_limit_while_any_call_of_the_hook_fails() {
    const LIMIT: u64 = 64 * MIB;
    const CODE: u64 = 8 * MIB;
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let truth = mount.truth();
    let mut exceeded = Vec::new();
    for (at, name) in own_calls("cu").iter().enumerate() {
        let environment = [
            ("SIMGPU_FAULTS", &*format!("{name}={FAULT}")),
            ("SIMGPU_CODE_SIZE", &CODE.to_string()),
            ("GCGROUP_MEMORY_LIMIT", &LIMIT.to_string()),
        ];
        let mut calls = Calls::with(&mount, true, &environment);
        let code = ".version 7.8\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n\0";
        for (variable, text) in [("code", code), ("entry", "nothing\0")] {
            let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
            calls.fill(variable, &hex);
        }
        let _ = calls.call("cuInit 0");
        let contexts = GROWING
            .iter()
            .map(|growing| ("cuCtxCreate_v2 &context 0 0", growing));
        // Each way in a context of its own, and one of them in the primary context, which stays.
        let primary = (
            "cuDevicePrimaryCtxRetain &primary 0",
            &GROWING[at % GROWING.len()],
        );
        for (make, growing) in contexts.chain([primary]) {
            if make == primary.0 {
                let _ = calls
                    .call(make)
                    .and_then(|()| calls.call("cuCtxSetCurrent $primary"));
            } else {
                let _ = calls.call(make);
            }
            for _ in 0..10 {
                let _ = growing.iter().try_for_each(|call| calls.call(call));
            }
            let used = truth.used(calls.pid(), 0);
            if used > LIMIT + 2 * CODE {
                exceeded.push(format!("{used} by {growing:?} while {name} fails"));
            }
            let _ = calls.call("cuCtxDestroy_v2 $context");
        }
    }
    assert_eq!(exceeded, [""; 0]);
}

#[test]
fn limit_and_devices_hold_while_any_nvml_call_of_the_hook_fails() {
    const LIMIT: u64 = 64 * MIB;
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_CONTEXT_MEMORY", 0),
    );
    std::fs::create_dir(mount.path().join("group")).expect("a group");
    mount.write("group", "gcgroup.devices", "1");
    for name in own_calls("nvml") {
        let mut command = mount.command(nvml::program());
        command
            .env("SIMGPU_FAULTS", format!("{name}={FAULT}"))
            .env("GCGROUP_GROUP", "group")
            .env("GCGROUP_MEMORY_LIMIT", LIMIT.to_string());
        let mut program = Nvml::spawn(command);
        assert_eq!(program.ask("cuda"), [nvml::SUCCESS], "{name}");
        let whole = [0; 2].map(|_| program.0.ask(&format!("alloc 0 {}", 40 * MIB)));
        assert_eq!(whole.map(|answer| answer == "0"), [true, false], "{name}");
        let pid = program.0.pid();
        let used = [0, 1].map(|device| mount.truth().used(pid, device));
        assert!(
            used[0] == 0 && used[1] <= LIMIT,
            "{used:?} are used while {name} fails"
        );
        for version in [1, 2] {
            let memory = program.0.ask(&format!("memory 0 {version}"));
            let mut words = memory.split(' ');
            let is_shown = words.next() == Some("0");
            let total = words.next().and_then(|total| total.parse().ok());
            assert!(
                !is_shown || total == Some(LIMIT),
                "{memory} is shown while {name} fails"
            );
        }
        let count = program.0.ask("count");
        assert!(
            !count.starts_with("0 ") || ["0 0", "0 1"].contains(&&*count),
            "{count} GPUs while {name} fails"
        );
    }
}
