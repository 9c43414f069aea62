//! Tests a supervised daemon that has too little memory each time it starts: the pauses between starts grow,
//! the log reports them, and the first daemon with enough memory serves.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use support::{Config, Mount, c_program, wait_until};

use crate::cgroup::Cgroup;
use crate::driver::{Dir, DriverShell};
use crate::supervise::daemon;

/// Returns the pauses in milliseconds that the log reports, in order.
fn pauses(log: &str) -> Vec<f64> {
    let pauses = log.lines().filter_map(|line| {
        line.split_once("starting another in ")?
            .1
            .split_whitespace()
            .next()
    });
    let millis = |pause: &str| match pause.strip_suffix("ms") {
        Some(millis) => millis.parse::<f64>().ok(),
        // After a daemon that has run for long.
        None if pause == "0ns" => Some(0.0),
        None => Some(pause.strip_suffix('s')?.parse::<f64>().ok()? * 1000.0),
    };
    pauses
        .map(|pause| millis(pause).unwrap_or_else(|| panic!("not a duration: {pause}")))
        .collect()
}

/// Starts daemons with too little memory, in the way `how`, until the pauses are seconds long.
fn starve(how: &str, told: &str) {
    let shim = c_program("starve.c", &["-shared", "-fPIC"]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let config = Config::default()
        .arg("--supervise")
        .env("LD_PRELOAD", shim.display());
    let mount = Mount::with(config.env("STARVE", file.path().display()));
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.write("memory.limit", 7 << 20);
    fs::write(file.path(), how).expect("the file is writable");
    kill(daemon(&mount).expect("the daemon runs"), Signal::SIGKILL).expect("the daemon runs");
    wait_until("the attempts are a second apart", || {
        pauses(&mount.log()).last() >= Some(&1000.0)
    });
    let (log, supervisor) = (mount.log(), mount.daemon().expect("the daemon runs"));
    let pauses = pauses(&log);
    assert!(pauses.windows(2).all(|pair| pair[1] >= pair[0]), "{pauses:?}");
    assert!(pauses.len() < 16, "{pauses:?}");
    assert!(log.contains(told), "{log}");
    // With enough memory and a SIGHUP, the next daemon starts at once.
    fs::write(file.path(), "").expect("the file is writable");
    kill(supervisor, Signal::SIGHUP).expect("the supervisor runs");
    assert_eq!(dir.number("memory.limit"), 7 << 20);
}

#[test]
fn daemon_killed_for_memory_at_every_start_is_followed_later() {
    let Some(cgroup) = Cgroup::new("starved", 128 << 10) else {
        eprintln!("skipped: no memory cgroup can be made here");
        return;
    };
    starve(
        &format!("cgroup {}\n", cgroup.procs().display()),
        "the daemon has ended (signal: 9 (SIGKILL)); ",
    );
}

/// A cgroup whose processes cannot create others, until dropped.
struct Alone(PathBuf);

impl Alone {
    /// Creates a cgroup of version 1 or 2. Returns `None` if no usable pids controller exists.
    fn new() -> Option<Self> {
        for root in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            let root = Path::new(root);
            let _ = fs::write(root.join("cgroup.subtree_control"), "+pids");
            let path = root.join(format!("gcgroup-test-alone-{}", std::process::id()));
            if root.join("cgroup.procs").exists() && fs::create_dir(&path).is_ok() {
                let alone = Self(path);
                if fs::write(alone.0.join("pids.max"), "0").is_ok() {
                    return Some(alone);
                }
            }
        }
        None
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let pids = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines() {
            let _ = fs::write(self.0.with_file_name("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn supervisor_that_can_start_no_process_tries_again() {
    let Some(alone) = Alone::new() else {
        eprintln!("skipped: no pids cgroup can be made here");
        return;
    };
    let mount = Mount::with(Config::default().arg("--supervise"));
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.write("memory.limit", 7 << 20);
    let supervisor = mount.daemon().expect("the supervisor runs");
    fs::write(alone.0.join("cgroup.procs"), supervisor.to_string()).expect("root may move the process");
    kill(daemon(&mount).expect("the daemon runs"), Signal::SIGKILL).expect("the daemon runs");
    wait_until("the supervisor has tried several times", || {
        mount.log().matches("cannot start the daemon").count() > 3
    });
    fs::write(alone.0.join("pids.max"), "max").expect("the file is writable");
    assert_eq!(dir.number("memory.limit"), 7 << 20);
}

#[test]
fn daemon_that_gets_no_memory_at_every_start_is_followed_later() {
    starve("as 16777216\n", "the daemon has ended (");
}
