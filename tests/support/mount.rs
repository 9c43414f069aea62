//! A daemon with its own mount and its own simulated GPUs, in a temporary directory.

mod daemon;

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use crate::artifacts::{artifacts, repository};
use crate::emulated;
use crate::governed::Governed;
use crate::truth::Truth;
use crate::watchdog::{Begun, begin};

/// Setup of a mount.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Additional arguments of `gcgroupfs mount`.
    pub arguments: Vec<String>,
    /// Environment of the daemon and of all its commands: `SIMGPU_DEVICES` and the like. Contexts use no
    /// memory unless `SIMGPU_CONTEXT_MEMORY` is set.
    pub environment: Vec<(String, String)>,
    /// Limit of the daemon's descriptors; by default that of this process.
    pub descriptors: Option<u64>,
}

impl Config {
    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets the limit of the daemon's descriptors.
    #[must_use]
    pub fn descriptors(mut self, most: u64) -> Self {
        self.descriptors = Some(most);
        self
    }

    /// Turns memory turns off, so that memory stays where the test expects it, however long processes are
    /// busy.
    #[must_use]
    pub fn without_turns(self) -> Self {
        self.configured("no_turns.toml")
    }

    /// Has GPU time measured only while it is read, so that the arbiter sleeps where priorities are equal.
    #[must_use]
    pub fn measured_when_read(self) -> Self {
        self.configured("measured_when_read.toml")
    }

    /// Uses a configuration from `tests/data`.
    fn configured(self, name: &str) -> Self {
        let path = repository().join("tests/data").join(name);
        self.arg("--config")
            .arg(path.to_str().expect("the path is UTF-8"))
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }
}

/// A running daemon. Unmounted and ended when dropped, so that tests can run in parallel. After a failure all
/// processes that have its directory in their command line or environment are killed, and files are kept.
#[derive(Debug)]
pub struct Mount {
    root: TempDir,
    config: Config,
    daemon: Option<Child>,
    log: Arc<Mutex<Vec<String>>>,
    _begun: Begun,
}

impl Mount {
    /// Starts a daemon with one simulated GPU and default settings.
    #[track_caller]
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    /// Starts a daemon and waits until it serves both the mount and the socket.
    #[track_caller]
    pub fn with(config: Config) -> Self {
        // The artifacts may have to be built first.
        artifacts();
        let root = TempDir::new().expect("a temporary directory");
        let begun = begin(Some(root.path().join("mnt")));
        for directory in ["mnt", "run", "sim"] {
            fs::create_dir(root.path().join(directory)).expect("a directory in it");
        }
        // Some tests access it as other users.
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))
            .expect("the owner may change the mode");
        fs::set_permissions(root.path().join("sim"), fs::Permissions::from_mode(0o1777))
            .expect("the owner may change the mode");
        let mut mount = Self {
            root,
            config,
            daemon: None,
            log: Arc::default(),
            _begun: begun,
        };
        mount.start();
        mount
    }

    /// Returns the mount point.
    pub fn path(&self) -> PathBuf {
        self.root.path().join("mnt")
    }

    /// Returns the directory with all files of the mount, readable by all users.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Returns the path of the daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.root.path().join("socket/gcgroup.sock")
    }

    /// Returns the daemon's state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.root.path().join("run")
    }

    /// Returns the simulated machine's directory.
    pub fn simgpu_dir(&self) -> PathBuf {
        self.root.path().join("sim")
    }

    /// Returns the ground truth about the simulated GPUs. A process must have used them before.
    #[track_caller]
    pub fn truth(&self) -> Truth {
        Truth::of(&self.simgpu_dir())
    }

    /// Returns a file's path: `file(&pid, "memory.limit")`, `file(&format!("{pid}/0"), "memory.limit")`.
    pub fn file(&self, directory: impl ToString, name: &str) -> PathBuf {
        self.path().join(directory.to_string()).join(name)
    }

    /// Returns a control file's content without the final newline.
    ///
    /// # Panics
    /// If it cannot be read.
    #[track_caller]
    pub fn read(&self, directory: impl ToString, name: &str) -> String {
        let path = self.file(directory, name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.trim_end_matches('\n').to_owned()
    }

    /// Returns the number of a key in a flat-keyed control file, or the number that is the whole content.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn number(&self, directory: impl ToString, name: &str, key: &str) -> u64 {
        let text = self.read(directory, name);
        let value = if key.is_empty() {
            Some(text.as_str())
        } else {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.trim_start_matches(':').strip_prefix(' '))
        };
        let number = value.and_then(|value| value.parse().ok());
        number.unwrap_or_else(|| panic!("no number {key:?} in {name}: {text:?}"))
    }

    /// Writes a control file with one write(2), as `echo` does.
    ///
    /// # Errors
    /// The errors of the kernel and the daemon.
    pub fn try_write(&self, directory: impl ToString, name: &str, value: &str) -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.file(directory, name))?;
        let text = format!("{value}\n");
        let written = file.write(text.as_bytes())?;
        assert_eq!(written, text.len(), "the write was cut");
        Ok(())
    }

    /// Writes a control file with one write(2).
    ///
    /// # Panics
    /// If the write fails.
    #[track_caller]
    pub fn write(&self, directory: impl ToString, name: &str, value: &str) {
        let shown = format!("{}/{name}", directory.to_string());
        self.try_write(directory, name, value)
            .unwrap_or_else(|error| panic!("cannot write {value} to {shown}: {error}"));
    }

    /// Returns whether a process has a directory in the mount.
    pub fn governs(&self, pid: i32) -> bool {
        self.path().join(pid.to_string()).exists()
    }

    /// Returns a command that runs governed: preloaded, on the simulated GPUs, with this daemon's socket.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.on_gpus(program.as_ref(), Some(&artifacts().preload()));
        command.env("GCGROUP_SOCKET", self.socket());
        command
    }

    /// Returns a command that runs on the same simulated GPUs, but not governed.
    pub fn bare_command(&self, program: impl AsRef<Path>) -> Command {
        self.on_gpus(program.as_ref(), None)
    }

    /// Returns the file to which the hook of the processes of [`Self::load`] writes its trace.
    fn trace(&self) -> PathBuf {
        self.root().join("trace")
    }

    fn on_gpus(&self, program: &Path, preload: Option<&Path>) -> Command {
        let mut command = emulated::command(program, preload);
        command
            .env("SIMGPU_DIR", self.simgpu_dir())
            // By default a context costs nothing and a page is a byte, so that the charge equals the request.
            .env("SIMGPU_CONTEXT_MEMORY", "0")
            .env("SIMGPU_PAGE", "1")
            .envs(self.config.environment.iter().cloned());
        emulated::preload(&mut command, program, preload);
        command
    }

    /// Returns a `gcgroupfs` command with this daemon's socket.
    pub fn gcgroupfs(&self, arguments: &[&str]) -> Command {
        let mut command = self.bare_command(artifacts().gcgroupfs());
        command.env("GCGROUP_SOCKET", self.socket()).args(arguments);
        command
    }

    /// Starts a governed `gcgroup-load` and waits until it has its GPU.
    #[track_caller]
    pub fn load(&self, arguments: &[&str]) -> Governed {
        let mut command = self.command(artifacts().load());
        command.args(arguments).env("GCGROUP_TRACE", self.trace());
        let mut load = Governed::spawn(command);
        load.expect("ready");
        load
    }

    /// Starts a governed `gcgroup-load obey`, which executes the commands of [`Governed::ask`].
    #[track_caller]
    pub fn obedient(&self) -> Governed {
        self.load(&["obey"])
    }
}

impl Default for Mount {
    fn default() -> Self {
        Self::new()
    }
}
