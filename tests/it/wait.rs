//! Tests `gcgroupfs wait` on the mount and without one.

use nix::sys::signal::{Signal, kill};
use support::{Config, Governed, Mount, stop, wait_until};

use crate::driver::{Dir, DriverShell};

/// Starts `gcgroupfs wait`.
fn waiting(mount: &Mount, arguments: &[&str]) -> Governed {
    let mut command = mount.gcgroupfs(&["wait"]);
    command.args(arguments);
    Governed::spawn(command)
}

/// Runs `gcgroupfs wait` and returns its exit status.
#[track_caller]
fn status(mount: &Mount, arguments: &[&str]) -> i32 {
    let mut wait = waiting(mount, arguments);
    wait.wait().code().expect("the process exits by itself")
}

/// Returns whether the process sleeps, in poll(2) or in a pause, after it has checked the condition.
fn is_asleep(wait: &Governed) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/syscall", wait.pid())).unwrap_or_default();
    let number: i64 = stat
        .split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(-1);
    [
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
    ]
    .contains(&number)
}

fn everywhere(test: impl Fn(&Mount)) {
    for config in [Config::default(), Config::default().arg("--no-fuse")] {
        test(&Mount::with(config));
    }
}

#[test]
fn wait_sleeps_until_all_expressions_hold() {
    everywhere(|mount| {
        let shell = DriverShell::start(mount);
        let (events, freeze) = (
            format!("{}/gcgroup.events", shell.pid()),
            format!("{}/compute.freeze", shell.pid()),
        );
        assert_eq!(
            status(mount, &[&events, "populated=1", "frozen=0", "hook!=lost"]),
            0
        );
        let mut wait = waiting(mount, &[&events, "populated=1", "frozen=1"]);
        wait_until("gcgroupfs wait sleeps", || is_asleep(&wait));
        assert!(
            wait.is_running(),
            "the wait ended with one of two expressions true"
        );
        assert!(
            mount
                .gcgroupfs(&["set", &freeze, "1"])
                .status()
                .expect("the command runs")
                .success()
        );
        assert_eq!(wait.wait().code(), Some(0));
        assert_eq!(
            status(mount, &[&freeze, "=1"]),
            0,
            "the comparison of a single value failed"
        );
    });
}

#[test]
fn sizes_and_counts_are_compared_as_numbers() {
    everywhere(|mount| {
        let mut shell = DriverShell::start(mount);
        let (current, events) = (
            format!("{}/memory.current", shell.pid()),
            format!("{}/memory.events", shell.pid()),
        );
        let limit = format!("{}/memory.limit", shell.pid());
        let mut wait = waiting(mount, &[&current, ">=2M", "<2G"]);
        wait_until("gcgroupfs wait sleeps", || is_asleep(&wait));
        assert_eq!(shell.ask("alloc linear 2097152"), "ok 0");
        assert_eq!(wait.wait().code(), Some(0));
        assert_eq!(status(mount, &[&limit, "=max"]), 0);
        let mut wait = waiting(mount, &[&events, "oom>=1"]);
        assert!(
            mount
                .gcgroupfs(&["set", &limit, "2M"])
                .status()
                .expect("the command runs")
                .success()
        );
        assert_eq!(shell.ask("alloc linear 1"), "error 2");
        assert_eq!(wait.wait().code(), Some(0));
    });
}

#[test]
fn wait_times_out_and_refuses_invalid_expressions() {
    everywhere(|mount| {
        let shell = DriverShell::start(mount);
        let events = format!("{}/gcgroup.events", shell.pid());
        assert_eq!(status(mount, &[&events, "frozen=1", "--timeout", "0.02"]), 1);
        assert_eq!(status(mount, &[&events, "frozen=0", "--timeout", "1e19"]), 0);
        let (reclaim, directory) = (format!("{}/memory.reclaim", shell.pid()), shell.pid().to_string());
        for senseless in [
            vec![&*events],
            vec![&events, "frozen"],
            vec![&events, "frozn=1"],
            vec![&events, "=1"],
            vec![&events, "hook>1"],
            vec![&events, "frozen=1", "--timeout", "soon"],
            vec![&events, "frozen=1", "--timeout", "-1"],
            vec![&reclaim, "=1"],
            vec![&directory, "=1"],
        ] {
            assert_eq!(status(mount, &senseless), 2, "{senseless:?}");
        }
    });
}

#[test]
fn wait_ends_with_the_process() {
    everywhere(|mount| {
        assert_eq!(status(mount, &["999999999/gcgroup.events", "frozen=1"]), 3);
        let shell = DriverShell::start(mount);
        let mut wait = waiting(mount, &[&format!("{}/gcgroup.events", shell.pid()), "frozen=1"]);
        wait_until("gcgroupfs wait sleeps", || is_asleep(&wait));
        shell.kill9();
        assert_eq!(wait.wait().code(), Some(3));
        assert!(!wait.stderr().is_empty());
    });
}

#[test]
fn wait_accepts_mount_paths_and_finds_mount_by_socket() {
    let (mount, other) = (Mount::new(), Mount::new());
    let shell = DriverShell::start(&mount);
    let path = Dir::of(&mount, shell.pid()).path().join("gcgroup.events");
    let path = path.to_str().expect("text");
    // The socket belongs to another daemon, which does not know the process.
    assert_eq!(status(&other, &[path, "frozen=0"]), 0);
    let link = mount.root().join("link");
    std::os::unix::fs::symlink(mount.path(), &link).expect("a link");
    let path = link.join(format!("{}/gcgroup.events", shell.pid()));
    assert_eq!(status(&other, &[path.to_str().expect("text"), "frozen=0"]), 0);
    let below = format!("/{}/gcgroup.events", shell.pid());
    assert_eq!(status(&mount, &[&below, "frozen=0"]), 0);
    assert_eq!(status(&other, &[&below, "frozen=0"]), 3);
}

#[test]
fn wait_survives_a_daemon_restart() {
    for config in [Config::default(), Config::default().arg("--no-fuse")] {
        let mut mount = Mount::with(config);
        let shell = DriverShell::start(&mount);
        let (pid, freeze) = (shell.pid(), format!("{}/compute.freeze", shell.pid()));
        let mut wait = waiting(&mount, &[&format!("{pid}/gcgroup.events"), "frozen=1"]);
        wait_until("gcgroupfs wait sleeps", || is_asleep(&wait));
        mount.kill9();
        mount.restart();
        wait_until("the restarted daemon accepts the freeze", || {
            mount
                .gcgroupfs(&["set", &freeze, "1"])
                .output()
                .is_ok_and(|output| output.status.success())
        });
        assert_eq!(wait.wait().code(), Some(0), "{}", wait.stderr());
    }
}

#[test]
fn wait_times_out_while_the_daemon_hangs() {
    everywhere(|mount| {
        let shell = DriverShell::start(mount);
        let events = format!("{}/gcgroup.events", shell.pid());
        let mut begun = waiting(mount, &[&events, "frozen=1", "--timeout", "1"]);
        wait_until("gcgroupfs wait sleeps", || is_asleep(&begun));
        let daemon = mount.daemon().expect("a daemon");
        stop(daemon);
        assert_eq!(begun.wait().code(), Some(1));
        for path in [&events, &format!("{}/memory.current", shell.pid())] {
            let mut wait = waiting(mount, &[path, "=1", "--timeout", "0.1"]);
            assert_eq!(wait.wait().code(), Some(1));
            assert!(wait.stderr().contains("does not answer"), "{}", wait.stderr());
        }
        kill(daemon, Signal::SIGCONT).expect("the daemon lives");
    });
}

#[test]
fn wait_without_a_daemon_fails() {
    let mut mount = Mount::new();
    mount.stop();
    assert_eq!(status(&mount, &["1/gcgroup.events", "frozen=1"]), 3);
}
