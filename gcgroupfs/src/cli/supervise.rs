//! `gcgroupfs mount --supervise`: a small process that keeps the mount and the socket while daemons come and
//! go. It answers nobody itself: who asks while there is no daemon waits for the next one.

mod restarts;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::{info, warn};

use self::restarts::{Life, Restarts};
use crate::fuse;
use crate::keep::Keeper;
use crate::launch;
use crate::mount::Mount;
use crate::server::Listener;
use crate::sys;

mod ends;

use ends::Ends;

/// The option that this is about, which the daemons are started without.
const OPTION: &str = "--supervise";

/// The option by which they learn what they inherit.
const ADOPT: &str = "--adopt";

/// The option for those that begin while a predecessor that was killed cannot end.
const BESIDE_KILLED: &str = "--beside-killed";

/// A daemon that gives up after less than this does so each time.
const SHORT: Duration = Duration::from_secs(1);

/// How long a daemon may take until it serves. What it asks the driver then may take long.
const BEGINNING: Duration = Duration::from_secs(120);

/// How long it may take for an answer, and, when it has closed everything, to its end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between an answer and the next question.
const PAUSE_BETWEEN: Duration = Duration::from_secs(2);

/// How long it may take to end when it has been asked to.
const ENDING: Duration = Duration::from_secs(30);

/// How long it may take to end when it has been killed.
const DYING: Duration = Duration::from_secs(2);

/// The exit status of a daemon that knows why it cannot go on. The next one could not either, but for what
/// passes: a disk that is full.
const GIVES_UP: i32 = 1;

/// For how long daemons may give up one after another, once one has served.
const TRIAL: Duration = Duration::from_secs(60);

/// Runs until SIGTERM or SIGINT, or until a daemon ends by itself. Gives whether it could: under an older
/// kernel it does nothing, and leaves nothing.
///
/// # Errors
/// The mount or the socket cannot be had, a daemon gives up, or somebody has aborted the mount's connection.
pub fn run(socket: &Path, point: &Path, allow_other: bool) -> anyhow::Result<bool> {
    // First of all, so that of two daemons the second leaves everything alone.
    let listener = Listener::bind(socket)?;
    let cannot = || format!("cannot mount at {}", point.display());
    let (mount, device) = Mount::new(point, socket, allow_other).with_context(cannot)?;
    let init = match fuse::first_message(&device) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            warn!("{error}: this one has no supervisor");
            return Ok(false);
        }
        init => init.with_context(cannot)?,
    };
    let (ours, theirs) = sys::packet_pair()?;
    let spot = fuse::Spot {
        point: mount.point().to_owned(),
        device: mount.device(),
    };
    let helper = fuse::Attended::start(ours, device.try_clone()?, spot)
        .context("cannot start who has the kernel forget")?;
    let mut keeper = Keeper::new((device, mount.device()), listener.share()?, &init, theirs)?;
    let mut ends = Ends::new(mount, listener)?;
    let mut signals = Signals::new()?;
    super::mount::tell_ready();
    let result = follow(&mut keeper, &mut ends, socket, &mut signals);
    // It finds who waits for an answer by the mount.
    helper.stop(|| drop(keeper));
    if let Err(error) = ends.mount.unmount() {
        warn!("cannot unmount {}: {error}", point.display());
    }
    result.map(|()| true)
}

/// Starts one daemon after another.
fn follow(keeper: &mut Keeper, ends: &mut Ends, socket: &Path, signals: &mut Signals) -> anyhow::Result<()> {
    let mut restarts = Restarts::default();
    let (mut has_served, mut trial) = (false, None);
    // Daemons that a file of somebody's keeps from ending. They hold nothing any more that the next one
    // needs.
    let mut abandoned = Vec::new();
    let mut helpers = Vec::new();
    loop {
        if signals.is_end_asked() {
            return Ok(());
        }
        let began = Instant::now();
        abandoned.retain_mut(|daemon: &mut Child| matches!(daemon.try_wait(), Ok(None)));
        let before = restarts::nr_killed_for_memory();
        let mut daemon = match start(keeper, !abandoned.is_empty()) {
            // Out of memory or of processes: for a while, perhaps.
            Err(error) if has_served => {
                restarts.wait(signals, &format!("{error:#}"), &Life::default());
                continue;
            }
            daemon => daemon?,
        };
        ends.begins();
        let ended = daemon.attend(signals, ends, keeper, restarts.nr());
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
        if signals.is_end_asked() || ends.is_unmounted(keeper)? || status.success() {
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

fn start(keeper: &Keeper, is_beside_killed: bool) -> anyhow::Result<Daemon> {
    let (line, theirs) = sys::packet_pair()?;
    let inheritance = keeper.bequeath(&theirs)?;
    let child = Command::new("/proc/self/exe")
        .args(env::args_os().skip(1).filter(|argument| argument != OPTION))
        .arg(ADOPT)
        .arg(inheritance.to_string())
        .args(is_beside_killed.then_some(BESIDE_KILLED))
        // They are not the ones that the service manager knows.
        .env_remove("NOTIFY_SOCKET")
        .spawn()
        .context("cannot start the daemon")?;
    Ok(Daemon {
        child,
        line: Some(line),
        has_served: false,
    })
}

/// Has a daemon's clients look for the next one, by a process that nobody waits for.
fn sever(pid: u32, socket: &Path) -> Option<Child> {
    let pid = pid.to_string();
    let words = [OsStr::new("sever"), OsStr::new(&pid), socket.as_os_str()];
    let started = launch::command(&words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    started
        .inspect_err(|error| warn!("clients of the daemon that cannot end stay with it: {error}"))
        .ok()
}

/// A daemon that was started.
struct Daemon {
    child: Child,
    /// Nobody but the daemon has the other end, so this says when it has ended, also if a thread of it
    /// cannot. It answers each packet, and sends one of itself when it begins to serve.
    line: Option<OwnedFd>,
    has_served: bool,
}

/// How a daemon's time is over.
enum End {
    Ended(ExitStatus),
    /// It was killed, or is about to be, and a thread of it waits in the kernel for somebody else.
    Stuck,
}

/// By when something is to have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// It serves, or answers.
    Answer(Instant),
    /// It is asked again whether it answers.
    Question(Instant),
    /// It has ended.
    End(Instant),
}

impl Due {
    fn when(self) -> Instant {
        let (Self::Answer(when) | Self::Question(when) | Self::End(when)) = self;
        when
    }
}

impl Daemon {
    /// Waits for the daemon's end, passes on to it what we are told, and kills it if it does not answer.
    /// `nr_failed` daemons before it have failed.
    fn attend(
        &mut self,
        signals: &mut Signals,
        ends: &mut Ends,
        keeper: &mut Keeper,
        nr_failed: u32,
    ) -> anyhow::Result<End> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        let pidfd = sys::pidfd_open(pid.as_raw())?;
        let mut due = Due::Answer(Instant::now() + BEGINNING);
        loop {
            let next = ends.next_look().map_or(due.when(), |look| look.min(due.when()));
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
            // It may be gone already.
            if let Some(status) = self.child.try_wait()? {
                return Ok(End::Ended(status));
            }
            if let Some(signal) = signals.take() {
                info!("passing on {signal}");
                let _ = kill(pid, signal);
                if signal == Signal::SIGTERM && !matches!(due, Due::End(_)) {
                    due = Due::End(Instant::now() + ENDING);
                }
            }
            let had_served = self.has_served;
            due = self.listen(due);
            if self.has_served && !had_served && nr_failed > 0 {
                restarts::tell_served(nr_failed);
            }
            ends.look(keeper, self.line.as_ref());
            if Instant::now() < due.when() {
                continue;
            }
            due = match due {
                Due::Question(_) => {
                    self.ask();
                    Due::Answer(Instant::now() + PATIENCE)
                }
                // Somebody has stopped it, and knows why.
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

    /// What there is to wait for after all that the daemon has said by now.
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
                // Its end: the process has closed everything, and is about to be seen to have ended.
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

/// Whether somebody has stopped the process, by SIGSTOP or as a debugger does. This file of /proc is never
/// held up.
fn is_stopped(pid: Pid) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    text.lines()
        .any(|line| line.starts_with("State:\tT") || line.starts_with("State:\tt"))
}

/// What we are told by signals.
struct Signals {
    end: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    woken: UnixStream,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let (woken, waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let (end, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for (signal, flag) in [(SIGTERM, &end), (SIGINT, &end), (SIGHUP, &reload)] {
            signal_hook::flag::register(signal, flag.clone())?;
            signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
        }
        Ok(Self { end, reload, woken })
    }

    fn is_end_asked(&self) -> bool {
        self.end.load(Relaxed)
    }

    /// What the daemon is to be told.
    fn take(&mut self) -> Option<Signal> {
        while matches!(self.woken.read(&mut [0; 64]), Ok(64)) {}
        if self.is_end_asked() {
            Some(Signal::SIGTERM)
        } else {
            self.reload.swap(false, Relaxed).then_some(Signal::SIGHUP)
        }
    }

    fn sleep(&self, pause: Duration) {
        let mut watched = [PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        let _ = poll(
            &mut watched,
            PollTimeout::try_from(pause).unwrap_or(PollTimeout::ZERO),
        );
    }
}
