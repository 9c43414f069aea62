//! Tests that no name in the mount is ever stale: each look-up that begins after a change shows its result.

use std::fs;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use nix::sys::signal::{Signal, kill};
use support::{Config, Mount, wait_until};

use crate::driver::DriverShell;
use crate::supervise::End;

/// Number of threads that look a name up all the time.
const READERS: usize = 3;

/// A name in the mount, with the result that each look-up of it must have.
struct Name<'m> {
    mount: &'m Mount,
    name: String,
    /// Odd while the name is being changed.
    version: AtomicU64,
    /// Inode number; 0 if there is no such name.
    ino: AtomicU64,
    nr_checks: AtomicU64,
}

impl<'m> Name<'m> {
    fn new(mount: &'m Mount, name: impl ToString) -> Self {
        let name = Self {
            mount,
            name: name.to_string(),
            version: AtomicU64::new(0),
            ino: AtomicU64::new(0),
            nr_checks: AtomicU64::new(0),
        };
        name.ino.store(name.listed(), SeqCst);
        name
    }

    /// Returns the inode number in the listing of the mount, which the kernel never caches; 0 if absent.
    fn listed(&self) -> u64 {
        let mut entries = fs::read_dir(self.mount.path())
            .expect("the mount is readable")
            .flatten();
        let entry = entries.find(|entry| entry.file_name() == self.name.as_str());
        entry.map_or(0, |entry| entry.ino())
    }

    /// Looks the name up until `over` is set.
    fn check(&self, over: &AtomicBool) {
        let path = self.mount.path().join(&self.name);
        while !over.load(SeqCst) {
            let version = self.version.load(SeqCst);
            let expected = self.ino.load(SeqCst);
            let found = fs::metadata(&path).map_or(0, |found| found.ino());
            let below = fs::read_to_string(path.join("0/gcgroup.events"));
            if version.is_multiple_of(2) && self.version.load(SeqCst) == version {
                assert_eq!(found, expected, "{} leads to another inode", self.name);
                assert_eq!(below.is_ok(), expected != 0, "{}: {below:?}", self.name);
                self.nr_checks.fetch_add(1, SeqCst);
            }
        }
    }

    /// Runs `body` while readers check the name.
    fn watched<T>(&self, body: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = End(&over);
            for _ in 0..READERS {
                scope.spawn(|| self.check(&over));
            }
            body()
        })
    }

    /// Changes what the name leads to, and waits until the readers have checked the result.
    #[track_caller]
    fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        self.version.fetch_add(1, SeqCst);
        let before = self.ino.load(SeqCst);
        let result = change();
        wait_until("the listing shows the change", || self.listed() != before);
        self.ino.store(self.listed(), SeqCst);
        self.version.fetch_add(1, SeqCst);
        let checked = self.nr_checks.load(SeqCst);
        wait_until("the readers have checked the name", || {
            self.nr_checks.load(SeqCst) >= checked + READERS as u64
        });
        result
    }
}

#[track_caller]
fn run(mount: &Mount, arguments: &[&str]) {
    let status = mount.gcgroupfs(arguments).status().expect("the command runs");
    assert!(status.success(), "{arguments:?}");
}

#[test]
fn group_made_and_removed_without_the_mount_is_never_stale() {
    let mount = Mount::new();
    let team = Name::new(&mount, "team");
    team.watched(|| {
        for _ in 0..20 {
            team.change(|| run(&mount, &["mkdir", "team"]));
            team.change(|| run(&mount, &["rmdir", "team"]));
        }
    });
}

#[test]
fn group_made_and_removed_through_the_mount_is_never_stale() {
    let mount = Mount::new();
    let (team, path) = (Name::new(&mount, "team"), mount.path().join("team"));
    team.watched(|| {
        for round in 0..50 {
            team.change(|| fs::create_dir(&path).expect("the path is free"));
            // Either way the kernel knows the name that is removed.
            match round % 2 {
                0 => team.change(|| fs::remove_dir(&path).expect("the group is empty")),
                _ => team.change(|| run(&mount, &["rmdir", "team"])),
            }
        }
    });
}

#[test]
fn executed_program_is_found_at_once() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let name = Name::new(&mount, shell.pid());
    name.watched(|| {
        for _ in 0..10 {
            name.change(|| shell.exec());
        }
    });
}

/// Starts a process with the pid `pid`, which is free. The kernel gives the next fork the next free pid, and
/// other processes fork, too.
fn start_as(mount: &Mount, pid: i32) -> DriverShell {
    loop {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).expect("root may write the file");
        let shell = DriverShell::start(mount);
        if shell.pid() == pid {
            return shell;
        }
        shell.quit();
    }
}

#[test]
fn pid_used_again_leads_to_the_new_process() {
    let mount = Mount::new();
    let first = DriverShell::start(&mount);
    let pid = first.pid();
    let name = Name::new(&mount, pid);
    name.watched(|| {
        let mut shell = first;
        for _ in 0..5 {
            name.change(|| shell.kill9());
            shell = name.change(|| start_as(&mount, pid));
        }
        // It lives for as long as the readers look.
        shell
    });
}

#[test]
fn device_listed_later_is_found_at_once() {
    let mount = Mount::with(Config::default().env("SIMGPU_MIG", "0:1g.5gb"));
    // The simulated machine keeps its state while a process uses it.
    let _user = DriverShell::start(&mount);
    run(&mount, &["mkdir", "team"]);
    let is_there = |name: &str| Path::exists(&mount.path().join(name).join("memory.limit"));
    assert!(is_there("team/0") && !is_there("team/1"));
    mount.truth().divide("0:1g.5gb,1g.5gb");
    kill(mount.daemon().expect("the daemon runs"), Signal::SIGHUP).expect("the daemon runs");
    wait_until("the new instance is listed", || {
        mount.read("", "devices").lines().count() == 2
    });
    assert!(is_there("team/1"));
}
