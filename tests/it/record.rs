//! Tests `gcgroupfs record`: what it records, and that records survive its end.

use std::path::Path;
use std::process::Output;

use nix::sys::signal::Signal;
use support::{Governed, Mount, wait_for, wait_until};

use crate::driver::DriverShell;

const MIB: u64 = 1 << 20;

/// Starts a recorder and waits until it records.
fn record(mount: &Mount, file: &Path) -> Governed {
    let recorder =
        Governed::spawn(mount.gcgroupfs(&["record", file.to_str().expect("UTF-8"), "--size", "64K"]));
    wait_until("the recorder records", || {
        recorder.stderr().contains("recording in")
    });
    recorder
}

fn run(mount: &Mount, file: &Path, arguments: &[&str]) -> Output {
    let mut command = mount.gcgroupfs(&["record", file.to_str().expect("UTF-8")]);
    command.args(arguments).output().expect("gcgroupfs starts")
}

/// Returns the lines of `record --show`.
#[track_caller]
fn shown(mount: &Mount, file: &Path) -> Vec<String> {
    let output = run(mount, file, &["--show"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn records_survive_kill_and_are_continued() {
    let mut mount = Mount::new();
    let file = mount.root().join("record");
    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask(&format!("alloc linear {}", 3 * MIB)), "ok 0");
    let mut recorder = record(&mount, &file);
    let pid = format!(" pid={} uid=0 comm=driver_shell", shell.pid());
    let memory = format!(" memory.current={} swapped=0 priority=8 frozen=0 left=0", 3 * MIB);
    let first = wait_for("the process and the GPU are recorded", || {
        let lines = shown(&mount, &file);
        let is_gpu = |line: &String| line.contains(&format!(" gpu=0 memory_used={} ", 3 * MIB));
        let process = lines
            .iter()
            .find(|line| line.contains(&pid) && line.ends_with(&memory));
        process.filter(|_| lines.iter().any(is_gpu)).cloned()
    });
    let second = run(&mount, &file, &["--size", "64K"]);
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    recorder.signal(Signal::SIGKILL);
    recorder.wait();
    drop(recorder);
    let nr_lines = || {
        shown(&mount, &file)
            .iter()
            .filter(|line| line.contains(&pid))
            .count()
    };
    let before = nr_lines();
    let _recorder = record(&mount, &file);
    wait_until("the next recorder has seen the process", || nr_lines() > before);
    shell.quit();
    wait_until("the end of the process is recorded", || {
        let lines = shown(&mount, &file);
        let has_left = |line: &String| line.contains(&pid) && line.ends_with(" left=1");
        lines.contains(&first) && lines.iter().any(has_left)
    });
    // The recorder waits for the next daemon.
    mount.stop();
    let before = shown(&mount, &file).len();
    mount.restart();
    wait_until("the records of the next daemon are added", || {
        shown(&mount, &file).len() > before
    });
}

#[test]
fn bad_arguments_of_record_change_nothing() {
    let mount = Mount::new();
    let file = mount.root().join("record");
    for (arguments, status) in [
        (&["--size", "1"][..], 2),
        (&["--size", "max"], 2),
        (&["--last", "5"], 2),
        (&["--show"], 1),
    ] {
        let output = run(&mount, &file, arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        assert!(!file.exists(), "{arguments:?}");
    }
}
