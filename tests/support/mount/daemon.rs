//! Start and end of a mount's daemon, and what is kept of it after a failure.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;

use super::Mount;
use crate::artifacts::artifacts;
use crate::failure::keep;
use crate::hang::{abort, threads};
use crate::processes::{describe, end_related, related};
use crate::wait::{DEADLINE, wait_for, wait_until};

/// Prefix of the line by which a daemon reports that it serves.
const READY: &str = "gcgroupfs: ready:";

impl Mount {
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
    pub(super) fn start(&mut self) {
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
