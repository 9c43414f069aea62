//! poll(2) on the events files: woken by a change, and not without one.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use support::{DEADLINE, Mount};

use crate::driver::{Dir, DriverShell};

/// An events file as a script watches it.
struct Watch(File);

impl Watch {
    #[track_caller]
    fn open(path: PathBuf) -> Self {
        let mut watch = Self(File::open(path).expect("opens"));
        watch.read();
        watch
    }

    /// What it shows now; the next poll waits for something else.
    #[track_caller]
    fn read(&mut self) -> String {
        let mut text = String::new();
        self.0.rewind().expect("seeks");
        self.0.read_to_string(&mut text).expect("reads");
        text
    }

    /// Whether there is a change, within that time.
    fn poll(&self, timeout: PollTimeout) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLPRI)];
        poll(&mut fds, timeout).expect("polls");
        fds[0]
            .revents()
            .is_some_and(|events| events.contains(PollFlags::POLLPRI))
    }

    /// Waits for changes until the file has that line.
    #[track_caller]
    fn wait_for(&mut self, line: &str) {
        let long = PollTimeout::try_from(DEADLINE).expect("fits");
        while !self.read().lines().any(|shown| shown == line) {
            assert!(self.poll(long), "in vain for {line:?}");
        }
    }
}

#[test]
fn a_freeze_wakes_when_it_is_drained_and_a_thaw_wakes_too() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let mut watch = Watch::open(dir.path().join("gcgroup.events"));
    assert!(!watch.poll(PollTimeout::ZERO), "nothing has changed");
    assert_eq!(shell.ask("spin 5000 20"), "ok");
    dir.write("compute.freeze", 1);
    watch.wait_for("frozen 1");
    assert_eq!(shell.ask("query"), "ok", "it is drained");
    assert!(!watch.poll(PollTimeout::ZERO), "read, and so nothing new");
    dir.write("compute.freeze", 0);
    watch.wait_for("frozen 0");
}

#[test]
fn a_refused_allocation_wakes() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.write("memory.limit", 4096);
    let mut watch = Watch::open(dir.path().join("memory.events"));
    assert!(!watch.poll(PollTimeout::ZERO), "nothing has changed");
    assert_eq!(shell.ask("alloc linear 4097"), "error 2");
    assert!(
        watch.poll(PollTimeout::try_from(DEADLINE).expect("fits")),
        "woken"
    );
    watch.wait_for("oom 1");
    assert_eq!(shell.ask("alloc linear 4096"), "ok 0");
    dir.write("memory.limit", 1);
    watch.wait_for("over_limit 1");
}

#[test]
fn a_death_wakes() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let watch = Watch::open(dir.path().join("gcgroup.events"));
    shell.kill9();
    assert!(watch.poll(PollTimeout::try_from(DEADLINE).expect("fits")));
}
