//! `gcgroupfs mount --supervise`: a respawn loop that does for the daemon what systemd does for a service. It
//! stores descriptors (`FDSTORE=1` of sd_notify(3)), passes them to the next daemon (sd_listen_fds(3)),
//! expects `WATCHDOG=1`, and starts a daemon again that has failed. It answers no request itself.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use nix::unistd::Pid;
use tracing::{info, warn};

use gcgroupfs_fuse::Connection;
use gcgroupfs_sys as sys;
use gcgroupfs_sys::manager::{self, Stored};

/// The supervisor's own option, which is not passed to daemons.
const OPTION: &str = "--supervise";

/// How long a daemon may take until it serves, including slow calls of the driver.
const BEGINNING: Duration = Duration::from_secs(120);

/// Longest time between two resets of the watchdog.
const WATCHDOG: Duration = Duration::from_secs(15);

/// How long a daemon may take to end on request.
const ENDING: Duration = Duration::from_secs(30);

/// How long a daemon may take to end after SIGKILL.
const DYING: Duration = Duration::from_secs(2);

/// Longest pause after a daemon that has served. Hooks wait for one second before they try again to register.
const SOON: Duration = Duration::from_millis(250);

/// Longest pause after a daemon that a signal has ended before it served: by a user, or for lack of memory.
const KILLED: Duration = Duration::from_secs(2);

/// Longest pause after a daemon that has ended by itself before it served.
const LONGEST: Duration = Duration::from_secs(30);

/// Runs until SIGTERM or SIGINT, or until a daemon ends with success.
///
/// # Errors
/// Another supervisor runs for this socket, or the first daemon fails before it serves.
pub(super) fn run(socket: &Path, point: &Path) -> anyhow::Result<()> {
    let mut supervisor = Supervisor::new(socket)?;
    let result = supervisor.follow();
    let _ = fs::remove_file(&supervisor.path);
    // The last daemon may have been killed before it could unmount.
    if let Some(mut left) = Connection::take_over(&mut supervisor.stored, point, socket) {
        left.unmount();
    }
    result
}

struct Supervisor {
    /// Path of the socket that receives the daemon's notifications.
    path: PathBuf,
    notifications: UnixDatagram,
    signals: SignalFd,
    stored: Stored,
    is_end_asked: bool,
    /// Whether a daemon has ever served.
    has_served: bool,
    /// Whether the present one has.
    is_ready: bool,
    phase: Phase,
    /// When the next step of the phase is due.
    due: Instant,
    /// Killed daemons that cannot exit because a thread waits in the kernel for another process.
    abandoned: Vec<Child>,
}

/// Event that is awaited of a running daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The next reset of the watchdog.
    Serving,
    /// The end after SIGTERM.
    Ending,
    /// The end after SIGKILL.
    Killed,
}

impl Supervisor {
    fn new(socket: &Path) -> anyhow::Result<Self> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".notify");
        let path = PathBuf::from(path);
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        signals.thread_block()?;
        Ok(Self {
            notifications: listen(&path)?,
            path,
            signals: SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
            stored: Stored::default(),
            is_end_asked: false,
            has_served: false,
            is_ready: false,
            phase: Phase::Serving,
            due: Instant::now(),
            abandoned: Vec::new(),
        })
    }

    /// Starts daemons one after another.
    fn follow(&mut self) -> anyhow::Result<()> {
        let mut pause = Duration::ZERO;
        while !self.is_end_asked {
            let began = Instant::now();
            self.abandoned
                .retain_mut(|daemon| matches!(daemon.try_wait(), Ok(None)));
            self.is_ready = false;
            let (end, longest) = match self.run_daemon() {
                Ok(status) if status.success() => return Ok(()),
                Ok(status) => {
                    let longest = if status.code().is_none() { KILLED } else { LONGEST };
                    (format!("the daemon has ended ({status})"), longest)
                }
                Err(error) => (format!("{error:#}"), LONGEST),
            };
            if self.is_end_asked {
                break;
            }
            if !self.has_served {
                bail!("{end}");
            }
            let longest = if self.is_ready { SOON } else { longest };
            pause = match began.elapsed() < longest * 4 {
                true => (pause * 2).clamp(Duration::from_millis(1), longest),
                false => Duration::ZERO,
            };
            warn!("{end}; starting another in {pause:?}");
            self.wait(None, pause)?;
            self.take_signal()?;
        }
        Ok(())
    }

    /// Runs a daemon until its end.
    ///
    /// # Errors
    /// The daemon cannot be started or watched, or does not end after SIGKILL. Another can be started then.
    fn run_daemon(&mut self) -> anyhow::Result<ExitStatus> {
        let mut daemon = self.start()?;
        let ended = self.attend(&mut daemon);
        if ended.is_err() {
            let _ = daemon.kill();
            self.abandoned.push(daemon);
        }
        ended
    }

    fn start(&mut self) -> anyhow::Result<Child> {
        if !self.path.exists() {
            self.notifications = listen(&self.path)?;
        }
        let mut command = Command::new("/proc/self/exe");
        command
            .args(env::args_os().skip(1).filter(|argument| argument != OPTION))
            .env("NOTIFY_SOCKET", &self.path)
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())
            .env_remove("WATCHDOG_PID");
        self.stored.pass_to(command).context("cannot start the daemon")
    }

    /// Waits for the daemon's end, forwards signals to it, and kills it if it does not reset its watchdog.
    fn attend(&mut self, daemon: &mut Child) -> anyhow::Result<ExitStatus> {
        let pid = Pid::from_raw(daemon.id().cast_signed());
        let pidfd = sys::pidfd_open(pid.as_raw())?;
        (self.phase, self.due) = (Phase::Serving, Instant::now() + BEGINNING);
        loop {
            self.wait(Some(&pidfd), self.due.saturating_duration_since(Instant::now()))?;
            let status = daemon.try_wait()?;
            // Afterwards, for what an ended daemon has sent.
            self.take_notifications();
            if let Some(status) = status {
                return Ok(status);
            }
            if let Some(signal) = self.take_signal()? {
                info!("passing on {signal}");
                let _ = kill(pid, signal);
                if signal == Signal::SIGTERM && self.phase == Phase::Serving {
                    (self.phase, self.due) = (Phase::Ending, Instant::now() + ENDING);
                }
            }
            if Instant::now() < self.due {
                continue;
            }
            if self.phase == Phase::Killed {
                bail!("the daemon cannot end ({pid})");
            }
            warn!("the daemon does not answer");
            let _ = kill(pid, Signal::SIGKILL);
            (self.phase, self.due) = (Phase::Killed, Instant::now() + DYING);
        }
    }

    /// Waits for a signal, and with `daemon` also for its end and its notifications.
    fn wait(&self, daemon: Option<&OwnedFd>, time: Duration) -> nix::Result<()> {
        let also = daemon.map(|pidfd| [pidfd.as_fd(), self.notifications.as_fd()]);
        let watched = std::iter::once(self.signals.as_fd()).chain(also.into_iter().flatten());
        let mut watched: Vec<_> = watched.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // Rounded up, so that the loop does not spin through the last millisecond.
        let time = PollTimeout::try_from(time + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut watched, time) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the next signal for the daemon.
    fn take_signal(&mut self) -> anyhow::Result<Option<Signal>> {
        let Some(signal) = self.signals.read_signal()? else {
            return Ok(None);
        };
        if Signal::try_from(signal.ssi_signo.cast_signed())? == Signal::SIGHUP {
            return Ok(Some(Signal::SIGHUP));
        }
        self.is_end_asked = true;
        Ok(Some(Signal::SIGTERM))
    }

    /// Handles the notifications that have arrived. Those about the daemon's state are passed on to this
    /// process's own service manager, if there is one.
    fn take_notifications(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(received) = sys::receive(&self.notifications, &mut buffer) {
            let text = String::from_utf8_lossy(buffer.get(..received.length).unwrap_or_default());
            let has = |wanted| text.lines().any(|line| line == wanted);
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
            if has("FDSTORE=1") {
                let files = received.descriptors.into_iter();
                files.for_each(|file| self.stored.push(name.unwrap_or("stored"), file));
            } else if has("FDSTOREREMOVE=1") {
                while name.and_then(|name| self.stored.take(name)).is_some() {}
            } else {
                self.is_ready |= has("READY=1");
                self.has_served |= self.is_ready;
                if self.is_ready && self.phase == Phase::Serving {
                    self.due = Instant::now() + WATCHDOG;
                }
                manager::notify(&text);
            }
        }
    }
}

/// Binds the socket of the notifications, to which only this user can send.
fn listen(path: &Path) -> anyhow::Result<UnixDatagram> {
    let cannot = || format!("cannot listen on {}", path.display());
    if UnixDatagram::unbound()?.connect(path).is_ok() {
        bail!("another supervisor listens on {}", path.display());
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .with_context(cannot)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).with_context(cannot),
        _ => {}
    }
    let before = umask(Mode::S_IRWXG | Mode::S_IRWXO);
    let socket = UnixDatagram::bind(path).with_context(cannot);
    umask(before);
    socket
}
