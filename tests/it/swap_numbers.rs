//! Tests a restarted daemon that numbers the GPUs differently: memory on the host and all its counts follow
//! the device.

use std::process::Command;

use nix::sys::signal::{Signal, kill};
use simgpu::Held;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::driver::Dir;
use crate::mig;
use crate::several_gpus::{self, Devices, MIB, uuids};

/// Starts a program with `count` movable blocks of 16 MiB on the device with that UUID.
#[track_caller]
fn blocks(mount: &Mount, uuid: &str, count: usize) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.env("CUDA_VISIBLE_DEVICES", uuid);
    with_blocks(command, count, 16 * MIB)
}

#[track_caller]
fn with_blocks(mut command: Command, count: usize, bytes: u64) -> Governed {
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    for _ in 0..count {
        let answer = program.ask(&format!("alloc linear {bytes}"));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    program
}

/// Returns the charges on three devices, and the swapped memory of each, in MiB.
fn placed(dir: &Dir<'_>) -> ([u64; 3], [u64; 3]) {
    let each = |file: &str| [0, 1, 2].map(|index| dir.gpu(index).number(file) / MIB);
    (each("memory.current"), each("memory.swap.current"))
}

#[track_caller]
fn wait_for(dir: &Dir<'_>, current: [u64; 3], swapped: [u64; 3]) {
    wait_until("each device has the expected charges", || {
        placed(dir) == (current, swapped)
    });
    assert_eq!(dir.number("memory.current") / MIB, current.iter().sum::<u64>());
    assert_eq!(
        dir.number("memory.swap.current") / MIB,
        swapped.iter().sum::<u64>()
    );
}

/// Returns how many blocks have left three devices and how many have returned; asserts that the byte counts
/// agree.
#[track_caller]
fn moved(dir: &Dir<'_>) -> ([u64; 3], [u64; 3]) {
    let each = |event: &str| {
        [0, 1, 2].map(|index| {
            let (gpu, key) = (dir.gpu(index), format!("{event}_bytes"));
            let number = gpu.key("memory.events", event);
            assert_eq!(
                gpu.key("memory.stat", &key),
                number * 16 * MIB,
                "{event} of {index}"
            );
            number
        })
    };
    (each("swap_out"), each("swap_in"))
}

fn dirs(mount: &Mount, pids: [i32; 2]) -> [Dir<'_>; 2] {
    pids.map(|pid| Dir::of(mount, pid))
}

#[test]
fn swapped_memory_follows_its_renumbered_device() {
    let mut mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_MIG", "0:1g.5gb"),
    );
    std::fs::create_dir(mount.path().join("team")).expect("a group");
    mount.write("team", "memory.swap.max", &(48 * MIB).to_string());
    let mut whole = blocks(&mount, &uuids(&mount)[1], 3);
    // An instance created later is numbered after the others, but the next daemon numbers it among them.
    mount.truth().divide("0:1g.5gb,2g.10gb");
    kill(mount.daemon().expect("the daemon runs"), Signal::SIGHUP).expect("the daemon runs");
    wait_until("the instance is listed", || uuids(&mount).len() == 3);
    let before = uuids(&mount);
    let mut part = blocks(&mount, &before[2], 3);
    for program in [&whole, &part] {
        mount.write("team", "gcgroup.procs", &program.pid().to_string());
    }
    let pids = [whole.pid(), part.pid()];
    {
        let [of_whole, of_part] = dirs(&mount, pids);
        of_whole.gpu(1).write("memory.limit", 16 * MIB);
        of_part.gpu(2).write("memory.limit", 32 * MIB);
        wait_for(&of_whole, [0, 16, 0], [0, 32, 0]);
        wait_for(&of_part, [0, 0, 32], [0, 0, 16]);
        assert_eq!(moved(&of_whole), ([0, 2, 0], [0; 3]));
        assert_eq!(moved(&of_part), ([0, 0, 1], [0; 3]));
    }

    mount.kill9();
    mount.restart();
    let now = uuids(&mount);
    assert_eq!([&now[1], &now[2]], [&before[2], &before[1]]);
    for pid in pids {
        wait_until("the process has registered again", || mount.governs(pid));
    }
    let [of_whole, of_part] = dirs(&mount, pids);
    wait_for(&of_whole, [0, 0, 16], [0, 0, 32]);
    wait_for(&of_part, [0, 32, 0], [0, 16, 0]);
    let of_team = |group: &str| mount.number(group, "memory.swap.current", "") / MIB;
    assert_eq!(["team", "team/1", "team/2"].map(of_team), [48, 16, 32]);
    assert_eq!(moved(&of_whole), ([0, 0, 2], [0; 3]));
    assert_eq!(moved(&of_part), ([0, 1, 0], [0; 3]));
    let out_of_team = |group: &str| mount.number(group, "memory.events", "swap_out");
    assert_eq!(["team", "team/1", "team/2"].map(out_of_team), [3, 1, 2]);
    assert_eq!(of_whole.gpu(2).key("memory.stat", "linear"), 16 * MIB);
    assert_eq!(of_part.gpu(1).key("memory.stat", "linear"), 32 * MIB);
    assert_eq!(whole.ask("verify"), "verified 3");

    of_whole.gpu(2).write("memory.limit", "max");
    wait_for(&of_whole, [0, 0, 48], [0; 3]);
    assert_eq!(whole.ask("verify"), "verified 3");
    of_part.gpu(1).write("memory.limit", 1);
    wait_for(&of_part, [0; 3], [0, 48, 0]);
    of_whole.gpu(2).write("memory.limit", 1);
    // The group has no more host memory than that for both.
    assert_eq!(part.ask("verify"), "verified 3");
    assert_eq!(whole.ask("verify"), "verified 3");
    assert_eq!(mount.truth().host_at_once(Held::HostPhysical), Some(48 * MIB));
    of_part.gpu(1).write("memory.limit", "max");
    wait_for(&of_whole, [0; 3], [0, 0, 48]);
    for program in [&mut whole, &mut part] {
        assert_eq!(program.ask("verify"), "verified 3");
        assert_eq!(program.ask("free all"), "freed 3");
    }
    for dir in [of_whole, of_part] {
        wait_for(&dir, [0; 3], [0; 3]);
        wait_until("the swap pool is empty", || {
            dir.key("memory.stat", "swap_pool") == 0
        });
    }
    assert_eq!(["team", "team/1", "team/2"].map(of_team), [0; 3]);
}

#[test]
fn swapped_memory_follows_a_device_that_becomes_known() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_MIG", "0:1g.5gb"),
    );
    std::fs::create_dir(mount.path().join("team")).expect("a group");
    mount.write("team", "memory.swap.max", &(32 * MIB).to_string());
    // The simulated machine keeps its state while a process uses it.
    let _user = blocks(&mount, &uuids(&mount)[0], 1);
    mount.truth().divide("0:1g.5gb,2g.10gb");
    let mut program = blocks(&mount, &mig::uuid_of(&mount, 1), 1);
    let dir = Dir::of(&mount, program.pid());
    mount.write("team", "gcgroup.procs", &program.pid().to_string());
    dir.write("memory.limit", 16 * MIB);
    // Over the limit, each block begins on the host; the daemon lists the device after a while.
    for _ in 0..2 {
        let answer = program.ask(&format!("alloc linear {}", 16 * MIB));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    wait_until("the instance is listed", || uuids(&mount).len() == 3);
    wait_for(&dir, [0, 0, 16], [0, 0, 32]);
    assert_eq!(mount.number("team/2", "memory.swap.current", ""), 32 * MIB);
    assert_eq!(program.ask("verify"), "verified 3");
    dir.write("memory.limit", "max");
    wait_for(&dir, [0, 0, 48], [0; 3]);
    dir.write("memory.limit", 1);
    wait_for(&dir, [0, 0, 16], [0, 0, 32]);
    assert_eq!(program.ask("verify"), "verified 3");
}

/// Replaces the machine of the daemon by another one.
fn exchange(mount: &mut Mount, divided: &str) -> Devices {
    mount.kill9();
    std::fs::remove_dir_all(mount.simgpu_dir()).expect("the machine can be removed");
    std::fs::create_dir(mount.simgpu_dir()).expect("the directory can be created");
    // The first process to attach creates the machine.
    let mut command = mount.bare_command(several_gpus::program());
    command.env("SIMGPU_MIG", divided);
    let mut first = Devices::spawn(command);
    first.ok("init");
    mount.restart();
    first
}

#[test]
fn counts_follow_devices_renumbered_or_unknown_for_a_time() {
    let mut mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 3)
            .env("SIMGPU_CONTEXT_MEMORY", 0),
    );
    let own = tempfile::tempdir().expect("a directory");
    let mut command = mount.command(several_gpus::program());
    command.env("SIMGPU_DIR", own.path()).env("GCGROUP_SWAP", "max");
    let mut devices = Devices::spawn(command);
    devices.ok("init");
    devices.contexts(2);
    for device in 0..2 {
        devices.ok(&format!("current {device}"));
        for _ in 0..3 {
            devices.ok(&format!("alloc {}", 16 * MIB));
        }
    }
    let pid = devices.0.pid();
    let limit = |mount: &Mount, limits: [u64; 2]| {
        let dir = Dir::of(mount, pid);
        for (index, limit) in (0..).zip(limits) {
            dir.gpu(index).write("memory.limit", limit * MIB);
        }
    };
    limit(&mount, [16, 32]);
    wait_for(&Dir::of(&mount, pid), [16, 32, 0], [32, 16, 0]);

    // The first device does not exist on this machine; the second is the third there.
    let first = exchange(&mut mount, "0:1g.5gb,2g.10gb");
    wait_until("the process has registered again", || mount.governs(pid));
    let dir = Dir::of(&mount, pid);
    wait_until("the blocks of the unknown device are swapped in", || {
        dir.number("memory.swap.current") == 16 * MIB
    });
    assert_eq!(dir.number("memory.current"), 80 * MIB);
    assert_eq!(placed(&dir), ([0, 0, 32], [0, 0, 16]));
    assert_eq!(moved(&dir), ([0, 0, 1], [0; 3]));
    dir.freeze();
    dir.write("memory.reclaim", "max");
    wait_until("the memory is swapped out", || dir.number("memory.current") == 0);
    assert_eq!(dir.number("memory.swap.current"), 96 * MIB);
    assert_eq!(placed(&dir), ([0; 3], [0, 0, 48]));
    assert_eq!(moved(&dir), ([0, 0, 3], [0; 3]));

    drop(first);
    let _first = exchange(&mut mount, "");
    wait_until("the process has registered again", || mount.governs(pid));
    let dir = Dir::of(&mount, pid);
    // Blocks that fit into the new limit return.
    wait_for(&dir, [16, 0, 0], [32, 48, 0]);
    assert!(dir.is_frozen());
    dir.write("compute.freeze", 0);
    wait_for(&dir, [16, 32, 0], [32, 16, 0]);
    limit(&mount, [48, 48]);
    wait_for(&dir, [48, 48, 0], [0; 3]);
    assert_eq!(
        moved(&dir),
        ([5, 3, 0], [5, 3, 0]),
        "the counts do not follow the renumbered devices"
    );
    wait_until("the swap pool is empty", || {
        dir.key("memory.stat", "swap_pool") == 0
    });
    for device in 0..2 {
        devices.ok(&format!("current {device}"));
        devices.ok("spin 0 null");
        devices.ok("sync");
    }
}

#[test]
fn moves_during_renumbering_restart_stay_whole_and_counted() {
    const ALL: u64 = 16 * 4;
    let mut mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 3)
            .env("SIMGPU_CONTEXT_MEMORY", 0),
    );
    std::fs::create_dir(mount.path().join("team")).expect("a group");
    mount.write("team", "memory.swap.max", &(2 * ALL * MIB).to_string());
    let own = tempfile::tempdir().expect("a directory");
    let mut programs = [0, 1].map(|device: u32| {
        let mut command = mount.command(artifacts().load());
        command
            .env("SIMGPU_DIR", own.path())
            .env("CUDA_VISIBLE_DEVICES", device.to_string());
        let program = with_blocks(command, 16, 4 * MIB);
        mount.write("team", "gcgroup.procs", &program.pid().to_string());
        program
    });
    let pids = programs.each_ref().map(Governed::pid);
    let mut first = None;
    for (round, divided) in (0..).zip(["0:1g.5gb,2g.10gb", "", "0:1g.5gb,2g.10gb", ""]) {
        for dir in dirs(&mount, pids) {
            let before = dir.number("memory.swap.current");
            dir.write("memory.limit", ["1", "max"][round % 2]);
            wait_until("the first block has moved", || {
                dir.number("memory.swap.current") != before
            });
        }
        drop(first.replace(exchange(&mut mount, divided)));
        for (dir, program) in dirs(&mount, pids).into_iter().zip(&mut programs) {
            wait_until("the process has registered again", || dir.exists());
            assert_eq!(program.ask("verify"), "verified 16");
        }
        let expected = [(0, ALL * MIB), (ALL * MIB, 0)][round % 2];
        for dir in dirs(&mount, pids) {
            let both = || (dir.number("memory.current"), dir.number("memory.swap.current"));
            wait_until("the memory is on the expected side", || both() == expected);
        }
        let at =
            |device: usize, bytes: u64| [0, 1, 2].map(|index| if index == device { bytes / MIB } else { 0 });
        for (dir, device) in dirs(&mount, pids).into_iter().zip([[3, 2], [0, 1]][round % 2]) {
            // The hook renumbers its counts after the daemon has registered it.
            wait_until("the memory is on the renumbered device", || {
                placed(&dir) == (at(device, expected.0), at(device, expected.1))
            });
        }
        assert_eq!(mount.number("team", "memory.swap.current", ""), 2 * expected.1);
    }
    for (dir, program) in dirs(&mount, pids).into_iter().zip(&mut programs) {
        assert_eq!(program.ask("verify"), "verified 16");
        wait_until("the swap pool is empty", || {
            dir.key("memory.stat", "swap_pool") == 0
        });
        assert_eq!(program.ask("free all"), "freed 16");
        wait_for(&dir, [0; 3], [0; 3]);
    }
    assert_eq!(mount.number("team", "memory.current", ""), 0);
}
