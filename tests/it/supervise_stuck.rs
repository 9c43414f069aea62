//! Tests a supervised daemon that can neither answer nor die, as when one of its threads waits in a hanging
//! driver.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use support::{Config, Mount, wait_until};

use crate::driver::{Dir, DriverShell};
use crate::supervise::daemon;

/// A freezer cgroup of version 1: until dropped, its processes neither run nor die.
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
        // The cgroup can be removed only after all its processes have ended.
        wait_until("the freezer cgroup is empty", || {
            fs::read_to_string(self.0.join("cgroup.procs")).is_ok_and(|pids| pids.is_empty())
        });
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn stuck_daemon_is_followed() {
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
    let stuck = daemon(&mount).expect("the daemon runs");
    freezer.freeze(stuck).expect("the daemon can be frozen");
    // This read sleeps until the next daemon answers.
    assert_eq!(dir.number("memory.limit"), 7 << 20);
    let log = mount.log();
    assert!(log.contains("the daemon does not answer"), "{log}");
    assert!(log.contains("the daemon cannot end"), "{log}");
    assert!(
        Path::new(&format!("/proc/{stuck}")).exists(),
        "the stuck daemon has ended"
    );
    dir.write("memory.limit", 8 << 20);
    assert_eq!(dir.number("memory.limit"), 8 << 20);
    drop(freezer);
    // The stuck daemon finally dies, and its successor continues.
    wait_until("the stuck daemon has ended", || {
        let status = fs::read_to_string(format!("/proc/{stuck}/status")).unwrap_or_default();
        status.is_empty() || status.lines().any(|line| line.starts_with("State:\tZ"))
    });
    assert_eq!(dir.number("memory.limit"), 8 << 20);
}
