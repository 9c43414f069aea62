//! The host's memory: however many processes swap at once, they leave what must be left.

use std::sync::atomic::{AtomicBool, Ordering};

use simgpu::Held;
use support::{Config, Governed, Mount, Truth, artifacts, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};

const MIB: u64 = 1 << 20;
/// What is always left, and what is there beside.
const RESERVE: u64 = 512 * MIB;
const ROOM: u64 = 62 * MIB;

/// A machine on a host of that size, which programs are told of.
fn mount() -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_HOST_MEMORY", RESERVE + ROOM)
            .env("GCGROUP_SWAP", "max"),
    )
}

fn told(mount: &Mount, mut command: std::process::Command) -> std::process::Command {
    command.env("GCGROUP_MEMINFO", mount.simgpu_dir().join("meminfo"));
    command
}

/// What programs have of the host's memory, at one moment.
fn taken(truth: &Truth) -> Option<u64> {
    truth.host_at_once(Held::HostPhysical)
}

/// Does something while the host is watched.
fn leaving_the_reserve<T>(mount: &Mount, body: impl FnOnce() -> T) -> T {
    let (is_over, truth) = (AtomicBool::new(false), Truth::of(&mount.simgpu_dir()));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                most = taken(&truth).unwrap_or(0).max(most);
                std::thread::yield_now();
            }
            most
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        is_over.store(true, Ordering::Relaxed);
        let most = watcher.join().expect("it watches");
        let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(most <= ROOM, "{most} bytes were in use of {ROOM}");
        result
    })
}

#[test]
fn programs_that_allocate_on_the_host_at_once_take_what_there_is_and_leave_the_rest() {
    const BLOCK: u64 = 4 * MIB;
    let mount = mount();
    let mut shells: Vec<_> = (0..4)
        .map(|_| DriverShell::spawn(told(&mount, mount.command(driver_shell()))))
        .collect();
    for shell in &shells {
        Dir::of(&mount, shell.pid()).write("memory.limit", 1);
    }
    let raced: u64 = leaving_the_reserve(&mount, || {
        for shell in &mut shells {
            shell.tell(&format!("race 4 {BLOCK}"));
        }
        shells.iter_mut().map(DriverShell::raced).sum()
    });
    assert_eq!(raced, ROOM / BLOCK);
}

#[test]
fn programs_that_move_out_at_once_take_what_there_is_and_leave_the_rest() {
    let mount = mount();
    let mut programs: Vec<_> = (0..4)
        .map(|_| {
            let mut command = told(&mount, mount.command(artifacts().load()));
            command.arg("obey");
            let mut program = Governed::spawn(command);
            program.expect("ready");
            for _ in 0..8 {
                let answer = program.ask(&format!("alloc linear {}", 4 * MIB));
                assert!(answer.starts_with("allocated "), "{answer}");
            }
            program
        })
        .collect();
    let dirs: Vec<_> = programs
        .iter()
        .map(|program| Dir::of(&mount, program.pid()))
        .collect();
    let swapped = || -> u64 { dirs.iter().map(|dir| dir.number("memory.swap.current")).sum() };
    leaving_the_reserve(&mount, || {
        for dir in &dirs {
            dir.write("memory.limit", 1);
        }
        wait_until("there is no more", || swapped() == 60 * MIB);
        // Whoever asks for more now is not given it.
        for dir in &dirs {
            dir.write("memory.reclaim", "max");
        }
        for (dir, program) in dirs.iter().zip(&mut programs) {
            wait_until("it is said", || {
                dir.number("memory.current") == 0 || dir.key("memory.events", "swap_fail") > 0
            });
            assert_eq!(program.ask("verify"), "verified 8");
        }
        assert_eq!(swapped(), 60 * MIB);
    });
    // What one leaves the others have.
    let mut gone = programs.pop().unwrap();
    let others = &dirs[..3];
    assert_eq!(gone.ask("free all"), "freed 8");
    let out = || -> u64 { others.iter().map(|dir| dir.number("memory.swap.current")).sum() };
    leaving_the_reserve(&mount, || {
        wait_until("it is taken", || out() == 60 * MIB);
    });
    for program in &mut programs {
        assert_eq!(program.ask("verify"), "verified 8");
    }
}
