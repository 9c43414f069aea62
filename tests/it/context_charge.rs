//! Tests that contexts are charged when they are made: programs that allocate at once stay within limits that
//! hold from their start.
//!
//! `GCGROUP_CONTEXT_STARTS` starts of each kind (4 by default).

mod modules;

use std::path::PathBuf;
use std::sync::OnceLock;

use support::{Config, Governed, Mount, artifacts, c_program, wait_until};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::contended::program as program_of;
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 64 * MIB;
/// Size of the contexts that are larger than the estimate.
const LARGEST: u64 = 90 * MIB;
const LIMIT: u64 = 512 * MIB;
/// Priority of a process unless it is set.
const DEFAULT_PRIORITY: u32 = 8;
/// Small enough to find a missing charge, large enough to fill a limit soon.
const BLOCK: u64 = MIB;

fn program() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM
        .get_or_init(|| {
            let path = format!("-L{}", artifacts().simgpu().display());
            c_program("contexts.c", &[&path, "-lcuda"])
        })
        .clone()
}

fn mount() -> Mount {
    let config = Config::default().env("SIMGPU_DEVICES", 2);
    Mount::with(config.env("SIMGPU_CONTEXT_MEMORY", CONTEXT))
}

fn nr_starts() -> u64 {
    let starts = std::env::var("GCGROUP_CONTEXT_STARTS");
    starts.map_or(4, |text| text.parse().expect("a number"))
}

/// The environment of a program.
type Environment<'a> = &'a [(&'a str, &'a str)];

/// Starts a program with these steps.
fn start(mount: &Mount, environment: Environment<'_>, steps: &[&str]) -> Governed {
    let mut command = mount.command(program());
    command.envs(environment.iter().copied()).args(steps);
    Governed::spawn(command)
}

/// Waits until a program has made its steps; returns its numbers of contexts and blocks, and what was free.
fn done(program: &mut Governed) -> [u64; 3] {
    let line = program.expect("done ");
    let numbers = line.split(' ').skip(1).map(|word| word.parse().expect(&line));
    numbers.collect::<Vec<_>>().try_into().expect("three numbers")
}

/// Checks that neither the account nor the GPUs show more than `limit` for these processes, but for `slack`:
/// what contexts take beyond the size of the last one.
#[track_caller]
fn check(mount: &Mount, directory: &str, pids: &[i32], (limit, slack): (u64, u64)) {
    let truth = mount.truth();
    let used: u64 = pids
        .iter()
        .map(|pid| truth.used(*pid, 0) + truth.used(*pid, 1))
        .sum();
    let current = || mount.number(directory, "memory.current", "");
    wait_until("all contexts are measured", || current() >= used);
    let current = current();
    assert!(used <= limit + slack, "{used} bytes are used, {current} charged");
    assert!(
        current <= limit + slack,
        "{current} bytes are charged, {used} used"
    );
    // The last block did not fit, perhaps beside the charge of a context that was refused afterwards.
    let context = if slack > 0 { LARGEST } else { CONTEXT };
    assert!(current > limit - BLOCK - context, "{current} bytes are charged");
}

/// Starts a program as often as wanted and checks it against its own limit.
fn start_often(mount: &Mount, sizes: &[&str], steps: &[&str]) {
    for number in 0..nr_starts() {
        let size = sizes[usize::try_from(number).expect("a few") % sizes.len()];
        let environment = [("GCGROUP_MEMORY_LIMIT", "512M"), ("SIMGPU_CONTEXT_SIZES", size)];
        let mut program = start(mount, &environment, steps);
        let _ = done(&mut program);
        let pid = program.pid();
        check(mount, &pid.to_string(), &[pid], (LIMIT, 0));
        program.finish();
    }
}

#[test]
fn program_that_allocates_at_once_stays_within_its_limit() {
    start_often(&mount(), &["64M"], &["p", "0", "f", "1048576"]);
}

#[test]
fn changed_size_of_contexts_is_charged_at_once() {
    start_often(&mount(), &["64M", "100M", "30M"], &["p", "0", "f", "1048576"]);
    start_often(&mount(), &["64M", "100M", "30M"], &["c", "1", "f", "1048576"]);
}

#[test]
fn contexts_of_different_sizes_fill_the_limit() {
    let mut steps = ["c", "0"].repeat(31);
    steps.extend(["f", "1048576"]);
    start_often(&mount(), &["7M,3M,11M", "20M,50M,40M"], &steps);
}

#[test]
fn contexts_on_two_gpus_share_the_limit() {
    let steps = ["p", "0", "p", "1", "f", "1048576", "c", "0", "f", "1048576"];
    start_often(&mount(), &["64M", "50M,70M"], &steps);
}

/// Fills a group with processes at once, as often as wanted.
fn fill_group(group: &str, limited: &[(&str, u64)], nr_processes: usize, steps: &[&str]) {
    let mount = mount();
    std::fs::create_dir_all(mount.path().join(group)).expect("a group can be made");
    for (directory, limit) in limited {
        mount.write(directory, "memory.limit", &limit.to_string());
    }
    for number in 0..nr_starts() {
        let size = ["64M", "64M", "20M", "90M"][usize::try_from(number).expect("a few") % 4];
        let environment = [("GCGROUP_GROUP", group), ("SIMGPU_CONTEXT_SIZES", size)];
        let all = (0..nr_processes).map(|_| start(&mount, &environment, steps));
        let mut all: Vec<Governed> = all.collect();
        let nr_contexts: u64 = all.iter_mut().map(|program| done(program)[0]).sum();
        assert!(nr_contexts > 0, "no context fits");
        let pids: Vec<i32> = all.iter().map(Governed::pid).collect();
        let (directory, limit) = limited[limited.len() - 1];
        let slack = if size == "90M" { nr_contexts * 70 * MIB } else { 0 };
        check(&mount, directory, &pids, (limit, slack));
        for (directory, limit) in limited {
            assert!(mount.number(directory, "memory.current", "") <= *limit + slack);
        }
        all.into_iter().for_each(|mut program| drop(program.finish()));
        wait_until("all processes have left", || {
            mount.number(group, "memory.current", "") == 0
        });
    }
}

#[test]
fn processes_of_a_group_stay_within_its_limit() {
    for nr_processes in [4, 8] {
        let steps = ["p", "0", "f", "1048576"];
        fill_group("team", &[("team", LIMIT)], nr_processes, &steps);
    }
}

#[test]
fn nested_limits_hold_for_contexts_on_two_gpus() {
    let limited = [("team", 2 * LIMIT), ("team/0", LIMIT), ("team/batch", LIMIT)];
    let steps = ["p", "0", "c", "1", "f", "1048576", "p", "0", "f", "1048576"];
    fill_group("team/batch", &limited, 4, &steps);
}

/// Starts a program in which no call has been made, with a limit of its own.
fn calls(mount: &Mount, limit: &str, environment: Environment<'_>) -> Calls {
    let limit = [("GCGROUP_MEMORY_LIMIT", limit)];
    let mut calls = Calls::with(mount, true, &[environment, &limit].concat());
    calls.ok("cuInit 0");
    calls
}

#[test]
fn context_larger_than_the_limit_is_refused_by_its_size_alone() {
    let mount = mount();
    let retain = "cuDevicePrimaryCtxRetain &context 0";
    // The second time, the size is known.
    for _ in 0..2 {
        let mut calls = calls(&mount, "60M", &[]);
        assert_eq!(calls.call(retain), OUT_OF_MEMORY);
        assert_eq!(mount.truth().used(calls.pid(), 0), 0);
        let dir = Dir::of(&mount, calls.pid());
        assert_eq!(dir.number("memory.current"), 0);
        assert_eq!(dir.key("memory.events", "oom"), 1);
    }
    // It has become smaller.
    let mut small = calls(&mount, "60M", &[("SIMGPU_CONTEXT_SIZES", "50M")]);
    small.ok(retain);
    assert_eq!(mount.number(small.pid(), "memory.current", ""), 50 * MIB);
}

/// Returns a mount where contexts take 512 MiB and 256 MiB are expected.
fn underestimated(quirk: &str) -> Mount {
    let config = Config::default().arg("--context-size").arg("268435456");
    let config = config.env("SIMGPU_CONTEXT_MEMORY", LIMIT);
    Mount::with(config.env("SIMGPU_QUIRKS", quirk))
}

/// Returns how many blocks of 2 MiB a program gets under a limit of 2 GiB, once `is_measured` holds.
fn nr_blocks(mount: &Mount, is_measured: impl Fn(&Dir) -> bool) -> u64 {
    let mut calls = calls(mount, "2G", &[]);
    calls.ok("cuDevicePrimaryCtxRetain &context 0");
    calls.ok("cuCtxSetCurrent $context");
    let dir = Dir::of(mount, calls.pid());
    wait_until("the context is measured", || is_measured(&dir));
    let mut nr = 0;
    while calls.call("cuMemAlloc_v2 &block 2097152").is_ok() {
        nr += 1;
    }
    nr
}

#[test]
fn context_of_unknown_size_leaves_the_rest_of_the_limit() {
    // The first allocations do not wait for the measurement.
    assert_eq!(nr_blocks(&underestimated(""), |_| true), 768);
    for quirk in ["nvml-zero", "nvml-missing", "nvml-late"] {
        let is_measured = |dir: &Dir| dir.key("memory.stat", "context") == LIMIT;
        assert_eq!(nr_blocks(&underestimated(quirk), is_measured), 768, "{quirk}");
    }
}

#[test]
fn estimate_stands_and_creation_waits_for_nothing_while_nvml_hangs() {
    let mount = underestimated("nvml-waits");
    std::fs::write(mount.simgpu_dir().join("nvml-waits"), "").expect("the machine's directory exists");
    let is_estimated = |dir: &Dir| dir.key("memory.stat", "context_estimated") == LIMIT / 2;
    assert_eq!(nr_blocks(&mount, is_estimated), 896);
    std::fs::remove_file(mount.simgpu_dir().join("nvml-waits")).expect("it exists");
}

#[test]
fn context_is_charged_without_a_daemon() {
    // Pages as a program assumes them without a daemon: a block charged by larger ones than the device takes
    // would be missing in the context's measured size.
    let page = (2 * MIB).to_string();
    let config = Config::default().env("SIMGPU_CONTEXT_MEMORY", CONTEXT);
    let mut mount = Mount::with(config.env("SIMGPU_PAGE", &page).arg("--device-page").arg(&page));
    mount.stop();
    let mut calls = calls(&mount, "300M", &[]);
    calls.ok("cuDevicePrimaryCtxRetain &context 0");
    calls.ok("cuCtxSetCurrent $context");
    calls.ok(&format!("cuMemAlloc_v2 &block {}", 44 * MIB));
    assert_eq!(calls.call("cuMemAlloc_v2 &block 1"), OUT_OF_MEMORY);
    mount.restart();
    wait_until("the daemon has measured the context", || {
        calls.call("cuMemAlloc_v2 &block 1").is_ok()
    });
    assert_eq!(mount.number(calls.pid(), "memory.stat", "context"), CONTEXT);
}

#[test]
fn contexts_are_measured_while_threads_allocate() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", CONTEXT)
            .arg("--context-size")
            .arg("0"),
    );
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.tell(&format!("churn 3 8 {MIB} 8"));
    wait_until("the context is measured", || {
        dir.key("memory.stat", "context") == CONTEXT
    });
    let _ = calls.line();
}

#[test]
fn primary_context_is_charged_while_it_is_retained() {
    let mount = mount();
    let retain = "cuDevicePrimaryCtxRetain &context 0";
    let mut calls = calls(&mount, "64M", &[]);
    calls.ok(retain);
    let dir = Dir::of(&mount, calls.pid());
    assert_eq!(dir.number("memory.current"), CONTEXT);
    assert_eq!(dir.number("memory.peak"), CONTEXT);
    assert_eq!(dir.key("memory.stat", "context"), CONTEXT);
    wait_until("the context is measured", || {
        dir.key("memory.stat", "context_estimated") == 0
    });
    assert_eq!(dir.key("memory.stat", "pinned_unswappable"), 0);
    calls.ok("cuCtxSetCurrent $context");
    assert_eq!(calls.call("cuMemAlloc_v2 &block 1"), OUT_OF_MEMORY);
    // The second holder makes no context.
    calls.ok(retain);
    calls.ok("cuDevicePrimaryCtxRelease_v2 0");
    assert_eq!(dir.number("memory.current"), CONTEXT);
    calls.ok("cuDevicePrimaryCtxRelease_v2 0");
    assert_eq!(dir.number("memory.current"), 0);
    calls.ok(retain);
    assert_eq!(dir.number("memory.current"), CONTEXT);
    calls.ok("cuDevicePrimaryCtxReset_v2 0");
    assert_eq!(dir.number("memory.current"), 0);
}

#[test]
fn created_context_without_room_is_destroyed_again() {
    let mount = mount();
    let mut calls = calls(&mount, "100M", &[]);
    calls.ok("cuCtxCreate_v2 &first 0 0");
    assert_eq!(calls.call("cuCtxCreate_v2 &second 0 0"), OUT_OF_MEMORY);
    assert_eq!(mount.truth().used(calls.pid(), 0), CONTEXT);
    let dir = Dir::of(&mount, calls.pid());
    assert_eq!(dir.number("memory.current"), CONTEXT);
    // The first one is current still.
    calls.ok(&format!("cuMemAlloc_v2 &block {}", 36 * MIB));
    calls.ok("cuCtxDestroy_v2 $first");
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(mount.truth().used(calls.pid(), 0), 0);
}

#[test]
fn green_contexts_are_charged_beside_their_primary_context() {
    const GREEN: u64 = 10 * MIB;
    let config = Config::default().env("SIMGPU_CONTEXT_MEMORY", CONTEXT);
    let mount = Mount::with(config.env("SIMGPU_GREEN_SIZE", GREEN));
    let mut program = program_of(&mount, DEFAULT_PRIORITY);
    let dir = Dir::of(&mount, program.pid());
    wait_until("the primary context is measured", || {
        dir.number("memory.current") == CONTEXT
    });
    dir.write("memory.limit", CONTEXT + 2 * GREEN + MIB);
    let current = || dir.number("memory.current");
    program.run("first, _ = green_of(16)");
    wait_until("the green context is measured", || current() == CONTEXT + GREEN);
    program.run("second, _ = green_of(16)");
    assert_eq!(current(), CONTEXT + 2 * GREEN);
    let another = "part, number = Resource(), c_uint(1)
         whole = got_of(0, Resource, 'cuDeviceGetDevResource', 1)
         ok(cu.cuDevSmResourceSplitByCount(part, number, whole, None, 0, 16))
         description = got(c_uint64, 'cuDevResourceGenerateDesc', part, 1)
         third = c_uint64()";
    program.run(another);
    program.calls(2, "cu.cuGreenCtxCreate(third, description, 0, 1)");
    assert_eq!(current(), CONTEXT + 2 * GREEN);
    program.calls(0, "cu.cuGreenCtxDestroy(first)");
    assert_eq!(current(), CONTEXT + GREEN);
    program.calls(0, "cu.cuGreenCtxCreate(third, description, 0, 1)");
    assert_eq!(current(), CONTEXT + 2 * GREEN);
    assert_eq!(mount.truth().used(program.pid(), 0), CONTEXT + 2 * GREEN);
    // A green context makes the primary context where there is none.
    program.calls(0, "cu.cuDevicePrimaryCtxReset_v2(0)");
    wait_until("nothing is charged", || current() == 0);
    program.run("fourth, _ = green_of(16)");
    wait_until("both are measured", || current() == CONTEXT + GREEN);
    // The refused one was there until it was measured.
    assert_eq!(dir.key("memory.events", "over_limit"), 1);
}
