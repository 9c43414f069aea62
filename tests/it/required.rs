//! Tests programs that must be governed: they start with the requested settings in the requested group, or do
//! not use the GPU at all.

use std::fs;
use std::os::unix::fs::chown;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Governed, Mount, c_program, program_for_all, stop, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell, governed_pids};
use crate::rules::{ALICE, BOB, Ruled};
use crate::supervise::daemon;

const MIB: u64 = 1 << 20;

/// `CUDA_ERROR_SYSTEM_NOT_READY`
const REFUSED: &str = " 802";

/// `CUDA_ERROR_NOT_INITIALIZED`
const UNINITIALIZED: &str = "error 3";

/// Keeps a daemon stopped until dropped.
pub(crate) struct Stopped(Pid);

impl Stopped {
    pub(crate) fn new(mount: &Mount) -> Self {
        let pid = mount.daemon().expect("the daemon runs");
        stop(pid);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Returns `gcgroupfs run` of a program that allocates on request.
fn run(mount: &Mount, arguments: &[&str]) -> Command {
    let mut command = mount.gcgroupfs(&["run"]);
    command.args(arguments).arg("--").arg(driver_shell());
    command
}

/// Mounts with a group of 64 MiB that one program has filled.
fn full_group(config: Config) -> (Mount, DriverShell) {
    let mount = Mount::with(config);
    mount
        .gcgroupfs(&["mkdir", "team"])
        .status()
        .expect("the command runs");
    mount.write("team", "memory.limit", "64M");
    let mut holder = DriverShell::spawn(run(&mount, &["--group", "team"]));
    assert_eq!(holder.ask(&format!("alloc linear {}", 64 * MIB)), "ok 0");
    (mount, holder)
}

/// Returns the exit status and the output on stdout and stderr.
#[track_caller]
fn ended(mut command: Command) -> (Option<i32>, String, String) {
    let output = command.stdin(Stdio::null()).output().expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn slow_daemon_that_works_is_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let slow = directory.path().join("slow");
    let shim = c_program("slow.c", &["-shared", "-fPIC"]);
    let config = Config::default().env("SLOW", slow.display());
    let mount = Mount::with(config.env("LD_PRELOAD", shim.display()));
    // By the launcher, then by the library.
    let mut required = mount.command(driver_shell());
    required.env("GCGROUP_REQUIRED", "1");
    for command in [run(&mount, &["--memory-limit", "5M"]), required] {
        fs::write(&slow, "").expect("a file");
        let shell = DriverShell::spawn(command);
        assert!(!slow.exists(), "the daemon was slow");
        assert!(mount.governs(shell.pid()));
    }
}

#[test]
fn run_with_a_stopped_daemon_does_not_start_the_program() {
    let (mount, holder) = full_group(Config::default());
    let stopped = Stopped::new(&mount);
    for arguments in [&["--group", "team"][..], &["--memory-limit", "5M"]] {
        let (status, stdout, stderr) = ended(run(&mount, arguments));
        assert_eq!((status, stdout.as_str()), (Some(125), ""), "{stderr}");
        assert!(stderr.contains("the program is not started"), "{stderr}");
    }
    assert_eq!(mount.truth().used_by_all(0), 64 * MIB);
    drop((stopped, holder));
}

#[test]
fn daemon_stopped_before_registration_makes_driver_fail() {
    let (mount, holder) = full_group(Config::default());
    let mut command = mount.command(driver_shell());
    command.env("GCGROUP_GROUP", "team").env("GCGROUP_REQUIRED", "1");
    let stopped = Stopped::new(&mount);
    let mut shell = Governed::spawn(command);
    let banner = shell.expect("ready");
    assert!(banner.ends_with(REFUSED), "{banner}");
    wait_until("the hook reports that CUDA is refused", || {
        shell.stderr().contains("CUDA is refused")
    });
    // The program continues as if there had been no error.
    assert_eq!(shell.ask("alloc linear 4096"), UNINITIALIZED);
    assert_eq!(mount.truth().used_by_all(0), 64 * MIB);
    drop(stopped);
    wait_until("the process is registered", || mount.governs(shell.pid()));
    assert_eq!(shell.ask("alloc linear 4096"), UNINITIALIZED);
    drop(holder);
}

#[test]
fn run_with_best_effort_starts_the_program_without_a_daemon() {
    let (mount, holder) = full_group(Config::default());
    let stopped = Stopped::new(&mount);
    let mut shell = DriverShell::spawn(run(&mount, &["--best-effort", "--group", "team"]));
    assert_eq!(shell.ask("alloc linear 4096"), "ok 0");
    wait_until("the warning is printed", || shell.stderr().contains("warning: "));
    drop((stopped, holder));
}

#[test]
fn run_waits_for_a_daemon_that_is_started_again() {
    let mut mount = Mount::new();
    mount.kill9();
    let mut shell = Governed::spawn(run(&mount, &["--group", "team"]));
    mount.restart();
    // If the restart takes longer than the wait for the daemon, the program is not started; then try again.
    while shell.line().is_none() {
        assert_eq!(shell.wait().code(), Some(125), "{}", shell.stderr());
        shell = Governed::spawn(run(&mount, &["--group", "team"]));
    }
    assert_eq!(mount.read("team", "gcgroup.procs"), shell.pid().to_string());
}

#[test]
fn daemon_kills_let_no_program_start_outside_its_group() {
    const STARTS: u32 = 40;
    let (mount, holder) = full_group(Config::default().arg("--supervise"));
    let mut nr_inside = 0;
    for start in 0..STARTS {
        let mut shell = Governed::spawn(run(&mount, &["--group", "team"]));
        // Each round kills the daemon slightly later, so that some kill falls into a registration.
        std::thread::sleep(start * std::time::Duration::from_millis(3));
        if let Some(daemon) = daemon(&mount) {
            let _ = kill(daemon, Signal::SIGKILL);
        }
        match shell.line() {
            Some(banner) if banner.ends_with(" 0") => {
                nr_inside += 1;
                assert_eq!(shell.ask("alloc linear 4096"), "error 2", "{}", shell.stderr());
            }
            Some(banner) => assert!(banner.ends_with(REFUSED), "{banner}"),
            None => assert_eq!(shell.wait().code(), Some(125), "{}", shell.stderr()),
        }
    }
    assert!(nr_inside > 0, "no process started inside the group");
    assert_eq!(mount.truth().used_by_all(0), 64 * MIB);
    drop(holder);
}

#[test]
fn group_that_registration_refuses_is_not_left_for_another() {
    // She may enter this group, but not from within a rule's group.
    let ruled = Ruled::new("[[rule]]\nmatch.uid = 1000\ngroup.name = \"users\"\n");
    let mount = &ruled.mount;
    mount
        .gcgroupfs(&["mkdir", "hers"])
        .status()
        .expect("the command runs");
    chown(mount.path().join("hers"), Some(ALICE), Some(ALICE)).expect("root may change the owner");
    let program = program_for_all(&driver_shell(), mount.root());
    let run = |arguments: &[&str]| {
        let mut command = mount.gcgroupfs_of(ALICE, &["run"]);
        command.args(arguments).arg("--").arg(&program);
        command
    };
    let mut refused = Governed::spawn(run(&["--group", "hers"]));
    let banner = refused.expect("ready");
    assert!(banner.ends_with(REFUSED), "{banner}");
    let why = "does not admit this process to group hers";
    wait_until("the hook reports the refused group", || {
        refused.stderr().contains(why)
    });
    assert!(governed_pids(mount).is_empty());
    // Each attempt of its hook makes the rule's group for a moment.
    wait_until("the group of the refused request is gone", || {
        !mount.path().join("users").exists()
    });

    let elsewhere = DriverShell::spawn(run(&["--best-effort", "--group", "hers"]));
    assert_eq!(mount.read("users", "gcgroup.procs"), elsewhere.pid().to_string());
    let inside = DriverShell::spawn(run(&["--group", "users"]));
    let procs = mount.read("users", "gcgroup.procs");
    assert!(
        procs.lines().any(|pid| pid == inside.pid().to_string()),
        "{procs}"
    );
}

#[test]
fn group_assigned_by_rule_satisfies_the_requested_group() {
    let ruled = Ruled::new("[[rule]]\nmatch.uid = 1000\ngroup.name = \"jobs/{wish}\"\n");
    let mut command = ruled.mount.gcgroupfs_of(ALICE, &["run", "--group", "a", "--"]);
    command.arg(program_for_all(&driver_shell(), ruled.mount.root()));
    let shell = DriverShell::spawn(command);
    assert_eq!(
        ruled.mount.read("jobs/a", "gcgroup.procs"),
        shell.pid().to_string()
    );
}

#[test]
fn process_moved_by_root_may_execute_and_come_back() {
    let mut mount = Mount::new();
    mount
        .gcgroupfs(&["mkdir", "other"])
        .status()
        .expect("the command runs");
    let mut shell = DriverShell::spawn(run(&mount, &["--group", "team"]));
    mount.write("other", "gcgroup.procs", &shell.pid().to_string());
    shell.exec_at(&mount);
    assert_eq!(mount.read("other", "gcgroup.procs"), shell.pid().to_string());
    mount.kill9();
    mount.restart();
    wait_until("the process has registered again", || mount.governs(shell.pid()));
    assert_eq!(mount.read("other", "gcgroup.procs"), shell.pid().to_string());
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(dir.number("memory.current"), 0);
}

#[test]
fn required_rule_refuses_cuda_outside_its_group() {
    // Groups nest eight deep.
    const DEEP: &str = "a/b/c/d/e/f/g/h";
    let rules = |group: &str| {
        let group = format!("group.name = \"{group}\"\n");
        format!("[[rule]]\nmatch.uid = 1000\nmatch.wish = \"**\"\nrequired = true\n{group}")
    };
    let ruled = Ruled::new(&rules("jobs/{wish}"));
    let mount = &ruled.mount;
    let program = program_for_all(&driver_shell(), mount.root());
    let mut command = mount.command_of(ALICE, &program);
    command.env("GCGROUP_GROUP", DEEP);
    let mut refused = Governed::spawn(command);
    let banner = refused.expect("ready");
    assert!(banner.ends_with(REFUSED), "{banner}");
    wait_until("the hook reports that a rule refuses CUDA", || {
        let said = refused.stderr();
        said.contains("CUDA is refused, since this process must be governed (by a rule)")
    });
    // The program continues as if there had been no error: it gets no context.
    assert_eq!(refused.ask("gpu 0"), format!("error{REFUSED}"));
    assert_eq!(refused.ask("alloc linear 4096"), "error 201");
    assert!(governed_pids(mount).is_empty());
    assert_eq!(mount.truth().used_by_all(0), 0);
    wait_until("the groups of the refused process are removed", || {
        !mount.path().join("jobs").exists()
    });
    let other = ruled.shell_of(BOB);
    assert_eq!(governed_pids(mount), [other.pid()]);

    ruled.reload(&rules("jobs"), "configuration read again");
    wait_until("the process is registered", || mount.governs(refused.pid()));
    assert_eq!(mount.read("jobs", "gcgroup.procs"), refused.pid().to_string());
    // The hook takes the answer after the daemon has made the directory.
    wait_until("the process gets a context", || refused.ask("gpu 0") == "ok");
    assert_eq!(refused.ask("alloc linear 4096"), "ok 0");
}

#[test]
fn required_rule_insists_on_the_requested_group() {
    let ruled = Ruled::new("[[rule]]\nmatch.uid = 1000\nrequired = true\ngroup.name = \"users\"\n");
    let mount = &ruled.mount;
    let program = program_for_all(&driver_shell(), mount.root());
    let start = |group: &str| {
        let mut command = mount.command_of(ALICE, &program);
        command.env("GCGROUP_GROUP", group);
        Governed::spawn(command)
    };
    let mut refused = start("elsewhere");
    let banner = refused.expect("ready");
    assert!(banner.ends_with(REFUSED), "{banner}");
    let mut inside = start("users");
    let banner = inside.expect("ready");
    assert!(banner.ends_with(" 0"), "{banner}");
    assert_eq!(mount.read("users", "gcgroup.procs"), inside.pid().to_string());
}

#[test]
fn program_that_clears_its_environment_keeps_its_settings() {
    let mount = Mount::new();
    let mut command = run(&mount, &["--name", "job", "--memory-limit", "8M"]);
    command.arg("forget");
    let mut shell = DriverShell::spawn(command);
    assert_eq!(mount.read("job", "gcgroup.procs"), shell.pid().to_string());
    assert_eq!(shell.ask(&format!("alloc linear {}", 16 * MIB)), "error 2");
    shell.quit();
}
