//! Signals of the supervisor.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cli::service::Watchdog;

/// Signals received by the supervisor.
pub(super) struct Signals {
    end: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    /// Readable once a signal has arrived.
    pub(super) woken: UnixStream,
    pub(super) watchdog: Watchdog,
}

impl Signals {
    /// Takes over SIGTERM, SIGINT and SIGHUP.
    pub(super) fn new() -> io::Result<Self> {
        let (woken, waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let (end, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for (signal, flag) in [(SIGTERM, &end), (SIGINT, &end), (SIGHUP, &reload)] {
            signal_hook::flag::register(signal, flag.clone())?;
            signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
        }
        Ok(Self {
            end,
            reload,
            woken,
            watchdog: Watchdog::from_environment(),
        })
    }

    pub(super) fn is_end_asked(&self) -> bool {
        self.end.load(Relaxed)
    }

    /// Returns the next signal to forward to the daemon.
    pub(super) fn take(&mut self) -> Option<Signal> {
        while matches!(self.woken.read(&mut [0; 64]), Ok(64)) {}
        if self.is_end_asked() {
            Some(Signal::SIGTERM)
        } else {
            self.reload.swap(false, Relaxed).then_some(Signal::SIGHUP)
        }
    }

    /// Waits until a signal arrives, at most for `pause`.
    pub(super) fn sleep(&self, pause: Duration) {
        let mut watched = [PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        let _ = poll(
            &mut watched,
            PollTimeout::try_from(pause).unwrap_or(PollTimeout::ZERO),
        );
    }
}
