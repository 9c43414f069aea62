//! Protocol of the service manager that started this process: sd_notify(3), sd_listen_fds(3) and
//! sd_watchdog_enabled(3). Without a manager nothing is sent.

use std::env;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::time::{ClockId, clock_gettime};
use tracing::warn;

/// Number of the first descriptor that a manager passes.
pub(crate) const FIRST: i32 = 3;

/// Longest wait for room in the manager's socket.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reports that the daemon serves, also after it has read its configuration again.
pub fn ready() {
    notify("READY=1");
}

/// Reports that the daemon reads its configuration again. [`ready`] must follow.
pub fn reloading() {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
}

/// Reports that the daemon ends.
pub fn stopping() {
    notify("STOPPING=1");
}

/// Has the manager store a descriptor under a name until the service ends for good:
/// sd_pid_notify_with_fds(3). Returns false if it does not receive the descriptor.
pub fn store(name: &str, file: &impl AsFd) -> bool {
    let rights = [file.as_fd().as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&rights)];
    send(&format!("FDSTORE=1\nFDNAME={name}"), &rights, MsgFlags::empty())
}

/// Has the manager close the stored descriptors of that name.
pub fn forget(name: &str) {
    notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
}

/// Sends a notification.
pub fn notify(text: &str) {
    send(text, &[], MsgFlags::empty());
}

fn send(text: &str, rights: &[ControlMessage<'_>], flags: MsgFlags) -> bool {
    // Connected once: the file of the manager's socket may be removed.
    static MANAGER: OnceLock<Option<UnixDatagram>> = OnceLock::new();
    let manager = MANAGER.get_or_init(|| {
        connect().unwrap_or_else(|error| {
            warn!("cannot connect to the service manager: {error}");
            None
        })
    });
    let Some(manager) = manager else { return false };
    let (parts, flags) = ([IoSlice::new(text.as_bytes())], flags | MsgFlags::MSG_NOSIGNAL);
    let sent = sendmsg::<()>(manager.as_raw_fd(), &parts, rights, flags, None);
    sent.inspect_err(|error| warn!("cannot tell the service manager {text:?}: {error}"))
        .is_ok()
}

fn connect() -> io::Result<Option<UnixDatagram>> {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return Ok(None);
    };
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.connect_addr(&address)?;
    Ok(Some(socket))
}

/// Descriptors that a manager stores for its service, with their names.
#[derive(Debug, Default)]
pub struct Stored {
    names: Vec<String>,
    files: Vec<OwnedFd>,
}

impl Stored {
    /// Takes those that the manager has passed to this process: sd_listen_fds_with_names(3). A manager that
    /// cannot know the pid of its child beforehand leaves out `LISTEN_PID`. Call once.
    pub fn from_environment() -> Self {
        let number = |name| env::var(name).ok()?.parse::<u32>().ok();
        if env::var_os("LISTEN_PID").is_some() && number("LISTEN_PID") != Some(std::process::id()) {
            return Self::default();
        }
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let numbers = FIRST..FIRST.saturating_add(number("LISTEN_FDS").unwrap_or(0).cast_signed());
        let mut stored = Self::default();
        for (name, number) in names.split(':').zip(numbers) {
            if let Ok(file) = crate::inherited(number) {
                stored.push(name, file);
            }
        }
        stored
    }

    /// Adds a descriptor.
    pub fn push(&mut self, name: &str, file: OwnedFd) {
        self.names.push(name.to_owned());
        self.files.push(file);
    }

    /// Removes and returns a descriptor of that name.
    pub fn take(&mut self, name: &str) -> Option<OwnedFd> {
        let at = self.names.iter().position(|stored| stored == name)?;
        self.names.swap_remove(at);
        Some(self.files.swap_remove(at))
    }

    /// Starts a command that receives the descriptors, and is killed when the calling thread ends.
    ///
    /// # Errors
    /// Out of processes, memory or descriptors.
    pub fn pass_to(&self, mut command: Command) -> io::Result<Child> {
        command
            .env("LISTEN_FDS", self.files.len().to_string())
            .env("LISTEN_FDNAMES", self.names.join(":"))
            .env_remove("LISTEN_PID");
        crate::spawn_with_files(command, &self.files)
    }
}

/// The manager's watchdog: if it is not reset in time, the manager restarts the service.
#[derive(Debug)]
pub struct Watchdog {
    /// Time between two resets; `None` without a watchdog.
    interval: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    /// Returns the watchdog that the manager expects this process to reset, at least three times within its
    /// limit: sd_watchdog_enabled(3).
    pub fn from_environment() -> Self {
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = env::var_os("WATCHDOG_PID").is_none()
            || number("WATCHDOG_PID") == Some(std::process::id().into());
        let limit = number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0);
        Self {
            interval: limit.map(|usec| Duration::from_micros(usec) / 4),
            next: Instant::now(),
        }
    }

    /// Resets the watchdog if that is due, after `check` has shown that the process is well. Does not wait
    /// for the manager.
    pub fn reset(&mut self, check: impl FnOnce()) {
        let now = Instant::now();
        if let Some(interval) = self.interval
            && now >= self.next
        {
            check();
            self.next = now + interval;
            send("WATCHDOG=1", &[], MsgFlags::MSG_DONTWAIT);
        }
    }
}
