//! The daemon's end of the invalidation helper, which writes invalidations to the kernel: started at once,
//! and restarted after its death.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};
use nix::sys::time::TimeVal;

use super::Spot;
use gcgroupfs_sys as sys;
use gcgroupfs_sys::launch::{self, Helper, Launcher};

/// Time limit for its exit.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time limit for one message. The kernel makes the helper wait for the holder of a directory's lock, which
/// may wait for the daemon, whose request loop goes on meanwhile.
const ANSWER_PATIENCE: TimeVal = TimeVal::new(10, 0);

/// Least time between two starts.
const RETRY: Duration = Duration::from_millis(100);

/// Most helpers that may end during one message.
const ATTEMPTS: usize = 32;

#[derive(Debug)]
pub struct Relay {
    launcher: Arc<Launcher>,
    device: OwnedFd,
    spot: Spot,
    running: Option<Running>,
    next_start: Instant,
    is_over: bool,
}

#[derive(Debug)]
struct Running {
    helper: Helper,
    /// Exists in no other process, so it closes exactly when this process has ended.
    socket: Option<OwnedFd>,
}

impl Relay {
    /// Starts a helper, if possible.
    pub(super) fn new(launcher: Arc<Launcher>, device: OwnedFd, spot: Spot) -> Self {
        let mut relay = Self {
            launcher,
            device,
            spot,
            running: None,
            next_start: Instant::now(),
            is_over: false,
        };
        relay.running = relay
            .start()
            .inspect_err(
                |error| tracing::warn!(%error, "no helper for invalidations: if killed, the daemon may hang"),
            )
            .ok();
        relay
    }

    /// Makes a helper write invalidations, and waits until it has. If the helper was killed, the daemon may
    /// be killed next, so another helper writes; the daemon itself only if none can be started.
    ///
    /// # Errors
    /// `BrokenPipe` if the daemon is about to end.
    pub(super) fn pass(&mut self, messages: &[u8]) -> io::Result<()> {
        if self.is_over {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        for _ in 0..ATTEMPTS {
            let running = match self.running.take() {
                Some(running) => running,
                None => match self.start() {
                    Ok(running) => running,
                    Err(error) => {
                        tracing::debug!(%error, "no helper for invalidations");
                        break;
                    }
                },
            };
            match running.pass(messages) {
                Ok(()) => {
                    self.running = Some(running);
                    return Ok(());
                }
                Err(error) => tracing::warn!(%error, "the helper for invalidations has ended"),
            }
        }
        // Without this, removed entries would stay visible.
        deliver(messages, &self.device);
        Ok(())
    }

    /// Ends the helper for good.
    pub(super) fn stop(&mut self) {
        self.is_over = true;
        self.running = None;
    }

    /// Starts another helper, at least [`RETRY`] after the last start.
    fn start(&mut self) -> io::Result<Running> {
        thread::sleep(self.next_start.saturating_duration_since(Instant::now()));
        self.next_start = Instant::now() + RETRY;
        Running::start(&self.launcher, &self.device, &self.spot)
    }
}

impl Running {
    fn start(launcher: &Arc<Launcher>, device: &OwnedFd, spot: &Spot) -> io::Result<Self> {
        let (ours, theirs) = sys::packet_pair()?;
        setsockopt(&ours, sockopt::ReceiveTimeout, &ANSWER_PATIENCE)?;
        let words = arguments(spot);
        let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        let helper = launcher.launch(&words, &theirs, Some(device))?;
        Ok(Self {
            helper,
            socket: Some(ours),
        })
    }

    fn pass(&self, messages: &[u8]) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(Errno::EPIPE)?.as_raw_fd();
        send(socket, messages, MsgFlags::MSG_NOSIGNAL)?;
        loop {
            match recv(socket, &mut [0], MsgFlags::empty()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(Errno::EINTR) => {}
                done => return Ok(done.map(drop)?),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It ends by itself, and aborts the connection if it is blocked.
        self.socket = None;
        self.helper.wait(PATIENCE);
    }
}

/// Writes to `device` the first of these notifications that the kernel accepts.
pub fn deliver(messages: &[u8], device: &impl AsFd) {
    let mut rest = messages;
    while let Some((message, others)) = first(rest) {
        rest = others;
        // An entry unknown to the kernel needs no invalidation.
        match nix::unistd::write(device, message) {
            Ok(_) | Err(nix::errno::Errno::ENOENT) => break,
            Err(_) => {}
        }
    }
}

/// Splits off a message, by the length with which it begins.
pub(super) fn first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, _) = bytes.split_first_chunk::<4>()?;
    bytes.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// Returns the arguments of the helper.
fn arguments(spot: &Spot) -> [OsString; 3] {
    let number = spot.device.to_string();
    ["invalidate".into(), spot.point.clone().into(), number.into()]
}

/// Starts a helper that writes what it receives from `from`, in a process that has no client's descriptor.
fn helper(from: OwnedFd, device: &OwnedFd, spot: &Spot) -> io::Result<Child> {
    let words = arguments(spot);
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    launch::command(&words)
        .stdin(Stdio::from(from))
        .stdout(Stdio::from(device.try_clone()?))
        .spawn()
}

/// The supervisor's end: keeps a helper running that writes what daemons send through a socket.
#[derive(Debug)]
pub struct Attended {
    is_over: Arc<AtomicBool>,
    ended: Receiver<()>,
}

impl Attended {
    /// Starts helpers that read `from` and write to `device` until the other end is closed everywhere.
    ///
    /// # Errors
    /// The first helper cannot be started.
    pub fn start(from: OwnedFd, device: OwnedFd, spot: Spot) -> io::Result<Self> {
        let start = move || helper(from.try_clone()?, &device, &spot);
        let mut running = Some(start()?);
        let (is_over, (sender, ended)) = (Arc::new(AtomicBool::new(false)), channel());
        let over = is_over.clone();
        thread::Builder::new().name("relay".to_owned()).spawn(move || {
            loop {
                if let Some(mut child) = running.take() {
                    let _ = child.wait();
                }
                if over.load(SeqCst) {
                    break;
                }
                tracing::warn!("the helper for invalidations has ended; starting another");
                thread::sleep(RETRY);
                running = start()
                    .inspect_err(|error| tracing::warn!(%error, "no helper for invalidations"))
                    .ok();
            }
            // The receiver may be gone.
            let _ = sender.send(());
        })?;
        Ok(Self { is_over, ended })
    }

    /// Waits until the helper has ended; `close` must close the other end of its socket. Must be called
    /// before unmounting, while the helper can find the mount.
    pub fn stop(self, close: impl FnOnce()) {
        self.is_over.store(true, SeqCst);
        close();
        if self.ended.recv_timeout(PATIENCE).is_err() {
            tracing::warn!("not all removed directories have been invalidated in the kernel");
        }
    }
}
