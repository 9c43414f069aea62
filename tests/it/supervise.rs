//! Tests `gcgroupfs mount --supervise`: the daemon is killed repeatedly, and no read fails.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use nix::mount::{MntFlags, umount2};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, DEADLINE, Mount, c_program, stop, wait_for, wait_until};

use crate::driver::{Dir, DriverShell, governed_pids};

fn supervised() -> Mount {
    Mount::with(Config::default().arg("--supervise"))
}

/// Returns the pid of the supervised daemon.
pub(crate) fn daemon(mount: &Mount) -> Option<Pid> {
    let supervisor = mount.daemon().expect("the supervisor runs");
    let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
    let children = children.expect("the supervisor has a child");
    let is_daemon = |pid: &&str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"mount")
    };
    let pid = children.split_whitespace().find(is_daemon)?.parse().ok()?;
    Some(Pid::from_raw(pid))
}

/// Kills the daemon and waits for its successor.
#[track_caller]
pub(crate) fn kill9(mount: &Mount) {
    let before = wait_for("a daemon runs", || daemon(mount));
    kill(before, Signal::SIGKILL).expect("the daemon runs");
    wait_until("the next daemon runs", || {
        daemon(mount).is_some_and(|after| after != before)
    });
}

/// Sets a flag when dropped, also after a panic, so that other threads stop.
pub(crate) struct End<'a>(pub &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Reads files in every way until `over` is set; counts the reads.
fn read_on(mount: &Mount, pid: i32, over: &AtomicBool, nr_reads: &AtomicU64) {
    let dir = mount.path().join(pid.to_string());
    let mut open = File::open(dir.join("memory.limit")).expect("the file opens");
    let limit = open_text(&mut open);
    while !over.load(Relaxed) {
        assert_eq!(open_text(&mut open), limit, "an open file shows another limit");
        assert_eq!(
            fs::read_to_string(dir.join("memory.limit")).expect("the file is readable by path"),
            limit
        );
        let events = fs::read_to_string(dir.join("0/gcgroup.events")).expect("the file below is readable");
        assert!(events.contains("populated 1"), "{events}");
        let procs = fs::read_to_string(mount.path().join("gcgroup.procs")).expect("a list");
        assert!(procs.lines().any(|line| line == pid.to_string()), "{procs}");
        let listed = fs::read_dir(&dir)
            .expect("the directory is readable")
            .map(|entry| entry.expect("an entry").file_name());
        assert!(listed.filter(|name| name == "memory.limit").count() == 1);
        assert!(fs::metadata(dir.join("0")).expect("the file exists").is_dir());
        // A directory that does not exist must not appear to exist.
        assert!(!dir.join("1").exists());
        nr_reads.fetch_add(1, Relaxed);
    }
}

#[track_caller]
fn open_text(file: &mut File) -> String {
    let mut text = String::new();
    file.rewind().expect("the file can be rewound");
    file.read_to_string(&mut text).expect("the file is readable");
    text
}

#[test]
fn no_read_and_no_write_fails_over_thirty_kills() {
    const KILLS: u64 = 30;
    let mount = supervised();
    let shells: Vec<_> = (0..4).map(|_| DriverShell::start(&mount)).collect();
    for (shell, n) in shells.iter().zip(1..) {
        Dir::of(&mount, shell.pid()).write("memory.limit", n << 20);
    }
    let (over, nr_reads, nr_writes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _end = End(&over);
        for shell in &shells {
            let pid = shell.pid();
            let (mount, over, nr_reads) = (&mount, &over, &nr_reads);
            scope.spawn(move || read_on(mount, pid, over, nr_reads));
        }
        let dir = Dir::of(&mount, shells[0].pid());
        let (over, nr_writes) = (&over, &nr_writes);
        scope.spawn(move || {
            for n in (0..16).cycle().take_while(|_| !over.load(Relaxed)) {
                dir.write("compute.priority", n);
                assert_eq!(dir.number("compute.priority"), n);
                nr_writes.fetch_add(1, Relaxed);
            }
        });
        for _ in 0..KILLS {
            // Waits until each reader and writer has made progress.
            let (reads, writes) = (nr_reads.load(Relaxed), nr_writes.load(Relaxed));
            wait_until("each reader and writer has made progress", || {
                nr_reads.load(Relaxed) >= reads + 8 && nr_writes.load(Relaxed) > writes
            });
            kill9(&mount);
        }
        let reads = nr_reads.load(Relaxed);
        wait_until("the readers have made progress after the last kill", || {
            nr_reads.load(Relaxed) >= reads + 8
        });
    });
    let log = mount.log();
    let is_end = |line: &&str| line.contains("the daemon has ended (signal: 9");
    assert_eq!(log.lines().filter(is_end).count() as u64, KILLS, "{log}");
}

#[test]
fn group_operations_succeed_over_daemon_kills() {
    const KILLS: u64 = 12;
    let mount = supervised();
    let shell = DriverShell::start(&mount);
    let pid = shell.pid().to_string();
    fs::create_dir(mount.path().join("team")).expect("the directory can be made");
    let (over, nr_rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _end = End(&over);
        scope.spawn(|| {
            while !over.load(Relaxed) {
                let inner = mount.path().join("team/a");
                fs::create_dir(&inner).expect("the path is free");
                mount.write("team/a", "gcgroup.procs", &pid);
                assert_eq!(mount.read("team/a", "gcgroup.procs"), pid);
                let refused = fs::remove_dir(&inner).expect_err("the group has a member");
                assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
                mount.write("team", "gcgroup.procs", &pid);
                fs::remove_dir(&inner).expect("the group is empty");
                assert!(!inner.exists());
                nr_rounds.fetch_add(1, Relaxed);
            }
        });
        for _ in 0..KILLS {
            let rounds = nr_rounds.load(Relaxed);
            wait_until("a round of group operations completes", || {
                nr_rounds.load(Relaxed) > rounds
            });
            kill9(&mount);
        }
        let rounds = nr_rounds.load(Relaxed);
        wait_until("a round completes after the last kill", || {
            nr_rounds.load(Relaxed) > rounds
        });
    });
    assert_eq!(mount.read("team", "gcgroup.procs"), pid);
}

#[test]
fn file_identity_survives_kills_and_dead_files_are_gone() {
    let mount = supervised();
    let (stays, dies) = (DriverShell::start(&mount), DriverShell::start(&mount));
    let dir = Dir::of(&mount, stays.pid());
    let mut open = File::open(dir.path().join("memory.current")).expect("the file opens");
    let doomed =
        File::open(Dir::of(&mount, dies.pid()).path().join("memory.current")).expect("the file opens");
    let ino = |path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("the file exists"));
    let before = ino(dir.path().join("memory.current"));
    let before_kill = daemon(&mount).expect("the daemon runs");
    // The process exits while no daemon runs; the supervisor is stopped so that it starts none.
    let supervisor = mount.daemon().expect("the supervisor runs");
    stop(supervisor);
    kill(before_kill, Signal::SIGKILL).expect("the daemon runs");
    let gone = dies.pid();
    dies.kill9();
    kill(supervisor, Signal::SIGCONT).expect("the supervisor runs");
    open_text(&mut open);
    assert_eq!(ino(dir.path().join("memory.current")), before);
    wait_until("reading the dead process's file fails with ENODEV", || {
        let read = doomed.read_at(&mut [0; 16], 0);
        read.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
    });
    wait_until("the dead process's directory is absent", || {
        !Dir::of(&mount, gone).exists()
    });
    assert_eq!(governed_pids(&mount), [stays.pid()]);
}

/// Returns an epoll descriptor for a file. Unlike poll(2), epoll does not check again at the end of the wait.
fn watch(file: &File) -> Epoll {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("a descriptor is free");
    epoll
        .add(file, EpollEvent::new(EpollFlags::EPOLLPRI, 0))
        .expect("the file can be added");
    epoll
}

/// Sleeps until the file reports that all work has drained.
#[track_caller]
fn sleep_until_frozen(epoll: &Epoll, mut file: &File) {
    let deadline = EpollTimeout::try_from(DEADLINE).expect("the value fits");
    let mut text = String::new();
    while !text.contains("frozen 1") {
        let woken = epoll.wait(&mut [EpollEvent::empty()], deadline);
        assert_eq!(woken, Ok(1), "epoll_wait(2) failed or timed out");
        text.clear();
        file.rewind().expect("the file can be rewound");
        file.read_to_string(&mut text).expect("the file is readable");
    }
}

#[test]
fn sleeping_poller_is_woken_by_the_next_daemon() {
    let mount = supervised();
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let mut events = File::open(dir.path().join("gcgroup.events")).expect("the file opens");
    open_text(&mut events);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| sleep_until_frozen(&watch(&events), &events));
        for _ in 0..3 {
            kill9(&mount);
            dir.read("gcgroup.events");
        }
        dir.write("compute.freeze", 1);
        waiting.join().expect("the thread ends without a panic");
    });
}

#[test]
fn files_opened_after_a_kill_do_not_affect_earlier_ones() {
    let mount = supervised();
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let path = dir.path().join("gcgroup.events");
    let mut events = File::open(&path).expect("the file opens");
    open_text(&mut events);
    kill9(&mount);
    let others: Vec<_> = (0..16)
        .map(|_| File::open(&path).expect("the file opens"))
        .collect();
    open_text(&mut events);
    let epoll = watch(&events);
    drop(others);
    // Answered after the earlier files were closed.
    dir.read("gcgroup.events");
    dir.write("compute.freeze", 1);
    sleep_until_frozen(&epoll, &events);
}

#[test]
fn program_executed_during_restart_keeps_its_settings() {
    let mount = supervised();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.write("memory.limit", 1 << 20);
    let mut before = File::open(dir.path().join("memory.limit")).expect("the file opens");
    kill(daemon(&mount).expect("the daemon runs"), Signal::SIGKILL).expect("the daemon runs");
    shell.exec();
    wait_until("the process has registered again", || {
        governed_pids(&mount) == [shell.pid()]
    });
    wait_until("the new program's files are found by path", || {
        dir.path().join("memory.limit").exists()
    });
    assert_eq!(
        dir.number("memory.limit"),
        1 << 20,
        "the new program lost its settings"
    );
    // The result depends on whether the process already had the new program when the daemon looked.
    let mut text = [0; 32];
    if let Err(error) = before.read(&mut text) {
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}

#[test]
fn supervisor_ends_on_request_and_leaves_nothing() {
    let mut mount = supervised();
    let shell = DriverShell::start(&mount);
    let held =
        File::open(Dir::of(&mount, shell.pid()).path().join("memory.current")).expect("the file opens");
    let last = daemon(&mount).expect("the daemon runs");
    let (path, socket) = (mount.path(), mount.socket());
    mount.stop();
    assert!(
        !fs::read_to_string("/proc/self/mountinfo")
            .expect("the file is readable")
            .contains(path.to_str().expect("text"))
    );
    assert!(!socket.exists());
    wait_until("the daemon has ended", || kill(last, None).is_err());
    drop(held);
    // If another process unmounts the mount, the daemon exits by itself.
    let mount = supervised();
    wait_until("the mount point is unmounted", || {
        umount2(&mount.path(), MntFlags::empty()).is_ok()
    });
    let supervisor = mount.daemon().expect("the supervisor was started");
    wait_until("the supervisor has ended", || {
        let status = fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap_or_default();
        !status.contains("State:") || status.contains("State:\tZ")
    });
}

#[test]
fn killed_supervisor_ends_its_daemon_and_is_followed() {
    let mut mount = supervised();
    let shell = DriverShell::start(&mount);
    let last = daemon(&mount).expect("the daemon runs");
    mount.kill9();
    wait_until("the daemon has ended", || {
        let status = fs::read_to_string(format!("/proc/{last}/status")).unwrap_or_default();
        !status.contains("State:") || status.contains("State:\tZ")
    });
    mount.restart();
    wait_until("the process has registered again", || {
        governed_pids(&mount) == [shell.pid()]
    });
    let status = mount
        .gcgroupfs(&["get", "devices"])
        .output()
        .expect("the command runs")
        .status;
    assert!(status.success());
}

#[test]
fn read_continued_after_a_kill_mixes_no_texts() {
    let mount = supervised();
    let mut shell = DriverShell::start(&mount);
    let mut file =
        File::open(Dir::of(&mount, shell.pid()).path().join("memory.current")).expect("the file opens");
    let mut start = [0; 64];
    assert_eq!(
        file.read(&mut start).expect("the file is readable"),
        2,
        "the first read did not return the whole value"
    );
    kill9(&mount);
    assert_eq!(shell.ask("alloc linear 1234567"), "ok 0");
    let mut rest = String::new();
    file.read_to_string(&mut rest)
        .expect("the file is readable after the restart");
    assert_eq!(rest, "", "the read after the end returned a later value");
}

#[test]
fn invalid_configuration_does_not_end_a_successor() {
    let settings = tempfile::NamedTempFile::new().expect("a file");
    let write = |text: &str| fs::write(settings.path(), text).expect("the file is writable");
    write("[compute]\npolicy = \"strict\"\n");
    let config = Config::default().arg("--supervise").arg("--config");
    let mount = Mount::with(config.arg(settings.path().to_str().expect("the path is UTF-8")));
    let policy = || mount.read("", "compute.policy");
    assert_eq!(policy(), "strict");
    write("[compute\n");
    for _ in 0..2 {
        kill9(&mount);
        assert_eq!(policy(), "strict", "an invalid configuration changed the policy");
    }
    wait_until("the log reports the invalid configuration", || {
        mount.log().contains("the configuration stays as it was")
    });
    write("");
    kill(mount.daemon().expect("the daemon runs"), Signal::SIGHUP).expect("the daemon runs");
    wait_until("the configuration is read again", || policy() == "weighted");
    write("[compute\n");
    kill9(&mount);
    assert_eq!(policy(), "weighted");
}

/// Tests a kernel that does not send unanswered requests again.
#[test]
fn next_daemon_on_an_older_kernel_mounts_again() {
    let shim = c_program("older_fuse.c", &["-shared", "-fPIC", "-ldl"]);
    let config = Config::default().arg("--supervise");
    let mount = Mount::with(config.env("LD_PRELOAD", shim.display()));
    let shell = DriverShell::start(&mount);
    let pid = shell.pid();
    mount.write(pid, "memory.limit", "4096");
    kill9(&mount);
    wait_until("the next daemon has mounted", || {
        mount.path().join("devices").exists()
    });
    wait_until("the process has registered again", || {
        governed_pids(&mount) == [pid]
    });
    assert_eq!(mount.read(pid, "memory.limit"), "4096");
}
