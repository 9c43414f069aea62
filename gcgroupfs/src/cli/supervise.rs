//! `gcgroupfs mount --supervise`: a small process that keeps the mount and the socket while daemons are
//! replaced. It answers no request itself: requests made without a daemon wait for the next one.

mod restarts;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::Pid;
use tracing::{info, warn};

use self::restarts::{Life, Restarts};
use super::{paths, service};
use gcgroupfs_fuse as fuse;
use gcgroupfs_fuse::mount::Mount;
use gcgroupfs_fuse::supervisor_state::SupervisorState;
use gcgroupfs_server::socket::Listener;
use gcgroupfs_sys as sys;
use gcgroupfs_sys::launch;

mod ends;
mod signals;
mod stored;

use ends::Ends;
use signals::Signals;
use stored::Kept;

/// The supervisor's own option, which is not passed to daemons.
const OPTION: &str = "--supervise";

/// Option that tells daemons what they inherit.
const ADOPT: &str = "--adopt";

/// Option for daemons that start while a killed predecessor cannot exit.
const BESIDE_KILLED: &str = "--beside-killed";

/// A daemon that gives up before this time would do so each time.
const SHORT: Duration = Duration::from_secs(1);

/// How long a daemon may take until it serves, including slow calls of the driver.
const BEGINNING: Duration = Duration::from_secs(120);

/// How long a daemon may take to answer, and to end once it has closed everything.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time between an answer and the next check.
const PAUSE_BETWEEN: Duration = Duration::from_secs(2);

/// How long a daemon may take to end on request.
const ENDING: Duration = Duration::from_secs(30);

/// How long a daemon may take to end after SIGKILL.
const DYING: Duration = Duration::from_secs(2);

/// Exit status of a daemon that cannot continue. The next one could not either, unless the cause passes, such
/// as a full disk.
const GIVES_UP: i32 = 1;

/// How long daemons may give up one after another, once one has served.
const TRIAL: Duration = Duration::from_secs(60);

/// Runs until SIGTERM or SIGINT, or until a daemon ends by itself. Returns false, without side effects, if
/// the kernel is too old.
///
/// # Errors
/// The mount or the socket is not available, a daemon gives up, or the mount's connection was aborted.
pub(super) fn run(socket: &Path, point: &Path, allow_other: bool) -> anyhow::Result<bool> {
    // Done first, so that a second daemon changes nothing.
    let listener = Listener::bind(socket)?;
    let (mount, mut state) = if let Some(Kept { mount, files }) = stored::take(point, socket) {
        let state = SupervisorState::again(files, mount.device(), listener.share()?);
        (mount, state)
    } else {
        let cannot = || paths::cannot_mount(point);
        let (mount, device) = Mount::new(point, socket, allow_other).with_context(cannot)?;
        let init = match fuse::first_message(&device) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                warn!("{error}: this one has no supervisor");
                return Ok(false);
            }
            init => init.with_context(cannot)?,
        };
        let state = SupervisorState::new((device, mount.device()), listener.share()?, &init)?;
        (mount, state)
    };
    let number = mount.device();
    stored::put(&state, number);
    let mut ends = Ends::new(mount, listener)?;
    let mut signals = Signals::new()?;
    service::ready();
    let result = follow(&mut state, &mut ends, socket, &mut signals);
    service::stopping();
    stored::remove(number);
    if let Err(error) = ends.mount.unmount() {
        warn!("cannot unmount {}: {error}", point.display());
    }
    result.map(|()| true)
}

/// Starts daemons one after another.
fn follow(
    state: &mut SupervisorState,
    ends: &mut Ends,
    socket: &Path,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let mut restarts = Restarts::default();
    let (mut has_served, mut trial) = (false, None);
    // Daemons that cannot exit because of another process's file. They hold nothing that the next one needs.
    let mut abandoned = Vec::new();
    let mut helpers = Vec::new();
    loop {
        if signals.is_end_asked() {
            return Ok(());
        }
        let began = Instant::now();
        abandoned.retain_mut(|daemon: &mut Child| matches!(daemon.try_wait(), Ok(None)));
        let before = restarts::nr_killed_for_memory();
        let mut daemon = match start(state, !abandoned.is_empty()) {
            // Out of memory or processes, perhaps temporarily.
            Err(error) if has_served => {
                restarts.wait(signals, &format!("{error:#}"), &Life::default());
                continue;
            }
            daemon => daemon?,
        };
        ends.begins();
        let ended = daemon.attend(signals, ends, state, restarts.nr());
        has_served |= daemon.has_served;
        let end = match ended {
            Err(error) if has_served => {
                let _ = daemon.child.kill();
                abandoned.push(daemon.child);
                restarts.wait(signals, &format!("{error:#}"), &Life::default());
                continue;
            }
            ended => ended?,
        };
        let status = match end {
            End::Ended(status) => status,
            End::Stuck => {
                warn!("the daemon cannot end ({}); starting another", daemon.child.id());
                helpers.retain_mut(|helper: &mut Child| matches!(helper.try_wait(), Ok(None)));
                helpers.extend(sever(daemon.child.id(), socket));
                abandoned.push(daemon.child);
                (has_served, trial, restarts) = (true, None, Restarts::default());
                continue;
            }
        };
        if signals.is_end_asked() || ends.is_unmounted(state)? || status.success() {
            return Ok(());
        }
        if status.code() == Some(GIVES_UP) && began.elapsed() < SHORT {
            let end = *trial.get_or_insert_with(|| Instant::now() + TRIAL);
            if !has_served || Instant::now() >= end {
                bail!("the daemon has given up");
            }
        } else {
            (has_served, trial) = (true, None);
        }
        let life = Life {
            lasted: began.elapsed(),
            has_served: daemon.has_served,
            signal: status.signal(),
            is_for_memory: restarts::nr_killed_for_memory() > before,
        };
        restarts.wait(signals, &life.end(status), &life);
    }
}

fn start(state: &SupervisorState, is_beside_killed: bool) -> anyhow::Result<Daemon> {
    let (line, theirs) = sys::packet_pair()?;
    let inheritance = state.pass_on(&theirs)?;
    let child = Command::new("/proc/self/exe")
        .args(env::args_os().skip(1).filter(|argument| argument != OPTION))
        .arg(ADOPT)
        .arg(inheritance.to_string())
        .args(is_beside_killed.then_some(BESIDE_KILLED))
        // The service manager knows only the supervisor.
        .env_remove("NOTIFY_SOCKET")
        .env_remove("LISTEN_PID")
        .spawn()
        .context("cannot start the daemon")?;
    Ok(Daemon {
        child,
        line: Some(line),
        has_served: false,
    })
}

/// Starts a process that makes a daemon's clients look for the next one; it is not waited for.
fn sever(pid: u32, socket: &Path) -> Option<Child> {
    let pid = pid.to_string();
    let words = [OsStr::new("sever"), OsStr::new(&pid), socket.as_os_str()];
    let started = launch::command(&words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    started
        .inspect_err(|error| warn!("cannot disconnect the clients of the daemon that cannot end: {error}"))
        .ok()
}

/// A started daemon.
struct Daemon {
    child: Child,
    /// Socket whose other end only the daemon has, so its end is seen here even if one of its threads cannot
    /// exit. The daemon answers each packet, and sends one when it begins to serve.
    line: Option<OwnedFd>,
    has_served: bool,
}

/// How a daemon has ended.
enum End {
    Ended(ExitStatus),
    /// The daemon was killed, or is about to be, and one of its threads is blocked in the kernel by another
    /// process.
    Stuck,
}

/// Deadline for the next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The daemon serves, or answers.
    Answer(Instant),
    /// The next check is sent.
    Question(Instant),
    /// The daemon has ended.
    End(Instant),
}

impl Due {
    fn when(self) -> Instant {
        let (Self::Answer(when) | Self::Question(when) | Self::End(when)) = self;
        when
    }
}

impl Daemon {
    /// Waits for the daemon's end, forwards signals to it, and kills it if it does not answer. `nr_failed`
    /// daemons before it have failed.
    fn attend(
        &mut self,
        signals: &mut Signals,
        ends: &mut Ends,
        state: &mut SupervisorState,
        nr_failed: u32,
    ) -> anyhow::Result<End> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        let pidfd = sys::pidfd_open(pid.as_raw())?;
        let mut due = Due::Answer(Instant::now() + BEGINNING);
        loop {
            // A daemon that does not answer is replaced by this loop, so the loop is what must not hang.
            signals.watchdog.reset();
            let times = [Some(due.when()), ends.next_look(), signals.watchdog.next()];
            let next = times.into_iter().flatten().min().unwrap_or(due.when());
            let left = next.saturating_duration_since(Instant::now());
            let mut watched = vec![
                PollFd::new(pidfd.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.woken.as_fd(), PollFlags::POLLIN),
            ];
            watched.extend((self.line.as_ref()).map(|line| PollFd::new(line.as_fd(), PollFlags::POLLIN)));
            match poll(
                &mut watched,
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
            ) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            // It may have ended already.
            if let Some(status) = self.child.try_wait()? {
                return Ok(End::Ended(status));
            }
            if let Some(signal) = signals.take() {
                info!("passing on {signal}");
                let is_reload = signal == Signal::SIGHUP;
                if is_reload {
                    service::reloading();
                }
                let _ = kill(pid, signal);
                if is_reload {
                    service::ready();
                }
                if signal == Signal::SIGTERM && !matches!(due, Due::End(_)) {
                    due = Due::End(Instant::now() + ENDING);
                }
            }
            let had_served = self.has_served;
            due = self.listen(due);
            if self.has_served && !had_served && nr_failed > 0 {
                restarts::tell_served(nr_failed);
            }
            ends.look(state, self.line.as_ref());
            if Instant::now() < due.when() {
                continue;
            }
            due = match due {
                Due::Question(_) => {
                    self.ask();
                    Due::Answer(Instant::now() + PATIENCE)
                }
                // It was stopped deliberately.
                Due::Answer(_) if is_stopped(pid) => Due::Answer(Instant::now() + PATIENCE),
                Due::Answer(_) => {
                    warn!("the daemon does not answer");
                    let _ = kill(pid, Signal::SIGKILL);
                    Due::End(Instant::now() + DYING)
                }
                Due::End(_) => {
                    let _ = kill(pid, Signal::SIGKILL);
                    return Ok(End::Stuck);
                }
            };
        }
    }

    /// Reads what the daemon has sent and returns what to wait for next.
    fn listen(&mut self, mut due: Due) -> Due {
        while let Some(line) = &self.line {
            match recv(line.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT) {
                Ok(1..) => {
                    self.has_served = true;
                    if matches!(due, Due::Answer(_)) {
                        due = Due::Question(Instant::now() + PAUSE_BETWEEN);
                    }
                }
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                // End of file: the process has closed everything and is about to end.
                Ok(_) | Err(_) => {
                    self.line = None;
                    due = Due::End(Instant::now() + PATIENCE);
                }
            }
        }
        due
    }

    fn ask(&self) {
        if let Some(line) = &self.line {
            let _ = send(
                line.as_raw_fd(),
                &[0],
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
            );
        }
    }
}

/// Returns whether the process is stopped, by SIGSTOP or a debugger. Reading this file of /proc never blocks.
fn is_stopped(pid: Pid) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    text.lines()
        .any(|line| line.starts_with("State:\tT") || line.starts_with("State:\tt"))
}
