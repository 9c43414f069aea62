//! Notifications to the service manager that started this process, as sd_notify(3) sends them. Without a
//! manager they do nothing.

use std::env;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::time::{ClockId, clock_gettime};
use tracing::warn;

use gcgroupfs_sys as sys;

/// Reports that the daemon serves, also after it has read its configuration again.
pub(super) fn ready() {
    notify("READY=1");
}

/// Reports that the daemon reads its configuration again. [`ready`] must follow.
pub(super) fn reloading() {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
}

/// Reports that the daemon ends.
pub(super) fn stopping() {
    notify("STOPPING=1");
}

/// Reports the line that `systemctl status` shows; an empty one removes it.
pub(super) fn status(text: &str) {
    notify(&format!("STATUS={text}"));
}

/// Has the manager store a descriptor under a name until the service ends for good:
/// sd_pid_notify_with_fds(3).
pub(super) fn store(name: &str, file: &OwnedFd) {
    send(&format!("FDSTORE=1\nFDNAME={name}"), Some(file));
}

/// Has the manager close the stored descriptors of that name.
pub(super) fn forget(name: &str) {
    notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
}

/// Takes the stored descriptors with their names: sd_listen_fds_with_names(3). Call once.
pub(super) fn stored() -> Vec<(String, OwnedFd)> {
    const FIRST: i32 = 3;
    let number = |name| env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let named = names.split(':').zip(FIRST..);
    let named = named.take(number("LISTEN_FDS").unwrap_or(0) as usize);
    named
        .filter_map(|(name, number)| Some((name.to_owned(), sys::inherited(number).ok()?)))
        .collect()
}

fn notify(text: &str) {
    send(text, None);
}

fn send(text: &str, file: Option<&OwnedFd>) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let told = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        // The loop that serves requests does not wait for the manager.
        socket.set_nonblocking(true)?;
        socket.connect_addr(&address)?;
        let rights = file.map(|file| [file.as_raw_fd()]);
        let rights = rights.as_ref().map(|rights| ControlMessage::ScmRights(rights));
        let (text, number) = ([IoSlice::new(text.as_bytes())], socket.as_raw_fd());
        Ok(sendmsg::<()>(
            number,
            &text,
            rights.as_slice(),
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?)
    });
    if let Err(error) = told {
        warn!("cannot tell {} {text:?}: {error}", path.to_string_lossy());
    }
}

/// The manager's watchdog: if it is not reset in time, the manager restarts the service.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// Time between two resets; `None` without a watchdog.
    interval: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    /// Returns the watchdog that the manager expects this process to reset: sd_watchdog_enabled(3).
    pub(super) fn from_environment() -> Self {
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = env::var_os("WATCHDOG_PID").is_none()
            || number("WATCHDOG_PID") == Some(std::process::id().into());
        let limit = number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0);
        Self::new(limit.map(Duration::from_micros))
    }

    /// Resets a watchdog of that limit at least three times before it is over.
    fn new(limit: Option<Duration>) -> Self {
        Self {
            interval: limit.map(|limit| limit / 4),
            next: Instant::now(),
        }
    }

    /// Resets the watchdog, if that is due.
    pub(super) fn reset(&mut self) {
        let now = Instant::now();
        if let Some(interval) = self.interval
            && now >= self.next
        {
            self.next = now + interval;
            notify("WATCHDOG=1");
        }
    }

    /// Returns when to call [`reset`](Self::reset) next; `None` without a watchdog.
    pub(super) fn next(&self) -> Option<Instant> {
        self.interval.map(|_| self.next)
    }
}
