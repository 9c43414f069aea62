//! Tests memory of graphs: charged when it is reserved, before a launch uses it.

use support::{Config, Mount, Truth};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;
use crate::memory_model::Random;

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

/// Graphs share their memory as long as it is not in use. Some leave what they have allocated: then the next
/// one cannot have it, although both have run before.
#[test]
fn graphs_get_what_a_card_of_the_limits_size_gives() {
    const LIMIT: u64 = 256 * MIB;
    const GRAPHS: u64 = 8;
    const STREAMS: u64 = 2;
    let config = || Config::default().env("SIMGPU_CONTEXT_MEMORY", 8 * MIB);
    let mount = Mount::with(config());
    let card = Mount::with(config().env("SIMGPU_MEMORY", LIMIT));
    let mut sides = [Calls::start(&mount), Calls::start_bare(&card)];
    Dir::of(&mount, sides[0].pid()).write("memory.limit", LIMIT);
    let mut random = Random(0x5eed);
    for calls in &mut sides {
        (0..STREAMS).for_each(|stream| calls.ok(&format!("cuStreamCreate &stream{stream} 1")));
    }
    for graph in 0..GRAPHS {
        let bytes = 1 + random.below(200 * MIB);
        for calls in &mut sides {
            calls.ok("cuStreamBeginCapture_v2 $stream0 0");
            calls.ok(&format!("cuMemAllocAsync &block{graph} {bytes} $stream0"));
            if graph % 2 == 0 {
                calls.ok(&format!("cuMemFreeAsync $block{graph} $stream0"));
            }
            calls.ok("cuStreamEndCapture $stream0 &graph");
            calls.ok(&format!("cuGraphInstantiateWithFlags &exec{graph} $graph 0"));
        }
    }
    let (mut nr_granted, mut nr_refused) = (0, 0);
    let mut left: Vec<u64> = Vec::new();
    for step in 0..1000 {
        let (graph, stream) = (random.below(GRAPHS), random.below(STREAMS));
        let call = match left.iter().position(|block| *block == graph) {
            _ if random.below(8) == 0 => "cuDeviceGraphMemTrim 0".to_owned(),
            Some(at) => {
                left.swap_remove(at);
                format!("cuMemFreeAsync $block{graph} $stream{stream}")
            }
            None => format!("cuGraphLaunch $exec{graph} $stream{stream}"),
        };
        let [of_limited, of_card] = sides.each_mut().map(|calls| {
            let answer = calls.call(&call);
            calls.ok("cuCtxSynchronize");
            answer
        });
        assert_eq!(of_limited, of_card, "step {step}: {call}");
        let used = mount.truth().used(sides[0].pid(), 0);
        assert!(used <= LIMIT, "step {step}: {call}: {used}");
        if call.starts_with("cuGraphLaunch") {
            if of_card.is_ok() && graph % 2 == 1 {
                left.push(graph);
            }
            nr_granted += u32::from(of_card.is_ok());
            nr_refused += u32::from(of_card == OUT_OF_MEMORY);
        }
    }
    assert!(
        nr_granted > 100 && nr_refused > 50,
        "{nr_granted} granted, {nr_refused} refused"
    );
}

/// A graph whose memory another one uses waits for that one.
#[test]
fn launch_at_the_limit_waits_for_the_graph_before_it() {
    const CONTEXT: u64 = 8 * MIB;
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", CONTEXT));
    let mut calls = Calls::start(&mount);
    calls.ok("cuStreamCreate &stream 1");
    for graph in 0..2 {
        calls.ok("cuStreamBeginCapture_v2 $stream 0");
        calls.ok(&format!("cuMemAllocAsync &block {} $stream", 40 * MIB));
        // Takes some time, as work of a real graph does.
        calls.ok(&format!("cuMemsetD8Async $block 0 {} $stream", 40 * MIB));
        calls.ok("cuMemFreeAsync $block $stream");
        calls.ok("cuStreamEndCapture $stream &graph");
        calls.ok(&format!("cuGraphInstantiateWithFlags &exec{graph} $graph 0"));
    }
    Dir::of(&mount, calls.pid()).write("memory.limit", CONTEXT + 60 * MIB);
    for round in 0..100 {
        calls.ok(&format!("cuGraphLaunch $exec{} $stream", round % 2));
    }
    calls.ok("cuStreamSynchronize $stream");
    assert_eq!(mount.truth().peak(calls.pid(), 0), CONTEXT + 40 * MIB);
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
