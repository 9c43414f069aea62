//! Tests the scripts on a real mount.

mod autopreempt;
mod demonstration;
mod preempt;

use std::process::{Command, Output};

use nix::sys::signal::Signal;
use support::{Config, Governed, Mount, artifacts, repository, wait_until};

fn command(mount: &Mount, script: &str) -> Command {
    let mut command = Command::new(repository().join("scripts").join(script));
    let programs = artifacts().gcgroupfs();
    let programs = programs.parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    command.env("GCGROUP", mount.path()).env("PATH", path);
    command
}

#[track_caller]
fn run(mount: &Mount, script: &str, arguments: &[&str]) -> Output {
    command(mount, script).args(arguments).output().unwrap()
}

#[track_caller]
fn ok(mount: &Mount, script: &str, arguments: &[&str]) -> String {
    let output = run(mount, script, arguments);
    assert!(output.status.success(), "{script} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn scripts_print_their_usage() {
    let mount = Mount::new();
    for script in ["gc-preempt", "gc-autopreempt"] {
        let usage = format!("usage: {script} ");
        for asked in ["-h", "--help"] {
            assert!(ok(&mount, script, &[asked]).starts_with(&usage), "{script}");
        }
        let wrong = run(&mount, script, &[]);
        assert_eq!(wrong.status.code(), Some(2), "{script}");
        assert!(
            String::from_utf8_lossy(&wrong.stderr).starts_with(&usage),
            "{script}"
        );
    }
}

#[test]
fn scripts_report_refusals_of_the_daemon() {
    let mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid().to_string();
    for arguments in [["x", &pid], [&pid, "x"]] {
        let output = run(&mount, "gc-autopreempt", &arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn scripts_without_gcgroupfs_in_the_path_fail() {
    let mount = Mount::new();
    let (watched, process) = (mount.obedient(), mount.obedient());
    let pids = [watched.pid().to_string(), process.pid().to_string()];
    for script in ["gc-autopreempt", "gc-preempt"] {
        let mut command = command(&mount, script);
        let output = command.env("PATH", "/nonexistent").args(&pids).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            format!("{script}: gcgroupfs is not in the path\n")
        );
    }
}

#[test]
fn scripts_without_a_daemon_say_so_in_one_line() {
    let mut mount = Mount::new();
    mount.stop();
    for (script, arguments) in [
        ("gc-autopreempt", &["1", "2"][..]),
        ("gc-preempt", &["1", "--", "true"]),
        ("gc-preempt", &["--suspend", "1", "--", "true"]),
    ] {
        let mut command = command(&mount, script);
        command.env("GCGROUP_SOCKET", mount.socket());
        let output = command.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{script}");
        assert!(
            said.contains("no daemon at ") && said.lines().count() == 1,
            "{script}: {said}"
        );
    }
}

#[test]
fn preemption_works_through_the_socket_alone() {
    let mount = Mount::with(Config::default().arg("--no-fuse"));
    let (mut watched, batch) = (mount.obedient(), mount.obedient());
    let file = format!("{}/compute.freeze", batch.pid());
    let frozen = || {
        mount
            .gcgroupfs(&["get", &file])
            .output()
            .expect("the command starts")
            .stdout
    };
    let through_socket = |script: &str| {
        let mut command = command(&mount, script);
        command
            .env("GCGROUP", "/nonexistent")
            .env("GCGROUP_SOCKET", mount.socket());
        command
    };
    for option in [None, Some("--reclaim")] {
        let mut preempt = through_socket("gc-preempt");
        preempt.args(option).arg(batch.pid().to_string());
        let output = preempt
            .args(["--", "gcgroupfs", "get", &file])
            .output()
            .expect("the script starts");
        assert_eq!(output.stdout, b"1\n", "{output:?}");
        wait_until("the batch process is thawed", || frozen() == b"0\n");
    }
    let mut script = through_socket("gc-autopreempt");
    script
        .arg("-v")
        .args([&watched, &batch].map(|process| process.pid().to_string()));
    let mut script = Governed::spawn(script);
    watched.say("launch 1 100000000");
    script.expect("busy: ");
    wait_until("the batch process is frozen", || frozen() == b"1\n");
    script.signal(Signal::SIGTERM);
    script.wait();
    wait_until("the batch process is thawed", || frozen() == b"0\n");
}

#[test]
fn missing_fuse_is_reported_at_once() {
    let hide = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$@\"";
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut mount = Command::new(artifacts().gcgroupfs());
    mount
        .arg("mount")
        .arg(directory.path())
        .arg("--socket")
        .arg(directory.path().join("run/gcgroup.sock"));
    let demo = Command::new(repository().join("scripts/demo.sh"));
    for (command, says) in [(mount, "--no-fuse"), (demo, "demo.sh: the daemon has ended")] {
        let mut hidden = Command::new("unshare");
        hidden.args(["--mount", "--propagation", "private", "sh", "-c", hide, "sh"]);
        hidden.arg(command.get_program()).args(command.get_args());
        hidden.env("GCGROUP_BUILT", artifacts().dist());
        let output = hidden.output().expect("unshare runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for text in [says, "/dev/fuse cannot be opened"] {
            assert!(stderr.contains(text), "{stderr}");
        }
    }
}
