//! The daemon's side of receiver processes ([`crate::receive`]): runs one at a time, replaces it when it has
//! ended or does not answer, and closes connections that hold descriptors whose close might block.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, IoSlice};
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{ControlMessage, MsgFlags, Shutdown, sendmsg, shutdown};
use tracing::{debug, warn};

use super::Token;
use super::rate::Rate;
use crate::receive::{Taken, Task};
use gcgroupfs_sys as sys;

/// How long a receiver may take for one message. It does not wait for other processes before it has answered.
const PATIENCE: Duration = Duration::from_secs(2);

/// Minimum time between two failed starts.
const RETRY: Duration = Duration::from_millis(100);

/// Descriptors other than memfds that one user may send per second; each costs a receiver.
const MAX_OFFENCES: u32 = 4;

/// Descriptors in one message; the kernel allows 253.
const MAX_CLOSED: usize = 250;

/// Starts a receiver that serves the other end of the socket.
pub type Start = Box<dyn Fn(OwnedFd) -> io::Result<()> + Send>;

pub(super) struct Receivers {
    start: Start,
    epoll: Arc<Epoll>,
    running: Option<OwnedFd>,
    next_start: Instant,
    /// The running receiver's task and its start. The connection is kept open until the receiver has
    /// answered.
    busy: Option<(Waiting, Instant)>,
    waiting: VecDeque<Waiting>,
    /// Connections that were shut down but are still referenced elsewhere.
    retiring: Vec<Arc<OwnedFd>>,
    /// Connections in whose queues descriptors lie.
    doomed: Vec<OwnedFd>,
    offences: HashMap<u32, Rate>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    uid: u32,
    socket: Arc<OwnedFd>,
}

impl fmt::Debug for Receivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receivers")
            .field("busy", &self.busy)
            .field("waiting", &self.waiting)
            .field("doomed", &self.doomed)
            .finish_non_exhaustive()
    }
}

impl Receivers {
    pub(super) fn new(start: Start, epoll: Arc<Epoll>) -> Self {
        let mut receivers = Self {
            start,
            epoll,
            running: None,
            next_start: Instant::now(),
            busy: None,
            waiting: VecDeque::new(),
            retiring: Vec::new(),
            doomed: Vec::new(),
            offences: HashMap::new(),
        };
        // Started now, so that the first client need not wait.
        receivers.ensure(Instant::now());
        receivers
    }

    /// Queues the receiving of a connection's next message, which carries descriptors. [`Self::answer`]
    /// returns the result.
    ///
    /// # Errors
    /// `EAGAIN` if the user has sent too many descriptors that are not memfds.
    pub(super) fn ask(&mut self, number: u64, uid: u32, socket: Arc<OwnedFd>) -> nix::Result<()> {
        let now = Instant::now();
        if self.offences.get(&uid).is_some_and(|rate| rate.is_spent(now)) {
            return Err(Errno::EAGAIN);
        }
        self.waiting.push_back(Waiting { number, uid, socket });
        self.pump(now);
        Ok(())
    }

    /// Returns the next answer, if there is one: the connection's number and its usage block, or why there is
    /// none.
    pub(super) fn answer(&mut self) -> Option<(u64, nix::Result<OwnedFd>)> {
        let running = self.running.as_ref()?;
        let mut buffer = [0; Taken::LENGTH];
        let received = match sys::receive(running, &mut buffer) {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return None,
            Err(_) => return self.abandon(),
        };
        let Some(taken) = Taken::from_bytes(buffer.get(..received.length).unwrap_or_default()) else {
            // It has ended.
            return self.abandon();
        };
        let now = Instant::now();
        let (busy, _) = self.busy.take()?;
        if taken.is_last {
            self.offences
                .entry(busy.uid)
                .or_insert_with(|| Rate::new(MAX_OFFENCES))
                .allows(now);
            self.replace();
        }
        drop(busy);
        self.pump(now);
        let usage = match (taken.error, received.descriptors.into_iter().next()) {
            (0, Some(usage)) => Ok(usage),
            (0, None) => Err(Errno::EINVAL),
            (error, _) => Err(Errno::from_raw(error)),
        };
        Some((taken.number, usage))
    }

    /// Closes a connection without waiting for the close of descriptors that the client has sent.
    pub(super) fn retire(&mut self, socket: Arc<OwnedFd>) {
        // Notifies the client at once and keeps further messages out of the queue.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        match Arc::try_unwrap(socket) {
            Ok(socket) if sys::drain(&socket) => drop(socket),
            Ok(socket) => self.doomed.push(socket),
            Err(shared) => self.retiring.push(shared),
        }
    }

    /// Returns whether [`Self::tick`] must be called within a tick.
    pub(super) fn depends_on_time(&self) -> bool {
        self.busy.is_some()
            || !self.waiting.is_empty()
            || !self.retiring.is_empty()
            || !self.doomed.is_empty()
    }

    /// Does periodic work. Returns the failed task if the receiver has taken too long.
    pub(super) fn tick(&mut self, now: Instant) -> Option<(u64, nix::Result<OwnedFd>)> {
        for socket in mem::take(&mut self.retiring) {
            self.retire(socket);
        }
        self.close_doomed();
        self.offences.retain(|_, rate| !rate.is_over(now));
        let is_late = |(_, since): &(Waiting, Instant)| now.duration_since(*since) > PATIENCE;
        if self.busy.as_ref().is_some_and(is_late) {
            warn!("a receiver does not answer; starting another");
            return self.abandon();
        }
        self.pump(now);
        None
    }

    /// Passes connections that hold descriptors to a separate receiver, which closes them.
    pub(super) fn close_doomed(&mut self) {
        while !self.doomed.is_empty() {
            let rest = self.doomed.split_off(self.doomed.len().min(MAX_CLOSED));
            let raw: Vec<_> = self.doomed.iter().map(AsRawFd::as_raw_fd).collect();
            let sent = self.open().and_then(|receiver| {
                let rights = [ControlMessage::ScmRights(&raw)];
                Ok(transmit(&receiver, Task::Close, &rights)?)
            });
            if let Err(error) = sent {
                debug!("connections with descriptors stay open: {error}");
                self.doomed.extend(rest);
                return;
            }
            // Dropping them here is not the last close: the message holds references.
            self.doomed = rest;
        }
    }

    /// Sends the next task to the receiver.
    fn pump(&mut self, now: Instant) {
        if self.busy.is_some() {
            return;
        }
        while let Some(next) = self.waiting.pop_front() {
            self.ensure(now);
            let Some(running) = &self.running else {
                self.waiting.push_front(next);
                return;
            };
            let raw = [next.socket.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&raw)];
            if transmit(running, Task::Take(next.number), &rights).is_ok() {
                self.busy = Some((next, now));
                return;
            }
            // The receiver has ended meanwhile.
            self.waiting.push_front(next);
            self.replace();
            self.next_start = now + RETRY;
        }
    }

    /// Replaces the running receiver; its task fails with `EAGAIN`.
    fn abandon(&mut self) -> Option<(u64, nix::Result<OwnedFd>)> {
        self.replace();
        let (busy, _) = self.busy.take()?;
        Some((busy.number, Err(Errno::EAGAIN)))
    }

    fn replace(&mut self) {
        if let Some(old) = self.running.take() {
            let _ = self.epoll.delete(&old);
        }
        self.ensure(Instant::now());
    }

    /// Starts a receiver if there is none.
    fn ensure(&mut self, now: Instant) {
        if self.running.is_some() || now < self.next_start {
            return;
        }
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Token::Receiver.into());
        let started = self.open().and_then(|socket| {
            self.epoll.add(&socket, event)?;
            Ok(socket)
        });
        match started {
            Ok(socket) => self.running = Some(socket),
            Err(error) => {
                warn!("cannot start a receiver: {error}");
                self.next_start = now + RETRY;
            }
        }
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = sys::packet_pair()?;
        (self.start)(theirs)?;
        Ok(ours)
    }
}

fn transmit(to: &OwnedFd, task: Task, rights: &[ControlMessage]) -> nix::Result<()> {
    let bytes = task.to_bytes();
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(&bytes)], rights, flags, None).map(drop)
}
