//! Tests the swap pool, host memory made before a move needs it: it is filled, moves use it, and it is
//! released under pressure.

use nix::sys::signal::Signal;
use simgpu::Held;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::driver::Dir;
use crate::swap_faults::is_host_counted;

const MIB: u64 = 1 << 20;
const RESERVE: u64 = 512 * MIB;

fn mount(config: Config) -> Mount {
    Mount::with(config.env("SIMGPU_CONTEXT_MEMORY", 0))
}

/// Starts a program with swap enabled, a swap pool of size `ahead`, and four blocks of 16 MiB.
#[track_caller]
fn program(mount: &Mount, ahead: &str) -> Governed {
    program_with(mount, ahead, &[])
}

#[track_caller]
fn program_with(mount: &Mount, ahead: &str, environment: &[(&str, &str)]) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    command.env("GCGROUP_SWAP_AHEAD", ahead);
    command.env("GCGROUP_MEMINFO", mount.simgpu_dir().join("meminfo"));
    command.envs(environment.iter().copied());
    let mut program = Governed::spawn(command);
    program.expect("ready");
    for _ in 0..4 {
        let answer = program.ask(&format!("alloc linear {}", 16 * MIB));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    program
}

fn pool_mib(dir: &Dir<'_>) -> u64 {
    dir.key("memory.stat", "swap_pool") / MIB
}

#[track_caller]
fn wait_for_pool(dir: &Dir<'_>, size: u64) {
    wait_until(&format!("the swap pool has {size} MiB"), || pool_mib(dir) == size);
}

#[test]
fn move_uses_swap_pool_which_is_then_refilled() {
    let mount = mount(Config::default());
    let trace = mount.simgpu_dir().join("trace");
    let tracing = [("SIMGPU_TRACE", trace.to_str().expect("the path is UTF-8"))];
    let mut program = program_with(&mount, "40M", &tracing);
    let dir = Dir::of(&mount, program.pid());
    wait_for_pool(&dir, 32);
    assert_eq!(mount.truth().host_at_once(Held::HostPhysical), Some(32 * MIB));
    assert_eq!(dir.number("memory.swap.current"), 0);
    assert_eq!(dir.number("memory.current"), 64 * MIB);
    let made = || {
        let text = std::fs::read_to_string(&trace).expect("the trace is readable");
        text.lines().filter(|line| line.contains(" cuMemCreate ")).count()
    };
    // The program's blocks, the trial of host memory, and two pieces.
    assert_eq!(made(), 4 + 1 + 2);

    // The swap pool never exceeds what may be on the host.
    dir.write("memory.swap.max", 32 * MIB);
    dir.write("memory.limit", 32 * MIB);
    wait_until("half of the memory is swapped out", || {
        dir.number("memory.current") == 32 * MIB
    });
    assert_eq!(dir.number("memory.swap.current"), 32 * MIB);
    wait_for_pool(&dir, 0);
    assert_eq!(made(), 4 + 1 + 2, "the move made host memory beside the pool");
    assert_eq!(program.ask("verify"), "verified 4");

    dir.write("memory.swap.max", 48 * MIB);
    wait_for_pool(&dir, 16);
    assert_eq!(made(), 4 + 1 + 3);
    dir.write("memory.limit", "max");
    wait_until("the memory is swapped in", || {
        dir.number("memory.swap.current") == 0
    });
    wait_for_pool(&dir, 32);
    assert_eq!(made(), 4 + 1 + 3 + 2, "the move made host memory beside the pool");
    assert_eq!(program.ask("verify"), "verified 4");
    assert_eq!(program.ask("free all"), "freed 4");
    wait_for_pool(&dir, 0);
    assert_eq!(mount.truth().host_at_once(Held::HostPhysical), Some(0));
}

#[test]
fn swap_pool_is_released_when_no_longer_permitted() {
    let mount = mount(Config::default());
    let mut program = program(&mount, "max");
    let dir = Dir::of(&mount, program.pid());
    wait_for_pool(&dir, 64);
    for most in [48, 16, 0, 32] {
        dir.write("memory.swap.max", most * MIB);
        wait_for_pool(&dir, most);
    }
    assert_eq!(program.ask("verify"), "verified 4");
}

#[test]
fn swap_pool_is_released_when_host_memory_is_short() {
    let config = Config::default().env("SIMGPU_HOST_MEMORY", 2 * RESERVE + 40 * MIB);
    let mount = mount(config);
    let mut ahead = program(&mount, "max");
    let of_ahead = Dir::of(&mount, ahead.pid());
    wait_for_pool(&of_ahead, 32);
    let mut other = program(&mount, "0");
    let of_other = Dir::of(&mount, other.pid());
    of_other.write("memory.limit", 1);
    wait_until("the second program's memory is swapped out", || {
        of_other.number("memory.swap.current") == 64 * MIB
    });
    wait_for_pool(&of_ahead, 0);
    // Blocks still move when they have to.
    of_ahead.write("memory.limit", 1);
    wait_until("the first program's memory is swapped out", || {
        of_ahead.number("memory.swap.current") == 64 * MIB
    });
    for program in [&mut ahead, &mut other] {
        assert_eq!(program.ask("verify"), "verified 4");
    }
}

#[test]
fn swap_pool_is_released_for_other_group_members() {
    let mount = mount(Config::default());
    std::fs::create_dir(mount.path().join("team")).expect("a group");
    let mut ahead = program(&mount, "48M");
    let of_ahead = Dir::of(&mount, ahead.pid());
    wait_for_pool(&of_ahead, 48);
    let mut other = program(&mount, "0");
    let of_other = Dir::of(&mount, other.pid());
    for program in [&ahead, &other] {
        mount.write("team", "gcgroup.procs", &program.pid().to_string());
    }
    mount.write("team", "memory.swap.max", "64M");
    of_other.write("memory.limit", 1);
    wait_until("the second program's memory is swapped out", || {
        of_other.number("memory.swap.current") == 64 * MIB
    });
    assert_eq!(pool_mib(&of_ahead), 0);
    for program in [&mut ahead, &mut other] {
        assert_eq!(program.ask("verify"), "verified 4");
    }
}

#[test]
fn failed_fill_of_swap_pool_is_repeated() {
    // Faults after the calls for the four blocks.
    for fault in ["cuMemCreate=2@5", "cuMemCreate=999@6", "cuMemRelease=999@1"] {
        let mount = mount(Config::default());
        let mut program = program_with(&mount, "32M", &[("SIMGPU_FAULTS", fault)]);
        let dir = Dir::of(&mount, program.pid());
        wait_for_pool(&dir, 32);
        dir.write("memory.swap.max", 16 * MIB);
        wait_for_pool(&dir, 16);
        assert!(is_host_counted(&mount, program.pid()), "{fault}");
        dir.write("memory.limit", 48 * MIB);
        wait_until("one block is swapped out", || {
            dir.number("memory.swap.current") == 16 * MIB
        });
        assert_eq!(program.ask("verify"), "verified 4", "{fault}");
        assert_eq!(program.ask("free all"), "freed 4", "{fault}");
        wait_for_pool(&dir, 0);
        wait_until("the host memory equals what is charged", || {
            is_host_counted(&mount, program.pid())
        });
    }
}

#[test]
fn driver_without_host_mapping_gets_no_swap_pool() {
    let mount = mount(Config::default().env("SIMGPU_DRIVER", "11.8"));
    let mut program = program(&mount, "max");
    let dir = Dir::of(&mount, program.pid());
    dir.freeze();
    dir.write("memory.reclaim", "max");
    wait_until("the memory is swapped out", || {
        dir.number("memory.swap.current") == 64 * MIB
    });
    assert_eq!(pool_mib(&dir), 0);
    dir.write("compute.freeze", 0);
    wait_until("the memory is swapped in", || {
        dir.number("memory.current") == 64 * MIB
    });
    assert_eq!(program.ask("verify"), "verified 4");
}

#[test]
fn killed_process_leaves_no_swap_pool() {
    let mount = mount(Config::default());
    let mut killed = program(&mount, "max");
    killed.signal(Signal::SIGKILL);
    killed.wait();
    let mut other = program(&mount, "max");
    let dir = Dir::of(&mount, other.pid());
    wait_for_pool(&dir, 64);
    assert_eq!(mount.truth().host_at_once(Held::HostPhysical), Some(64 * MIB));
    assert_eq!(other.ask("verify"), "verified 4");
}
