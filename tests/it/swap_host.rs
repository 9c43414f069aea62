//! Tests that any number of processes that swap at once leave the reserve of host memory free.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use simgpu::Held;
use support::{Config, Governed, Mount, Truth, artifacts, is_stopped, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};

const MIB: u64 = 1 << 20;
/// Bytes of the reserve, and of the room beside it.
const RESERVE: u64 = 512 * MIB;
const ROOM: u64 = 62 * MIB;

/// Mounts with a host of that size, which is announced to programs.
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

/// Returns the host memory of all programs at one moment, in bytes.
fn taken(truth: &Truth) -> Option<u64> {
    truth.host_at_once(Held::HostPhysical)
}

/// Runs `body` while a monitor asserts that the reserve stays free.
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
        let most = watcher.join().expect("the watcher ends without a panic");
        let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(most <= ROOM, "{most} bytes were in use of {ROOM}");
        result
    })
}

#[test]
fn concurrent_host_allocations_fill_room_and_leave_reserve() {
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
fn concurrent_moves_out_fill_room_and_leave_reserve() {
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
        wait_until("the swapped memory leaves only the reserve", || {
            swapped() == 60 * MIB
        });
        // No process gets more host memory now.
        for dir in &dirs {
            dir.write("memory.reclaim", "max");
        }
        for (dir, program) in dirs.iter().zip(&mut programs) {
            wait_until("the process has moved out or counted a failed move", || {
                dir.number("memory.current") == 0 || dir.key("memory.events", "swap_fail") > 0
            });
            assert_eq!(program.ask("verify"), "verified 8");
        }
        assert_eq!(swapped(), 60 * MIB);
    });
    // Host memory released by one process is available to the others.
    let mut gone = programs.pop().unwrap();
    let others = &dirs[..3];
    assert_eq!(gone.ask("free all"), "freed 8");
    let out = || -> u64 { others.iter().map(|dir| dir.number("memory.swap.current")).sum() };
    leaving_the_reserve(&mount, || {
        wait_until("the other processes use the released host memory", || {
            out() == 60 * MIB
        });
    });
    for program in &mut programs {
        assert_eq!(program.ask("verify"), "verified 8");
    }
}

/// Starts a program with one block of each size, in the order given.
#[track_caller]
fn with_blocks(mut command: std::process::Command, sizes: &[u64]) -> Governed {
    command.arg("obey");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    for size in sizes {
        let answer = program.ask(&format!("alloc linear {size}"));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    program
}

/// Tests a lock on the inode of /proc/meminfo, which excludes all other open files of it.
#[test]
fn meminfo_lock_of_another_user_delays_no_move() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("GCGROUP_SWAP", "max"),
    );
    let mut locks = std::process::Command::new("setpriv");
    locks.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    locks.args(["flock", "/proc/meminfo", "-c", "echo locked; exec cat"]);
    let mut holder = Governed::spawn(locks);
    holder.expect("locked");
    let mut program = with_blocks(mount.command(artifacts().load()), &[4 * MIB; 8]);
    let dir = Dir::of(&mount, program.pid());
    dir.write("memory.limit", 1);
    wait_until("the memory is swapped out", || {
        dir.number("memory.swap.current") == 32 * MIB
    });
    assert!(holder.is_running(), "the lock was released too early");
    assert_eq!(program.ask("verify"), "verified 8");
}

#[test]
fn process_stopped_in_a_move_delays_no_other() {
    let mount = mount();
    let block = 40 * MIB;
    let mut command = told(&mount, mount.command(artifacts().load()));
    // The first call is for the block itself; the second makes host memory.
    command.env("SIMGPU_FAULTS", "cuMemCreate=stop@2");
    let mut stopped = with_blocks(command, &[block]);
    let mut other = with_blocks(told(&mount, mount.command(artifacts().load())), &[4 * MIB; 8]);
    let (dir, stopped_dir) = (Dir::of(&mount, other.pid()), Dir::of(&mount, stopped.pid()));
    stopped_dir.write("memory.limit", 1);
    wait_until("the process is stopped in its move", || {
        is_stopped(Pid::from_raw(stopped.pid()))
    });
    // There is room for this beside the other process's claim, and later for what that process has not used.
    dir.write("memory.limit", 1);
    wait_until("the other process's memory is swapped out", || {
        dir.number("memory.swap.current") == 32 * MIB
    });
    assert!(
        is_stopped(Pid::from_raw(stopped.pid())),
        "the process was continued too early"
    );
    assert_eq!(other.ask("verify"), "verified 8");
    assert_eq!(other.ask("free all"), "freed 8");
    stopped.signal(Signal::SIGCONT);
    wait_until("the continued process is swapped out", || {
        stopped_dir.number("memory.current") == 0
    });
    assert_eq!(stopped.ask("verify"), "verified 1");
}
