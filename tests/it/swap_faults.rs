//! Moves that fail: the bytes are whole in one place, the accounts are right, and what can be tried again is.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;

const MIB: u64 = 1 << 20;

fn mount() -> Mount {
    Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0))
}

/// Two blocks of 8 MiB that can be moved, by a driver with that fault.
#[track_caller]
fn two_blocks(mount: &Mount, fault: &str) -> Governed {
    let mut command = mount.command(artifacts().load());
    command
        .arg("obey")
        .env("GCGROUP_SWAP", "max")
        .env("SIMGPU_FAULTS", fault);
    let mut program = Governed::spawn(command);
    program.expect("ready");
    for _ in 0..2 {
        let answer = program.ask("alloc linear 8388608");
        assert!(answer.starts_with("allocated "), "{fault}: {answer}");
    }
    program
}

#[track_caller]
fn all_is_freed(mount: &Mount, program: &mut Governed, fault: &str) {
    let dir = Dir::of(mount, program.pid());
    assert_eq!(program.ask("verify"), "verified 2", "{fault}");
    assert_eq!(program.ask("free all"), "freed 2", "{fault}");
    assert_eq!(dir.number("memory.current"), 0, "{fault}");
    assert_eq!(dir.number("memory.swap.current"), 0, "{fault}");
    assert_eq!(mount.truth().used(program.pid(), 0), 0, "{fault}");
}

/// The program's own calls, of the two allocations and for its streams, come first; what follows is the move's.
#[test]
fn a_call_that_fails_once_costs_a_try() {
    let mount = mount();
    for fault in [
        "cuMemCreate=2@3",
        "cuMemCreate=999@3",
        "cuMemAddressReserve=2@3",
        "cuMemMap=999@3",
        "cuMemMap=999@4",
        "cuMemSetAccess=999@3",
        "cuMemSetAccess=999@4",
        "cuStreamCreate=999@3",
        "cuMemcpyAsync=999@1",
    ] {
        let mut program = two_blocks(&mount, fault);
        let dir = Dir::of(&mount, program.pid());
        dir.write("memory.limit", 8 * MIB);
        wait_until(fault, || dir.number("memory.current") == 8 * MIB);
        assert_eq!(dir.key("memory.events", "swap_fail"), 1, "{fault}");
        assert_eq!(dir.number("memory.swap.current"), 8 * MIB, "{fault}");
        assert_eq!(mount.truth().used(program.pid(), 0), 8 * MIB, "{fault}");
        assert_eq!(program.ask("verify"), "verified 2", "{fault}");
        dir.write("memory.limit", "max");
        wait_until(fault, || dir.number("memory.swap.current") == 0);
        assert_eq!(dir.number("memory.current"), 16 * MIB, "{fault}");
        all_is_freed(&mount, &mut program, fault);
    }
}

#[test]
fn an_unmapping_that_fails_once_costs_nothing() {
    let mount = mount();
    for fault in ["cuMemUnmap=999@1", "cuMemUnmap=999@2"] {
        let mut program = two_blocks(&mount, fault);
        let dir = Dir::of(&mount, program.pid());
        dir.write("memory.limit", 8 * MIB);
        wait_until(fault, || dir.number("memory.current") == 8 * MIB);
        assert_eq!(dir.key("memory.events", "swap_fail"), 0, "{fault}");
        assert_eq!(mount.truth().used(program.pid(), 0), 8 * MIB, "{fault}");
        all_is_freed(&mount, &mut program, fault);
    }
}

#[test]
fn where_every_try_fails_all_stays_where_it_is() {
    let mount = mount();
    for fault in [
        "cuMemCreate=2@3+",
        "cuMemAddressReserve=999@3+",
        "cuMemMap=999@3+",
        "cuMemSetAccess=999@3+",
        "cuMemcpyAsync=999",
    ] {
        let mut program = two_blocks(&mount, fault);
        let dir = Dir::of(&mount, program.pid());
        dir.write("memory.limit", 8 * MIB);
        wait_until(fault, || dir.key("memory.events", "swap_fail") >= 2);
        assert_eq!(dir.number("memory.current"), 16 * MIB, "{fault}");
        assert_eq!(program.ask("verify"), "verified 2", "{fault}");
        dir.write("memory.limit", "max");
        all_is_freed(&mount, &mut program, fault);
    }
}

#[test]
fn who_is_killed_while_memory_moves_leaves_nothing() {
    let mount = mount();
    for _ in 0..3 {
        let program = two_blocks(&mount, "");
        let pid = program.pid();
        Dir::of(&mount, pid).write("memory.limit", MIB);
        drop(program);
        wait_until("it is gone", || !mount.governs(pid));
        assert_eq!(mount.truth().used_by_all(0), 0);
    }
}

#[test]
fn a_daemon_that_is_killed_while_memory_moves_is_told_where_it_is() {
    let mut mount = mount();
    let mut program = two_blocks(&mount, "");
    let pid = program.pid();
    Dir::of(&mount, pid).write("memory.limit", 8 * MIB);
    mount.kill9();
    mount.restart();
    wait_until("it is back", || mount.governs(pid));
    let dir = Dir::of(&mount, pid);
    wait_until("the excess is out", || {
        dir.number("memory.swap.current") == 8 * MIB
    });
    wait_until("and nowhere else", || dir.number("memory.current") == 8 * MIB);
    all_is_freed(&mount, &mut program, "");
}

/// Threads free what is moving, while limits, reclaims and freezes come from several hands.
#[test]
fn whoever_writes_what_at_once_the_accounts_come_out_even() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("GCGROUP_SWAP", "max"),
    );
    let mut calls = Calls::start(&mount);
    let pid = calls.pid();
    let is_over = AtomicBool::new(false);
    calls.tell("churn 3 4 8388608 4");
    let write = |file: &str, values: &[&str]| {
        let mut values = values.iter().cycle();
        while let (false, Some(value)) = (is_over.load(Relaxed), values.next()) {
            mount.write(pid, file, value);
        }
    };
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| write("memory.limit", &["4M", "max", "24M"]));
        scope.spawn(|| write("memory.reclaim", &["2M", "max"]));
        scope.spawn(|| write("compute.freeze", &["1", "0"]));
        scope.spawn(|| write("memory.swap.max", &["max", "16M"]));
        let answer = calls.line();
        is_over.store(true, Relaxed);
        answer
    });
    assert!(answer.starts_with("calls "), "{answer}");
    mount.write(pid, "compute.freeze", "0");
    let dir = Dir::of(&mount, pid);
    assert!(dir.key("memory.events", "swap_out") > 0, "something moved");
    for file in ["memory.current", "memory.swap.current"] {
        assert_eq!(dir.number(file), 0, "{file}");
    }
    assert_eq!(dir.key("memory.stat", "linear"), 0);
    assert_eq!(dir.key("memory.stat", "pinned_unswappable"), 0);
    assert_eq!(mount.truth().used(pid, 0), 0);
}
