//! Tests that a suspension survives SIGKILL of the helper, of the process and of the daemon at each step. The
//! simulated driver stops the helper before the call of that step.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::driver::Dir;
use crate::suspend::{Reached, is_running, resume, stopped_helper, suspend};

const MIB: u64 = 1 << 20;

/// Names of steps, and the driver's function that is called in each.
const SUSPENDING: [(&str, &str); 2] = [
    ("lock", "cuCheckpointProcessLock"),
    ("checkpoint", "cuCheckpointProcessCheckpoint"),
];
const RESUMING: [(&str, &str); 2] = [
    ("restore", "cuCheckpointProcessRestore"),
    ("unlock", "cuCheckpointProcessUnlock"),
];

/// Runs a program with 64 MiB up to the call of `function`, which is made in the `step` of that name.
#[track_caller]
fn reach(step: &str, function: &str) -> Reached {
    let config = Config::default()
        .env("SIMGPU_CONTEXT_MEMORY", 0)
        .env("SIMGPU_FAULTS", format!("{function}=stop"));
    let mount = Mount::with(config);
    let mut program = mount.obedient();
    assert!(
        program
            .ask(&format!("alloc linear {}", 64 * MIB))
            .starts_with("allocated ")
    );
    let pid = program.pid();
    if RESUMING.iter().any(|(of, _)| *of == step) {
        suspend(&mount, pid);
        mount.write(pid, "gcgroup.suspend", "0");
    } else {
        mount.write(pid, "gcgroup.suspend", "1");
    }
    Reached::wait(mount, program, step)
}

fn events(mount: &Mount, pid: i32) -> String {
    mount.read(pid, "gcgroup.events")
}

fn has_ended(pid: Pid) -> bool {
    // A zombie has no command line.
    fs::read(format!("/proc/{pid}/cmdline"))
        .unwrap_or_default()
        .is_empty()
}

#[test]
fn killed_helper_is_reported_and_a_suspension_is_rolled_back() {
    for (step, function) in SUSPENDING {
        let mut reached = reach(step, function);
        let (mount, pid) = (&reached.mount, reached.program.pid());
        kill(reached.helper, Signal::SIGKILL).expect("the helper lives");
        wait_until("the failure is reported", || {
            events(mount, pid).contains(&format!("suspend_error {step}"))
        });
        wait_until("the process runs on", || is_running(mount, pid));
        assert_eq!(Dir::of(mount, pid).number("memory.current"), 64 * MIB, "{step}");
        assert_eq!(reached.program.ask("verify"), "verified 1", "{step}");
    }
}

#[test]
fn killed_helper_of_a_resumption_leaves_the_process_locked_and_another_completes_it() {
    for (step, function) in RESUMING {
        let mut reached = reach(step, function);
        let (mount, pid) = (&reached.mount, reached.program.pid());
        kill(reached.helper, Signal::SIGKILL).expect("the helper lives");
        wait_until("the failure is reported", || {
            events(mount, pid).contains(&format!("suspend_error {step}"))
        });
        assert!(events(mount, pid).contains("frozen 1\n"), "{step}");
        let is_moved = events(mount, pid).contains("suspended 1\n");
        assert_eq!(is_moved, step == "restore");
        let dir = Dir::of(mount, pid);
        let current = dir.number("memory.current");
        assert_eq!(current, if is_moved { 0 } else { 64 * MIB }, "{step}");
        assert_eq!(dir.number("memory.swap.current"), 64 * MIB - current, "{step}");
        mount.write(pid, "gcgroup.suspend", "0");
        reached.continue_next_helper();
        wait_until("the process is resumed", || is_running(mount, pid));
        assert_eq!(reached.program.ask("verify"), "verified 1", "{step}");
    }
}

#[test]
fn process_killed_at_any_step_leaves_nothing() {
    for (step, function) in SUSPENDING.into_iter().chain(RESUMING) {
        let mut reached = reach(step, function);
        let pid = reached.program.pid();
        reached.program.signal(Signal::SIGKILL);
        reached.program.wait();
        let mount = &reached.mount;
        wait_until("its directory is gone", || !Dir::of(mount, pid).exists());
        kill(reached.helper, Signal::SIGCONT).expect("the helper lives");
        // Its task has ended.
        wait_until("the failure is logged", || {
            mount.log().contains(&format!("{pid} cannot be "))
        });
        assert_eq!(mount.number("", "memory.current", ""), 0, "{step}");
        assert_eq!(mount.truth().used_by_all(0), 0, "{step}");
    }
}

#[test]
fn daemon_killed_at_any_step_continues_from_the_state_in_the_driver() {
    for (step, function) in SUSPENDING.into_iter().chain(RESUMING) {
        let mut reached = reach(step, function);
        let pid = reached.program.pid();
        reached.mount.kill9();
        // The call is made after the daemon's end.
        kill(reached.helper, Signal::SIGCONT).expect("the helper lives");
        wait_until("the helper ends", || has_ended(reached.helper));
        reached.mount.restart();
        let mount = &reached.mount;
        wait_until("the process has registered again", || {
            Dir::of(mount, pid).exists()
        });
        if SUSPENDING.iter().any(|(of, _)| *of == step) {
            wait_until("the process is suspended", || {
                // The next daemon's helper may be stopped at the same call.
                if let Some(next) = stopped_helper(mount) {
                    kill(next, Signal::SIGCONT).expect("the helper lives");
                }
                events(mount, pid).contains("suspended 1\n")
            });
            // Where the process has to register twice, it is counted again from the driver's state.
            wait_until("its memory is counted on the host", || {
                Dir::of(mount, pid).number("memory.swap.current") == 64 * MIB
            });
            resume(mount, pid);
        }
        wait_until("the process is resumed", || is_running(mount, pid));
        assert_eq!(Dir::of(mount, pid).number("memory.current"), 64 * MIB, "{step}");
        assert_eq!(reached.program.ask("verify"), "verified 1", "{step}");
    }
}

/// Runs a frozen program of which 64 of 128 MiB are being copied to the host, at so many bytes a second, and
/// whose suspension waits for the library's helper thread until a part of that is copied.
#[track_caller]
fn reach_hold_in_a_move(config: Config, bandwidth: &str) -> (Mount, Governed) {
    let config = config.env("SIMGPU_CONTEXT_MEMORY", 0);
    let mount = Mount::with(config.env("SIMGPU_HOST_BANDWIDTH", bandwidth));
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let pid = program.pid();
    for _ in 0..4 {
        let answer = program.ask(&format!("alloc linear {}", 32 * MIB));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    mount.write(pid, "compute.freeze", "1");
    wait_until("it is frozen", || events(&mount, pid).contains("frozen 1\n"));
    // The memory counts as moved when the copies have ended.
    let truth = mount.truth();
    let before = truth.copy_usec(pid, 0);
    mount.write(pid, "memory.limit", "64M");
    wait_until("the move has begun", || truth.copy_usec(pid, 0) != before);
    mount.write(pid, "gcgroup.suspend", "1");
    wait_until("the helper thread is waited for", || {
        events(&mount, pid).contains("suspend_step hold")
    });
    (mount, program)
}

#[test]
fn suspension_ends_a_move_and_counts_its_memory_once() {
    let (mount, mut program) = reach_hold_in_a_move(Config::default(), "32M");
    let (pid, dir) = (program.pid(), Dir::of(&mount, program.pid()));
    wait_until("the process is suspended", || {
        events(&mount, pid).contains("suspended 1\n")
    });
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.number("memory.swap.current"), 128 * MIB);
    dir.write("memory.limit", "max");
    mount.write(pid, "compute.freeze", "0");
    resume(&mount, pid);
    wait_until("all memory is on the GPU", || {
        dir.number("memory.swap.current") == 0 && dir.number("memory.current") == 128 * MIB
    });
    assert_eq!(program.ask("verify"), "verified 4");
}

#[test]
fn program_goes_on_when_the_daemon_is_killed_before_the_lock_during_a_move() {
    // Slow, so that the step lasts until it is seen on a busy machine.
    let config = Config::default().arg("--grace").arg("100");
    let (mut mount, mut program) = reach_hold_in_a_move(config, "8M");
    mount.kill9();
    assert_eq!(program.ask("verify"), "verified 4");
}
