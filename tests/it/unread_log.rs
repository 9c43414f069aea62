//! Tests a daemon whose log is not read.

use std::fs::OpenOptions;
use std::io::{ErrorKind, PipeReader, Read as _, Write as _, pipe};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{artifacts, wait_until};
use tempfile::TempDir;

use crate::driver::{DriverShell, driver_shell};

/// A daemon without a mount, only with a socket; killed when dropped.
struct Daemon {
    root: TempDir,
    daemon: Child,
    log: PipeReader,
}

impl Daemon {
    /// Starts a daemon and fills the pipe of its log.
    fn new() -> Self {
        let root = TempDir::new().expect("a temporary directory");
        let (mut log, near) = pipe().expect("a pipe");
        let filler = near.try_clone().expect("a descriptor");
        let mut command = Self::command(&root, "mount".as_ref());
        command
            .arg("--no-fuse")
            .arg("--socket")
            .arg(root.path().join("sock"));
        command.arg("--state-dir").arg(root.path().join("run"));
        command.args(["--log", "debug"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(near);
        let daemon = command.spawn().expect("gcgroupfs starts");
        drop(command);
        let mut said = String::new();
        while !said.contains("gcgroupfs: ready") {
            let mut buffer = [0; 4096];
            let length = log.read(&mut buffer).expect("the daemon logs");
            assert_ne!(length, 0, "{said}");
            said += &String::from_utf8_lossy(&buffer[..length]);
        }
        // Opened anew, because the daemon's descriptor must not become nonblocking.
        let path = format!("/proc/self/fd/{}", filler.as_raw_fd());
        let mut filler = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .expect("the FIFO opens");
        let full = loop {
            if let Err(error) = filler.write(b"\n") {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        Self { root, daemon, log }
    }

    /// Returns `gcgroupfs` with one argument, or another program, on the simulated GPUs.
    fn command(root: &TempDir, word: &std::ffi::OsStr) -> Command {
        let mut command = Command::new(artifacts().gcgroupfs());
        command
            .arg(word)
            .env("LD_LIBRARY_PATH", artifacts().simgpu())
            .env("SIMGPU_DIR", root.path().join("sim"))
            .env("GCGROUP_SOCKET", root.path().join("sock"));
        command
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn daemon_with_unread_log_registers_and_answers() {
    let mut daemon = Daemon::new();
    let mut program = Command::new(driver_shell());
    for (name, value) in Daemon::command(&daemon.root, "ls".as_ref()).get_envs() {
        value.map(|value| program.env(name, value));
    }
    program.env("LD_PRELOAD", artifacts().preload());
    let shell = DriverShell::spawn(program);
    // The registration is logged, so the request loop has tried to write.
    let output = Daemon::command(&daemon.root, "ls".as_ref())
        .output()
        .expect("the command runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let pid = shell.pid().to_string();
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(
        table
            .lines()
            .any(|line| line.split_whitespace().next() == Some(&pid)),
        "{table}"
    );
    // When the log is read again, it reports the missing lines.
    let mut buffer = vec![0; 1 << 20];
    let length = daemon.log.read(&mut buffer).expect("the log is readable");
    assert!(buffer[..length].iter().all(|byte| *byte == b'\n'));
    shell.quit();
    let mut said = String::new();
    wait_until("the log reports the lost lines", || {
        let _ = kill(
            Pid::from_raw(daemon.daemon.id().try_into().expect("a pid")),
            Signal::SIGHUP,
        );
        let length = daemon.log.read(&mut buffer).expect("the daemon logs");
        said += &String::from_utf8_lossy(&buffer[..length]);
        said.contains("lines were lost: nobody read the log")
    });
}
