//! A daemon with its own mount and its own simulated GPUs, in a temporary directory.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::artifacts::{artifacts, repository};
use crate::emulated;
use crate::failure::keep;
use crate::governed::Governed;
use crate::hang::{abort, threads};
use crate::processes::{describe, end_related, related};
use crate::truth::Truth;
use crate::wait::{DEADLINE, wait_for, wait_until};
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

/// Prefix of the line by which a daemon reports that it serves.
const READY: &str = "gcgroupfs: ready:";

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

    /// Returns the daemon's stderr output.
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    /// Returns the daemon's pid while it runs.
    pub fn daemon(&self) -> Option<Pid> {
        self.daemon
            .as_ref()
            .and_then(|child| i32::try_from(child.id()).ok())
            .map(Pid::from_raw)
    }

    /// Kills the daemon with SIGKILL; its dead mount remains.
    ///
    /// # Panics
    /// If the daemon does not end.
    #[track_caller]
    pub fn kill9(&mut self) {
        if let Err(threads) = self.try_kill9() {
            panic!("the killed daemon does not end:\n{threads}");
        }
    }

    /// Kills the daemon. If it does not end, returns the state of its threads, and no later call waits for
    /// it.
    fn try_kill9(&mut self) -> Result<(), String> {
        let Some(mut daemon) = self.daemon.take() else {
            return Ok(());
        };
        let _ = daemon.kill();
        let deadline = Instant::now() + DEADLINE;
        while matches!(daemon.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let threads = threads(daemon.id());
                abort(&self.path());
                return Err(threads);
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends the daemon as a service manager does.
    ///
    /// # Panics
    /// If the daemon does not end.
    #[track_caller]
    pub fn stop(&mut self) {
        let Some(pid) = self.daemon() else { return };
        let _ = kill(pid, Signal::SIGTERM);
        wait_until("the daemon ends", || {
            let daemon = self.daemon.as_mut().map(Child::try_wait);
            daemon.is_none_or(|status| status.is_ok_and(|status| status.is_some()))
        });
        self.daemon = None;
    }

    /// Waits until the daemon ends by itself, and returns its exit status.
    ///
    /// # Panics
    /// If the daemon does not end.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let daemon = self.daemon.as_mut().expect("the daemon was started");
        let status = wait_for("the daemon ends", || {
            daemon.try_wait().expect("the process is a child")
        });
        self.daemon = None;
        status
    }

    /// Restarts the daemon on the same mount point, socket and state directory; a running one is ended first.
    #[track_caller]
    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    #[track_caller]
    fn start(&mut self) {
        let mut command = self.bare_command(artifacts().gcgroupfs());
        command
            .arg("mount")
            .arg(self.path())
            .arg("--socket")
            .arg(self.socket());
        command
            .arg("--state-dir")
            .arg(self.state_dir())
            .args(&self.config.arguments);
        let of_context = |(name, _): &&(String, String)| name == "SIMGPU_CONTEXT_MEMORY";
        let context = self.config.environment.iter().rev().find(of_context);
        let context = context.map_or("0", |(_, bytes)| bytes);
        for (option, value) in [("--device-page", "1"), ("--context-size", context)] {
            if !self.config.arguments.iter().any(|argument| argument == option) {
                command.args([option, value]);
            }
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let descriptors = self.config.descriptors;
        // SAFETY: prctl and setrlimit may be called between fork and exec.
        unsafe {
            command.pre_exec(move || {
                nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
                if let Some(most) = descriptors {
                    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
                }
                Ok(())
            });
        }
        let log = Arc::clone(&self.log);
        let nr_ready = move || {
            let log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.iter().filter(|line| line.starts_with(READY)).count()
        };
        let nr_ready_before = nr_ready();
        let mut daemon = command.spawn().expect("gcgroupfs starts");
        if let Some(stderr) = daemon.stderr.take() {
            let log = Arc::clone(&self.log);
            thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            });
        }
        let daemon = self.daemon.insert(daemon);
        let (mut ended, root) = (None, self.root.path());
        let is_fuse = !self
            .config
            .arguments
            .iter()
            .any(|argument| argument == "--no-fuse");
        wait_until("the daemon serves mount and socket", || {
            ended = daemon.try_wait().unwrap_or_default();
            // A killed daemon or one left by its supervisor may still answer.
            ended.is_some()
                || (nr_ready() > nr_ready_before
                    && (!is_fuse || is_mounted(&root.join("mnt")))
                    && is_listening(&root.join("socket/gcgroup.sock")))
        });
        if let Some(status) = ended {
            self.daemon = None;
            panic!("gcgroupfs mount ended with {status}\n{}", self.log());
        }
    }
}

impl Default for Mount {
    fn default() -> Self {
        Self::new()
    }
}

impl Mount {
    /// Returns the file to which the hook of the processes of [`Self::load`] writes its trace.
    fn trace(&self) -> PathBuf {
        self.root().join("trace")
    }

    /// Keeps what explains a failure.
    fn keep_files(&self) {
        let name = self.root().file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_start_matches('.');
        keep(&format!("daemon-{name}.log"), self.log());
        keep(
            &format!("processes-{name}.txt"),
            describe(&related(Vec::new(), &[self.root()])),
        );
        keep(
            &format!("trace-{name}.txt"),
            fs::read(self.trace()).unwrap_or_default(),
        );
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let stopped = match thread::panicking() {
            true => Ok(()),
            false => catch_unwind(AssertUnwindSafe(|| self.stop())),
        };
        if thread::panicking() || stopped.is_err() {
            self.keep_files();
            eprintln!("the daemon's log:\n{}", self.log());
            if let Err(threads) = self.try_kill9() {
                eprintln!("the daemon does not end:\n{threads}");
            }
            // Its supervised daemon, its helpers, stopped processes, and programs that the test has lost.
            end_related(self.root());
        }
        unmount_below(self.root());
        if let Err(panic) = stopped {
            resume_unwind(panic);
        }
    }
}

/// Unmounts what one or more killed daemons, or the test, have left in a directory.
fn unmount_below(directory: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4).map(Path::new));
    let mut points: Vec<_> = points.filter(|point| point.starts_with(directory)).collect();
    points.reverse();
    for point in points {
        let _ = umount2(point, MntFlags::MNT_DETACH);
    }
}

/// Returns whether a live FUSE filesystem is mounted: the kernel lists it and it answers. (A listed one may
/// be dead, and unmounted before it is asked.)
fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let here = |line: &str| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == path);
    mounts.lines().any(|line| here(line) && line.contains(" - fuse")) && path.join("devices").exists()
}

/// Returns whether a process accepts connections on the socket.
fn is_listening(path: &Path) -> bool {
    let Ok(address) = UnixAddr::new(path) else {
        return false;
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let Ok(socket) = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None) else {
        return false;
    };
    connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &address).is_ok()
}
