//! Receiver processes ([`crate::receive`]), as the daemon sees them: one at a time, replaced when it has
//! ended or does not answer; and the closing of connections that hold descriptors which may never close.

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
use crate::sys;

/// How long a receiver may take for one message. It waits for nobody before it has answered.
const PATIENCE: Duration = Duration::from_secs(2);

/// The least time between two starts that fail.
const RETRY: Duration = Duration::from_millis(100);

/// Descriptors other than memfds that one user can send in a second and be told of; each costs a receiver.
const MAX_OFFENCES: u32 = 4;

/// Descriptors in one message; the kernel takes 253.
const MAX_CLOSED: usize = 250;

/// Starts a receiver that serves the other end of this socket.
pub type Start = Box<dyn Fn(OwnedFd) -> io::Result<()> + Send>;

pub struct Receivers {
    start: Start,
    epoll: Arc<Epoll>,
    running: Option<OwnedFd>,
    next_start: Instant,
    /// What the running one works on, and since when. The connection is kept open until then.
    busy: Option<(Waiting, Instant)>,
    waiting: VecDeque<Waiting>,
    /// Connections that are closed and still used elsewhere.
    retiring: Vec<Arc<OwnedFd>>,
    /// Connections in which descriptors lie.
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
    pub fn new(start: Start, epoll: Arc<Epoll>) -> Self {
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
        // Ready before the first client.
        receivers.ensure(Instant::now());
        receivers
    }

    /// Has the next message of a connection received, which carries descriptors. [`Self::answer`] has what
    /// came of it.
    ///
    /// # Errors
    /// `EAGAIN` if the user has sent too much that is no memfd.
    pub fn ask(&mut self, number: u64, uid: u32, socket: Arc<OwnedFd>) -> nix::Result<()> {
        let now = Instant::now();
        if self.offences.get(&uid).is_some_and(|rate| rate.is_spent(now)) {
            return Err(Errno::EAGAIN);
        }
        self.waiting.push_back(Waiting { number, uid, socket });
        self.pump(now);
        Ok(())
    }

    /// The next answer, if there is one: the connection's number, and its usage block or the reason why there
    /// is none.
    pub fn answer(&mut self) -> Option<(u64, nix::Result<OwnedFd>)> {
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

    /// Closes a connection, without waiting for what its client has sent.
    pub fn retire(&mut self, socket: Arc<OwnedFd>) {
        // The other end learns at once, and nothing more gets into the queue.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        match Arc::try_unwrap(socket) {
            Ok(socket) if sys::drain(&socket) => drop(socket),
            Ok(socket) => self.doomed.push(socket),
            Err(shared) => self.retiring.push(shared),
        }
    }

    /// Whether [`Self::tick`] is to be called soon.
    pub fn depends_on_time(&self) -> bool {
        self.busy.is_some()
            || !self.waiting.is_empty()
            || !self.retiring.is_empty()
            || !self.doomed.is_empty()
    }

    /// Does what is due. Gives the answer to who has waited too long.
    pub fn tick(&mut self, now: Instant) -> Option<(u64, nix::Result<OwnedFd>)> {
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

    /// Has connections closed in which descriptors lie, by a receiver of their own.
    pub fn close_doomed(&mut self) {
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
            // Not the last close: they are on their way.
            self.doomed = rest;
        }
    }

    /// Gives the receiver what is next.
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
            // It has ended meanwhile.
            self.waiting.push_front(next);
            self.replace();
            self.next_start = now + RETRY;
        }
    }

    /// Gives up the running receiver, and what it works on.
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
