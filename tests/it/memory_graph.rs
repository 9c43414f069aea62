//! Tests memory of graphs: charged when it is reserved, before a launch uses it.

use support::{Config, Mount, Truth};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
const MEM_ALLOC: u64 = 10;

/// Makes `graph` with a node that allocates `bytes`. In the parameters of `cuGraphAddNode` those of the node
/// follow its type and padding.
fn graph_of(calls: &mut Calls, bytes: u64, way: &str) {
    calls.ok("cuGraphCreate &graph 0");
    let at = if way == "cuGraphAddMemAllocNode" { 0 } else { 16 };
    // Pool properties: pinned memory on device 0.
    calls.put("params", 0, 4, MEM_ALLOC);
    calls.put("params", at, 4, 1);
    calls.put("params", at + 8, 4, 1);
    calls.put("params", at + 104, 8, bytes);
    let dependencies = if way.ends_with("_v2") || way.ends_with("_v3") {
        "0 0 0"
    } else {
        "0 0"
    };
    calls.ok(&format!("{way} &node $graph {dependencies} &params"));
}

/// Makes `graph` from captured calls that allocate and free `bytes`.
fn captured(calls: &mut Calls, bytes: u64) {
    calls.ok("cuStreamCreate &stream 1");
    calls.ok("cuStreamBeginCapture_v2 $stream 0");
    calls.ok(&format!("cuMemAllocAsync &block {bytes} $stream"));
    calls.ok("cuMemFreeAsync $block $stream");
    calls.ok("cuStreamEndCapture $stream &graph");
}

/// Shared memory stays charged after its free until a look at the process, in which nothing may be unsettled.
#[test]
fn launch_is_granted_the_room_of_shared_memory_that_was_freed() {
    const CONTEXT: u64 = 8 * MIB;
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", CONTEXT));
    let mut calls = Calls::start(&mount);
    captured(&mut calls, 40 * MIB);
    calls.ok("cuGraphInstantiateWithFlags &exec $graph 0");
    Dir::of(&mount, calls.pid()).write("memory.limit", CONTEXT + 60 * MIB);
    for _ in 0..3 {
        calls.ok(&format!("cuMemAlloc_v2 &shared {}", 50 * MIB));
        calls.ok("cuIpcGetMemHandle &handle $shared");
        calls.ok("cuMemFree_v2 $shared");
        calls.ok("cuGraphLaunch $exec $stream");
        calls.ok("cuStreamSynchronize $stream");
        calls.ok("cuDeviceGraphMemTrim 0");
    }
}

#[test]
fn graph_launch_charges_reservation_and_trim_uncharges() {
    let mount = Mount::new();
    let truth = Truth::of(&mount.simgpu_dir());
    for way in [
        "cuGraphAddMemAllocNode",
        "cuGraphAddNode",
        "cuGraphAddNode_v2",
        "cuGraphAddNode_v3",
        "captured",
    ] {
        let mut calls = Calls::start(&mount);
        let dir = Dir::of(&mount, calls.pid());
        match way {
            "captured" => captured(&mut calls, 40 * MIB),
            _ => {
                graph_of(&mut calls, 40 * MIB, way);
                calls.ok("cuStreamCreate &stream 1");
            }
        }
        calls.ok("cuGraphInstantiateWithFlags &exec $graph 0");
        assert_eq!(
            dir.number("memory.current"),
            0,
            "{way}: instantiation charged memory"
        );
        calls.ok("cuGraphLaunch $exec $stream");
        calls.ok("cuStreamSynchronize $stream");
        assert_eq!(dir.key("memory.stat", "graph"), 40 * MIB, "{way}");
        assert_eq!(
            dir.key("memory.stat", "pool"),
            0,
            "{way}: graph memory is charged as pool memory"
        );
        assert_eq!(dir.number("memory.current"), 40 * MIB, "{way}");
        if way == "captured" {
            // A second launch at the limit succeeds because its room is already reserved.
            dir.write("memory.limit", 40 * MIB);
            calls.ok("cuGraphLaunch $exec $stream");
            calls.ok("cuGraphLaunch $exec $stream");
            calls.ok("cuStreamSynchronize $stream");
            assert_eq!(dir.number("memory.current"), 40 * MIB);
        } else {
            calls.ok("cuGraphMemAllocNodeGetParams $node &params");
            let address = calls.ask("get params 112 8");
            calls.ok(&format!("cuMemFree_v2 {address}"));
        }
        calls.ok("cuGraphExecDestroy $exec");
        assert_eq!(
            dir.number("memory.current"),
            40 * MIB,
            "{way}: reserved graph memory is uncharged"
        );
        calls.ok("cuDeviceGraphMemTrim 0");
        assert_eq!(dir.number("memory.current"), 0, "{way}");
        assert_eq!(truth.used(calls.pid(), 0), 0, "{way}");
        assert_eq!(dir.number("memory.peak"), 40 * MIB, "{way}");
    }
}

#[test]
fn graph_launch_over_limit_is_refused_uncharged() {
    let mount = Mount::new();
    let truth = Truth::of(&mount.simgpu_dir());
    for launch in ["cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphUpload"] {
        let mut calls = Calls::start(&mount);
        let dir = Dir::of(&mount, calls.pid());
        captured(&mut calls, 40 * MIB);
        calls.ok("cuGraphInstantiateWithFlags &exec $graph 0");
        dir.write("memory.limit", 40 * MIB - 1);
        assert_eq!(calls.call(&format!("{launch} $exec $stream")), OUT_OF_MEMORY);
        assert_eq!(truth.used(calls.pid(), 0), 0);
        assert_eq!(dir.number("memory.current"), 0);
        assert_eq!(dir.key("memory.events", "oom"), 1);
        dir.write("memory.limit", 40 * MIB);
        calls.ok(&format!("{launch} $exec $stream"));
        calls.ok("cuStreamSynchronize $stream");
        // Reserved memory that no graph uses is released for other allocations.
        calls.ok(&format!("cuMemAlloc_v2 &block {}", 40 * MIB));
        assert_eq!(dir.key("memory.stat", "graph"), 0);
        assert_eq!(
            calls.call(&format!("{launch} $exec $stream")),
            OUT_OF_MEMORY,
            "the trimmed graph memory was reused"
        );
        assert_eq!(dir.number("memory.current"), 40 * MIB);
        calls.ok("cuMemFree_v2 $block");
        calls.ok(&format!("{launch} $exec $stream"));
        calls.ok("cuStreamSynchronize $stream");
        assert!(dir.number("memory.peak") <= 40 * MIB);
    }
}

#[test]
fn launch_of_deeply_nested_allocation_over_limit_is_refused() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    captured(&mut calls, 40 * MIB);
    for _ in 0..40 {
        calls.ok("cuGraphCreate &outer 0");
        calls.ok("cuGraphAddChildGraphNode &node $outer 0 0 $graph");
        let outer = calls.get("outer");
        calls.put("graph", 0, 8, outer);
    }
    calls.ok("cuGraphInstantiateWithFlags &exec $graph 0");
    Dir::of(&mount, calls.pid()).write("memory.limit", 40 * MIB - 1);
    assert_eq!(calls.call("cuGraphLaunch $exec $stream"), OUT_OF_MEMORY);
    assert_eq!(mount.truth().peak(calls.pid(), 0), 0);
}

#[test]
fn frozen_launch_of_an_allocating_graph_waits() {
    let mount = Mount::with(Config::default());
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    captured(&mut calls, 4 * MIB);
    calls.ok("cuGraphInstantiateWithFlags &exec $graph 0");
    dir.write("compute.freeze", 1);
    support::wait_until("the process is frozen and drained", || dir.is_frozen());
    calls.tell("call cuGraphLaunch $exec $stream");
    support::wait_until("the graph launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") == 1
    });
    assert_eq!(dir.key("compute.stat", "nr_graphs"), 0);
    dir.write("compute.freeze", 0);
    assert_eq!(calls.line(), "ok");
    assert_eq!(dir.key("compute.stat", "nr_graphs"), 1);
    assert_eq!(dir.key("memory.stat", "graph"), 4 * MIB);
}
