//! Controls `driver_shell.c`, a program that makes one driver call for each line it reads, and a process's
//! directory of control files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use nix::sys::signal::Signal;
use support::{Governed, Mount, artifacts, c_program, wait_until};

/// A running `driver_shell`. [`DriverShell::ask`] returns its answer to a command.
#[derive(Debug)]
pub(crate) struct DriverShell {
    program: Governed,
    pid: i32,
}

/// Returns the path of the program, linked with the driver by `-lcuda`.
pub(crate) fn driver_shell() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM
        .get_or_init(|| {
            let path = format!("-L{}", artifacts().simgpu().display());
            c_program("driver_shell.c", &["-pthread", &path, "-lcuda"])
        })
        .clone()
}

impl DriverShell {
    /// Starts a process governed by the mount's daemon, with a primary context on GPU 0.
    #[track_caller]
    pub(crate) fn start(mount: &Mount) -> Self {
        Self::spawn(mount.command(driver_shell()))
    }

    /// Starts a process on the same simulated GPUs without the library.
    #[track_caller]
    pub(crate) fn start_bare(mount: &Mount) -> Self {
        Self::spawn(mount.bare_command(driver_shell()))
    }

    #[track_caller]
    pub(crate) fn spawn(command: std::process::Command) -> Self {
        let mut shell = Self {
            program: Governed::spawn(command),
            pid: 0,
        };
        shell.pid = shell.banner();
        shell
    }

    /// Reads `ready PID STATUS`.
    #[track_caller]
    fn banner(&mut self) -> i32 {
        let line = self.program.expect("ready ");
        let mut words = line.split(' ').skip(1);
        let pid = words.next().and_then(|word| word.parse().ok()).expect("a pid");
        assert_eq!(words.next(), Some("0"), "cuInit failed: {line}");
        pid
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a command and waits for its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.program.ask(command)
    }

    /// Sends a command without waiting for its answer.
    #[track_caller]
    pub(crate) fn tell(&mut self, command: &str) {
        self.program.say(command);
    }

    /// Waits for the next answer.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> String {
        self.program.line().expect("the program answers")
    }

    /// Waits for the answer of `race` and returns the number of allocations.
    #[track_caller]
    pub(crate) fn raced(&mut self) -> u64 {
        let answer = self.answer();
        let count = answer
            .strip_prefix("raced ")
            .and_then(|rest| rest.split(' ').next());
        count.and_then(|count| count.parse().ok()).expect(&answer)
    }

    /// Returns what the program and its hook have written to stderr so far.
    pub(crate) fn stderr(&self) -> String {
        self.program.stderr()
    }

    /// Executes the program anew under the same pid.
    #[track_caller]
    pub(crate) fn exec(&mut self) {
        self.tell("exec");
        assert_eq!(self.banner(), self.pid);
    }

    /// Runs [`Self::exec`] and waits until the directory belongs to the new program.
    #[track_caller]
    pub(crate) fn exec_at(&mut self, mount: &Mount) {
        let path = Dir::of(mount, self.pid).path();
        let inode = || fs::metadata(&path).map(|it| it.ino()).ok();
        let before = inode();
        self.exec();
        wait_until("the new program has registered", || {
            inode().is_some_and(|now| Some(now) != before)
        });
    }

    /// Lets the process exit by itself.
    #[track_caller]
    pub(crate) fn quit(mut self) {
        self.tell("quit");
        assert!(self.program.wait().success());
    }

    /// Sends SIGKILL and waits for the process.
    pub(crate) fn kill9(mut self) {
        self.program.signal(Signal::SIGKILL);
        self.program.wait();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.program.signal(signal);
    }

    /// Waits until something else has ended the process by SIGKILL.
    #[track_caller]
    pub(crate) fn expect_killed(&mut self) {
        self.expect_ended(Signal::SIGKILL);
    }

    /// Waits until something else has ended the process by a signal.
    #[track_caller]
    pub(crate) fn expect_ended(&mut self, signal: Signal) {
        wait_until("the process ends", || !self.program.is_running());
        assert_eq!(self.program.wait().signal(), Some(signal as i32));
    }

    /// Sends SIGTERM and returns the exit status.
    #[track_caller]
    pub(crate) fn terminate(&mut self) -> std::process::ExitStatus {
        self.program.signal(Signal::SIGTERM);
        self.program.wait()
    }
}

/// The directory of control files of a process, or of a process on one GPU.
#[derive(Debug, Clone)]
pub(crate) struct Dir<'m> {
    mount: &'m Mount,
    name: String,
}

impl<'m> Dir<'m> {
    pub(crate) fn of(mount: &'m Mount, pid: i32) -> Self {
        Self {
            mount,
            name: pid.to_string(),
        }
    }

    /// Returns the process's directory for one GPU.
    pub(crate) fn gpu(&self, index: u32) -> Self {
        Self {
            mount: self.mount,
            name: format!("{}/{index}", self.name),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.mount.path().join(&self.name)
    }

    pub(crate) fn exists(&self) -> bool {
        self.path().exists()
    }

    /// Reads a whole file at one moment.
    #[track_caller]
    pub(crate) fn read(&self, file: &str) -> String {
        self.mount.read(&self.name, file)
    }

    /// Returns the number that a file consists of.
    #[track_caller]
    pub(crate) fn number(&self, file: &str) -> u64 {
        self.mount.number(&self.name, file, "")
    }

    /// Returns the number behind a key of a file.
    #[track_caller]
    pub(crate) fn key(&self, file: &str, key: &str) -> u64 {
        self.mount.number(&self.name, file, key)
    }

    /// Writes once the process is registered.
    #[track_caller]
    pub(crate) fn write_when_there(&self, file: &str, value: impl ToString) {
        let value = value.to_string();
        wait_until("the file accepts the value", || {
            self.mount.try_write(&self.name, file, &value).is_ok()
        });
    }

    #[track_caller]
    pub(crate) fn write(&self, file: &str, value: impl ToString) {
        self.mount.write(&self.name, file, &value.to_string());
    }

    /// Freezes the process and waits until its work has drained.
    #[track_caller]
    pub(crate) fn freeze(&self) {
        self.write("compute.freeze", 1);
        wait_until("the process is frozen and drained", || self.is_frozen());
    }

    /// Returns whether the process is frozen and drained.
    #[track_caller]
    pub(crate) fn is_frozen(&self) -> bool {
        self.key("gcgroup.events", "frozen") == 1
    }

    /// Returns the number of kernels submitted to the driver.
    #[track_caller]
    pub(crate) fn launches(&self) -> u64 {
        self.key("gcgroup.stat", "nr_submitted_kernels")
    }
}

/// Returns the pids that have a directory.
pub(crate) fn governed_pids(mount: &Mount) -> Vec<i32> {
    let entries = std::fs::read_dir(mount.path()).expect("the mount is readable");
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
