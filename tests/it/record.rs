//! Tests `gcgroupfs record`: what it records, and that records survive its end.

use std::path::Path;
use std::process::Output;

use nix::sys::signal::Signal;
use support::{Governed, Mount, wait_for, wait_until};

use crate::driver::DriverShell;
use crate::top::screen::Screen;

const MIB: u64 = 1 << 20;

/// Starts a recorder and waits until it records.
fn record(mount: &Mount, file: &Path) -> Governed {
    let recorder =
        Governed::spawn(mount.gcgroupfs(&["record", file.to_str().expect("UTF-8"), "--size", "16M"]));
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
    let memory = format!(
        " group=/ memory.current={} memory.swap.current=0 compute.priority=8 frozen=0 ended=0",
        3 * MIB
    );
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
        let has_ended = |line: &String| line.contains(&pid) && line.ends_with(" ended=1");
        lines.contains(&first) && lines.iter().any(has_ended)
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

/// Returns the times of the first and the last sample of the process while it had `memory` bytes.
fn times(lines: &[String], pid: i32, memory: u64) -> Option<(u64, u64)> {
    let of = |line: &&String| {
        line.contains(&format!(" pid={pid} ")) && line.contains(&format!(" memory.current={memory} "))
    };
    let time = |line: &String| line.split(' ').next().and_then(|time| time.parse().ok());
    let mut lines = lines.iter().filter(of);
    let first = time(lines.next()?)?;
    Some((first, lines.next_back().and_then(time).unwrap_or(first)))
}

#[test]
fn recording_is_shown_by_top_at_any_time() {
    let mut mount = Mount::new();
    let file = mount.root().join("record");
    let mut shell = DriverShell::start(&mount);
    let pid = shell.pid();
    assert_eq!(shell.ask(&format!("alloc linear {}", 3 * MIB)), "ok 0");
    let recorder = record(&mount, &file);
    let small = wait_for("3 MiB are recorded", || {
        times(&shown(&mount, &file), pid, 3 * MIB)
    });
    assert_eq!(shell.ask(&format!("alloc linear {}", 4 * MIB)), "ok 1");
    let large = wait_for("7 MiB are recorded", || {
        // In another second than 3 MiB, so that each has a time of its own.
        times(&shown(&mount, &file), pid, 7 * MIB).filter(|(first, _)| *first > small.1)
    });
    // A recording needs no daemon.
    drop(recorder);
    shell.quit();
    mount.stop();

    let replay = |arguments: &[&str]| {
        let mut command = mount.gcgroupfs(&["top", "--replay", file.to_str().expect("UTF-8")]);
        let output = command.args(arguments).output().expect("gcgroupfs starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let row = |text: &str| {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(&pid.to_string()));
        line.unwrap_or_default().to_owned()
    };
    assert!(row(&replay(&["--once"])).contains(" 3M "), "the beginning");
    assert!(row(&replay(&["--once", "--at", &small.0.to_string()])).contains(" 3M "));
    assert!(row(&replay(&["--once", "--at", &large.0.to_string()])).contains(" 7M "));
    let all = replay(&["--batch", "--delay", "0.5"]);
    assert!(all.contains(" 3M ") && all.contains(" 7M "), "{all}");
    let end = all.rfind("3M").expect("3 MiB are shown");
    assert!(all[end..].contains(" 7M "), "in the order of time: {all}");

    let mut command = mount.gcgroupfs(&["top", "--replay", file.to_str().expect("UTF-8")]);
    command.args(["--at", &large.0.to_string()]);
    command.env("LC_ALL", "C.UTF-8").env("TERM", "screen");
    let screen = Screen::start(&mount, &command);
    screen.wait_line(&[&format!("{pid} "), " 7M "]);
    screen.press(&["Space"]);
    screen.wait_line(&[" (stopped): "]);
    screen.press(&["f"]);
    screen.wait_line(&["a recording cannot be changed"]);
    for (time, memory) in [(small.0, " 3M "), (large.0, " 7M ")] {
        screen.press(&["g"]);
        screen.wait_line(&["Go to "]);
        screen.enter(&time.to_string());
        screen.wait_line(&[&format!("{pid} "), memory]);
    }
    screen.press(&["q"]);
    screen.wait_line(&["status 0"]);
}

#[test]
fn what_is_no_recording_is_not_replayed() {
    let mount = Mount::new();
    let text = mount.root().join("text");
    std::fs::write(&text, "x".repeat(100_000)).expect("written");
    let text = text.to_str().expect("UTF-8");
    for (arguments, status, reason) in [
        (&["--replay", text, "--once"][..], 1, "no recording"),
        (&["--replay", "/nowhere", "--once"], 1, "/nowhere"),
        (&["--at", "10:00", "--once"], 2, "--replay"),
        (&["--replay", text, "--at", "25:00"], 2, "HH:MM"),
    ] {
        let output = mount.gcgroupfs(&["top"]).args(arguments).output();
        let output = output.expect("gcgroupfs starts");
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains(reason), "{told}");
    }
}
