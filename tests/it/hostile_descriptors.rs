//! Tests files sent to the daemon whose last close blocks: they lie on a FUSE mount whose server never
//! answers. No other request may wait for them.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount as mount_at, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, DEADLINE, Mount, stop, wait_for, wait_until};
use tempfile::TempDir;

use crate::driver::{Dir, DriverShell};
use crate::supervise;

/// Uids that are used only here.
const UIDS: std::ops::Range<u32> = 64_100..64_120;

const PROGRAM: &str = env!("CARGO_BIN_EXE_silent_fuse");

/// A FUSE mount whose server never answers FLUSH. Dropping it releases all waiting processes.
struct Silent {
    directory: TempDir,
    server: Child,
    connection: u64,
    senders: Vec<(Child, Option<ChildStdin>)>,
}

impl Silent {
    /// Mounts. With writeback caching, dropping the last reference to a file also waits, even without
    /// close(2).
    fn new(is_writeback: bool) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let mut command = Command::new(PROGRAM);
        command.arg("serve").arg(directory.path());
        command.args(is_writeback.then_some("writeback"));
        let mut server = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        said(&mut server, "ready");
        // The kernel knows the root's attributes without asking the server.
        let device = fs::symlink_metadata(directory.path())
            .expect("the directory is mounted")
            .dev();
        Self {
            directory,
            server,
            connection: nix::sys::stat::minor(device),
            senders: Vec::new(),
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("file")
    }

    /// Makes a user send descriptors to the daemon, one on each connection, and keep them.
    fn send(&mut self, mount: &Mount, uid: u32, number: u32, what: &str) {
        let mut command = Command::new(PROGRAM);
        command.arg("send").arg(mount.socket()).arg(self.file());
        command.arg(number.to_string()).arg(what).uid(uid).gid(uid);
        let mut sender = self.start(command);
        said(&mut sender, "sent");
        let input = sender.stdin.take();
        self.senders.push((sender, input));
    }

    /// Starts a process that registers and then executes another program for ever; returns its pid.
    fn execute(&mut self, mount: &Mount, uid: u32) -> i32 {
        let mut command = Command::new(PROGRAM);
        command
            .arg("exec")
            .arg(mount.socket())
            .arg(self.file())
            .uid(uid)
            .gid(uid);
        let mut sender = self.start(command);
        said(&mut sender, "ready");
        let pid = i32::try_from(sender.id()).expect("a pid");
        self.senders.push((sender, None));
        pid
    }

    fn start(&self, mut command: Command) -> Child {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("the command starts")
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Aborts through the kernel's list of connections, which may not be available here, and by ending the
        // server.
        if let Ok(list) = TempDir::new()
            && mount_at(
                Some("fusectl"),
                list.path(),
                Some("fusectl"),
                MsFlags::empty(),
                None::<&str>,
            )
            .is_ok()
        {
            let abort = list.path().join(format!("{}/abort", self.connection));
            let _ = OpenOptions::new()
                .write(true)
                .open(abort)
                .and_then(|mut file| file.write_all(b"1"));
            let _ = umount2(list.path(), MntFlags::MNT_DETACH);
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
        for (sender, _) in &mut self.senders {
            let _ = sender.kill();
            let _ = sender.wait();
        }
        let _ = umount2(self.directory.path(), MntFlags::MNT_DETACH);
    }
}

#[track_caller]
fn said(child: &mut Child, expected: &str) {
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("the server prints a line");
    assert_eq!(line.trim_end(), expected);
}

/// Runs an action that hangs if the attack works; fails after a time limit.
#[track_caller]
fn bounded<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(act()));
    let done = receiver.recv_timeout(DEADLINE);
    done.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// Asserts that other users are served and that inspecting the daemon's processes does not hang.
#[track_caller]
fn assert_well(mount: &Mount) {
    let shell = DriverShell::start(mount);
    let dir = Dir::of(mount, shell.pid());
    wait_until("the process is governed", || dir.exists());
    dir.write("memory.limit", 1 << 30);
    assert_eq!(dir.number("memory.limit"), 1 << 30);
    let listed = mount.gcgroupfs(&["ls"]).output().expect("the command runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains(&shell.pid().to_string()), "{listed}");
    for pid in family(mount) {
        bounded("reading stat", move || {
            fs::read(format!("/proc/{pid}/stat")).map(drop)
        })
        .ok();
        bounded("reading exe", move || {
            fs::read_link(format!("/proc/{pid}/exe")).map(drop)
        })
        .ok();
    }
}

/// Returns the pid of the serving daemon: the supervisor's child, if there is a supervisor.
fn daemon(mount: &Mount, is_supervised: bool) -> Pid {
    if is_supervised {
        wait_for("a daemon runs", || supervise::daemon(mount))
    } else {
        mount.daemon().expect("the daemon runs")
    }
}

/// Returns the pids of the daemon and its descendants, read from `status`, which never blocks.
fn family(mount: &Mount) -> Vec<i32> {
    let root = mount.daemon().expect("the daemon runs").as_raw();
    let pids = || {
        let entries = fs::read_dir("/proc").expect("proc(5)").flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
    };
    let parents: Vec<_> = pids().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut family = vec![root];
    let mut next = 0;
    while let Some(pid) = family.get(next).copied() {
        family.extend(
            parents
                .iter()
                .filter(|(_, parent)| *parent == pid)
                .map(|(child, _)| *child),
        );
        next += 1;
    }
    family
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:"))?
        .trim()
        .parse()
        .ok()
}

/// Asserts that no thread of the process waits uninterruptibly in the kernel.
#[track_caller]
fn assert_nothing_stuck(pid: Pid) {
    wait_until("no thread of the daemon waits uninterruptibly", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
        tasks.flatten().all(|task| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            !status.lines().any(|line| line.starts_with("State:\tD"))
        })
    });
}

fn mount(is_supervised: bool) -> Mount {
    let config = Config::default();
    Mount::with(if is_supervised {
        config.arg("--supervise")
    } else {
        config
    })
}

/// Sends every hostile descriptor and asserts that other clients are unaffected.
fn attack(is_supervised: bool, is_writeback: bool) {
    let mount = mount(is_supervised);
    let mut silent = Silent::new(is_writeback);
    for what in ["hello", "junk"] {
        silent.send(&mount, UIDS.start, 64, what);
        assert_well(&mount);
    }
    assert_nothing_stuck(daemon(&mount, is_supervised));
    assert_well(&mount);
}

#[test]
fn descriptors_of_one_user_delay_no_other() {
    attack(false, false);
}

#[test]
fn descriptors_with_blocking_last_reference_delay_no_other() {
    attack(true, true);
}

#[test]
fn descriptors_of_twenty_users_delay_no_other() {
    let mount = mount(false);
    let mut silent = Silent::new(true);
    for (uid, number) in UIDS.zip(0..) {
        silent.send(&mount, uid, 64, if number % 2 == 0 { "hello" } else { "junk" });
    }
    assert_well(&mount);
    assert_nothing_stuck(daemon(&mount, false));
}

/// Returns the number of receiver processes of the daemon that have not been reaped.
fn receivers(mount: &Mount) -> usize {
    let is_receiver = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == b"receive")
    };
    family(mount).iter().filter(|pid| is_receiver(pid)).count()
}

#[test]
fn hanging_receivers_of_one_user_are_bounded() {
    // The running receiver and those that one user can make hang.
    const MOST: usize = 1 + 4;
    let mount = mount(false);
    let mut silent = Silent::new(true);
    for nr in 2..=MOST {
        silent.send(&mount, UIDS.start, 1, "hello");
        wait_until("a receiver hangs", || receivers(&mount) >= nr);
    }
    for what in ["junk", "hello"] {
        silent.send(&mount, UIDS.start, 300, what);
        assert_well(&mount);
    }
    let refusal = format!("user {} registers no process", UIDS.start);
    wait_until("the refusal is logged", || mount.log().contains(&refusal));
    for (uid, what) in UIDS.zip(["junk", "hello"]) {
        silent.send(&mount, uid + 1, 1, what);
        assert_well(&mount);
    }
    assert!(receivers(&mount) <= MOST + 2, "{}", receivers(&mount));
    drop(silent);
    wait_until("all other receivers are reaped", || receivers(&mount) == 1);
}

#[test]
fn daemon_with_hostile_descriptors_ends_on_sigterm() {
    let mut mount = mount(false);
    let mut silent = Silent::new(true);
    silent.send(&mount, UIDS.start, 16, "hello");
    // Descriptors that arrive while the daemon cannot read are closed when it ends.
    stop(mount.daemon().expect("the daemon runs"));
    silent.send(&mount, UIDS.start, 16, "junk");
    kill(mount.daemon().expect("the daemon runs"), Signal::SIGTERM).expect("the daemon runs");
    kill(mount.daemon().expect("the daemon runs"), Signal::SIGCONT).expect("the daemon runs");
    mount.stop();
    mount.restart();
    assert_well(&mount);
}

#[test]
fn killed_daemon_with_hostile_descriptors_is_replaced() {
    let mut mount = mount(false);
    let mut silent = Silent::new(false);
    silent.send(&mount, UIDS.start, 16, "hello");
    stop(mount.daemon().expect("the daemon runs"));
    silent.send(&mount, UIDS.start, 16, "junk");
    mount.kill9();
    mount.restart();
    assert_well(&mount);
}

#[test]
fn supervised_daemon_that_cannot_end_gets_a_successor() {
    let mount = mount(true);
    let shell = DriverShell::start(&mount);
    let mut silent = Silent::new(true);
    for _ in 0..2 {
        let before = daemon(&mount, true);
        // Connections are accepted, but their messages have not been read.
        stop(before);
        silent.send(&mount, UIDS.start, 16, "junk");
        kill(before, Signal::SIGKILL).expect("the daemon runs");
        wait_until("the next daemon serves", || Dir::of(&mount, shell.pid()).exists());
        assert_well(&mount);
    }
}

#[test]
fn endlessly_executing_process_delays_no_other() {
    let mount = mount(true);
    let mut silent = Silent::new(false);
    let pids: Vec<_> = UIDS.take(3).map(|uid| silent.execute(&mount, uid)).collect();
    assert_well(&mount);
    // A daemon that starts inspects the processes in its journal.
    mount.write(pids[0], "memory.limit", "1000000");
    supervise::kill9(&mount);
    assert_well(&mount);
    // The threads that inspect these processes wait, but the daemon can still be killed.
    supervise::kill9(&mount);
    assert_well(&mount);
    assert!(Path::new(&format!("/proc/{}", pids[0])).exists());
}
