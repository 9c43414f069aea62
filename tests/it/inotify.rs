//! Tests inotify(7): watchers see the daemon's changes, and the helper that replays them does not interfere
//! with other programs.

use std::fs::{self, File};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use nix::fcntl::{OFlag, openat};
use nix::mount::{MntFlags, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use support::{Mount, wait_for, wait_until};

use crate::driver::{Dir, DriverShell};

struct Watcher(Inotify);

impl Watcher {
    fn new() -> Self {
        Self(Inotify::init(InitFlags::IN_NONBLOCK).expect("an inotify"))
    }

    #[track_caller]
    fn watch(&self, path: &Path, what: AddWatchFlags) -> WatchDescriptor {
        self.0.add_watch(path, what).expect("the watch can be added")
    }

    /// Returns the events so far as watch descriptor, event and name.
    fn seen(&self) -> Vec<(WatchDescriptor, AddWatchFlags, String)> {
        let events = self.0.read_events().unwrap_or_default();
        let name = |name: Option<std::ffi::OsString>| name.unwrap_or_default().to_string_lossy().into_owned();
        events
            .into_iter()
            .map(|event| (event.wd, event.mask, name(event.name)))
            .collect()
    }

    /// Waits for an event and returns the events before it.
    #[track_caller]
    fn expect(&self, wd: WatchDescriptor, what: AddWatchFlags, name: &str) -> Vec<(AddWatchFlags, String)> {
        let mut others = Vec::new();
        wait_until(&format!("inotify reports {what:?} of {name:?}"), || {
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::from(100_u8));
            let mut found = false;
            for (at, mask, of) in self.seen() {
                if (at, of.as_str()) == (wd, name) && mask.contains(what) {
                    found = true;
                } else {
                    others.push((mask, of));
                }
            }
            found
        });
        others
    }
}

/// Returns the pid of the daemon's inotify helper, if it runs.
fn helper(daemon: Pid) -> Option<Pid> {
    support::helper(daemon, "replay")
}

#[test]
fn only_the_changed_events_file_is_reported() {
    let mount = Mount::new();
    let watcher = Watcher::new();
    let root = watcher.watch(&mount.path(), AddWatchFlags::IN_CREATE);
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    watcher.expect(root, AddWatchFlags::IN_CREATE, &shell.pid().to_string());
    let [events, memory, gpu] = ["gcgroup.events", "memory.events", "0/gcgroup.events"].map(|name| {
        watcher.watch(
            &dir.path().join(name),
            AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DELETE_SELF,
        )
    });
    for on in [1, 0, 1] {
        dir.write("compute.freeze", on);
        let others = watcher.expect(events, AddWatchFlags::IN_MODIFY, "");
        assert!(
            others.iter().all(|(mask, _)| *mask == AddWatchFlags::IN_MODIFY),
            "{others:?}"
        );
        wait_until("gcgroup.events shows the freeze's state", || {
            dir.key("gcgroup.events", "frozen") == on
        });
    }
    let seen = watcher.seen();
    assert!(
        seen.iter().all(|(at, ..)| *at != memory),
        "the unchanged file was reported: {seen:?}"
    );
    shell.kill9();
    let mut deleted = Vec::new();
    wait_until("inotify reports the removal of all three files", || {
        let seen = watcher.seen().into_iter();
        deleted.extend(
            seen.filter(|(_, mask, _)| mask.contains(AddWatchFlags::IN_DELETE_SELF))
                .map(|(at, ..)| at),
        );
        [events, memory, gpu].iter().all(|at| deleted.contains(at))
    });
}

#[test]
fn process_directories_are_reported_on_start_and_exit() {
    let mount = Mount::new();
    let watcher = Watcher::new();
    let root = watcher.watch(&mount.path(), AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE);
    for _ in 0..5 {
        let shell = DriverShell::start(&mount);
        let name = shell.pid().to_string();
        assert_eq!(watcher.expect(root, AddWatchFlags::IN_CREATE, &name), []);
        assert!(mount.path().join(&name).is_dir());
        shell.kill9();
        assert_eq!(watcher.expect(root, AddWatchFlags::IN_DELETE, &name), []);
        assert!(!mount.path().join(&name).exists());
    }
}

#[test]
fn files_open_before_the_announcement_keep_working() {
    let mount = Mount::new();
    let watcher = Watcher::new();
    let root = watcher.watch(&mount.path(), AddWatchFlags::IN_CREATE);
    for _ in 0..10 {
        let shell = DriverShell::start(&mount);
        let path = mount.path().join(shell.pid().to_string());
        let inside = File::open(&path).expect("the directory exists at once");
        let limit = File::options()
            .write(true)
            .open(path.join("memory.limit"))
            .expect("the file opens");
        watcher.expect(root, AddWatchFlags::IN_CREATE, &shell.pid().to_string());
        let named = fs::read_link(format!("/proc/self/fd/{}", inside.as_raw_fd())).expect("a link");
        assert_eq!(
            named,
            path.canonicalize().expect("a path"),
            "the opened directory is shown as deleted"
        );
        openat(&inside, "memory.current", OFlag::O_RDONLY, Mode::empty()).expect("the file opens");
        nix::unistd::write(&limit, b"4096").expect("the file is writable");
        assert_eq!(Dir::of(&mount, shell.pid()).number("memory.limit"), 4096);
    }
}

#[test]
fn killed_helper_is_replaced() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let watcher = Watcher::new();
    let events = watcher.watch(&dir.path().join("gcgroup.events"), AddWatchFlags::IN_MODIFY);
    let daemon = mount.daemon().expect("the daemon runs");
    let first = wait_for("the inotify helper runs", || helper(daemon));
    kill(first, Signal::SIGKILL).expect("the helper runs");
    let mut on = 0;
    wait_until("the next inotify helper reports changes", || {
        on = 1 - on;
        dir.write("compute.freeze", on);
        wait_until("gcgroup.events shows the freeze's state", || {
            dir.key("gcgroup.events", "frozen") == on
        });
        let second = helper(daemon).filter(|second| *second != first);
        second.is_some() && watcher.seen().iter().any(|(at, ..)| *at == events)
    });
}

#[test]
fn helper_of_a_killed_daemon_exits() {
    let mut mount = Mount::new();
    for _ in 0..5 {
        let shell = DriverShell::start(&mount);
        let helper = wait_for("the inotify helper runs", || {
            helper(mount.daemon().expect("the daemon runs"))
        });
        // The process may be registering or exiting at this moment.
        shell.kill9();
        mount.kill9();
        wait_until("the inotify helper has ended", || {
            let status = fs::read_to_string(format!("/proc/{helper}/status")).unwrap_or_default();
            // The helper's new parent reaps it at a time of its own choice.
            !status.contains("State:") || status.contains("State:\tZ")
        });
        mount.restart();
    }
}

#[test]
fn helper_does_not_prevent_unmounting() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let watcher = Watcher::new();
    let root = watcher.watch(
        &mount.path(),
        AddWatchFlags::IN_CREATE | AddWatchFlags::IN_UNMOUNT,
    );
    wait_for("the inotify helper runs", || {
        helper(mount.daemon().expect("the daemon runs"))
    });
    shell.kill9();
    // Unmounts without detaching, which an open file would prevent.
    wait_until("the mount point is unmounted", || {
        umount2(&mount.path(), MntFlags::empty()).is_ok()
    });
    watcher.expect(root, AddWatchFlags::IN_UNMOUNT, "");
    assert!(
        fs::read_dir(mount.path())
            .expect("the directory is readable")
            .next()
            .is_none(),
        "a directory was made below the mount point"
    );
}

#[test]
fn mkdir_rmdir_and_touch_change_no_process_directory() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let errno = |result: std::io::Result<()>| result.expect_err("the operation is refused").raw_os_error();
    assert_eq!(
        errno(fs::create_dir(mount.path().join("12345"))),
        Some(libc::EINVAL)
    );
    assert_eq!(errno(fs::create_dir(dir.path())), Some(libc::EEXIST));
    assert_eq!(errno(fs::remove_dir(dir.path())), Some(libc::EPERM));
    assert!(dir.exists());
    // The helper's own command does nothing for other callers.
    let mut command = mount.gcgroupfs(&["replay"]);
    command.arg(mount.path()).arg("0");
    let mut touch = support::Governed::spawn(command);
    assert_eq!(
        touch.ask("c 12345"),
        libc::ENODEV.to_string(),
        "the helper accepted another device"
    );
}

#[test]
fn group_changes_are_reported_exactly_once() {
    let mount = Mount::new();
    let watcher = Watcher::new();
    let both = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE;
    let root = watcher.watch(&mount.path(), both);
    let run = |arguments: &[&str]| {
        let done = mount.gcgroupfs(arguments).status().expect("the command runs");
        assert!(done.success(), "{arguments:?}");
    };
    let mut seen = Vec::new();
    for _ in 0..3 {
        run(&["mkdir", "team"]);
        seen.extend(watcher.expect(root, AddWatchFlags::IN_CREATE, "team"));
        let team = watcher.watch(&mount.path().join("team"), both);
        run(&["mkdir", "team/a"]);
        seen.extend(watcher.expect(team, AddWatchFlags::IN_CREATE, "a"));
        let events = watcher.watch(
            &mount.path().join("team/a/gcgroup.events"),
            AddWatchFlags::IN_MODIFY,
        );
        mount.write("team", "compute.freeze", "1");
        seen.extend(watcher.expect(events, AddWatchFlags::IN_MODIFY, ""));
        run(&["rmdir", "team/a"]);
        seen.extend(watcher.expect(team, AddWatchFlags::IN_DELETE, "a"));
        assert!(!mount.path().join("team/a").exists());
        // The kernel reports these changes by itself; the helper must not repeat them.
        fs::create_dir(mount.path().join("team/b")).expect("the directory can be made");
        seen.extend(watcher.expect(team, AddWatchFlags::IN_CREATE, "b"));
        fs::remove_dir(mount.path().join("team/b")).expect("the directory can be removed");
        seen.extend(watcher.expect(team, AddWatchFlags::IN_DELETE, "b"));
        run(&["rmdir", "team"]);
        seen.extend(watcher.expect(root, AddWatchFlags::IN_DELETE, "team"));
    }
    seen.extend(watcher.seen().into_iter().map(|(_, mask, name)| (mask, name)));
    let again = seen.iter().filter(|(mask, _)| mask.intersects(both));
    assert_eq!(again.count(), 0, "{seen:?}");
}
