//! Tests `memory.swap.max` of groups: exact for the sum of all member processes while they race, move and are
//! killed.

use std::sync::atomic::{AtomicBool, Ordering};

use simgpu::Held;
use support::{Config, Governed, Mount, Truth, artifacts, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};

const MIB: u64 = 1 << 20;

/// Mounts with nested groups, on GPUs whose contexts take no memory.
fn mount(groups: &[&str]) -> Mount {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    for path in groups {
        std::fs::create_dir(mount.path().join(path)).unwrap_or_else(|error| panic!("mkdir {path}: {error}"));
    }
    mount
}

#[track_caller]
fn join(mount: &Mount, group: &str, pid: i32) {
    mount.write(group, "gcgroup.procs", &pid.to_string());
}

/// Starts a program in a group with movable blocks of these sizes in MiB.
#[track_caller]
fn program(mount: &Mount, group: &str, blocks: &[u64]) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    join(mount, group, program.pid());
    for size in blocks {
        let answer = program.ask(&format!("alloc linear {}", size * MIB));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    program
}

/// Makes programs swap out as much as they may.
fn squeeze(mount: &Mount, programs: &[Governed]) {
    for program in programs {
        Dir::of(mount, program.pid()).write("memory.limit", 1);
    }
}

/// Asserts that the programs' blocks keep their bytes, on the GPU or on the host.
#[track_caller]
fn verify(programs: &mut [Governed], blocks: usize) {
    for program in programs.iter_mut() {
        program.say("verify");
    }
    for program in programs {
        assert_eq!(program.line(), Some(format!("verified {blocks}")));
    }
}

fn swapped(mount: &Mount, group: &str) -> u64 {
    mount.number(group, "memory.swap.current", "")
}

/// Runs `body` while a monitor asserts that at most `most` bytes of host memory are in use.
fn never_more_than<T>(mount: &mut Mount, most: u64, body: impl FnOnce(&mut Mount) -> T) -> T {
    let (is_over, truth) = (AtomicBool::new(false), Truth::of(&mount.simgpu_dir()));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut highest = 0;
            while !is_over.load(Ordering::Relaxed) {
                highest = truth.host_at_once(Held::HostPhysical).unwrap_or(0).max(highest);
                std::thread::yield_now();
            }
            highest
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(mount)));
        is_over.store(true, Ordering::Relaxed);
        let highest = watcher.join().expect("the watcher ends without a panic");
        let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(highest > 0 && highest <= most, "{highest} bytes were in use");
        result
    })
}

#[test]
fn concurrent_swap_fills_bound_and_never_exceeds_it() {
    const BLOCK: u64 = 2 * MIB;
    const MOST: u64 = 200 * MIB;
    let mut mount = mount(&["team"]);
    mount.write("team", "memory.swap.max", &MOST.to_string());
    let mut shells: Vec<_> = (0..4)
        .map(|_| {
            let mut command = mount.command(driver_shell());
            command.env("GCGROUP_SWAP", "max");
            let shell = DriverShell::spawn(command);
            join(&mount, "team", shell.pid());
            Dir::of(&mount, shell.pid()).write("memory.limit", 1);
            shell
        })
        .collect();
    let raced: u64 = never_more_than(&mut mount, MOST, |_| {
        shells
            .iter_mut()
            .for_each(|shell| shell.tell(&format!("race 4 {BLOCK}")));
        shells.iter_mut().map(DriverShell::raced).sum()
    });
    assert_eq!(raced * BLOCK, MOST);
    assert_eq!(swapped(&mount, "team"), MOST);
    // Swap that one process releases is available to the others.
    assert_eq!(shells[1].ask(&format!("alloc linear {BLOCK}")), "error 2");
    let of = |shell: &DriverShell| Dir::of(&mount, shell.pid()).number("memory.swap.current");
    shells.sort_by_cached_key(of);
    let gone = shells.pop().unwrap();
    let had = of(&gone);
    gone.kill9();
    wait_until("the killed process's swap is uncharged", || {
        swapped(&mount, "team") == MOST - had
    });
    let answer = shells[0].ask(&format!("alloc linear {BLOCK}"));
    assert!(answer.starts_with("ok "), "{answer}");
}

#[test]
fn lowered_limits_swap_out_up_to_each_levels_bound() {
    let mut mount = mount(&["team", "team/a"]);
    mount.write("team", "memory.swap.max", "48M");
    mount.write("team/a", "memory.swap.max", "20M");
    let groups = ["team", "team/a", "team/a", "team"];
    let mut programs: Vec<_> = groups
        .iter()
        .map(|group| program(&mount, group, &[2, 8, 8, 8, 4]))
        .collect();
    never_more_than(&mut mount, 48 * MIB, |mount| {
        squeeze(mount, &programs);
        wait_until("the group's swap limit is used up", || {
            swapped(mount, "team") == 48 * MIB
        });
        assert!(swapped(mount, "team/a") <= 20 * MIB);
        verify(&mut programs, 5);
    });
    mount.write("team", "memory.swap.max", "max");
    let all = || swapped(&mount, "team");
    wait_until("the remaining swap is used up", || all() == (60 + 20) * MIB);
    assert_eq!(swapped(&mount, "team/a"), 20 * MIB);
    mount.write("team/a", "memory.swap.max", "max");
    wait_until("every block is swapped out", || all() == 120 * MIB);
    mount.write("team", "memory.swap.max", "0");
    verify(&mut programs, 5);
    assert_eq!(all(), 120 * MIB, "a lowered swap limit swapped blocks in");
    for program in &programs {
        Dir::of(&mount, program.pid()).write("memory.limit", "max");
    }
    wait_until("every block is swapped in", || all() == 0);
    verify(&mut programs, 5);
    squeeze(&mount, &programs);
    verify(&mut programs, 5);
    assert_eq!(all(), 0, "blocks moved out with a swap limit of 0");
}

#[test]
fn swap_of_killed_is_reusable_and_survives_daemon_kill() {
    const MOST: u64 = 40 * MIB;
    let mut mount = mount(&["team"]);
    mount.write("team", "memory.swap.max", &MOST.to_string());
    let mut programs: Vec<_> = (0..4).map(|_| program(&mount, "team", &[4; 8])).collect();
    never_more_than(&mut mount, MOST, |mount| {
        squeeze(mount, &programs);
        wait_until("moves out have begun", || swapped(mount, "team") > 0);
        let mut killed = programs.pop().unwrap();
        killed.signal(nix::sys::signal::Signal::SIGKILL);
        killed.wait();
        wait_until("the group's swap limit is used up", || {
            swapped(mount, "team") == MOST
        });
        for round in 0..3 {
            // All blocks are being moved to the device, and then back, when the daemon is killed.
            for value in ["max", "1"] {
                for program in &programs {
                    Dir::of(mount, program.pid()).write("memory.limit", value);
                }
                if round > 0 {
                    mount.kill9();
                    mount.restart();
                    for program in &programs {
                        wait_until("the process has registered again", || {
                            mount.governs(program.pid())
                        });
                    }
                }
            }
            wait_until("the group's swap limit is used up again", || {
                swapped(mount, "team") == MOST
            });
            verify(&mut programs, 8);
        }
        // Also the blocks of the remaining processes.
        let mut killed = programs.remove(0);
        let had = Dir::of(mount, killed.pid()).number("memory.swap.current");
        killed.signal(nix::sys::signal::Signal::SIGKILL);
        killed.wait();
        wait_until("the remaining members use the killed process's swap", || {
            swapped(mount, "team") == MOST
        });
        assert!(had <= 32 * MIB);
        verify(&mut programs, 8);
    });
}

#[test]
fn kept_host_memory_is_given_to_members_that_need_it() {
    let mut mount = mount(&["team"]);
    mount.write("team", "memory.swap.max", "32M");
    let mut keeper = program(&mount, "team", &[16, 16]);
    let mut asker = program(&mount, "team", &[]);
    Dir::of(&mount, asker.pid()).write("memory.limit", 1);
    never_more_than(&mut mount, 32 * MIB, |mount| {
        let dir = Dir::of(mount, keeper.pid());
        for _ in 0..3 {
            dir.write("memory.limit", 1);
            wait_until("both blocks are swapped out", || {
                swapped(mount, "team") == 32 * MIB
            });
            dir.write("memory.limit", "max");
            wait_until("both blocks are swapped in", || swapped(mount, "team") == 0);
            let answer = asker.ask(&format!("alloc linear {}", 32 * MIB));
            assert!(answer.starts_with("allocated "), "{answer}");
            assert_eq!(asker.ask("free all"), "freed 1");
            assert_eq!(keeper.ask("verify"), "verified 2");
        }
    });
}

#[test]
fn moved_process_carries_its_swap() {
    let mut mount = mount(&["team", "team/a", "team/b"]);
    for (group, most) in [("team", "40M"), ("team/a", "24M"), ("team/b", "24M")] {
        mount.write(group, "memory.swap.max", most);
    }
    let mut programs: Vec<_> = (0..3).map(|_| program(&mount, "team/a", &[4; 6])).collect();
    never_more_than(&mut mount, 40 * MIB, |mount| {
        squeeze(mount, &programs);
        // The processes move between groups meanwhile.
        for round in 0..30 {
            join(
                mount,
                ["team/a", "team/b"][(round / 3) % 2],
                programs[round % 3].pid(),
            );
        }
        for (program, group) in programs.iter().zip(["team/a", "team/b", "team"]) {
            join(mount, group, program.pid());
        }
        wait_until("the group's swap limit is used up", || {
            swapped(mount, "team") == 40 * MIB
        });
        verify(&mut programs, 6);
        for program in &programs {
            join(mount, "team/b", program.pid());
        }
        verify(&mut programs, 6);
        assert_eq!(
            swapped(mount, "team/b"),
            40 * MIB,
            "the group did not admit the processes with their swap"
        );
        assert_eq!(swapped(mount, "team"), 40 * MIB);
    });
    // No group bounds swap any more, so all blocks move out.
    for program in &programs {
        join(&mount, "", program.pid());
        let dir = Dir::of(&mount, program.pid());
        wait_until("every block of the process is swapped out", || {
            dir.number("memory.swap.current") == 24 * MIB
        });
    }
    verify(&mut programs, 6);
}
