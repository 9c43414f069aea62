//! Tests users that make the daemon hold as many groups, open files, listings and connections as they can.
//! Each kind has a bound, and the memory that the daemon takes is printed.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::unistd::Pid;
use support::{Config, Mount, c_program, program_for_all};

use crate::driver::DriverShell;

/// Uids other than root. The shared bound is below the sum of their own bounds.
const USERS: std::ops::Range<u32> = 1000..1004;
/// Maximum numbers of groups and open files of one user.
const MAX_GROUPS: usize = 1024;
const MAX_OPEN: usize = 16 << 10;
/// Maximum of open files and listings of all users except root, in pages.
const MAX_OPEN_OF_ALL: usize = 64 << 10;
const MAX_CONNECTIONS: usize = 1024;

/// A user's program that acquires as many objects of one kind as it can, and holds them while it lives.
struct Hog {
    child: Child,
    nr: usize,
    /// Errno of the first refusal; zero if all were granted.
    errno: i32,
}

impl Hog {
    fn start(program: &Path, uid: u32, kind: &str, path: &Path, most: usize) -> Self {
        let mut command = Command::new(program);
        command
            .arg(kind)
            .arg(path)
            .arg(most.to_string())
            .uid(uid)
            .gid(uid);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the file is readable");
        let (nr, errno) = line.trim().split_once(' ').expect("two numbers");
        Self {
            child,
            nr: nr.parse().expect("a number"),
            errno: errno.parse().expect("a number"),
        }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Returns the value in KiB of a key in `/proc/PID/status`.
fn kilobytes(pid: Pid, key: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let number = value.and_then(|value| value.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no number {key} in {status}"))
}

#[test]
fn memory_held_for_users_is_bounded() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let program = program_for_all(&c_program("hog.c", &[]), mount.root());
    let shell = DriverShell::start(&mount);
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o777)).expect("root may change the mode");
    let daemon = mount.daemon().expect("the daemon runs");
    let before = kilobytes(daemon, "VmRSS");
    let fill = |kind: &str, path: PathBuf, most: usize| -> Vec<Hog> {
        let path = |uid: u32| match kind {
            "directory" => path.join(format!("u{uid}")),
            _ => path.clone(),
        };
        let begun = std::time::Instant::now();
        let hogs = USERS.map(|uid| Hog::start(&program, uid, kind, &path(uid), most));
        let hogs: Vec<Hog> = hogs.collect();
        let nr: Vec<usize> = hogs.iter().map(|hog| hog.nr).collect();
        eprintln!(
            "{kind}: {nr:?}, {} KiB in memory, {:?}",
            kilobytes(daemon, "VmRSS"),
            begun.elapsed()
        );
        hogs
    };

    let groups = fill("directory", mount.path(), MAX_GROUPS + 1);
    assert!(
        groups
            .iter()
            .all(|hog| (hog.nr, hog.errno) == (MAX_GROUPS, libc::EAGAIN))
    );

    let files = fill("file", mount.file("", "gcgroup.procs"), MAX_OPEN + 1);
    let nr_files: usize = files.iter().map(|hog| hog.nr).sum();
    assert!(
        files
            .iter()
            .all(|hog| hog.nr <= MAX_OPEN && hog.errno == libc::EMFILE)
    );
    assert!(
        (3 * MAX_OPEN - 1000..=MAX_OPEN_OF_ALL).contains(&nr_files),
        "{nr_files}"
    );

    let listings = fill("listing", mount.path(), MAX_OPEN + 1);
    let nr_listings: usize = listings.iter().map(|hog| hog.nr).sum();
    assert!(listings.iter().all(|hog| hog.errno == libc::EMFILE));
    assert!(
        listings.iter().all(|hog| hog.nr > 0),
        "the listings below the limit are refused"
    );
    // A listing's entry takes 64 bytes.
    let pages = (MAX_GROUPS * USERS.len() * 64).div_ceil(4096);
    assert!(nr_listings * pages <= MAX_OPEN_OF_ALL, "{nr_listings}");

    let connections = fill("connection", mount.socket(), 2 * MAX_CONNECTIONS);
    let descriptors = fs::read_dir(format!("/proc/{daemon}/fd")).expect("the daemon runs");
    let nr_open = descriptors.count();
    assert!(nr_open < MAX_CONNECTIONS * USERS.len() + 100, "{nr_open}");

    let taken = kilobytes(daemon, "VmHWM") - before;
    // Groups of 4 KiB, 256 MiB each for files and listings, connections of 2 KiB, and 64 MiB for everything
    // else.
    let bound = USERS.len() * (MAX_GROUPS * 4 + MAX_CONNECTIONS * 2) + (2 * 256 + 64) * 1024;
    eprintln!("{taken} KiB taken, at most {bound}");
    assert!(taken < bound);
    // Other clients are served meanwhile.
    mount.write(shell.pid(), "memory.limit", "4096");
    assert_eq!(mount.read(shell.pid(), "memory.limit"), "4096");
    drop((files, listings, connections));
    let again = Hog::start(
        &program,
        USERS.start,
        "file",
        &mount.file("", "gcgroup.procs"),
        100,
    );
    assert_eq!((again.nr, again.errno), (100, 0), "closed files do not make room");
}
