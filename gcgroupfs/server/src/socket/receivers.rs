//! The daemon's side of receiver processes ([`crate::receive`]): gives tasks to one at a time, and replaces
//! it when it has ended, does not answer or keeps descriptors.
//!
//! A receiver that keeps descriptors whose close never returns can never end, so the number of those that
//! have been told to end is bounded. At the bound the running receiver goes on with what it keeps.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{MsgFlags, Shutdown, shutdown};
use tracing::{debug, warn};

use super::Token;
use crate::receive::{Answer, LONGEST, Task, send};
use gcgroupfs_sys as sys;

/// How long a receiver may take to start, and for one message. It does not wait for other processes before it
/// has answered.
const PATIENCE: Duration = Duration::from_secs(2);

/// Minimum time between two failed starts.
const RETRY: Duration = Duration::from_millis(100);

/// Minimum life of a receiver that is replaced because of what it keeps.
const MIN_LIFE: Duration = Duration::from_secs(1);

/// Messages with descriptors other than a usage block, of one user, that receivers may keep before the user
/// is refused; also receivers that one user can make end for ever.
const MAX_KEPT_PER_UID: usize = 4;

/// Receivers that may be ending, of all users.
const MAX_ENDING: usize = 16;

/// Connections in one message; the kernel allows 253 descriptors.
const MAX_PASSED: usize = 250;

/// Starts a receiver that serves the other end of the socket.
pub type Start = Box<dyn Fn(OwnedFd) -> io::Result<()> + Send>;

pub(super) struct Receivers {
    start: Start,
    epoll: Arc<Epoll>,
    running: Option<Receiver>,
    next_start: Instant,
    /// The running receiver's task and its start. The connection is kept open until the receiver has
    /// answered.
    busy: Option<(Waiting, Instant)>,
    waiting: VecDeque<Waiting>,
    /// Connections that were shut down but are still referenced elsewhere, with their users.
    retiring: Vec<(u32, Arc<OwnedFd>)>,
    /// Connections that hold packets, which may carry descriptors, with their users.
    unread: Vec<(u32, OwnedFd)>,
    /// Receivers that have been told to end.
    ending: Vec<Receiver>,
}

#[derive(Debug)]
struct Receiver {
    socket: OwnedFd,
    since: Instant,
    is_ready: bool,
    /// Number of messages with descriptors that it keeps, by user. All of a user's unread connections count
    /// as one.
    kept: HashMap<u32, usize>,
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
            .field("ending", &self.ending)
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
            unread: Vec::new(),
            ending: Vec::new(),
        };
        // Started now, so that the first client need not wait.
        receivers.ensure(Instant::now());
        receivers
    }

    /// Queues the receiving of a connection's next message, which carries descriptors. [`Self::answer`]
    /// returns the result.
    ///
    /// # Errors
    /// `ETOOMANYREFS` if receivers keep too many descriptors of the user.
    pub(super) fn ask(&mut self, number: u64, uid: u32, socket: Arc<OwnedFd>) -> nix::Result<()> {
        let receivers = self.ending.iter().chain(&self.running);
        let nr_kept: usize = receivers.filter_map(|receiver| receiver.kept.get(&uid)).sum();
        if nr_kept >= MAX_KEPT_PER_UID {
            return Err(Errno::ETOOMANYREFS);
        }
        self.waiting.push_back(Waiting { number, uid, socket });
        self.pump(Instant::now());
        Ok(())
    }

    /// Returns the next answer, if there is one: the connection's number and its usage block, or why there is
    /// none.
    pub(super) fn answer(&mut self) -> Option<(u64, nix::Result<OwnedFd>)> {
        loop {
            let now = Instant::now();
            let running = self.running.as_mut()?;
            let mut buffer = [0; LONGEST];
            let received = match sys::receive(&running.socket, &mut buffer) {
                Ok(received) => received,
                Err(Errno::EAGAIN | Errno::EINTR) => return None,
                Err(_) => return self.abandon(now),
            };
            let packet = buffer.get(..received.length).unwrap_or_default();
            let (error, has_kept) = match serde_json::from_slice(packet) {
                Ok(Answer::Ready) => {
                    running.is_ready = true;
                    self.pump(now);
                    continue;
                }
                Ok(Answer::Taken { error, has_kept }) => (error, has_kept),
                // It has ended.
                Err(_) => return self.abandon(now),
            };
            let (busy, _) = self.busy.take()?;
            if has_kept {
                *running.kept.entry(busy.uid).or_default() += 1;
            }
            let number = busy.number;
            drop(busy);
            self.pump(now);
            let usage = match (error, received.descriptors.into_iter().next()) {
                (0, Some(usage)) => Ok(usage),
                (0, None) => Err(Errno::EINVAL),
                (error, _) => Err(Errno::from_raw(error)),
            };
            return Some((number, usage));
        }
    }

    /// Closes a connection of a user without waiting for the close of descriptors that the client has sent.
    pub(super) fn retire(&mut self, uid: u32, socket: Arc<OwnedFd>) {
        // Notifies the client at once and keeps further messages out of the queue.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        match Arc::try_unwrap(socket) {
            Ok(socket) if !sys::holds_packets(&socket) => drop(socket),
            Ok(socket) => self.unread.push((uid, socket)),
            Err(shared) => self.retiring.push((uid, shared)),
        }
        if self.unread.len() >= MAX_PASSED {
            self.pass_unread();
        }
    }

    /// Returns whether [`Self::tick`] must be called within a tick.
    pub(super) fn depends_on_time(&self) -> bool {
        let is_settled = |running: &Receiver| running.is_ready && running.kept.is_empty();
        !self.running.as_ref().is_some_and(is_settled)
            || self.busy.is_some()
            || !self.retiring.is_empty()
            || !self.unread.is_empty()
            || !self.ending.is_empty()
    }

    /// Does periodic work. Returns the failed task if the receiver has taken too long.
    pub(super) fn tick(&mut self, now: Instant) -> Option<(u64, nix::Result<OwnedFd>)> {
        self.ending.retain(|receiver| !sys::is_hung_up(&receiver.socket));
        for (uid, socket) in mem::take(&mut self.retiring) {
            self.retire(uid, socket);
        }
        self.pass_unread();
        let since = match (&self.busy, &self.running) {
            (Some((_, since)), _) => Some(*since),
            (None, Some(running)) => (!running.is_ready).then_some(running.since),
            (None, None) => None,
        };
        if since.is_some_and(|since| now.duration_since(since) > PATIENCE) {
            warn!("a receiver does not answer; starting another");
            return self.abandon(now);
        }
        if self.busy.is_none() && self.may_replace(now) {
            self.replace(now);
        }
        self.pump(now);
        None
    }

    /// Returns whether the running receiver keeps descriptors and may end.
    fn may_replace(&self, now: Instant) -> bool {
        let is_below = |uid: &u32| {
            let of_user = self.ending.iter().filter(|other| other.kept.contains_key(uid));
            of_user.count() < MAX_KEPT_PER_UID
        };
        self.ending.len() < MAX_ENDING
            && self.running.as_ref().is_some_and(|running| {
                now.duration_since(running.since) >= MIN_LIFE && running.kept.keys().any(is_below)
            })
    }

    /// Passes connections that hold packets to the running receiver.
    pub(super) fn pass_unread(&mut self) {
        while !self.unread.is_empty()
            && let Some(running) = self.running.as_mut().filter(|running| running.is_ready)
        {
            let first = self.unread.len().saturating_sub(MAX_PASSED);
            let passed = self.unread.get(first..).unwrap_or_default();
            let raw: Vec<_> = passed.iter().map(|(_, socket)| socket.as_raw_fd()).collect();
            if let Err(error) = send(&running.socket, &Task::Keep, &raw, MsgFlags::MSG_DONTWAIT) {
                debug!("connections with packets stay open: {error}");
                return;
            }
            for (uid, _) in passed {
                running.kept.entry(*uid).or_insert(1);
            }
            // Dropping them here is not the last close: the message holds references.
            self.unread.truncate(first);
        }
    }

    /// Sends the next task to the receiver.
    fn pump(&mut self, now: Instant) {
        self.ensure(now);
        if self.busy.is_some() {
            return;
        }
        let Some(running) = self.running.as_ref().filter(|running| running.is_ready) else {
            return;
        };
        let Some(next) = self.waiting.pop_front() else {
            return;
        };
        let raw = [next.socket.as_raw_fd()];
        // A receiver that has ended hangs up, which `answer` notices.
        match send(&running.socket, &Task::Take, &raw, MsgFlags::MSG_DONTWAIT) {
            Ok(()) => self.busy = Some((next, now)),
            Err(_) => self.waiting.push_front(next),
        }
    }

    /// Replaces the running receiver; its task fails with `EAGAIN`.
    fn abandon(&mut self, now: Instant) -> Option<(u64, nix::Result<OwnedFd>)> {
        if self.running.as_ref().is_some_and(|running| !running.is_ready) {
            warn!("cannot start a receiver");
            self.next_start = now + RETRY;
        }
        self.replace(now);
        let (busy, _) = self.busy.take()?;
        self.pump(now);
        Some((busy.number, Err(Errno::EAGAIN)))
    }

    /// Tells the running receiver to end, and starts another.
    fn replace(&mut self, now: Instant) {
        if let Some(old) = self.running.take() {
            let _ = self.epoll.delete(&old.socket);
            let _ = shutdown(old.socket.as_raw_fd(), Shutdown::Write);
            self.ending.push(old);
        }
        self.ensure(now);
    }

    /// Starts a receiver if there is none.
    fn ensure(&mut self, now: Instant) {
        if self.running.is_some() || now < self.next_start {
            return;
        }
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Token::Receiver.into());
        let started = sys::packet_pair()
            .map_err(io::Error::from)
            .and_then(|(ours, theirs)| {
                (self.start)(theirs)?;
                self.epoll.add(&ours, event)?;
                Ok(ours)
            });
        match started {
            Ok(socket) => {
                self.running = Some(Receiver {
                    socket,
                    since: now,
                    is_ready: false,
                    kept: HashMap::new(),
                });
            }
            Err(error) => {
                warn!("cannot start a receiver: {error}");
                self.next_start = now + RETRY;
            }
        }
    }
}
