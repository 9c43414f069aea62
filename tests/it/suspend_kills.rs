//! Tests that a suspension survives SIGKILL of the helper, of the process and of the daemon at each step. The
//! simulated driver stops the helper before the call of that step.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Governed, Mount, helper, wait_for, wait_until};

use crate::driver::Dir;
use crate::suspend::{is_running, resume, suspend};

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

/// A program whose suspension or resumption has reached a step, in which the helper is stopped.
struct Reached {
    mount: Mount,
    program: Governed,
    helper: Pid,
}

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
    wait_until("the step is reached", || {
        events(&mount, pid).contains(&format!("suspend_step {step}"))
    });
    let daemon = mount.daemon().expect("the daemon runs");
    let helper = wait_for("the helper is stopped", || {
        helper(daemon, "checkpoint").filter(|pid| is_stopped(*pid))
    });
    Reached {
        mount,
        program,
        helper,
    }
}

fn events(mount: &Mount, pid: i32) -> String {
    mount.read(pid, "gcgroup.events")
}

fn is_stopped(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
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
        let daemon = mount.daemon().expect("the daemon runs");
        let next = wait_for("another helper is stopped", || {
            helper(daemon, "checkpoint").filter(|pid| *pid != reached.helper && is_stopped(*pid))
        });
        kill(next, Signal::SIGCONT).expect("the helper lives");
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
        wait_until("the helper ends", || has_ended(reached.helper));
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
            let daemon = mount.daemon().expect("the daemon runs");
            wait_until("the process is suspended", || {
                // The next daemon's helper may be stopped at the same call.
                if let Some(next) = helper(daemon, "checkpoint").filter(|pid| is_stopped(*pid)) {
                    kill(next, Signal::SIGCONT).expect("the helper lives");
                }
                events(mount, pid).contains("suspended 1\n")
            });
            assert_eq!(
                Dir::of(mount, pid).number("memory.swap.current"),
                64 * MIB,
                "{step}"
            );
            resume(mount, pid);
        }
        wait_until("the process is resumed", || is_running(mount, pid));
        assert_eq!(Dir::of(mount, pid).number("memory.current"), 64 * MIB, "{step}");
        assert_eq!(reached.program.ask("verify"), "verified 1", "{step}");
    }
}
