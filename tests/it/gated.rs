//! Tests each function that the coverage report lists as gated: a freeze holds it and a thaw passes it to the
//! driver. Functions that must not be held are not.

use std::collections::BTreeMap;
use std::process::Command;

use support::{Config, Governed, Mount, c_program, repository, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;

/// Returns the names below a heading of `hook/COVERAGE.md`.
fn reported(heading: &str) -> Vec<String> {
    let report = std::fs::read_to_string(repository().join("hook/COVERAGE.md")).unwrap();
    report
        .lines()
        .skip_while(|line| *line != format!("## {heading}"))
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("- ").map(str::to_owned))
        .collect()
}

fn start(command: impl FnOnce(&std::path::Path) -> Command) -> Governed {
    let mut program = Governed::spawn(command(&c_program("at_once.c", &["-ldl", "-pthread"])));
    program.expect("ready");
    program
}

/// Returns the results of `count` calls by function name.
fn answers(program: &mut Governed, count: usize) -> BTreeMap<String, i32> {
    let lines = std::iter::from_fn(|| program.line()).filter(|line| !line.starts_with("called "));
    lines
        .take(count)
        .map(|line| {
            let (name, code) = line.split_once(' ').expect("two words");
            (name.to_owned(), code.parse().expect("a code"))
        })
        .collect()
}

#[test]
fn each_gated_function_is_held_released_and_counted() {
    let mount = Mount::new();
    let names = reported("gated");
    assert!(names.len() > 100, "{names:?}");
    let mut program = start(|path| mount.command(path));
    let dir = Dir::of(&mount, program.pid());
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || {
        dir.key("gcgroup.events", "frozen") == 1
    });
    for (before, name) in names.iter().enumerate() {
        program.say(name);
        program.expect(&format!("called {name}"));
        wait_until(&format!("{name} waits at the gate"), || {
            dir.key("compute.stat", "nr_frozen") == before as u64 + 1
        });
    }
    assert_eq!(program.line_now(), None, "a held call returned");
    dir.write("compute.freeze", 0);
    let governed = answers(&mut program, names.len());
    let mut bare = start(|path| mount.bare_command(path));
    names.iter().for_each(|name| bare.say(name));
    assert_eq!(governed, answers(&mut bare, names.len()));
    let made: Vec<_> = governed
        .iter()
        .filter(|(_, code)| **code == 0)
        .map(|(name, _)| name)
        .collect();
    let begins = |prefix: &str| made.iter().filter(|name| name.starts_with(prefix)).count();
    let (launches, graphs) = (begins("cuLaunch"), begins("cuGraphLaunch"));
    for (key, count) in [
        ("nr_launches", launches),
        ("nr_graphs", graphs),
        ("nr_copies", made.len() - launches - graphs),
    ] {
        assert_eq!(dir.key("compute.stat", key), count as u64, "{key}");
    }
}

#[test]
fn freeze_holds_no_call_that_others_may_wait_for() {
    let mount = Mount::new();
    let mut program = start(|path| mount.command(path));
    let dir = Dir::of(&mount, program.pid());
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || {
        dir.key("gcgroup.events", "frozen") == 1
    });
    for name in [
        "cuSignalExternalSemaphoresAsync",
        "cuSignalExternalSemaphoresAsync_ptsz",
        "cuWaitExternalSemaphoresAsync",
        "cuWaitExternalSemaphoresAsync_ptsz",
        "cuEventRecord",
        "cuEventRecord_ptsz",
        "cuStreamWaitEvent",
        "cuStreamWriteValue32_v2",
        "cuStreamBatchMemOp_v2",
        "cuGraphUpload",
        "cuStreamQuery",
        "cuEventQuery",
    ] {
        program.say(name);
        program.expect(&format!("{name} "));
    }
    assert_eq!(dir.key("compute.stat", "nr_frozen"), 0);
}

#[test]
fn call_without_context_is_held_on_its_streams_device() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid()).gpu(1);
    for call in [
        "cuCtxCreate_v2 &second 0 1",
        "cuMemAlloc_v2 &block 4096",
        "cuStreamCreate &stream 1",
        "cuGraphCreate &empty 0",
        "cuGraphInstantiateWithFlags &exec $empty 0",
    ] {
        calls.ok(call);
    }
    let set = "apart cuMemsetD8Async $block 7 4096 $stream";
    for (round, launch) in (1..).zip([set, "apart cuGraphLaunch $exec $stream"]) {
        dir.write("compute.freeze", 1);
        wait_until("the process is frozen and drained", || dir.is_frozen());
        calls.tell(launch);
        wait_until("the call waits at the gate", || {
            dir.key("compute.stat", "nr_frozen") == round
        });
        dir.write("compute.freeze", 0);
        assert_eq!(calls.line(), "ok");
        assert_eq!(calls.ask(launch), "ok");
    }
    let counts = ["nr_copies", "nr_graphs"].map(|key| dir.key("compute.stat", key));
    assert_eq!(counts, [2, 2]);
}

#[test]
fn capture_on_per_thread_default_stream_is_not_counted() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok("cuMemAlloc_v2 &block 4096");
    calls.ok("cuGraphCreate &empty 0");
    calls.ok("cuGraphInstantiateWithFlags &exec $empty 0");
    let counts = || ["nr_launches", "nr_graphs", "nr_copies"].map(|key| dir.key("compute.stat", key));
    let before = counts();
    calls.ok("cuStreamBeginCapture_v2_ptsz 0 0");
    calls.ok("cuMemsetD8Async_ptsz $block 7 4096 0");
    calls.ok("cuGraphLaunch_ptsz $exec 0");
    calls.ok("cuStreamEndCapture_ptsz 0 &graph");
    assert_eq!(counts(), before);
    calls.ok("cuGraphLaunch_ptsz $exec 0");
    assert_eq!(counts(), [before[0], before[1] + 1, before[2]]);
}

#[test]
fn captured_calls_are_held_and_counted_only_at_launch() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok("cuMemAlloc_v2 &block 4096");
    calls.ok("cuMemAllocManaged &managed 4096 1");
    calls.ok("cuStreamCreate &stream 1");
    let counts =
        || ["nr_launches", "nr_graphs", "nr_copies", "nr_frozen"].map(|key| dir.key("compute.stat", key));
    let before = counts();
    calls.ok("cuStreamBeginCapture_v2 $stream 0");
    dir.write("compute.freeze", 1);
    calls.ok("cuMemsetD8Async $block 7 4096 $stream");
    calls.ok("cuMemcpyAsync $block $block 4096 $stream");
    calls.ok("cuMemPrefetchAsync $managed 4096 $device $stream");
    // The freeze waits for the end of the capture, which itself never waits for other work.
    assert!(!dir.is_frozen());
    calls.ok("cuStreamEndCapture $stream &graph");
    wait_until("the process is frozen and drained", || dir.is_frozen());
    calls.ok("cuGraphInstantiateWithFlags &exec $graph 0");
    calls.ok("cuGraphUpload $exec $stream");
    assert_eq!(counts(), before);
    calls.tell("call cuGraphLaunch $exec $stream");
    wait_until("the launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") == before[3] + 1
    });
    dir.write("compute.freeze", 0);
    assert_eq!(calls.line(), "ok");
    let [launches, graphs, copies, _] = counts();
    assert_eq!([launches, graphs, copies], [before[0], before[1] + 1, before[2]]);
}
