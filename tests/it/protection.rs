//! Tests `memory.min` and `memory.low`: whose memory is moved out for others, on a GPU that is full, and
//! which users can write them.

use std::fs;

use support::{Config, Governed, Mount};

use crate::delegation::{ALICE, NOT_PERMITTED, delegate, may, may_not, shared, shell_of};
use crate::driver::Dir;
use crate::swap_pressure::program;

const MIB: u64 = 1 << 20;
const REFUSED: &str = "refused CUDA_ERROR_OUT_OF_MEMORY";

/// Mounts a GPU of 128 MiB whose contexts take no memory.
fn mount() -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_MEMORY", "128M")
            .without_turns(),
    )
}

/// Starts a program that can swap and has so many blocks of 16 MiB.
#[track_caller]
fn holder(mount: &Mount, priority: u32, blocks: u64) -> Governed {
    let mut program = program(mount, priority, 1 << 40);
    for _ in 0..blocks {
        let answer = program.ask(&format!("alloc linear {}", 16 * MIB));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    program
}

#[track_caller]
fn alloc(program: &mut Governed, bytes: u64) -> bool {
    let answer = program.ask(&format!("alloc linear {bytes}"));
    assert!(answer.starts_with("allocated ") || answer == REFUSED, "{answer}");
    answer != REFUSED
}

fn out(mount: &Mount, program: &Governed) -> u64 {
    Dir::of(mount, program.pid()).number("memory.swap.current") / MIB
}

#[test]
fn protected_memory_moves_out_last_or_not_at_all() {
    let mount = mount();
    let mut plain = holder(&mount, 8, 3);
    let mut protected = holder(&mount, 12, 4);
    let dir = Dir::of(&mount, protected.pid());
    dir.write("memory.min", 32 * MIB);
    dir.write("memory.low", 64 * MIB);
    let mut asker = program(&mount, 0, 0);
    let outs = |plain: &Governed, protected: &Governed| (out(&mount, plain), out(&mount, protected));
    // 16 MiB are free. The process of higher priority gives way, since it has no protection.
    assert!(alloc(&mut asker, 48 * MIB));
    assert_eq!(outs(&plain, &protected), (32, 0));
    assert!(alloc(&mut asker, 16 * MIB));
    assert_eq!(outs(&plain, &protected), (48, 0));
    // Nothing else is unprotected, so memory.low gives way, and memory.min does not.
    assert!(alloc(&mut asker, 32 * MIB));
    assert_eq!(outs(&plain, &protected), (48, 32));
    assert!(!alloc(&mut asker, 16 * MIB));
    assert_eq!(outs(&plain, &protected), (48, 32));
    assert_eq!(plain.ask("verify"), "verified 3");
    assert_eq!(protected.ask("verify"), "verified 4");
    dir.write("memory.min", 0);
    assert!(alloc(&mut asker, 16 * MIB));
    assert_eq!(outs(&plain, &protected), (48, 48));
    assert_eq!(protected.ask("verify"), "verified 4");
}

#[test]
fn limit_of_a_group_moves_out_unprotected_memory_of_members() {
    let mount = mount();
    for group in ["a", "a/kept", "a/rest"] {
        std::fs::create_dir(mount.path().join(group)).expect("a group");
    }
    let mut kept = holder(&mount, 8, 3);
    let mut rest = holder(&mount, 8, 3);
    mount.write("a/kept", "gcgroup.procs", &kept.pid().to_string());
    mount.write("a/rest", "gcgroup.procs", &rest.pid().to_string());
    // A group's own value does not protect its memory from its own limit.
    mount.write("a", "memory.min", "1G");
    mount.write("a/kept", "memory.min", "1G");
    mount.write("a", "memory.limit", &(64 * MIB).to_string());
    support::wait_until("the memory of the other group is moved out", || {
        (out(&mount, &kept), out(&mount, &rest)) == (0, 32)
    });
    mount.write("a", "memory.reclaim", "max");
    support::wait_until("all that is not protected is moved out", || {
        (out(&mount, &kept), out(&mount, &rest)) == (0, 48)
    });
    assert_eq!(kept.ask("verify"), "verified 3");
    assert_eq!(rest.ask("verify"), "verified 3");
}

#[test]
fn user_protects_memory_in_own_groups_only() {
    let mount = shared();
    let process = shell_of(&mount, ALICE);
    let pid = process.pid();
    fs::create_dir(mount.path().join("jobs")).expect("root may create a group");
    delegate(&mount, "alice", ALICE);
    let root = mount.path().to_owned();
    let root = root.display();
    for file in ["memory.min", "0/memory.low"] {
        let path = format!("{root}/{pid}/{file}");
        let write = format!("echo max > {path}");
        for group in ["", "jobs"] {
            mount.write(group, "gcgroup.procs", &pid.to_string());
            may_not(&mount, ALICE, &write, NOT_PERMITTED);
            may(&mount, ALICE, &format!("echo 0 > {path}"));
            assert_eq!(mount.read(pid, file), "0", "{group}");
        }
        mount.write("alice", "gcgroup.procs", &pid.to_string());
        may(&mount, ALICE, &write);
        may(&mount, ALICE, &format!("echo 0 > {path}"));
        may_not(
            &mount,
            ALICE,
            &format!("echo max > {root}/alice/{file}"),
            NOT_PERMITTED,
        );
    }
}
