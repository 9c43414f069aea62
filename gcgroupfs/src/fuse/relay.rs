//! The helper that writes to the kernel what it is to forget, as the daemon sees it: started at once, and again after its
//! death.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};
use nix::sys::time::TimeVal;

use super::announce::Spot;
use super::forget::deliver;
use crate::launch::{self, Helper, Launcher};
use crate::sys;

/// How long it may take to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long it may take to write one message. The kernel has it wait for whoever holds a directory's lock, and that one may
/// wait for the daemon, which goes on meanwhile.
const ANSWER_PATIENCE: TimeVal = TimeVal::new(10, 0);

/// The least time between two starts.
const RETRY: Duration = Duration::from_millis(100);

/// How many helpers may end over one message.
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
    /// In no other process, and so closed exactly when we have ended.
    socket: Option<OwnedFd>,
}

impl Relay {
    /// With a helper, if one can be had.
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
                |error| tracing::warn!(%error, "no helper has the kernel forget: killed, we may hang"),
            )
            .ok();
        relay
    }

    /// Has notifications written, and waits until they are. Where the helper has been killed, the daemon may be about to
    /// be, so another writes; we do only if none can be had.
    ///
    /// # Errors
    /// The daemon is about to end.
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
                        tracing::debug!(%error, "no helper has the kernel forget");
                        break;
                    }
                },
            };
            match running.pass(messages) {
                Ok(()) => {
                    self.running = Some(running);
                    return Ok(());
                }
                Err(error) => tracing::warn!(%error, "the helper that has the kernel forget has ended"),
            }
        }
        // Better than to show for ever what has gone.
        deliver(messages, &self.device);
        Ok(())
    }

    /// Ends the helper, for good.
    pub(super) fn stop(&mut self) {
        self.is_over = true;
        self.running = None;
    }

    /// Another helper, a while after the one before.
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
        // It ends by itself, having broken the connection if it is held up.
        self.socket = None;
        self.helper.wait(PATIENCE);
    }
}

/// What the helper is started with.
fn arguments(spot: &Spot) -> [OsString; 3] {
    let number = spot.device.to_string();
    ["forget".into(), spot.point.clone().into(), number.into()]
}

/// Starts a helper that writes what comes over `from`, from a process that has no client's descriptor.
fn helper(from: OwnedFd, device: &OwnedFd, spot: &Spot) -> io::Result<Child> {
    let words = arguments(spot);
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    launch::command(&words)
        .stdin(Stdio::from(from))
        .stdout(Stdio::from(device.try_clone()?))
        .spawn()
}

/// The supervisor's part: there is always a helper that writes what daemons send over a socket's other end.
#[derive(Debug)]
pub struct Attended {
    is_over: Arc<AtomicBool>,
    ended: Receiver<()>,
}

impl Attended {
    /// Helpers read `from` and write to `device`, until nobody has the other end any more.
    ///
    /// # Errors
    /// The first cannot be started.
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
                tracing::warn!("the helper that has the kernel forget has ended; starting another");
                thread::sleep(RETRY);
                running = start()
                    .inspect_err(|error| tracing::warn!(%error, "no helper has the kernel forget"))
                    .ok();
            }
            // It may not be waited for.
            let _ = sender.send(());
        })?;
        Ok(Self { is_over, ended })
    }

    /// Waits until the helper has ended, which it does once the other end of its socket is closed: `close` is to do that.
    /// To be called before it is unmounted, while the helper can find the mount.
    pub fn stop(self, close: impl FnOnce()) {
        self.is_over.store(true, SeqCst);
        close();
        if self.ended.recv_timeout(PATIENCE).is_err() {
            tracing::warn!("the kernel still has not forgotten what has gone");
        }
    }
}
