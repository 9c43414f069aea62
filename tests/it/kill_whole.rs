//! Tests `gcgroupfs kill`: SIGTERM, a time of grace and SIGKILL, for all processes of a job and no other.

use std::ffi::OsStr;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Governed, Mount, wait_until};

use crate::driver::{DriverShell, driver_shell};

/// Runs `gcgroupfs kill`. Returns its output and whether it succeeded.
fn end(mount: &Mount, words: &[&str]) -> (bool, String) {
    let output: Output = mount
        .gcgroupfs(&[&["kill"], words].concat())
        .output()
        .expect("gcgroupfs runs");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Starts a script as a job of this name; `$0` is a program that uses the GPU. `before` is a command that
/// executes the rest of its line.
fn job(mount: &Mount, before: &[&str], name: &str, script: &str) -> Governed {
    let run = mount.gcgroupfs(&["run", "--name", name, "--", "sh", "-c", script]);
    let mut words = before
        .iter()
        .map(|word| OsStr::new(*word))
        .chain([run.get_program()])
        .chain(run.get_args());
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).arg(driver_shell());
    for (key, value) in run.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    Governed::spawn(command)
}

#[track_caller]
fn pid_of(line: &str) -> i32 {
    let word = line.split(' ').nth(1).expect("a pid");
    word.parse().expect("a number")
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    kill(Pid::from_raw(pid), None).is_ok() && !matches!(state, None | Some('Z' | 'X'))
}

/// A process of the caller's session that has nothing to do with any job.
fn stranger() -> Child {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000").stdout(Stdio::null());
    sleep.spawn().expect("sleep starts")
}

#[test]
fn process_that_ends_in_the_grace_time_is_not_killed() {
    let mount = Mount::new();
    let (mut doomed, mut other) = (DriverShell::start(&mount), DriverShell::start(&mount));
    let pid = doomed.pid().to_string();
    let (done, text) = end(&mount, &["--grace", "1h", &pid]);
    assert!(done && text == "1 process has ended, 0 by SIGKILL\n", "{text}");
    doomed.expect_ended(Signal::SIGTERM);
    assert_eq!(other.ask("alloc linear 4096"), "ok 0");
}

#[test]
fn session_that_ignores_the_signal_is_killed_as_a_whole() {
    let mount = Mount::new();
    let (mut stranger, mut other) = (stranger(), DriverShell::start(&mount));
    let script = "trap '' TERM; sleep 1000 & echo child $!; \"$0\"; exit";
    let mut wrapper = job(&mount, &["setsid"], "night", script);
    let child = pid_of(&wrapper.expect("child "));
    let program = pid_of(&wrapper.expect("ready "));
    let (done, text) = end(&mount, &["--grace", "1s", "night"]);
    assert!(done && text == "3 processes have ended, 3 by SIGKILL\n", "{text}");
    assert_eq!([child, program].map(is_alive), [false; 2]);
    assert!(!wrapper.is_running());
    assert_eq!(other.ask("alloc linear 4096"), "ok 0");
    assert!(matches!(stranger.try_wait(), Ok(None)));
    stranger.kill().expect("it lives");
    let _ = stranger.wait();
}

#[test]
fn child_that_is_forked_at_the_end_is_ended_too() {
    let mount = Mount::new();
    let script = "trap 'trap \"\" TERM; sleep 1000 & echo child $!; exit 0' TERM; \
                  sleep 1000 | \"$0\" & wait; wait";
    let mut wrapper = job(&mount, &["setsid"], "night", script);
    wrapper.expect("ready ");
    let (done, text) = end(&mount, &["--grace", "1s", "night"]);
    assert!(done, "{text}");
    let child = pid_of(&wrapper.expect("child "));
    assert!(!is_alive(child), "{text}");
}

#[test]
fn session_of_others_keeps_all_but_the_governed_process() {
    let mount = Mount::new();
    // The caller's session, and one whose leader is not of the job.
    let outer = ["setsid", "sh", "-c", "\"$@\"; read line", "sh"];
    for (name, before) in [("day", &[][..]), ("week", &outer)] {
        let script = "sleep 1000 & echo child $!; \"$0\"; echo ended; read line";
        let mut wrapper = job(&mount, before, name, script);
        let child = pid_of(&wrapper.expect("child "));
        let program = pid_of(&wrapper.expect("ready "));
        let (done, text) = end(&mount, &[name]);
        assert!(done && text.starts_with("1 process has ended, 0 by"), "{text}");
        assert!(!is_alive(program));
        wrapper.expect("ended");
        assert!(wrapper.is_running() && is_alive(child), "{before:?}");
        kill(Pid::from_raw(child), Signal::SIGKILL).expect("it lives");
        wrapper.close_stdin();
        wait_until("the job is over", || !wrapper.is_running());
    }
}

#[test]
fn no_grace_kills_at_once_and_the_record_says_by_whom() {
    let mount = Mount::new();
    let mut doomed = DriverShell::start(&mount);
    let pid = doomed.pid().to_string();
    let (done, text) = end(&mount, &["--grace", "0", &pid]);
    assert!(done && text == "1 process has ended, 1 by SIGKILL\n", "{text}");
    doomed.expect_killed();
    wait_until("its record says who killed it", || {
        let output = mount
            .gcgroupfs(&["explain", &pid])
            .output()
            .expect("gcgroupfs runs");
        String::from_utf8_lossy(&output.stdout).contains("killed by gcgroup.kill, written by")
    });
}

#[test]
fn record_of_a_terminated_process_says_by_whom() {
    let mount = Mount::new();
    let mut doomed = DriverShell::start(&mount);
    let pid = doomed.pid().to_string();
    let (done, text) = end(&mount, &["--grace", "1h", &pid]);
    assert!(done, "{text}");
    doomed.expect_ended(Signal::SIGTERM);
    let mut said = String::new();
    wait_until("it is recorded", || {
        let output = mount.gcgroupfs(&["explain", &pid]).output();
        said = String::from_utf8_lossy(&output.expect("gcgroupfs runs").stdout).into_owned();
        said.contains("signal 15")
    });
    assert!(
        said.contains("by gcgroup.kill with SIGTERM, written by"),
        "{said}"
    );
}

#[test]
fn names_of_nothing_do_not_save_the_others() {
    let mount = Mount::new();
    let mut doomed = DriverShell::start(&mount);
    let pid = doomed.pid().to_string();
    let (done, text) = end(&mount, &["no/such", &pid]);
    assert!(
        !done && text.contains("no/such: no such process or group"),
        "{text}"
    );
    assert!(text.contains("1 process has ended, 0 by SIGKILL"), "{text}");
    doomed.expect_ended(Signal::SIGTERM);
}

#[test]
fn what_cannot_be_ended_is_refused_with_a_reason() {
    let mount = Mount::new();
    let me = std::process::id().to_string();
    for (words, reason) in [
        (&["no/such"][..], "no such process or group"),
        (&[me.as_str()], "is no governed process"),
        (&["/"], "a process or a group is expected"),
        (
            &["--grace", "1y", "a"],
            "a number with s, m, h, d or w is expected",
        ),
        (&[], "required arguments were not provided"),
    ] {
        let (done, text) = end(&mount, words);
        assert!(!done && text.contains(reason), "{words:?}: {text}");
    }
}
