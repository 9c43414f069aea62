//! Tests a daemon that a user runs for the user's own processes, mounted through fusermount3.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Governed, program_for_all, tree_for_all, wait_for, wait_until};
use tempfile::TempDir;

use crate::driver::{DriverShell, driver_shell};

const USER: u32 = 1000;
const MIB: u64 = 1 << 20;

/// Shell script that prepares a mount namespace with a /dev/fuse that users may open, as udev creates it. It
/// makes a directory `dev` in the directory that it is passed first.
pub(crate) const PREPARE: &str = "
set -e
mkdir \"$0/dev\"
mount -t tmpfs -o mode=755 none \"$0/dev\"
mknod -m 666 \"$0/dev/fuse\" c 10 229
mount --bind \"$0/dev/fuse\" /dev/fuse
exec \"$@\"
";

/// A user's daemon. Dropping it ends the daemon and its mount.
struct Own {
    root: TempDir,
    /// Process that keeps the namespace alive.
    keeper: Governed,
    daemon: Option<Governed>,
}

impl Own {
    fn new() -> Self {
        let root = TempDir::new().expect("a temporary directory");
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
                .expect("the owner may change the mode");
        };
        open(root.path(), 0o755);
        for (name, mode) in [("sim", 0o1777), ("run", 0o700), ("home", 0o700)] {
            let path = root.path().join(name);
            fs::create_dir(&path).expect("a directory in it");
            chown(&path, Some(USER), Some(USER)).expect("root may change the owner");
            open(&path, mode);
        }
        let mut keeper = Command::new("unshare");
        keeper.args(["--mount", "--propagation", "private", "sh", "-c", PREPARE]);
        keeper.arg(root.path()).args(["sh", "-c", "echo ready; cat"]);
        let mut keeper = Governed::spawn(keeper);
        keeper.expect("ready");
        Self {
            root,
            keeper,
            daemon: None,
        }
    }

    /// Returns the directory used as the user's $XDG_RUNTIME_DIR.
    fn run(&self) -> PathBuf {
        self.root.path().join("run")
    }

    fn point(&self) -> PathBuf {
        self.run().join("gcgroup")
    }

    /// Returns a command that runs a program as user `uid` where the user's daemon is mounted.
    fn command(&self, uid: u32, program: &Path) -> Command {
        let (uid, tree) = (uid.to_string(), tree_for_all(self.root.path()));
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.pid()))
            .args(["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"])
            .args(["--pdeathsig", "TERM"])
            .arg(program)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C")
            .env("HOME", self.root.path().join("home"))
            .env("XDG_RUNTIME_DIR", self.run())
            .env("LD_LIBRARY_PATH", tree.join("simgpu"))
            .env("SIMGPU_DIR", self.root.path().join("sim"))
            .env("SIMGPU_CONTEXT_MEMORY", "0");
        command
    }

    fn gcgroupfs(&self, uid: u32) -> Command {
        self.command(uid, &tree_for_all(self.root.path()).join("bin/gcgroupfs"))
    }

    /// Writes the user's configuration.
    #[track_caller]
    fn configure(&self, text: &str) {
        let directory = self.root.path().join("home/.config");
        fs::create_dir(&directory).expect("the directory is writable");
        fs::write(directory.join("gcgroupfs.toml"), text).expect("the file is writable");
        for path in [&directory, &directory.join("gcgroupfs.toml")] {
            chown(path, Some(USER), Some(USER)).expect("root may change the owner");
        }
    }

    #[track_caller]
    fn start(&mut self, arguments: &[&str]) {
        let mut command = self.gcgroupfs(USER);
        command.args(["mount", "--context-size", "0"]).args(arguments);
        let daemon = self.daemon.insert(Governed::spawn(command));
        wait_until("the daemon is ready", || {
            assert!(daemon.is_running(), "{}", daemon.stderr());
            daemon.stderr().contains("gcgroupfs: ready")
        });
    }

    fn log(&self) -> String {
        self.daemon.as_ref().map_or_else(String::new, Governed::stderr)
    }

    /// Starts a governed program of user `uid` with `gcgroupfs run`, which finds the daemon by itself.
    #[track_caller]
    fn shell(&self, uid: u32) -> DriverShell {
        let mut command = self.gcgroupfs(uid);
        let program = program_for_all(&driver_shell(), self.root.path());
        command.args(["run", "--"]).arg(program);
        DriverShell::spawn(command)
    }

    /// Returns the output of a script that the user runs in the mount point.
    #[track_caller]
    fn says(&self, script: &str) -> String {
        let mut command = self.command(USER, "sh".as_ref());
        command.args(["-c", &format!("cd \"$XDG_RUNTIME_DIR/gcgroup\"; {script}")]);
        let output = command.output().expect("sh starts");
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).trim_end().to_owned()
    }

    fn procs(&self) -> String {
        self.says("cat gcgroup.procs")
    }
}

#[test]
fn own_daemon_uses_users_directories_and_governs() {
    let mut own = Own::new();
    own.start(&[]);
    let ready = format!(
        "gcgroupfs: ready: {}, socket {}",
        own.point().display(),
        own.run().join("gcgroupfs/gcgroup.sock").display()
    );
    assert!(own.log().contains(&ready), "{}", own.log());
    let mut shell = own.shell(USER);
    let pid = shell.pid();
    assert_eq!(own.procs(), pid.to_string());
    own.says(&format!("echo {MIB} > {pid}/memory.limit"));
    assert_eq!(
        own.says(&format!("cat {pid}/0/memory.current {pid}/memory.limit")),
        format!("0\n{MIB}")
    );
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), "error 2");
    // In its own daemon the user has root's rights, and can undo its own settings.
    own.says(&format!(
        "echo max > {pid}/memory.limit; echo 1 > {pid}/compute.freeze"
    ));
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), "ok 0");
    let waited = own.says(&format!(
        "echo strict > compute.policy; cat compute.policy {pid}/gcgroup.events"
    ));
    assert!(waited.starts_with("strict\npopulated 1"), "{waited}");
    let mut wait = own.gcgroupfs(USER);
    wait.args([
        "wait",
        &format!("{pid}/gcgroup.events"),
        "frozen=1",
        "--timeout",
        "60",
    ]);
    assert!(wait.status().expect("the command starts").success());
    let mut list = own.gcgroupfs(USER);
    let list = list.arg("ls").output().expect("the command starts");
    assert!(String::from_utf8_lossy(&list.stdout).contains(&pid.to_string()));
    own.says(&format!("echo 0 > {pid}/compute.freeze"));
    assert_eq!(shell.ask("spin 1 1"), "ok");
}

#[test]
fn own_daemon_reads_users_rules_and_owns_groups() {
    let mut own = Own::new();
    own.configure("[[rule]]\ngroup = { name = \"jobs/{comm}\", memory.limit = \"1M\" }\n");
    own.start(&[]);
    let mut shell = own.shell(USER);
    let members = own.says("cat jobs/driver_shell*/job-*/gcgroup.procs");
    assert_eq!(members, shell.pid().to_string());
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), "error 2");
    assert_eq!(own.says("stat -c %u jobs jobs/driver_shell*"), "1000\n1000");
    let said =
        own.says("for group in jobs/driver_shell*; do echo 3M > $group/memory.limit; done; mkdir mine");
    assert_eq!(said, "");
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), "ok 0");
    own.says(&format!("echo {} > mine/gcgroup.procs", shell.pid()));
    assert_eq!(own.says("cat mine/gcgroup.procs"), members);
    // The job's group is held for its command, wherever that was moved.
    drop(shell);
    wait_until("the rule's empty group is removed", || {
        !own.says("ls").contains("jobs")
    });
}

#[test]
fn own_daemon_governs_no_other_users_processes() {
    let mut own = Own::new();
    // It does not take root's devices away either.
    own.configure("[[rule]]\nmatch.uid = 0\ngroup = { name = \"root\", gcgroup.devices = \"none\" }\n");
    own.start(&["--log", "debug"]);
    let mine = own.shell(USER);
    let socket = own.run().join("gcgroupfs/gcgroup.sock");
    for uid in [0, 1001] {
        let mut command = own.gcgroupfs(uid);
        let program = program_for_all(&driver_shell(), own.root.path());
        command
            .arg("--socket")
            .arg(&socket)
            .args(["run", "--"])
            .arg(program);
        let mut shell = DriverShell::spawn(command);
        assert_eq!(
            shell.ask("alloc linear 4096"),
            "ok 0",
            "the process is governed by another user's daemon"
        );
        assert_eq!(own.procs(), mine.pid().to_string());
    }
    // Root can connect to every socket; other users cannot connect to this one.
    wait_until("the daemon logs the refused user", || {
        own.log().contains("user 0 was refused: EPERM")
    });
    // The log may name a process of another user that it has seen on the GPU.
    for event in ["process of user 1001 was refused", "of user 1001 joined"] {
        assert!(!own.log().contains(event), "{}", own.log());
    }
    let mut list = own.command(1001, "ls".as_ref());
    let listed = list.arg(own.point()).output().expect("the command starts");
    assert!(!listed.status.success());
}

#[test]
fn own_daemon_restores_settings_and_processes_after_kill() {
    let mut own = Own::new();
    own.start(&[]);
    let mut shell = own.shell(USER);
    let pid = shell.pid();
    own.says(&format!("echo {MIB} > {pid}/memory.limit"));
    own.daemon
        .take()
        .expect("the daemon runs")
        .signal(Signal::SIGKILL);
    own.start(&[]);
    wait_until("the process has registered again", || {
        own.procs() == pid.to_string()
    });
    assert_eq!(own.says(&format!("cat {pid}/memory.limit")), MIB.to_string());
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), "error 2");
    // A second daemon is refused while the first runs.
    let mut second = own.gcgroupfs(USER);
    let second = second.arg("mount").output().expect("the command starts");
    assert!(String::from_utf8_lossy(&second.stderr).contains("another daemon"));
    let daemon = own.daemon.as_mut().expect("the daemon runs");
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait().success());
    assert_eq!(own.says("ls"), "", "the daemon left its mount");
}

#[test]
fn supervised_own_daemon_is_followed_and_no_read_fails() {
    let mut own = Own::new();
    own.start(&["--supervise"]);
    let shell = own.shell(USER);
    let pid = shell.pid();
    let supervisor = own.daemon.as_ref().expect("the supervisor runs").pid();
    let daemon = || {
        let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
        children
            .ok()?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
            .map(Pid::from_raw)
    };
    for _ in 0..3 {
        let before = wait_for("a daemon runs", daemon);
        kill(before, Signal::SIGKILL).expect("the daemon runs");
        assert_eq!(own.says(&format!("cat {pid}/compute.priority")), "8");
        wait_until("the next daemon runs", || {
            daemon().is_some_and(|after| after != before)
        });
    }
}

#[test]
fn own_daemon_without_runtime_directory_reports_it() {
    let own = Own::new();
    let mut command = own.gcgroupfs(USER);
    let output = command.env_remove("XDG_RUNTIME_DIR").arg("mount").output();
    let output = output.expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("--socket must say where"), "{said}");
}
