//! The scripts, on a real mount.

use std::path::Path;
use std::process::{Command, Output};

use nix::sys::signal::Signal;
use support::{Governed, Mount, artifacts, repository, wait_until};

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
fn gc_freeze_waits_until_it_is_so_and_gc_thaw_lets_go() {
    let mount = Mount::new();
    let mut process = mount.obedient();
    let pid = process.pid().to_string();
    process.ask("launch 1");
    ok(&mount, "gc-freeze", &["-w", &pid]);
    assert_eq!(mount.number(&pid, "gcgroup.events", "frozen"), 1);
    ok(&mount, "gc-thaw", &[&pid]);
    assert_eq!(mount.read(&pid, "compute.freeze"), "0");
    assert_eq!(process.ask("launch 2"), "launched 2");
}

#[test]
fn gc_limit_and_gc_priority_set_and_show() {
    let mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid().to_string();
    ok(&mount, "gc-limit", &[&pid, "3G"]);
    assert_eq!(mount.read(&pid, "memory.limit"), (3_u64 << 30).to_string());
    let current = mount.read(&pid, "memory.current");
    assert_eq!(
        ok(&mount, "gc-limit", &[&pid]),
        format!("current {current} limit {}\n", 3_u64 << 30)
    );
    ok(&mount, "gc-priority", &[&pid, "2"]);
    assert_eq!(ok(&mount, "gc-priority", &[&pid]), "2\n");
}

#[test]
fn what_the_daemon_refuses_the_scripts_report() {
    let mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid().to_string();
    for (script, arguments) in [
        ("gc-limit", ["x", "3G"]),
        ("gc-limit", [&pid, "much"]),
        ("gc-priority", [&pid, "16"]),
        ("gc-freeze", ["x", &pid]),
    ] {
        let output = run(&mount, script, &arguments);
        assert!(!output.status.success(), "{script} {arguments:?}");
        assert!(!output.stderr.is_empty(), "{script} {arguments:?}");
    }
    for script in ["gc-freeze", "gc-thaw", "gc-limit", "gc-priority", "gc-preempt"] {
        let output = run(&mount, script, &[]);
        assert_eq!(output.status.code(), Some(2), "{script}");
        assert!(
            String::from_utf8_lossy(&output.stderr).starts_with("usage: "),
            "{script}"
        );
    }
}

#[test]
fn gc_preempt_freezes_while_the_command_runs_and_no_longer() {
    let mount = Mount::new();
    let (process, frozen) = (mount.obedient(), mount.obedient());
    let (pid, other) = (process.pid().to_string(), frozen.pid().to_string());
    mount.write(&other, "compute.freeze", "1");
    let look = format!(
        "cat {0}/{pid}/compute.freeze {0}/{other}/compute.freeze; exit 7",
        mount.path().display()
    );
    let output = run(&mount, "gc-preempt", &[&pid, &other, "--", "sh", "-c", &look]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(output.stdout, b"1\n1\n");
    assert_eq!(mount.read(&pid, "compute.freeze"), "0");
    assert_eq!(mount.read(&other, "compute.freeze"), "1", "it was frozen before");
}

#[test]
fn gc_preempt_thaws_when_it_is_ended() {
    let mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid().to_string();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut preempt = command(&mount, "gc-preempt");
        preempt.args([&pid, "--", "sh", "-c", "echo started; exec sleep 1000"]);
        let mut preempt = Governed::spawn(preempt);
        preempt.expect("started");
        assert_eq!(mount.read(&pid, "compute.freeze"), "1");
        preempt.signal(signal);
        assert!(!preempt.wait().success());
        wait_until("thawed", || mount.read(&pid, "compute.freeze") == "0");
    }
}

#[test]
fn the_demonstration_runs_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let dist = artifacts().dist();
    let output = Command::new(repository().join("scripts/demo.sh"))
        .env("GCGROUP_BUILT", dist)
        .env("TMPDIR", temporary.path())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}\n{log}");
    for told in [
        "frozen 1",
        "refused CUDA_ERROR_OUT_OF_MEMORY",
        "allocated 1 linear 268435456",
    ] {
        assert!(shown.contains(told), "{told}: {shown}");
    }
    assert_eq!(temporary.path().read_dir().unwrap().count(), 0, "{shown}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let left = |line: &str| {
        line.split(' ')
            .nth(1)
            .is_some_and(|at| Path::new(at).starts_with(temporary.path()))
    };
    assert!(!mounts.lines().any(left), "{mounts}");
}
