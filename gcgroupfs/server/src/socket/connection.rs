//! One connection: of a hook, of the command line, or of a client that has not sent anything yet.

mod devices;
mod hold;
mod job;
mod registration;
mod request;
mod room;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gcgroup_abi::message::{self, Hello, MAX_REQUEST, Tag};
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::unistd::geteuid;
use tracing::warn;

pub(super) use self::request::{Refused, refused, refused_by_tree};
use super::answer::Reading;
use super::token::Token;
use super::{ROUND, Server, TEND, TICK};
use gcgroupfs_model::share::User;
use gcgroupfs_model::tree::ProcessId;
use gcgroupfs_sys::process;
use gcgroupfs_sys::{self as sys, Plain};

/// How long a connection may stay open without a first request, or after its last one.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the connection of a client that waits for the daemon stays open: as long as clients wait for a
/// daemon that is busy.
const LONGEST: Duration = Duration::from_secs(60);

/// Doorbells that a hook may ring in one [`super::TICK`]; beyond that its connection is not read until the
/// tick is over.
///
/// An honest hook rings when work begins after its process was idle, at most once a millisecond, and for each
/// allocation once its groups' grants are used up, which takes 100 us or more.
const MAX_RINGS: u32 = 1024;

#[derive(Debug)]
pub(super) struct Connection {
    socket: Arc<OwnedFd>,
    /// Pid of the process that connected; 0 if it is not visible in the daemon's pid namespace.
    pid: u32,
    uid: u32,
    gid: u32,
    /// Set at the first query: see [`process::is_contained`].
    is_contained: Option<bool>,
    kind: Kind,
    /// Time of the last relevant packet.
    last: Instant,
    nr_rings: u32,
    /// Whether it has something to read, and waits for its turn.
    is_queued: bool,
    /// The connection is not read before this time.
    muted_until: Option<Instant>,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// Has not sent anything.
    New,
    /// A process that registers, while its usage block is received.
    Sender(Hello),
    /// A process that registers, while the rules are evaluated for it.
    Registrant,
    /// A process that begins a job or asks for its devices, while the rules are evaluated for it.
    Beginner,
    /// The command line, with what it is reading.
    Client(Reading),
    /// A registered process.
    Hook {
        process: u64,
        id: ProcessId,
        /// Whether there was a [`drain_error`](gcgroupfs_model::tree::Tree::drain_error) at the last
        /// doorbell.
        has_drain_error: bool,
    },
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, pid: u32, uid: u32, gid: u32) -> Self {
        let socket = Arc::new(socket);
        Self {
            socket,
            pid,
            uid,
            gid,
            is_contained: None,
            kind: Kind::New,
            last: Instant::now(),
            nr_rings: 0,
            is_queued: false,
            muted_until: None,
        }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) fn into_socket(self) -> Arc<OwnedFd> {
        self.socket
    }

    /// Returns what is watched for: the end of the connection, and packets unless it is muted or a receiver
    /// reads from it. Reported once; then it must be watched for again.
    pub(super) fn event(&self, number: u64) -> EpollEvent {
        let flags = match self.is_silent() {
            true => EpollFlags::empty(),
            false => EpollFlags::EPOLLIN,
        };
        EpollEvent::new(flags | EpollFlags::EPOLLONESHOT, Token::Connection(number).into())
    }

    /// Returns whether packets are not read now.
    fn is_silent(&self) -> bool {
        self.muted_until.is_some() || matches!(self.kind, Kind::Sender(_))
    }

    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    fn is_new(&self) -> bool {
        matches!(self.kind, Kind::New)
    }

    pub(super) fn is_unregistered(&self) -> bool {
        !matches!(self.kind, Kind::Hook { .. })
    }

    /// Returns when the connection must be examined next; `None` for a hook that is not muted.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.muted_until
            .or_else(|| self.is_unregistered().then(|| self.last + self.patience()))
    }

    /// Returns how long it stays open after its last packet.
    fn patience(&self) -> Duration {
        match self.kind {
            Kind::New | Kind::Client(_) if !self.is_queued => PATIENCE,
            _ => LONGEST,
        }
    }

    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.is_unregistered()
            && self.muted_until.is_none()
            && now.duration_since(self.last) >= self.patience()
    }

    /// Returns the size of what the client is reading, in bytes.
    pub(super) fn held(&self) -> usize {
        match &self.kind {
            Kind::Client(reading) => reading.size(),
            _ => 0,
        }
    }

    /// Returns the user to whom the client's requests are charged.
    fn user(&mut self) -> User {
        let socket = &self.socket;
        let is_contained = *self
            .is_contained
            .get_or_insert_with(|| process::is_contained(&**socket));
        (self.uid, is_contained)
    }

    /// Ends the silence of a client that rang too often, used too much time or registered too soon, if it is
    /// over. Returns whether it was.
    pub(super) fn unmute(&mut self, now: Instant) -> bool {
        let is_over = self.muted_until.is_some_and(|until| until <= now);
        if is_over {
            self.muted_until = None;
        }
        is_over
    }

    /// Counts a doorbell and returns whether it exceeds the limit.
    fn is_ringing_too_often(&mut self) -> bool {
        let now = Instant::now();
        if now.duration_since(self.last) >= TICK {
            (self.last, self.nr_rings) = (now, 0);
        }
        self.nr_rings += 1;
        self.nr_rings > MAX_RINGS
    }
}

impl Server {
    /// Handles an event of a connection: closes it at its end, and otherwise lets it wait for its turn. What
    /// lies in an ended connection is not read.
    pub(super) fn note_event(&mut self, number: u64, flags: EpollFlags) {
        if flags.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            return self.hang_up(number);
        }
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.is_queued = true;
            self.turns.push(connection.uid, number);
        }
    }

    /// Handles packets of clients, in turn by user, for [`ROUND`].
    pub(super) fn serve_round(&mut self) {
        let begun = Instant::now();
        while let Some(number) = self.turns.pop() {
            self.serve(number);
            self.watch(number);
            if begun.elapsed() >= ROUND {
                break;
            }
        }
    }

    /// Watches for the next event of a connection.
    pub(super) fn watch(&self, number: u64) {
        if let Some(connection) = self.connections.get(&number)
            && let Err(error) = self
                .epoll
                .modify(connection.socket(), &mut connection.event(number))
        {
            warn!("cannot watch a connection: {error}");
        }
    }

    /// Handles one packet.
    fn serve(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        connection.is_queued = false;
        if connection.is_unregistered() {
            if connection.is_silent() {
                return;
            }
            let now = Instant::now();
            let is_awaited = self.turns.has_others(connection.uid);
            if is_awaited
                && self.shares.concern(connection.uid)
                && !self.shares.allows(connection.user(), now)
            {
                connection.last = now;
                return self.mute(number, now + TICK);
            }
        }
        let mut buffer = [0; MAX_REQUEST];
        let is_sensible = match sys::receive_plain(&connection.socket, &mut buffer) {
            Ok(Plain::Packet(length)) => self.take(number, buffer.get(..length).unwrap_or_default()),
            Ok(Plain::WithRights(length)) => {
                self.take_with_rights(number, buffer.get(..length).unwrap_or_default())
            }
            Err(Errno::EAGAIN | Errno::EINTR) => true,
            Ok(Plain::Senseless) | Err(_) => false,
        };
        if !is_sensible {
            self.hang_up(number);
        }
    }

    /// Stops reading a connection until `until`. Its end is still reported.
    fn mute(&mut self, number: u64, until: Instant) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.muted_until = Some(until);
            self.connections.look_at(number, until);
        }
    }

    /// Handles a packet without descriptors. Returns whether it is valid on this connection.
    fn take(&mut self, number: u64, packet: &[u8]) -> bool {
        let tag = message::tag(packet);
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        match (tag, &connection.kind) {
            (Ok(Tag::Doorbell), Kind::Hook { id, .. })
                if packet.len() == message::bare(Tag::Doorbell).len() =>
            {
                let id = *id;
                if connection.is_ringing_too_often() {
                    let until = connection.last + TICK;
                    self.mute(number, until);
                }
                self.tree.rung(id);
                self.report_drain_error(number, id);
                true
            }
            (Ok(Tag::Request), Kind::New | Kind::Client(_)) => self.take_request(number, packet),
            (Ok(Tag::RoomQuery), Kind::New) => self.take_room_query(number, packet),
            // A registration without a usage block.
            (Ok(Tag::Hello), Kind::New) => {
                if self.hello(number, packet).is_some() {
                    self.complain_of(number, "is not governed: its hook cannot share a usage block");
                    self.refuse_registration(number, Errno::EINVAL);
                }
                false
            }
            _ => false,
        }
    }

    /// Logs when a driver error first prevents a freeze from being known to have drained.
    fn report_drain_error(&mut self, number: u64, process: ProcessId) {
        let error = self.tree.drain_error(process);
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let uid = connection.uid;
        let Kind::Hook { has_drain_error, .. } = &mut connection.kind else {
            return;
        };
        let had_one = std::mem::replace(has_drain_error, error.is_some());
        if let Some((pid, error)) = error.filter(|_| !had_one)
            && self.registry.may_log_of(uid)
        {
            warn!(
                "{pid} cannot tell whether its frozen work has ended: the driver answers with error {error}"
            );
        }
    }

    /// Closes a connection and ends what depends on it.
    pub(super) fn hang_up(&mut self, number: u64) {
        match self.connections.get(&number) {
            Some(Connection {
                kind: Kind::Hook { process, .. },
                ..
            }) => {
                self.registry.lost(*process, number);
                self.next_tend = self.next_tend.or(Some(Instant::now() + TEND));
            }
            // This may be a hook that gave up waiting: its packets have not been read.
            Some(connection) if connection.is_new() => self.registry.asks(connection.pid),
            _ => {}
        }
        self.close(number);
    }

    fn close(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            // The epoll set refers to the open file, which may outlive this descriptor.
            let _ = self.epoll.delete(&*connection.socket);
            self.receivers.retire(connection.uid, connection.into_socket());
        }
    }
}

/// Returns whether this daemon governs the processes of a user: a user's daemon only that user's.
fn governs_user(uid: u32) -> bool {
    let own = geteuid();
    own.is_root() || uid == own.as_raw()
}
