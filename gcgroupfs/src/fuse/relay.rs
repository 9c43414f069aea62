//! The helper that writes to the kernel what it is to forget, as the daemon sees it: started at once, and again after its
//! death.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

use super::announce::Spot;
use super::forget::deliver;

/// How long it may take to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// The least time between two starts.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Relay {
    device: OwnedFd,
    spot: Spot,
    running: Option<Running>,
    next_start: Instant,
    is_over: bool,
}

#[derive(Debug)]
struct Running {
    child: Child,
    /// In no other process, and so closed exactly when we have ended.
    socket: Option<OwnedFd>,
}

impl Relay {
    /// With a helper, if one can be had.
    pub(super) fn new(device: OwnedFd, spot: Spot) -> Self {
        let mut relay = Self {
            device,
            spot,
            running: None,
            next_start: Instant::now(),
            is_over: false,
        };
        relay.start();
        relay
    }

    /// Has notifications written, and waits until they are.
    ///
    /// # Errors
    /// The daemon is about to end.
    pub(super) fn pass(&mut self, messages: &[u8]) -> io::Result<()> {
        if self.is_over {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        for _ in 0..2 {
            if self.running.is_none() {
                self.start();
            }
            let Some(running) = &self.running else { break };
            match running.pass(messages) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "the helper that has the kernel forget has ended; starting another");
                    self.running = None;
                }
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

    fn start(&mut self) {
        let now = Instant::now();
        if now < self.next_start {
            return;
        }
        self.next_start = now + RETRY;
        self.running = Running::start(&self.device, &self.spot)
            .inspect_err(
                |error| tracing::warn!(%error, "no helper to have the kernel forget: killed, we may hang"),
            )
            .ok();
    }
}

impl Running {
    fn start(device: &OwnedFd, spot: &Spot) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        let child = Command::new("/proc/self/exe")
            .arg("forget")
            .arg(&spot.point)
            .arg(spot.device.to_string())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(device.try_clone()?))
            .stderr(Stdio::null())
            // Who stops the daemon from the keyboard does not mean the helper.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            child,
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
        self.socket = None;
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
