//! Tests SIGKILL of the daemon while it invalidates directory entries. The kernel locks directories for that,
//! as do processes that create and remove directories while they wait for the daemon.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Governed, Mount, artifacts, wait_for, wait_until};

use crate::driver::DriverShell;
use crate::soak::random::Random;
use crate::supervise::End;

/// Duration. A daemon that writes to the kernel itself hangs within a sixth of it.
const LENGTH: Duration = Duration::from_secs(12);
/// Number of threads that create and remove groups.
const PEOPLE: u64 = 4;
/// Number of threads that run short processes one after another.
const ROWS: u64 = 3;

/// Returns the pid of the process that sends invalidations to the kernel for the daemon.
fn writer(daemon: Pid) -> Option<Pid> {
    support::helper(daemon, "invalidate")
}

fn is_running(pid: Pid) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn is_listed(point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc(5)");
    mounts
        .lines()
        .any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == point))
}

/// Creates, removes and looks up groups, often without a daemon.
fn groups_come_and_go(root: &Path, mut random: Random, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let group = root.join(format!("group{}", random.below(4)));
        let done = match random.below(4) {
            0 => fs::create_dir(&group),
            1 => fs::remove_dir(&group),
            2 => fs::metadata(root.join(format!("none{}", random.below(1 << 20)))).map(drop),
            _ => fs::metadata(&group).map(drop),
        };
        if done.is_err() {
            thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Runs short governed processes one after another.
fn processes_come_and_go(command: impl Fn() -> Command, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let mut program = Governed::spawn(command());
        let status = program.wait();
        assert!(status.success(), "{status}: {}", program.stderr());
    }
}

/// Runs `meanwhile` while groups and processes come and go.
fn bustle<T>(mount: &mut Mount, meanwhile: impl FnOnce(&mut Mount) -> T) -> T {
    let over = AtomicBool::new(false);
    let root = mount.path();
    let template = mount.command(artifacts().load());
    let command = || {
        let mut command = Command::new(template.get_program());
        let set = template
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)));
        command.envs(set);
        command.args([
            "roam",
            "--pause-ms",
            "1",
            "--size",
            "4K",
            "--seed",
            "1",
            "--rounds",
            "3",
        ]);
        command
    };
    thread::scope(|scope| {
        let _end = End(&over);
        for seed in 0..PEOPLE {
            let (root, over) = (&root, &over);
            scope.spawn(move || groups_come_and_go(root, Random::of(seed), over));
        }
        for _ in 0..ROWS {
            scope.spawn(|| processes_come_and_go(command, &over));
        }
        meanwhile(mount)
    })
}

#[test]
fn killed_daemon_ends_during_invalidations() {
    let mut mount = Mount::new();
    let writers = bustle(&mut mount, |mount| {
        let (end, mut random) = (Instant::now() + LENGTH, Random::of(9));
        let mut writers = Vec::new();
        while Instant::now() < end {
            // At a random moment.
            thread::sleep(Duration::from_millis(100 + random.below(150) as u64));
            writers.extend(mount.daemon().and_then(writer));
            mount.kill9();
            mount.restart();
        }
        writers
    });
    mount.kill9();
    assert!(!writers.is_empty(), "no invalidation writer was seen");
    for pid in writers {
        wait_until("the killed daemon's invalidation writer has ended", || {
            !is_running(pid)
        });
    }
}

#[test]
fn killed_supervisor_and_daemon_end_during_invalidations() {
    let mut mount = Mount::with(Config::default().arg("--supervise"));
    let kills = bustle(&mut mount, |mount| {
        let (end, mut random) = (Instant::now() + LENGTH, Random::of(11));
        let mut kills = 0;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(100 + random.below(150) as u64));
            mount.kill9();
            mount.restart();
            kills += 1;
        }
        kills
    });
    assert!(kills > 5, "only {kills} kills");
    let supervisor = mount.daemon().expect("the supervisor runs");
    let killed = writer(supervisor).expect("the daemon has a writer");
    kill(killed, Signal::SIGKILL).expect("the writer runs");
    let shell = DriverShell::start(&mount);
    assert!(mount.governs(shell.pid()), "the process has no directory");
    let pid = shell.pid();
    shell.kill9();
    wait_until("the removed directory's entry is invalidated", || {
        !mount.governs(pid)
    });
    let pid = wait_for("a new invalidation writer runs", || {
        writer(supervisor).filter(|now| *now != killed)
    });
    mount.stop();
    assert!(!is_listed(&mount.path()), "the mount is left");
    assert!(!is_running(pid), "the invalidation writer outlived the mount");
}

#[test]
fn terminated_daemon_leaves_nothing_during_changes() {
    let mut mount = Mount::new();
    bustle(&mut mount, |mount| {
        for _ in 0..8 {
            let daemon = mount.daemon().expect("the daemon runs");
            let writer = wait_for("the invalidation writer runs", || writer(daemon));
            mount.stop();
            assert!(!is_listed(&mount.path()), "the mount is left");
            wait_until("the invalidation writer has ended", || !is_running(writer));
            mount.restart();
        }
    });
}

#[test]
fn removed_entries_are_invalidated_despite_writer_kills() {
    let mount = Mount::new();
    let daemon = mount.daemon().expect("the daemon runs");
    for _ in 0..5 {
        let shell = DriverShell::start(&mount);
        let pid = shell.pid();
        assert!(mount.governs(pid), "the process has no directory");
        let killed = writer(daemon);
        if let Some(killed) = killed {
            kill(killed, Signal::SIGKILL).expect("the writer runs");
        }
        shell.kill9();
        wait_until("the removed directory's entry is invalidated", || {
            !mount.governs(pid)
        });
    }
    let killed = writer(daemon);
    if let Some(killed) = killed {
        kill(killed, Signal::SIGKILL).expect("the writer runs");
    }
    wait_until("a new invalidation writer runs", || {
        let group = mount.path().join("group");
        fs::create_dir(&group).expect("the directory can be made");
        fs::remove_dir(&group).expect("the directory can be removed");
        writer(daemon).is_some_and(|now| Some(now) != killed)
    });
}
