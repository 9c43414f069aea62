//! Tests `gcgroupfs doctor` against running daemons: what it finds, its exit status and its report.

use std::collections::BTreeMap;
use std::fs;

use nix::sys::signal::{Signal, kill};
use support::{Config, Mount, stop, wait_until};

use crate::disk::Over;
use crate::driver::{Dir, DriverShell};

/// Returns the exit status and the lines of each check: level, check, and what was found.
fn doctor(mount: &Mount, arguments: &[&str]) -> (i32, BTreeMap<String, (String, String)>) {
    let output = mount
        .gcgroupfs(&[&["doctor"], arguments].concat())
        .output()
        .expect("gcgroupfs runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = text.lines().filter(|line| !line.starts_with(' '));
    let found = lines.map(|line| {
        let (level, rest) = line.split_once(' ').expect("a level");
        let (check, text) = rest.trim_start().split_once(' ').expect("a check");
        (check.to_owned(), (level.to_owned(), text.trim().to_owned()))
    });
    let status = output.status.code().expect("an exit status");
    (status, found.collect())
}

fn levels(found: &BTreeMap<String, (String, String)>, checks: &[&str]) -> Vec<String> {
    checks.iter().map(|check| found[*check].0.clone()).collect()
}

#[test]
fn doctor_finds_no_fault_with_a_running_daemon() {
    let mount = Mount::new();
    let _program = DriverShell::start(&mount);
    let (status, found) = doctor(&mount, &[]);
    assert_eq!(status, 0, "{found:?}");
    let checks = [
        "kernel",
        "fuse",
        "driver",
        "library",
        "daemon",
        "mount",
        "settings",
        "unmanaged",
    ];
    assert_eq!(levels(&found, &checks), ["ok"; 8], "{found:?}");
    assert!(found["driver"].1.contains("Simulated GPU"), "{found:?}");
}

#[test]
fn doctor_warns_of_unmanaged_process_and_missing_mount() {
    let mount = Mount::with(Config::default().arg("--no-fuse"));
    let mut bare = DriverShell::start_bare(&mount);
    assert_eq!(bare.ask("alloc linear 4096"), "ok 0");
    wait_until("the unmanaged process is found", || {
        doctor(&mount, &[]).1["unmanaged"].0 == "warn"
    });
    let (status, found) = doctor(&mount, &[]);
    assert_eq!((status, found["mount"].0.as_str()), (0, "warn"), "{found:?}");
}

#[test]
fn doctor_reports_settings_that_cannot_be_stored() {
    let mount = Mount::new();
    let program = DriverShell::start(&mount);
    let over = Over::small(&mount, 4);
    fs::write(mount.state_dir().join("filler"), [0; 4096]).expect("one page of room");
    Dir::of(&mount, program.pid()).write("memory.limit", "1M");
    wait_until("the daemon cannot store settings", || {
        doctor(&mount, &[]).1["settings"].0 == "fail"
    });
    assert_eq!(doctor(&mount, &[]).0, 1);
    drop(over);
    wait_until("the settings are stored", || {
        doctor(&mount, &[]).1["settings"].0 == "ok"
    });
}

#[test]
fn doctor_fails_without_daemon_and_writes_report() {
    let mut mount = Mount::new();
    let secret = "team-of-alice";
    fs::create_dir(mount.path().join(secret)).expect("a new group");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let report = directory.path().join("report");
    let argument = format!("--bug-report={}", report.display());
    assert_eq!(doctor(&mount, &[&argument]).0, 0);
    let text = fs::read_to_string(&report).expect("the report");
    for part in ["== doctor\n", "== memory.stat\n", "== /proc/version\n"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains(secret), "{text}");
    assert_eq!(doctor(&mount, &[&argument]).0, 1, "a report is never replaced");

    mount.kill9();
    let (status, found) = doctor(&mount, &[]);
    assert_eq!((status, found["daemon"].0.as_str()), (1, "fail"), "{found:?}");
}

#[test]
fn doctor_reports_a_daemon_that_hangs() {
    let mount = Mount::new();
    let daemon = mount.daemon().expect("a daemon");
    stop(daemon);
    let (status, found) = doctor(&mount, &[]);
    kill(daemon, Signal::SIGCONT).expect("the daemon lives");
    assert_eq!((status, found["daemon"].0.as_str()), (1, "fail"), "{found:?}");
    assert!(found["daemon"].1.contains("does not answer"), "{found:?}");
    assert_eq!(
        levels(&found, &["kernel", "fuse", "containers"])[..2],
        ["ok"; 2],
        "{found:?}"
    );
}
