//! Simulated GPUs without a daemon, and programs on them that call any function of the driver.

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

    /// With one more variable for its processes: `SIMGPU_DEVICES` and the like.
    pub(crate) fn env(mut self, name: &str, value: impl ToString) -> Machine {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// Where its state is.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A process on it.
    pub(crate) fn spawn(&self, mut command: Command) -> Governed {
        command
            .env("LD_LIBRARY_PATH", artifacts().simgpu())
            .env("SIMGPU_DIR", self.directory())
            .env_remove("LD_PRELOAD")
            .envs(self.environment.iter().cloned());
        Governed::spawn(command)
    }

    /// A program that does what it is told; see `programs/driver.py`.
    #[track_caller]
    pub(crate) fn program(&self) -> Program {
        let mut command = Command::new(python());
        command.arg(repository().join("tests/programs/driver.py"));
        Program(self.spawn(command))
    }

    /// The same with a primary context on the first GPU.
    #[track_caller]
    pub(crate) fn started(&self) -> Program {
        let mut program = self.program();
        program.run("context = start()");
        program
    }
}

/// A program that calls the driver, line by line.
pub(crate) struct Program(pub(crate) Governed);

impl Program {
    /// What an expression is.
    #[track_caller]
    pub(crate) fn ask(&mut self, expression: &str) -> String {
        self.0.ask(expression)
    }

    /// The number that an expression is.
    #[track_caller]
    pub(crate) fn number(&mut self, expression: &str) -> u64 {
        let answer = self.ask(expression);
        answer
            .parse()
            .unwrap_or_else(|_| panic!("{expression}: {answer}"))
    }

    /// Runs statements that must not fail, a line each.
    #[track_caller]
    pub(crate) fn run(&mut self, statements: &str) {
        for line in statements.lines().map(str::trim).filter(|line| !line.is_empty()) {
            assert_eq!(self.ask(line), "None", "{line}");
        }
    }

    /// Does calls of the driver that must answer this number, a line each.
    #[track_caller]
    pub(crate) fn calls(&mut self, result: u32, calls: &str) {
        for line in calls.lines().map(str::trim).filter(|line| !line.is_empty()) {
            assert_eq!(self.ask(line), result.to_string(), "{line}");
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.pid()
    }

    /// `kill -9`, waited for.
    pub(crate) fn kill9(mut self) {
        self.0.signal(Signal::SIGKILL);
        self.0.wait();
    }
}
