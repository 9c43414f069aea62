//! A supervised daemon that cannot answer, nor end when it is killed, as when a thread of it waits in a
//! driver that hangs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use support::{Config, Mount, wait_until};

use crate::driver::{Dir, DriverShell};
use crate::supervise::daemon;

/// A freezer of cgroup version 1: what is in it does nothing, and does not die either, until this is dropped.
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> io::Result<Self> {
        let path = format!("/sys/fs/cgroup/freezer/gcgroup-test-{}", std::process::id());
        fs::create_dir(&path)?;
        Ok(Self(path.into()))
    }

    fn freeze(&self, pid: Pid) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())?;
        fs::write(self.0.join("freezer.state"), "FROZEN")
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        // It is not removed before all in it have ended.
        wait_until("the freezer is empty", || {
            fs::read_to_string(self.0.join("cgroup.procs")).is_ok_and(|pids| pids.is_empty())
        });
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_daemon_that_neither_answers_nor_ends_is_followed() {
    let mount = Mount::with(Config::default().arg("--supervise"));
    let freezer = match Freezer::new() {
        Ok(freezer) => freezer,
        Err(error) => {
            println!("left out, no freezer of cgroup version 1 here: {error}");
            return;
        }
    };
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.write("memory.limit", 7 << 20);
    let stuck = daemon(&mount).expect("it runs");
    freezer.freeze(stuck).expect("it is frozen");
    // Sleeps until the next daemon answers.
    assert_eq!(dir.number("memory.limit"), 7 << 20);
    let log = mount.log();
    assert!(log.contains("the daemon does not answer"), "{log}");
    assert!(log.contains("the daemon cannot end"), "{log}");
    assert!(Path::new(&format!("/proc/{stuck}")).exists(), "it is still there");
    dir.write("memory.limit", 8 << 20);
    assert_eq!(dir.number("memory.limit"), 8 << 20);
    drop(freezer);
    // It is killed at last, and its successor goes on.
    wait_until("the first one has ended", || {
        let status = fs::read_to_string(format!("/proc/{stuck}/status")).unwrap_or_default();
        status.is_empty() || status.lines().any(|line| line.starts_with("State:\tZ"))
    });
    assert_eq!(dir.number("memory.limit"), 8 << 20);
}
