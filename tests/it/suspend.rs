//! Tests `gcgroup.suspend` of processes and groups: memory moves to the host with its contents, is charged
//! there, and comes back when there is room.

use std::collections::HashSet;
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use simgpu::Held;
use support::{Config, Governed, Mount, artifacts, helper, is_stopped, wait_for, wait_until};

use crate::driver::{Dir, DriverShell};

const MIB: u64 = 1 << 20;
/// Size of a context in these tests.
const CONTEXT: u64 = 16 * MIB;

pub(crate) fn config() -> Config {
    Config::default().env("SIMGPU_CONTEXT_MEMORY", CONTEXT)
}

#[track_caller]
pub(crate) fn alloc(program: &mut Governed, bytes: u64) {
    let answer = program.ask(&format!("alloc linear {bytes}"));
    assert!(answer.starts_with("allocated "), "{answer}");
}

fn is_suspended(mount: &Mount, directory: impl ToString) -> bool {
    mount.read(directory, "gcgroup.events").contains("suspended 1\n")
}

/// Suspends a process and waits until its memory is on the host.
#[track_caller]
pub(crate) fn suspend(mount: &Mount, pid: i32) {
    mount.write(pid, "gcgroup.suspend", "1");
    wait_until("the process is suspended", || is_suspended(mount, pid));
}

/// Resumes a process and waits until its memory is on the devices.
#[track_caller]
pub(crate) fn resume(mount: &Mount, pid: i32) {
    mount.write(pid, "gcgroup.suspend", "0");
    wait_until("the process is resumed", || is_running(mount, pid));
}

/// Returns whether a process is neither suspended nor on the way to or from it.
pub(crate) fn is_running(mount: &Mount, pid: i32) -> bool {
    let events = mount.read(pid, "gcgroup.events");
    events.contains("suspended 0\n") && events.contains("frozen 0\n") && !events.contains("suspend_step")
}

/// A program whose suspension or resumption has reached a step, in which the helper is stopped.
pub(crate) struct Reached {
    pub mount: Mount,
    pub program: Governed,
    pub helper: Pid,
}

impl Reached {
    /// Waits until the program's process has reached the step.
    #[track_caller]
    pub(crate) fn wait(mount: Mount, program: Governed, step: &str) -> Self {
        wait_until("the step is reached", || {
            let events = mount.read(program.pid(), "gcgroup.events");
            events.contains(&format!("suspend_step {step}"))
        });
        let helper = wait_for("the helper is stopped", || stopped_helper(&mount));
        Self {
            mount,
            program,
            helper,
        }
    }

    /// Waits until another helper is stopped, and continues it.
    #[track_caller]
    pub(crate) fn continue_next_helper(&self) {
        let is_next = |pid: &Pid| *pid != self.helper;
        let next = wait_for("another helper is stopped", || {
            stopped_helper(&self.mount).filter(is_next)
        });
        kill(next, Signal::SIGCONT).expect("the helper lives");
    }
}

/// Returns the daemon's helper if it is stopped.
pub(crate) fn stopped_helper(mount: &Mount) -> Option<Pid> {
    helper(mount.daemon()?, "checkpoint").filter(|pid| is_stopped(*pid))
}

#[test]
fn suspended_process_frees_the_gpu_and_keeps_its_contents() {
    let mount = Mount::with(config().env("SIMGPU_MEMORY", "256M"));
    let mut program = mount.obedient();
    let pid = program.pid();
    for _ in 0..4 {
        alloc(&mut program, 32 * MIB);
    }
    let dir = Dir::of(&mount, pid);
    wait_until("the context is charged", || {
        dir.number("memory.current") == 128 * MIB + CONTEXT
    });
    suspend(&mount, pid);
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.number("memory.swap.current"), 128 * MIB + CONTEXT);
    assert_eq!(dir.gpu(0).number("memory.swap.current"), 128 * MIB + CONTEXT);
    assert_eq!(mount.truth().used(pid, 0), 0);
    assert_eq!(
        mount.truth().held(pid, 0, Held::HostCheckpoint),
        128 * MIB + CONTEXT
    );
    // Another program can have the GPU meanwhile.
    let mut other = mount.obedient();
    alloc(&mut other, 200 * MIB);
    assert_eq!(other.ask("verify"), "verified 1");
    program.say("verify");
    mount.write(pid, "gcgroup.suspend", "0");
    wait_until("it waits for room", || {
        mount.read(pid, "gcgroup.events").contains("suspend_step room")
    });
    assert!(is_suspended(&mount, pid));
    drop(other);
    assert_eq!(program.line().as_deref(), Some("verified 4"));
    wait_until("the process is resumed", || is_running(&mount, pid));
    assert_eq!(dir.number("memory.current"), 128 * MIB + CONTEXT);
    assert_eq!(dir.number("memory.swap.current"), 0);
    assert_eq!(mount.truth().used(pid, 0), 128 * MIB + CONTEXT);
    assert_eq!(dir.key("memory.events", "oom"), 0);
    // It goes on as before, again and again.
    alloc(&mut program, 32 * MIB);
    suspend(&mount, pid);
    resume(&mount, pid);
    assert_eq!(program.ask("verify"), "verified 5");
}

#[test]
fn memory_that_the_hook_has_moved_counts_once_and_returns() {
    let mount = Mount::with(config());
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let (pid, dir) = (program.pid(), Dir::of(&mount, program.pid()));
    for _ in 0..4 {
        alloc(&mut program, 32 * MIB);
    }
    wait_until("the context is charged", || {
        dir.number("memory.current") == 128 * MIB + CONTEXT
    });
    dir.write("memory.limit", 64 * MIB + CONTEXT);
    wait_until("half of the memory is swapped out", || {
        dir.number("memory.swap.current") == 64 * MIB && dir.number("memory.current") == 64 * MIB + CONTEXT
    });
    suspend(&mount, pid);
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.number("memory.swap.current"), 128 * MIB + CONTEXT);
    // What is requested meanwhile happens after the resumption.
    dir.write("memory.limit", "max");
    resume(&mount, pid);
    wait_until("all memory is on the GPU", || {
        dir.number("memory.swap.current") == 0 && dir.number("memory.current") == 128 * MIB + CONTEXT
    });
    assert_eq!(program.ask("verify"), "verified 4");
}

#[test]
fn suspension_that_cannot_succeed_changes_nothing() {
    let old = Mount::with(config().env("SIMGPU_DRIVER", "12.2"));
    let mut shell = DriverShell::start(&old);
    let error = old
        .try_write(shell.pid(), "gcgroup.suspend", "1")
        .expect_err("the driver is too old");
    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert_eq!(old.read(shell.pid(), "gcgroup.suspend"), "0");
    assert_eq!(shell.ask("spin 5 1"), "ok");

    let mount = Mount::with(config().env("SIMGPU_DRIVER", "12.8"));
    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask("alloc managed 4096"), "ok 0");
    let error = mount
        .try_write(shell.pid(), "gcgroup.suspend", "1")
        .expect_err("this driver cannot move managed memory");
    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert_eq!(shell.ask("free 0"), "ok");
    suspend(&mount, shell.pid());
    resume(&mount, shell.pid());
    for value in ["2", "", "max", "-1"] {
        assert!(
            mount.try_write(shell.pid(), "gcgroup.suspend", value).is_err(),
            "{value:?}"
        );
    }
}

#[test]
fn suspended_group_moves_as_a_whole_and_back() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    std::fs::create_dir(mount.path().join("team")).expect("root may make groups");
    mount.write("team", "memory.limit", "128M");
    let mut members = [mount.obedient(), mount.obedient()];
    for program in &mut members {
        mount.write("team", "gcgroup.procs", &program.pid().to_string());
        alloc(program, 64 * MIB);
    }
    let run = |command: &str| {
        let mut command = mount.gcgroupfs(&[command, "--wait", "team"]);
        command.output().expect("it runs")
    };
    assert!(run("suspend").status.success());
    assert_eq!(mount.number("team", "memory.current", ""), 0);
    assert_eq!(mount.number("team", "memory.swap.current", ""), 128 * MIB);
    assert_eq!(mount.number("team", "gcgroup.events", "suspended"), 1);
    assert_eq!(mount.number("team", "gcgroup.events", "nr_suspended"), 2);
    let mut other = mount.obedient();
    mount.write("team", "memory.limit", "max");
    assert_eq!(mount.number("team", "memory.current", ""), 0);
    alloc(&mut other, 64 * MIB);
    assert!(run("resume").status.success());
    assert_eq!(mount.number("team", "memory.current", ""), 128 * MIB);
    assert_eq!(mount.number("team", "memory.swap.current", ""), 0);
    for program in &mut members {
        assert_eq!(program.ask("verify"), "verified 1");
    }
}

#[test]
fn resumption_waits_for_the_limit_of_its_group() {
    let mut mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    std::fs::create_dir(mount.path().join("team")).expect("root may make groups");
    mount.write("team", "memory.limit", "100M");
    let (mut first, mut second) = (mount.obedient(), mount.obedient());
    for program in [&first, &second] {
        mount.write("team", "gcgroup.procs", &program.pid().to_string());
    }
    alloc(&mut first, 64 * MIB);
    let refused = second.ask(&format!("alloc linear {}", 64 * MIB));
    assert!(!refused.starts_with("allocated "), "{refused}");
    suspend(&mount, first.pid());
    alloc(&mut second, 64 * MIB);
    mount.write(first.pid(), "gcgroup.suspend", "0");
    wait_until("it waits for room", || {
        mount
            .read(first.pid(), "gcgroup.events")
            .contains("suspend_step room")
    });
    assert_eq!(mount.number("team", "memory.current", ""), 64 * MIB);
    mount.kill9();
    mount.restart();
    wait_until("it waits for room under the next daemon", || {
        mount.governs(first.pid())
            && mount.governs(second.pid())
            && mount
                .read(first.pid(), "gcgroup.events")
                .contains("suspend_step room")
    });
    assert!(is_suspended(&mount, first.pid()));
    assert_eq!(mount.number("team", "memory.current", ""), 64 * MIB);
    assert_eq!(mount.truth().used_by_all(0), 64 * MIB);
    mount.write("team", "memory.limit", "max");
    wait_until("the process is resumed", || is_running(&mount, first.pid()));
    assert_eq!(mount.number("team", "memory.current", ""), 128 * MIB);
    assert_eq!(first.ask("verify"), "verified 1");
    assert_eq!(second.ask("verify"), "verified 1");
}

#[test]
fn swap_limit_of_a_group_bounds_a_suspension() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    std::fs::create_dir(mount.path().join("team")).expect("root may make groups");
    mount.write("team", "memory.swap.max", "32M");
    let mut program = mount.obedient();
    let pid = program.pid();
    mount.write("team", "gcgroup.procs", &pid.to_string());
    alloc(&mut program, 64 * MIB);
    let pid_text = pid.to_string();
    let suspended = mount
        .gcgroupfs(&["suspend", "--wait", &pid_text])
        .output()
        .expect("it runs");
    assert_eq!(suspended.status.code(), Some(1));
    let error = String::from_utf8_lossy(&suspended.stderr).into_owned();
    assert!(error.contains("step check has failed"), "{error}");
    assert!(is_running(&mount, pid));
    assert_eq!(program.ask("verify"), "verified 1", "it was never frozen");
    mount.write("team", "memory.swap.max", "64M");
    suspend(&mount, pid);
    assert_eq!(mount.number("team", "memory.swap.current", ""), 64 * MIB);
    resume(&mount, pid);
    assert_eq!(program.ask("verify"), "verified 1");
}

#[test]
fn process_that_another_program_moves_is_shown_as_such_and_waited_for() {
    let mount = Mount::new();
    let moves = mount.simgpu_dir().join("checkpointing");
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("SIMGPU_QUIRKS", "checkpointing");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let pid = program.pid();
    fs::write(&moves, "").expect("the directory takes a file");
    let suspended = mount.gcgroupfs(&["suspend", "--wait", &pid.to_string()]).output();
    assert!(!suspended.expect("it runs").status.success());
    let explained = mount.gcgroupfs(&["explain", &pid.to_string()]).output();
    let text = String::from_utf8_lossy(&explained.expect("it runs").stdout).into_owned();
    assert!(text.contains("another program moves its memory"), "{text}");
    fs::remove_file(&moves).expect("it exists");
    suspend(&mount, pid);
    fs::write(&moves, "").expect("the directory takes a file");
    mount.write(pid, "gcgroup.suspend", "0");
    wait_until("the daemon waits for the other program", || {
        mount.read(pid, "gcgroup.events").contains("suspend_step check")
    });
    fs::remove_file(&moves).expect("it exists");
    wait_until("the process is resumed", || is_running(&mount, pid));
}

#[test]
fn helper_is_kept_for_the_next_process_and_replaced_when_it_has_ended() {
    let mount = Mount::with(config());
    let daemon = mount.daemon().expect("the daemon runs");
    let mut helpers = Vec::new();
    for _ in 0..6 {
        let program = mount.obedient();
        suspend(&mount, program.pid());
        resume(&mount, program.pid());
        // A task may begin just before the helper of the last one is free.
        helpers.push(wait_for("a helper is kept", || helper(daemon, "checkpoint")));
    }
    let distinct = |helpers: &[Pid]| helpers.iter().collect::<HashSet<_>>().len();
    assert!(distinct(&helpers) < helpers.len(), "{helpers:?}");
    let program = mount.obedient();
    for _ in 0..3 {
        let kept = wait_for("a helper is kept", || helper(daemon, "checkpoint"));
        kill(kept, Signal::SIGKILL).expect("the helper lives");
        wait_until("it has ended", || helper(daemon, "checkpoint") != Some(kept));
        suspend(&mount, program.pid());
        resume(&mount, program.pid());
    }
}
