//! Tests `memory.oom.group`: a refusal by a group's limit kills the group as a unit.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use nix::sys::signal::Signal;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::calls::Calls;
use crate::driver::{Dir, DriverShell};

const MIB: u64 = 1 << 20;

/// Starts a process in a group, which is made if needed.
#[track_caller]
fn member(mount: &Mount, group: &str) -> DriverShell {
    let path = mount.path().join(group);
    if !path.exists() {
        fs::create_dir(path).expect("root may create a group");
    }
    let shell = DriverShell::start(mount);
    mount.write(group, "gcgroup.procs", &shell.pid().to_string());
    shell
}

fn nr_kills(mount: &Mount, group: &str) -> u64 {
    mount.number(group, "memory.events", "oom_group_kill")
}

#[test]
fn refused_allocation_kills_the_group_as_a_unit() {
    let mount = Mount::new();
    let mut above = member(&mount, "team");
    let (mut greedy, mut idle) = (member(&mount, "team/job"), member(&mount, "team/job/part"));
    let mut other = member(&mount, "team/other");
    mount.write("team", "memory.limit", "512M");
    let alloc = |bytes: u64| format!("alloc linear {bytes}");
    assert_eq!(greedy.ask(&alloc(600 * MIB)), "error 2", "0 is the default");
    mount.write("team/job", "memory.oom.group", "1");
    // What a limit of its own refuses kills nothing.
    Dir::of(&mount, greedy.pid()).write("memory.limit", 256 * MIB);
    assert_eq!(greedy.ask(&alloc(300 * MIB)), "error 2");
    // Nor does what another group is refused, or what is granted.
    assert_eq!(other.ask(&alloc(600 * MIB)), "error 2");
    assert_eq!(greedy.ask(&alloc(MIB)), "ok 0");
    assert_eq!(nr_kills(&mount, "team"), 0);
    // A frozen member is killed too.
    Dir::of(&mount, idle.pid()).freeze();
    Dir::of(&mount, greedy.pid()).write("memory.limit", "max");
    greedy.tell(&alloc(600 * MIB));
    greedy.expect_killed();
    idle.expect_killed();
    wait_until("the group is empty", || {
        mount.read("team/job", "gcgroup.events").contains("populated 0")
    });
    for pid in [greedy.pid(), idle.pid()] {
        let killed = format!("{pid} was killed: by memory.oom.group of its group");
        wait_until("the log says why", || mount.log().contains(&killed));
    }
    assert_eq!(
        ["team", "team/job", "team/job/part", "team/other"].map(|group| nr_kills(&mount, group)),
        [1, 1, 0, 0]
    );
    assert_eq!(above.ask(&alloc(MIB)), "ok 0");
    assert_eq!(other.ask(&alloc(MIB)), "ok 0");
}

#[test]
fn process_that_swaps_is_killed_if_host_has_no_room_either() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let _above = member(&mount, "team");
    mount.write("team", "memory.limit", "64M");
    mount.write("team", "memory.oom.group", "1");
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    mount.write("team", "gcgroup.procs", &program.pid().to_string());
    let alloc = |bytes: u64| format!("alloc linear {bytes}");
    // What the host has room for is not refused.
    for _ in 0..2 {
        let answer = program.ask(&alloc(40 * MIB));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    assert_eq!(nr_kills(&mount, "team"), 0);
    mount.write(program.pid(), "memory.swap.max", "64M");
    program.say(&alloc(80 * MIB));
    wait_until("the process ends", || !program.is_running());
    assert_eq!(program.wait().signal(), Some(Signal::SIGKILL as i32));
    assert_eq!(nr_kills(&mount, "team"), 1);
}

#[test]
fn pool_that_grows_beyond_the_limit_kills_the_group() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let _above = member(&mount, "team");
    let mut calls = Calls::start(&mount);
    mount.write("team", "gcgroup.procs", &calls.pid().to_string());
    mount.write("team", "memory.limit", "64M");
    mount.write("team", "memory.oom.group", "1");
    // Every other block is freed: half of the pool is spare, in pieces that the hook does not know.
    for name in ["a", "b", "c", "d"] {
        calls.ok(&format!("cuMemAllocAsync &{name} {} 0", 16 * MIB));
    }
    calls.ok("cuMemFreeAsync $a 0");
    calls.ok("cuMemFreeAsync $c 0");
    calls.ok("cuStreamSynchronize 0");
    calls.tell(&format!("call cuMemAllocAsync &e {} 0", 32 * MIB));
    wait_until("the group is killed", || nr_kills(&mount, "team") == 1);
}

#[test]
fn oom_group_and_its_count_outlive_the_daemon() {
    let mut mount = Mount::new();
    let mut shell = member(&mount, "team");
    mount.write("team", "memory.limit", "512M");
    mount.write("team", "memory.oom.group", "1");
    shell.tell(&format!("alloc linear {}", 600 * MIB));
    shell.expect_killed();
    assert_eq!(nr_kills(&mount, "team"), 1);
    let mut shell = member(&mount, "team");
    mount.kill9();
    // A daemon that is not there kills nothing, whatever the process is told meanwhile.
    shell.ask(&format!("alloc linear {}", 600 * MIB));
    mount.restart();
    wait_until("the process has registered again", || mount.governs(shell.pid()));
    // The process has heard of the daemon once its freeze has drained.
    let dir = Dir::of(&mount, shell.pid());
    dir.freeze();
    dir.write("compute.freeze", 0);
    assert_eq!(mount.read("team", "memory.oom.group"), "1");
    assert_eq!(nr_kills(&mount, "team"), 1);
    shell.tell(&format!("alloc linear {}", 600 * MIB));
    shell.expect_killed();
    assert_eq!(nr_kills(&mount, "team"), 2);
}
