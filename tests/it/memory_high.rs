//! Tests `memory.high`: what exceeds it waits, moves out and is never refused, with a daemon or without.

use std::fs;

use nix::sys::signal::Signal;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::calls::Calls;
use crate::delegation::{ALICE, NOT_PERMITTED, may, may_not, shared, shell_of};
use crate::driver::{Dir, DriverShell, driver_shell};

const MIB: u64 = 1 << 20;

/// Mounts a GPU whose contexts take no memory.
fn mount() -> Mount {
    Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0).without_turns())
}

#[track_caller]
fn group(mount: &Mount, name: &str, shell: &DriverShell) {
    let path = mount.path().join(name);
    if !path.exists() {
        fs::create_dir(path).expect("root may create a group");
    }
    mount.write(name, "gcgroup.procs", &shell.pid().to_string());
}

fn nr_high(mount: &Mount, directory: impl ToString) -> u64 {
    mount.number(directory, "memory.events", "high")
}

/// Returns for how long threads have waited for memory, microseconds.
#[track_caller]
fn waited(mount: &Mount, directory: impl ToString) -> u64 {
    let text = mount.read(directory, "memory.pressure");
    let some = text.lines().find(|line| line.starts_with("some"));
    let total = some.and_then(|line| line.rsplit_once("total=")?.1.parse().ok());
    total.unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn allocation_beyond_high_waits_and_is_not_refused() {
    let mount = mount();
    let mut shell = DriverShell::start(&mount);
    let pid = shell.pid();
    let dir = Dir::of(&mount, pid);
    dir.gpu(0).write("memory.high", 64 * MIB);
    for (api, count) in [("linear", 0), ("async", 1), ("vmm", 2)] {
        assert_eq!(
            shell.ask(&format!("alloc {api} {}", 16 * MIB)),
            format!("ok {count}")
        );
    }
    assert_eq!(nr_high(&mount, pid), 0);
    let before = waited(&mount, pid);
    assert_eq!(shell.ask(&format!("alloc linear {}", 64 * MIB)), "ok 3");
    assert!(dir.number("memory.current") >= 112 * MIB);
    assert_eq!(nr_high(&mount, format!("{pid}/0")), 1);
    assert_eq!(nr_high(&mount, pid), 1, "and in the sum over devices");
    // The excess is more than an eighth, so nothing ends the wait before its bound.
    let longest = waited(&mount, pid) - before;
    assert!(longest >= 1_000_000, "{longest} us");
    // Within the grant again, once there is room.
    assert_eq!(shell.ask("free 3"), "ok");
    assert_eq!(shell.ask(&format!("alloc linear {MIB}")), "ok 4");
    assert_eq!(nr_high(&mount, format!("{pid}/0")), 1);
    dir.gpu(0).write("memory.high", "max");
    assert_eq!(shell.ask(&format!("alloc linear {}", 256 * MIB)), "ok 5");
    assert_eq!(nr_high(&mount, format!("{pid}/0")), 1);
}

#[test]
fn pool_that_grows_more_than_predicted_counts_once() {
    let mount = mount();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    // Every other block is freed: half of the pool is spare, in pieces that the hook does not know.
    for name in ["a", "b", "c", "d"] {
        calls.ok(&format!("cuMemAllocAsync &{name} {} 0", 16 * MIB));
    }
    calls.ok("cuMemFreeAsync $a 0");
    calls.ok("cuMemFreeAsync $c 0");
    calls.ok("cuStreamSynchronize 0");
    dir.write("memory.high", 64 * MIB);
    let before = dir.number("memory.current");
    assert_eq!(nr_high(&mount, calls.pid()), 0);
    calls.ok(&format!("cuMemAllocAsync &e {} 0", 40 * MIB));
    assert!(dir.number("memory.current") >= before + 40 * MIB);
    assert_eq!(nr_high(&mount, calls.pid()), 1);
}

#[test]
fn group_waits_together_and_ends_when_another_member_frees() {
    let mount = mount();
    let (mut one, mut other) = (DriverShell::start(&mount), DriverShell::start(&mount));
    group(&mount, "team", &one);
    group(&mount, "team/a", &other);
    mount.write("team", "memory.high", "64M");
    // A limit above as well: it still refuses.
    mount.write("team", "memory.limit", "128M");
    assert_eq!(one.ask(&format!("alloc linear {}", 64 * MIB)), "ok 0");
    other.tell(&format!("alloc linear {}", 32 * MIB));
    wait_until("the allocation is beyond memory.high", || {
        nr_high(&mount, "team") == 1
    });
    assert_eq!(one.ask("free 0"), "ok");
    assert_eq!(other.answer(), "ok 0");
    assert_eq!(nr_high(&mount, "team/a"), 0, "a group within has none");
    assert_eq!(other.ask(&format!("alloc linear {}", 32 * MIB)), "ok 1");
    assert_eq!(nr_high(&mount, "team"), 1, "64 MiB are not beyond it");
    assert_eq!(one.ask(&format!("alloc linear {}", 65 * MIB)), "error 2");
    assert_eq!(mount.number("team", "memory.events", "oom"), 1);
    assert_eq!(one.ask(&format!("alloc linear {MIB}")), "ok 1");
    assert_eq!(nr_high(&mount, "team"), 2);
    assert!(waited(&mount, "team") > 0);
}

#[test]
fn movable_memory_beyond_high_moves_out_and_returns() {
    let mount = mount();
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let dir = Dir::of(&mount, program.pid());
    dir.write("memory.high", 64 * MIB);
    for _ in 0..6 {
        let answer = program.ask(&format!("alloc linear {}", 16 * MIB));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    let out = || dir.number("memory.swap.current") / MIB;
    wait_until("the excess is on the host", || {
        out() == 32 && dir.number("memory.current") == 64 * MIB
    });
    assert!(nr_high(&mount, program.pid()) >= 2);
    assert_eq!(program.ask("verify"), "verified 6");
    // A lower value moves more out at once, without an allocation.
    dir.write("memory.high", 32 * MIB);
    wait_until("the excess is on the host", || out() == 64);
    assert_eq!(program.ask("verify"), "verified 6");
    dir.write("memory.high", "max");
    wait_until("the memory has returned", || out() == 0);
    assert_eq!(program.ask("verify"), "verified 6");
}

#[test]
fn memory_beyond_high_moves_out_before_that_of_others() {
    let mount = mount();
    let start = || {
        let mut command = mount.command(artifacts().load());
        command.arg("obey").env("GCGROUP_SWAP", "max");
        let mut program = Governed::spawn(command);
        program.expect("ready");
        mount.write(program.pid(), "compute.priority", "12");
        program
    };
    let (mut over, mut plain) = (start(), start());
    fs::create_dir(mount.path().join("team")).expect("root may create a group");
    for program in [&mut over, &mut plain] {
        mount.write("team", "gcgroup.procs", &program.pid().to_string());
        for _ in 0..4 {
            let answer = program.ask(&format!("alloc linear {}", 16 * MIB));
            assert!(answer.starts_with("allocated "), "{answer}");
        }
    }
    // Without its memory.high it would be the last, by its priority.
    mount.write(over.pid(), "compute.priority", "0");
    // Nothing moves out for its own value while nothing may be on the host.
    mount.write(over.pid(), "memory.swap.max", "0");
    mount.write(over.pid(), "memory.high", "32M");
    mount.write(over.pid(), "memory.swap.max", "max");
    mount.write("team", "memory.limit", "96M");
    let out = |program: &Governed| Dir::of(&mount, program.pid()).number("memory.swap.current") / MIB;
    wait_until("the limit is met", || out(&over) == 32);
    assert_eq!(out(&plain), 0, "although its priority is lower");
    assert_eq!(over.ask("verify"), "verified 4");
    assert_eq!(plain.ask("verify"), "verified 4");
}

#[test]
fn waits_survive_the_death_of_the_daemon_and_of_the_process() {
    let mut mount = mount();
    let mut shell = DriverShell::start(&mount);
    let pid = shell.pid();
    group(&mount, "team", &shell);
    mount.write("team", "memory.high", "1M");
    shell.tell(&format!("alloc linear {}", 2 * MIB));
    wait_until("the allocation waits", || nr_high(&mount, "team") == 1);
    mount.kill9();
    assert_eq!(shell.answer(), "ok 0");
    // No daemon answers, and nothing refuses.
    for count in 1..4 {
        assert_eq!(shell.ask(&format!("alloc linear {MIB}")), format!("ok {count}"));
    }
    mount.restart();
    wait_until("the process has registered again", || mount.governs(pid));
    assert_eq!(mount.read("team", "memory.high"), "1048576");
    wait_until("what was charged meanwhile is known", || {
        mount.number("team", "memory.current", "") == 5 * MIB
    });
    // What is allocated before the process has heard of the daemon does not wait. It has heard of it once it
    // confirms a freeze.
    let dir = Dir::of(&mount, pid);
    dir.freeze();
    dir.write("compute.freeze", 0);
    let count = 4;
    let before = nr_high(&mount, "team");
    shell.tell(&format!("alloc linear {MIB}"));
    wait_until("the allocation waits", || nr_high(&mount, "team") > before);
    // A frozen process waits no longer than another one, and a killed one is gone.
    dir.freeze();
    assert_eq!(shell.answer(), format!("ok {count}"));
    shell.tell(&format!("alloc linear {MIB}"));
    wait_until("the allocation waits", || nr_high(&mount, "team") > before + 1);
    shell.signal(Signal::SIGKILL);
    shell.expect_killed();
    wait_until("its memory is uncharged", || {
        mount.number("team", "memory.current", "") == 0
    });
}

#[test]
fn high_is_set_by_run_and_hold_and_checked_as_bytes() {
    let mount = mount();
    let mut command = mount.gcgroupfs(&["run", "--memory-high", "64M,0=32M", "--"]);
    command.arg(driver_shell());
    let shell = DriverShell::spawn(command);
    let job = format!("job-{}", shell.pid());
    assert_eq!(mount.read(&job, "memory.high"), (64 * MIB).to_string());
    assert_eq!(
        mount.read(format!("{job}/0"), "memory.high"),
        (32 * MIB).to_string()
    );
    let pid = shell.pid().to_string();
    let mut held = Governed::spawn(mount.gcgroupfs(&["hold", "--memory-high", "1M", &pid]));
    wait_until("the value is held", || {
        mount.read(&pid, "memory.high") == MIB.to_string()
    });
    held.signal(Signal::SIGKILL);
    held.wait();
    let of_job = (64 * MIB).to_string();
    wait_until("the job's value binds again", || {
        mount.read(&pid, "memory.high") == of_job
    });
    for value in ["", "-1", "1X", "max 1", "0x10"] {
        let error = mount.try_write(&pid, "memory.high", value).expect_err(value);
        assert_eq!(error.raw_os_error(), Some(nix::libc::EINVAL), "{value:?}");
        assert_eq!(mount.read(&pid, "memory.high"), of_job);
    }
}

#[test]
fn user_can_only_lower_the_high_of_root() {
    let mount = shared();
    let process = shell_of(&mount, ALICE);
    let path = format!("{}/{}/memory.high", mount.path().display(), process.pid());
    may(&mount, ALICE, &format!("echo 2G > {path}"));
    mount.write(process.pid(), "memory.high", "1G");
    may(&mount, ALICE, &format!("echo 512M > {path}"));
    may(&mount, ALICE, &format!("echo 1G > {path}"));
    may_not(&mount, ALICE, &format!("echo 2G > {path}"), NOT_PERMITTED);
    assert_eq!(mount.read(process.pid(), "memory.high"), (1 << 30).to_string());
}
