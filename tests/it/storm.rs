//! Tests the end of the daemon while groups and processes come and go. The kernel keeps directories locked
//! while processes that create and remove groups wait for the daemon.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use support::{Config, Governed, Mount, artifacts};

use crate::driver::DriverShell;
use crate::soak::random::Random;
use crate::supervise::End;

/// Duration of a test with kills.
const LENGTH: Duration = Duration::from_secs(12);
/// Number of threads that create and remove groups.
const PEOPLE: u64 = 4;
/// Number of threads that run short processes one after another.
const ROWS: u64 = 3;

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

/// Kills the daemon, or its supervisor, at random moments while groups and processes come and go.
fn kill_repeatedly(mount: &mut Mount, seed: u64) {
    let kills = bustle(mount, |mount| {
        let (end, mut random) = (Instant::now() + LENGTH, Random::of(seed));
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
    DriverShell::start(mount);
    mount.stop();
    assert!(!is_listed(&mount.path()), "the mount is left");
}

#[test]
fn killed_daemon_ends_during_changes() {
    kill_repeatedly(&mut Mount::new(), 9);
}

#[test]
fn killed_supervisor_and_daemon_end_during_changes() {
    kill_repeatedly(&mut Mount::with(Config::default().arg("--supervise")), 11);
}

#[test]
fn terminated_daemon_leaves_nothing_during_changes() {
    let mut mount = Mount::new();
    bustle(&mut mount, |mount| {
        for _ in 0..8 {
            mount.stop();
            assert!(!is_listed(&mount.path()), "the mount is left");
            mount.restart();
        }
    });
}
