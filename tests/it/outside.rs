//! Tests outside interference with the daemon's socket, mount, FUSE connection and limits, and how the daemon
//! ends because of it.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::minor;
use support::{Config, Governed, Mount, wait_until};
use tempfile::TempDir;

use crate::driver::{DriverShell, driver_shell};
use crate::supervise::kill9;

/// Mounts with a plain and with a supervised daemon.
fn both() -> [Mount; 2] {
    [Mount::new(), Mount::with(Config::default().arg("--supervise"))]
}

/// A mount at a path, removed when dropped.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    #[track_caller]
    fn new(kind: &str, point: &'a Path) -> Self {
        mount(
            Some("covering"),
            point,
            Some(kind),
            MsFlags::empty(),
            None::<&str>,
        )
        .expect("root may mount");
        Self(point)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = umount2(self.0, MntFlags::MNT_DETACH);
    }
}

fn count(mount: &Mount, text: &str) -> usize {
    mount.log().matches(text).count()
}

fn answers(path: &Path) -> bool {
    let Ok(socket) = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    ) else {
        return false;
    };
    let address = UnixAddr::new(path).expect("the path fits");
    connect(socket.as_raw_fd(), &address).is_ok()
}

#[test]
fn removed_socket_is_made_again_and_serves() {
    for mount in both() {
        let before = DriverShell::start(&mount);
        fs::remove_file(mount.socket()).expect("the socket exists");
        wait_until("the daemon listens on a new socket", || answers(&mount.socket()));
        let after = DriverShell::start(&mount);
        assert!(mount.governs(before.pid()) && mount.governs(after.pid()));
        assert_eq!(count(&mount, "was removed or replaced"), 1, "{}", mount.log());
        assert_eq!(
            fs::metadata(mount.socket()).expect("the socket exists").mode() & 0o777,
            0o666
        );
    }
}

#[test]
fn next_supervised_daemon_has_the_socket_that_was_made_again() {
    let mount = Mount::with(Config::default().arg("--supervise"));
    for _ in 0..3 {
        fs::remove_file(mount.socket()).expect("the socket exists");
        wait_until("the daemon listens on a new socket", || answers(&mount.socket()));
        kill9(&mount);
        assert!(mount.governs(DriverShell::start(&mount).pid()));
    }
}

#[test]
fn file_in_place_of_the_socket_is_kept_beside_it() {
    for mount in both() {
        fs::remove_file(mount.socket()).expect("the socket exists");
        fs::write(mount.socket(), "precious").expect("the path is free");
        wait_until("the daemon listens on a new socket", || answers(&mount.socket()));
        let aside = mount.socket().with_file_name("gcgroup.sock.displaced");
        assert_eq!(
            fs::read_to_string(aside).expect("the file was moved aside"),
            "precious"
        );
        DriverShell::start(&mount);
    }
}

#[test]
fn socket_of_another_daemon_is_kept_and_reported_once() {
    for mount in both() {
        fs::remove_file(mount.socket()).expect("the socket exists");
        let other = UnixListener::bind(mount.socket()).expect("the path is free");
        let report = "another daemon listens";
        wait_until("the log reports the other daemon", || count(&mount, report) > 0);
        let inode = fs::metadata(mount.socket()).expect("the socket exists").ino();
        let mut gcgroupfs = mount.gcgroupfs(&["ls"]);
        assert!(!gcgroupfs.status().expect("the command runs").success());
        assert_eq!(
            fs::metadata(mount.socket()).expect("the socket exists").ino(),
            inode
        );
        drop(other);
        wait_until("the daemon listens on its own socket again", || {
            answers(&mount.socket())
        });
        assert_eq!(count(&mount, report), 1, "{}", mount.log());
        DriverShell::start(&mount);
    }
}

#[test]
fn aborted_connection_ends_the_daemon_with_failure() {
    let [mut plain, supervised] = both();
    for mount in [&plain, &supervised] {
        let device = fs::metadata(mount.path()).expect("the mount answers").dev();
        let control = TempDir::new().expect("a temporary directory");
        let mounted = Mounted::new("fusectl", control.path());
        let abort = control.path().join(minor(device).to_string()).join("abort");
        fs::write(abort, "1").expect("root may write the file");
        drop(mounted);
        wait_until("the log reports the end", || count(mount, "was aborted") > 0);
    }
    assert_eq!(plain.ended().code(), Some(1), "{}", plain.log());
    plain.restart();
    wait_until("the next daemon has mounted", || {
        supervised.path().join("devices").exists()
    });
    assert!(supervised.log().contains("the daemon has ended (exit status: 1)"));
    for mount in [plain, supervised] {
        assert!(mount.governs(DriverShell::start(&mount).pid()));
    }
}

#[test]
fn unmounting_and_termination_end_the_daemon_with_success() {
    for mut mount in both() {
        umount2(&mount.path(), MntFlags::empty()).expect("no file of the mount is open");
        assert_eq!(mount.ended().code(), Some(0), "{}", mount.log());
        mount.restart();
        kill(mount.daemon().expect("the daemon runs"), Signal::SIGTERM).expect("the daemon runs");
        assert_eq!(mount.ended().code(), Some(0), "{}", mount.log());
    }
}

#[test]
fn mount_that_fails_ends_the_daemon_with_failure() {
    let mount = Mount::new();
    let (file, socket) = (mount.root().join("file"), mount.root().join("other.sock"));
    fs::write(&file, "").expect("the file is writable");
    for supervise in [&[][..], &["--supervise"][..]] {
        let mut command = mount.gcgroupfs(&["mount"]);
        command.arg(&file).arg("--socket").arg(&socket).args(supervise);
        let output = command.output().expect("the command runs");
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("cannot mount at"), "{said}");
        assert!(!socket.exists());
    }
}

#[test]
fn file_size_limit_does_not_end_the_daemon() {
    for mount in both() {
        let shell = DriverShell::start(&mount);
        let supervisor = mount.daemon().expect("the supervisor runs");
        let daemon = crate::supervise::daemon(&mount).unwrap_or(supervisor);
        let limit = |bytes: &str| {
            let mut prlimit = Command::new("prlimit");
            prlimit.args(["--pid", &daemon.to_string(), &format!("--fsize={bytes}")]);
            assert!(prlimit.status().expect("util-linux is there").success());
        };
        limit("0:");
        // This write may be refused or kept in memory.
        let _ = mount.try_write(shell.pid(), "memory.limit", "12345");
        assert_eq!(mount.read("", "gcgroup.procs"), shell.pid().to_string());
        limit("unlimited:");
        mount.write(shell.pid(), "memory.limit", "54321");
        assert_eq!(
            crate::supervise::daemon(&mount).unwrap_or(supervisor),
            daemon,
            "the daemon was replaced"
        );
    }
}

#[test]
fn program_that_run_starts_does_not_ignore_sigxfsz() {
    let mount = Mount::new();
    let mut command = mount.gcgroupfs(&["run", "--"]);
    command.arg(driver_shell());
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let ignored = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = u64::from_str_radix(mask.expect("status has the mask").trim(), 16).expect("a mask");
        mask >> (libc::SIGXFSZ - 1) & 1
    };
    assert_eq!(ignored(program.pid()), 0);
    assert_eq!(
        ignored(mount.daemon().expect("the daemon runs").as_raw()),
        0,
        "the daemon ignores SIGXFSZ"
    );
}
