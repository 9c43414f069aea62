//! Tests programs with too little host memory, limited by a memory cgroup or by RLIMIT_AS.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use nix::unistd::Pid;
use simgpu::Held;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::cgroup::Cgroup;
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 8 * MIB;

fn mount() -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("GCGROUP_SWAP", "max"),
    )
}

/// Starts a program with `count` blocks.
#[track_caller]
fn with_blocks(mount: &Mount, count: u64) -> Governed {
    with_blocks_by(mount.command(artifacts().load()), count)
}

#[track_caller]
fn with_blocks_by(mut command: Command, count: u64) -> Governed {
    command.arg("obey");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    for _ in 0..count {
        let answer = program.ask(&format!("alloc linear {BLOCK}"));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    program
}

#[test]
fn program_in_a_memory_cgroup_can_swap() {
    let Some(cgroup) = Cgroup::new("moves", 512 * MIB) else {
        eprintln!("skipped: no memory cgroup can be made here");
        return;
    };
    let mount = mount();
    let mut program = with_blocks(&mount, 4);
    cgroup.take(Pid::from_raw(program.pid()));
    let dir = Dir::of(&mount, program.pid());
    for _ in 0..3 {
        dir.write("memory.limit", BLOCK);
        wait_until("three blocks are swapped out", || {
            dir.number("memory.swap.current") == 3 * BLOCK
        });
        assert_eq!(program.ask("verify"), "verified 4");
        dir.write("memory.limit", "max");
        wait_until("every block is swapped in", || {
            dir.number("memory.swap.current") == 0
        });
    }
    dir.freeze();
    dir.write("compute.freeze", 0);
    assert_eq!(program.ask("verify"), "verified 4");
    assert_eq!(program.ask("free all"), "freed 4");
}

/// Tests a cgroup that has no room for a block moved to the host: the kernel kills the program.
#[test]
fn program_killed_by_its_cgroup_in_a_move_leaves_nothing() {
    let Some(cgroup) = Cgroup::new("kills", 24 * MIB) else {
        eprintln!("skipped: no memory cgroup can be made here");
        return;
    };
    let mount = mount();
    let mut program = with_blocks(&mount, 16);
    let mut other = with_blocks(&mount, 1);
    let pid = program.pid();
    cgroup.take(Pid::from_raw(pid));
    Dir::of(&mount, pid).write("memory.limit", BLOCK);
    wait_until("the process is killed", || !program.is_running());
    assert_eq!(program.wait().signal(), Some(libc::SIGKILL));
    wait_until("the killed process is no longer governed", || !mount.governs(pid));
    assert_eq!(mount.truth().used_by_all(0), BLOCK);
    let dir = Dir::of(&mount, other.pid());
    dir.write("memory.limit", 1);
    wait_until("the other process's block is swapped out", || {
        dir.number("memory.swap.current") == BLOCK
    });
    assert_eq!(other.ask("verify"), "verified 1");
}

/// Starts a program with `count` blocks on a driver with injected faults.
#[track_caller]
fn with_faulty_blocks(mount: &Mount, count: u64, faults: &str) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.env("SIMGPU_FAULTS", faults);
    with_blocks_by(command, count)
}

#[test]
fn move_without_host_memory_loses_nothing() {
    let mount = mount();
    // After four blocks and the trial, two blocks find memory on the host; a later attempt finds some again.
    for (faults, is_lasting) in [("cuMemCreate=2@8+", true), ("cuMemCreate=2@8", false)] {
        let mut program = with_faulty_blocks(&mount, 4, faults);
        let (dir, truth) = (Dir::of(&mount, program.pid()), mount.truth());
        let sum = || {
            let swapped = dir.number("memory.swap.current");
            (dir.number("memory.current"), swapped)
        };
        dir.write("memory.limit", 1);
        wait_until("the failed move is counted", || {
            dir.key("memory.events", "swap_fail") >= 1
        });
        let left = if is_lasting { 2 * BLOCK } else { 0 };
        wait_until("the blocks that fit are swapped out", || {
            sum() == (left, 4 * BLOCK - left)
        });
        assert_eq!(program.ask("verify"), "verified 4");
        assert_eq!(truth.used(program.pid(), 0), left, "{faults}");
        wait_until("the surplus host memory is released", || {
            truth.held(program.pid(), 0, Held::HostPhysical) == 4 * BLOCK - left
        });
        assert_eq!(program.ask("free all"), "freed 4", "{faults}");
        assert_eq!((sum(), truth.used(program.pid(), 0)), ((0, 0), 0), "{faults}");
    }
}

/// Returns the size of the process's address space in bytes.
fn address_space(pid: i32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("the process lives");
    let pages = statm.split(' ').next().and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: u64| pages * 4096)
}

#[track_caller]
fn limit_address_space(pid: i32, limit: &str) {
    let mut prlimit = Command::new("prlimit");
    prlimit.args(["--pid", &pid.to_string(), &format!("--as={limit}:unlimited")]);
    assert!(prlimit.status().expect("prlimit runs").success());
}

/// Tests a driver that cannot map host memory for a device, so blocks move to the process's own memory.
#[test]
fn move_without_address_space_loses_nothing() {
    let mount = mount();
    let mut command = mount.command(artifacts().load());
    command.env("SIMGPU_HOST_LOCATIONS", "numa:*=801,host=801");
    let mut program = with_blocks_by(command, 2);
    let dir = Dir::of(&mount, program.pid());
    dir.freeze();
    // Small allocations fit, blocks do not.
    let limit = address_space(program.pid()) + BLOCK / 2;
    limit_address_space(program.pid(), &limit.to_string());
    dir.write("memory.reclaim", "max");
    wait_until("the failed move is counted", || {
        dir.key("memory.events", "swap_fail") >= 1
    });
    assert_eq!(dir.number("memory.current"), 2 * BLOCK);
    assert_eq!(dir.number("memory.swap.current"), 0);
    dir.write("compute.freeze", 0);
    assert_eq!(program.ask("verify"), "verified 2");
    limit_address_space(program.pid(), "unlimited");
    dir.freeze();
    dir.write("memory.reclaim", "max");
    wait_until("both blocks are swapped out", || {
        dir.number("memory.current") == 0
    });
    dir.write("compute.freeze", 0);
    assert_eq!(program.ask("verify"), "verified 2");
    assert_eq!(dir.number("memory.current"), 2 * BLOCK);
    assert_eq!(program.ask("free all"), "freed 2");
    assert_eq!(mount.truth().used(program.pid(), 0), 0);
}
