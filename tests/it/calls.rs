//! Controls `calls.c`, a program that makes the driver calls it is asked to make.

use std::path::PathBuf;
use std::sync::OnceLock;

use support::{Governed, Mount, c_program};

/// A running `calls` process with its variables.
#[derive(Debug)]
pub(crate) struct Calls {
    program: Governed,
    pid: i32,
}

/// Result of a driver call: success, or the driver's error code.
pub(crate) type Answer = Result<(), u32>;

pub(crate) const OUT_OF_MEMORY: Answer = Err(2);

fn program() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM
        .get_or_init(|| c_program("calls.c", &["-pthread", "-ldl"]))
        .clone()
}

impl Calls {
    /// Starts a governed, initialised process with the primary context of GPU 0 current; sets the variables
    /// `device` and `context`.
    #[track_caller]
    pub(crate) fn start(mount: &Mount) -> Self {
        let mut calls = Self::spawn(mount.command(program()));
        calls.begin();
        calls
    }

    /// Starts a process with additional environment variables, without any driver call.
    #[track_caller]
    pub(crate) fn with(mount: &Mount, is_governed: bool, environment: &[(&str, &str)]) -> Self {
        let mut command = if is_governed {
            mount.command(program())
        } else {
            mount.bare_command(program())
        };
        command.envs(environment.iter().copied());
        Self::spawn(command)
    }

    /// Starts an initialised process like [`Self::start`], but without the library.
    #[track_caller]
    pub(crate) fn start_bare(mount: &Mount) -> Self {
        let mut calls = Self::spawn(mount.bare_command(program()));
        calls.begin();
        calls
    }

    /// Starts an initialised, governed process in its own pid namespace, where its pid differs from ours.
    #[track_caller]
    pub(crate) fn start_apart(mount: &Mount) -> Self {
        let mut command = mount.command("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).arg(program());
        let mut calls = Self::spawn(command);
        calls.begin();
        calls
    }

    #[track_caller]
    fn begin(&mut self) {
        self.ok("cuInit 0");
        self.ok("cuDeviceGet &device 0");
        self.ok("cuDevicePrimaryCtxRetain &context $device");
        self.ok("cuCtxSetCurrent $context");
    }

    /// Starts `command` without any driver call.
    #[track_caller]
    pub(crate) fn spawn(command: std::process::Command) -> Self {
        let mut program = Governed::spawn(command);
        let line = program.expect("ready ");
        let mut words = line.split(' ').skip(1);
        let pid = words.next().and_then(|word| word.parse().ok()).expect("a pid");
        assert_eq!(words.next(), Some("0"), "cuInit failed: {line}");
        Self { program, pid }
    }

    /// Returns the pid in the process's own pid namespace.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    #[track_caller]
    fn answer(&mut self, command: &str) -> Answer {
        match self.program.ask(command).as_str() {
            "ok" => Ok(()),
            other => Err(other
                .strip_prefix("error ")
                .and_then(|code| code.parse().ok())
                .unwrap_or_else(|| panic!("{command}: {other}"))),
        }
    }

    /// Makes a driver call, given as the function's name and its arguments.
    #[track_caller]
    pub(crate) fn call(&mut self, call: &str) -> Answer {
        self.answer(&format!("call {call}"))
    }

    /// Makes a driver call that must succeed.
    #[track_caller]
    pub(crate) fn ok(&mut self, call: &str) {
        assert_eq!(self.call(call), Ok(()), "{call}");
    }

    /// Makes a driver call on a thread without a context.
    #[track_caller]
    pub(crate) fn apart(&mut self, call: &str) -> Answer {
        self.answer(&format!("apart {call}"))
    }

    /// Makes a driver call on another thread with the same context; the call must succeed.
    #[track_caller]
    pub(crate) fn ok_beside(&mut self, call: &str) {
        assert_eq!(self.answer(&format!("beside {call}")), Ok(()), "{call}");
    }

    /// Stores a number in part of a variable.
    #[track_caller]
    pub(crate) fn put(&mut self, variable: &str, offset: usize, size: usize, value: u64) {
        assert_eq!(
            self.answer(&format!("put {variable} {offset} {size} {value}")),
            Ok(())
        );
    }

    /// Returns the first eight bytes of a variable.
    #[track_caller]
    pub(crate) fn get(&mut self, variable: &str) -> u64 {
        let answer = self.program.ask(&format!("get {variable} 0 8"));
        answer.parse().expect("a number")
    }

    /// Returns the first bytes of a variable in hexadecimal.
    #[track_caller]
    pub(crate) fn show(&mut self, variable: &str, size: usize) -> String {
        self.program.ask(&format!("show {variable} {size}"))
    }

    /// Fills a variable with bytes returned by [`Self::show`].
    #[track_caller]
    pub(crate) fn fill(&mut self, variable: &str, bytes: &str) {
        assert_eq!(self.answer(&format!("bytes {variable} {bytes}")), Ok(()));
    }

    /// Duplicates a descriptor of process `from` into this process, as a socket message would, and returns
    /// the new number.
    #[track_caller]
    pub(crate) fn take_descriptor(&mut self, from: &Self, descriptor: &str) -> i64 {
        let answer = self.program.ask(&format!("take {} {descriptor}", from.pid));
        let taken = answer.parse().expect("a descriptor");
        assert!(taken >= 0, "pidfd_getfd(2) failed");
        taken
    }

    /// Sends a command without waiting for its answer.
    #[track_caller]
    pub(crate) fn tell(&mut self, command: &str) {
        self.program.say(command);
    }

    /// Waits for the next answer.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        self.program.line().expect("the program answers")
    }

    /// Sends any other command and returns its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.program.ask(command)
    }
}
