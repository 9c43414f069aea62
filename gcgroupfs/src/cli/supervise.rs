//! `gcgroupfs mount --supervise`: a small process that keeps the mount and the socket while daemons come and go. It
//! answers nobody itself: who asks while there is no daemon waits for the next one.

use std::env;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::{info, warn};

use crate::fuse;
use crate::keep::Keeper;
use crate::mount::Mount;
use crate::server::Listener;
use crate::sys;

/// The option that this is about, which the daemons are started without.
const OPTION: &str = "--supervise";

/// The option by which they learn what they inherit.
const ADOPT: &str = "--adopt";

/// A daemon that lived for less is not followed by the next at once, if the one before it did not live longer.
const SHORT: Duration = Duration::from_secs(1);

/// The longest pause before the next. Processes wait for a second before they try again to register.
const PAUSE: Duration = Duration::from_millis(250);

/// The exit status of a daemon that knows why it cannot go on. The next one could not either, but for what passes: a disk
/// that is full.
const GIVES_UP: i32 = 1;

/// For how long daemons may give up one after another, once one has served.
const TRIAL: Duration = Duration::from_secs(60);

/// Runs until SIGTERM or SIGINT, or until a daemon ends by itself. Gives whether it could: under an older kernel it does
/// nothing, and leaves nothing.
///
/// # Errors
/// The mount or the socket cannot be had, or a daemon gives up.
pub fn run(socket: &Path, point: &Path, allow_other: bool) -> anyhow::Result<bool> {
    // First of all, so that of two daemons the second leaves everything alone.
    let listener = Listener::bind(socket)?;
    let cannot = || format!("cannot mount at {}", point.display());
    let (mut mount, device) = Mount::new(point, socket, allow_other).with_context(cannot)?;
    let init = match fuse::first_message(&device) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            warn!("{error}: this one has no supervisor");
            return Ok(false);
        }
        init => init.with_context(cannot)?,
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    let spot = fuse::Spot {
        point: mount.point().to_owned(),
        device: mount.device(),
    };
    let helper = fuse::Attended::start(ours, device.try_clone()?, spot)
        .context("cannot start who has the kernel forget")?;
    let keeper = Keeper::new((device, mount.device()), listener.share()?, &init, theirs)?;
    let mut signals = Signals::new()?;
    super::mount::tell_ready();
    let result = follow(&keeper, &mut signals);
    // It finds who waits for an answer by the mount.
    helper.stop(|| drop(keeper));
    if let Err(error) = mount.unmount() {
        warn!("cannot unmount {}: {error}", point.display());
    }
    result.map(|()| true)
}

/// Starts one daemon after another.
fn follow(keeper: &Keeper, signals: &mut Signals) -> anyhow::Result<()> {
    let mut pause = Duration::ZERO;
    let (mut has_served, mut trial) = (false, None);
    loop {
        let began = Instant::now();
        let mut daemon = start(keeper)?;
        let status = attend(&mut daemon, signals)?;
        if status.success() || signals.is_end_asked() {
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
        match status.signal() {
            Some(signal) => warn!("the daemon was ended by signal {signal}; starting another"),
            None => warn!("the daemon has failed ({status}); starting another"),
        }
        pause = if began.elapsed() >= SHORT {
            Duration::ZERO
        } else {
            (pause * 2).clamp(Duration::from_millis(1), PAUSE)
        };
        signals.sleep(pause);
        if signals.is_end_asked() {
            return Ok(());
        }
    }
}

fn start(keeper: &Keeper) -> anyhow::Result<Child> {
    let inheritance = keeper.bequeath()?;
    Command::new("/proc/self/exe")
        .args(env::args_os().skip(1).filter(|argument| argument != OPTION))
        .arg(ADOPT)
        .arg(inheritance.to_string())
        // They are not the ones that the service manager knows.
        .env_remove("NOTIFY_SOCKET")
        .spawn()
        .context("cannot start the daemon")
}

/// Waits for a daemon's end, and passes on to it what we are told.
fn attend(daemon: &mut Child, signals: &mut Signals) -> anyhow::Result<ExitStatus> {
    let pid = Pid::from_raw(i32::try_from(daemon.id())?);
    let pidfd = sys::pidfd_open(pid.as_raw())?;
    loop {
        let mut watched = [
            PollFd::new(pidfd.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.woken.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // It may be gone already.
        if let Some(status) = daemon.try_wait()? {
            return Ok(status);
        }
        if let Some(signal) = signals.take() {
            info!("passing on {signal}");
            let _ = kill(pid, signal);
        }
    }
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
