//! Simulated GPUs without a daemon, and programs on them that call any driver function.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use support::{Governed, artifacts, python, repository};
use tempfile::TempDir;

/// A machine of simulated GPUs.
pub(crate) struct Machine {
    directory: TempDir,
    environment: Vec<(String, String)>,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine {
            directory: TempDir::new().unwrap(),
            environment: Vec::new(),
        }
    }

    /// Sets an additional environment variable for the machine's processes, for example `SIMGPU_DEVICES`.
    pub(crate) fn env(mut self, name: &str, value: impl ToString) -> Machine {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// Returns the directory of the machine's state.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a process on the machine.
    pub(crate) fn spawn(&self, mut command: Command) -> Governed {
        command
            .env("LD_LIBRARY_PATH", artifacts().simgpu())
            .env("SIMGPU_DIR", self.directory())
            // A page is a byte, so that the device loses what is asked for.
            .env("SIMGPU_PAGE", "1")
            .env_remove("LD_PRELOAD")
            .envs(self.environment.iter().cloned());
        Governed::spawn(command)
    }

    /// Starts `programs/driver.py`, which executes statements on request.
    #[track_caller]
    pub(crate) fn program(&self) -> Program {
        let mut command = Command::new(python());
        command.arg(repository().join("tests/programs/driver.py"));
        Program(self.spawn(command))
    }

    /// Starts `programs/driver.py` with a primary context on the first GPU.
    #[track_caller]
    pub(crate) fn started(&self) -> Program {
        let mut program = self.program();
        program.run("context = start()");
        program
    }
}

/// A program that makes driver calls line by line.
pub(crate) struct Program(pub(crate) Governed);

impl Program {
    /// Returns the value of an expression.
    #[track_caller]
    pub(crate) fn ask(&mut self, expression: &str) -> String {
        self.0.ask(expression)
    }

    /// Returns the number that an expression yields.
    #[track_caller]
    pub(crate) fn number(&mut self, expression: &str) -> u64 {
        let answer = self.ask(expression);
        answer
            .parse()
            .unwrap_or_else(|_| panic!("{expression}: {answer}"))
    }

    /// Runs statements that must succeed, one per line.
    #[track_caller]
    pub(crate) fn run(&mut self, statements: &str) {
        for line in statements.lines().map(str::trim).filter(|line| !line.is_empty()) {
            assert_eq!(self.ask(line), "None", "{line}");
        }
    }

    /// Makes driver calls, one per line, each of which must return `result`.
    #[track_caller]
    pub(crate) fn calls(&mut self, result: u32, calls: &str) {
        for line in calls.lines().map(str::trim).filter(|line| !line.is_empty()) {
            assert_eq!(self.ask(line), result.to_string(), "{line}");
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.pid()
    }

    /// Sends SIGKILL and waits for the process.
    pub(crate) fn kill9(mut self) {
        self.0.signal(Signal::SIGKILL);
        self.0.wait();
    }
}
