//! Tests programs that replace the allocator (`allocator.c`), preloaded before or after the library, or
//! linked.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Config, Governed, Mount, artifacts, c_program, repository, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};

const MIB: u64 = 1 << 20;

fn preloadable() -> PathBuf {
    c_program("allocator.c", &["-shared", "-fPIC", "-pthread", "-fno-builtin"])
}

/// Preloads the allocator, with the library before or after it.
fn with_allocator(mut command: Command, is_first: bool) -> Command {
    let (allocator, preload) = (preloadable(), artifacts().preload());
    let [first, second] = match is_first {
        true => [&allocator, &preload],
        false => [&preload, &allocator],
    };
    command.env("LD_PRELOAD", format!("{}:{}", first.display(), second.display()));
    command
}

fn linked() -> PathBuf {
    let source = repository().join("tests/programs/allocator.c");
    let path = format!("-L{}", artifacts().simgpu().display());
    let source = source.to_str().expect("text");
    c_program(
        "driver_shell.c",
        &[source, "-fno-builtin", "-rdynamic", "-pthread", &path, "-lcuda"],
    )
}

#[track_caller]
fn has_mapped(pid: i32, library: &Path) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process lives");
    assert!(maps.contains(library.to_str().expect("text")), "{maps}");
}

#[test]
fn programs_with_own_allocator_are_governed() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    for how in ["before", "behind", "linked"] {
        let command = match how {
            "linked" => mount.command(linked()),
            how => with_allocator(mount.command(driver_shell()), how == "before"),
        };
        let mut shell = DriverShell::spawn(command);
        let dir = Dir::of(&mount, shell.pid());
        if how != "linked" {
            has_mapped(shell.pid(), &preloadable());
        }
        wait_until("the process is governed", || mount.governs(shell.pid()));
        dir.write("memory.limit", 4 * MIB);
        shell.tell(&format!("race 4 {MIB}"));
        assert_eq!(
            shell.raced(),
            4,
            "{how}: the threads get as many blocks as the limit allows"
        );
        assert_eq!(dir.number("memory.current"), 4 * MIB, "{how}");
        assert_eq!(shell.ask("spin 10 3"), "ok", "{how}");
        dir.write("compute.freeze", 1);
        wait_until("the process is frozen and drained", || dir.is_frozen());
        shell.tell("spin 1 1");
        wait_until("the launch waits at the gate", || {
            dir.key("compute.stat", "nr_frozen") > 0
        });
        dir.write("compute.freeze", 0);
        assert_eq!(shell.answer(), "ok", "{how}");
        assert_eq!(shell.ask("sync"), "ok", "{how}");
        let pid = shell.pid();
        shell.quit();
        wait_until("the process is no longer governed", || !mount.governs(pid));
        assert_eq!(mount.truth().used_by_all(0), 0, "{how}");
    }
}

#[test]
fn program_with_own_allocator_can_swap() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("GCGROUP_SWAP", "max"),
    );
    for is_first in [false, true] {
        let mut command = with_allocator(mount.command(artifacts().load()), is_first);
        command.arg("obey");
        let mut program = Governed::spawn(command);
        program.expect("ready");
        for _ in 0..4 {
            let answer = program.ask(&format!("alloc linear {}", 4 * MIB));
            assert!(answer.starts_with("allocated "), "{answer}");
        }
        let dir = Dir::of(&mount, program.pid());
        wait_until("the process is governed", || dir.exists());
        for _ in 0..3 {
            dir.write("memory.limit", 4 * MIB);
            wait_until("three blocks are swapped out", || {
                dir.number("memory.swap.current") == 12 * MIB
            });
            assert_eq!(program.ask("verify"), "verified 4");
            dir.write("memory.limit", "max");
            wait_until("every block is swapped in", || {
                dir.number("memory.swap.current") == 0
            });
            assert_eq!(program.ask("verify"), "verified 4");
        }
        assert_eq!(program.ask("free all"), "freed 4");
        assert_eq!(dir.number("memory.current"), 0);
        program.close_stdin();
        assert!(program.wait().success(), "{}", program.stderr());
    }
}
