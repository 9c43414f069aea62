//! Tests swap that rules and groups enable for processes that have not asked for it.

use std::process::Command;

use support::{Config, Governed, Mount, artifacts};

use crate::driver::Dir;
use crate::rules::Ruled;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 16 * MIB;
const LIMIT: (&str, &str) = ("GCGROUP_MEMORY_LIMIT", "96M");

/// Starts a program, which has not asked for swap.
#[track_caller]
fn program(mut command: Command, environment: &[(&str, &str)]) -> Governed {
    command.arg("obey");
    command.envs([LIMIT]).envs(environment.iter().copied());
    let mut program = Governed::spawn(command);
    program.expect("ready");
    program
}

/// Allocates up to 20 blocks until one is refused; returns their bytes in MiB. Asserts that all keep their
/// contents.
#[track_caller]
fn fill(program: &mut Governed) -> u64 {
    let mut granted = |_: &u64| {
        program
            .ask(&format!("alloc linear {BLOCK}"))
            .starts_with("allocated ")
    };
    let count = (0..20).take_while(&mut granted).count() as u64;
    assert_eq!(program.ask("verify"), format!("verified {count}"));
    count * BLOCK / MIB
}

#[test]
fn group_bound_set_by_root_enables_swap() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    for path in ["team", "team/a"] {
        std::fs::create_dir(mount.path().join(path)).expect("a new group");
    }
    let start = |environment: &[(&str, &str)]| program(mount.command(artifacts().load()), environment);
    let group = ("GCGROUP_GROUP", "team/a");

    let mut before = start(&[group]);
    mount.write("team", "memory.swap.max", "64M");
    assert_eq!(fill(&mut before), 96, "it started before");
    drop(before);

    let mut enabled = start(&[group]);
    let dir = Dir::of(&mount, enabled.pid());
    assert_eq!(dir.read("memory.swap.max"), "max");
    assert_eq!(fill(&mut enabled), 160);
    assert_eq!(dir.number("memory.swap.current"), 64 * MIB);
    drop(enabled);

    let mut refuses = start(&[group, ("GCGROUP_SWAP", "0")]);
    assert_eq!(Dir::of(&mount, refuses.pid()).read("memory.swap.max"), "0");
    assert_eq!(fill(&mut refuses), 96);
    drop(refuses);

    mount.write("team/a", "memory.swap.max", "0");
    assert_eq!(fill(&mut start(&[group])), 96, "the nearest group decides");
}

#[test]
fn rule_enables_swap_for_processes_it_matches() {
    let ruled = Ruled::new("[[rule]]\nmatch.comm = \"gcgroup-load\"\nprocess.memory.swap.max = \"32M\"\n");
    let mut program = program(ruled.mount.command(artifacts().load()), &[]);
    let dir = Dir::of(&ruled.mount, program.pid());
    assert_eq!(dir.number("memory.swap.max"), 32 * MIB);
    dir.write("memory.limit", "160M");
    let held = dir.number("memory.current") / BLOCK * BLOCK;
    let filled = fill(&mut program) * MIB;
    assert_eq!(dir.number("memory.swap.current"), 32 * MIB);
    assert!(filled + held > 160 * MIB, "{filled} bytes beside {held}");
}
