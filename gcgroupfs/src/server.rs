//! The socket: hooks register on it, the command line asks on it. One thread, one epoll loop, which never
//! waits for anybody: not for a client that does not read, not for the closing of what a client sent, which
//! never gets here.
//!
//! Everything that arrives is hostile until it has been checked. What a control file means, it does not know.
//!
#![doc = include_str!("server/takeover.md")]

pub mod answer;
mod awaited;
mod begin;
mod bells;
mod connection;
mod connections;
mod enquiry;
mod listener;
mod living;
mod rate;
mod receivers;
mod registry;
mod remembered;
mod room;
mod scribe;
mod strangers;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};
use tracing::{debug, warn};

use self::bells::Bells;
use self::connection::Connection;
use self::connections::{Admission, Connections};
use self::enquiry::Enquiries;
use self::rate::Rate;
use self::receivers::Receivers;
use self::registry::Registry;
use self::scribe::Scribe;
use self::strangers::Strangers;
use crate::journal::{Condition, Journal, Key};
use crate::process;
use crate::share::Shares;
use crate::sys::{self, Received};
use crate::tree::{GroupId, Saved, Settings, Tree, leave_behind};

pub use self::enquiry::Current as CurrentRules;
pub use self::listener::{Listener, new_socket};
pub use self::receivers::Start as StartReceiver;

/// Lines a second that clients can have us log by what they do wrong.
const MAX_COMPLAINTS: u32 = 5;

/// What a user may take of the loop's time at once.
const ADVANCE: Duration = Duration::from_millis(25);

/// The unit of what depends on time.
const TICK: Duration = Duration::from_millis(100);

/// Connections that are looked at in one turn of the loop because their time has come: thousands may end at
/// once.
const MAX_DUE: usize = 64;

/// How often connections lost without a death are looked at.
const TEND: Duration = Duration::from_secs(1);

/// After so long, whoever was governed before a restart is back; groups that were there for others alone go.
/// Those who are not back and live are looked for again then.
const RETURN: Duration = Duration::from_secs(10);

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Listener,
    Wake,
    /// A receiver has an answer.
    Receiver,
    /// The supervisor asks whether we answer.
    Supervisor,
    Connection(u64),
    /// A pidfd: readable when the process has ended.
    Process(u64),
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        match token {
            Token::Listener => 0,
            Token::Wake => 1,
            Token::Receiver => u64::MAX,
            Token::Supervisor => u64::MAX - 1,
            Token::Connection(number) => number << 1,
            Token::Process(number) => (number << 1) | 1,
        }
    }
}

impl From<u64> for Token {
    /// Numbers begin at 1, so 0 and 1 are free for the others.
    fn from(word: u64) -> Self {
        match (word, word & 1) {
            (0, _) => Self::Listener,
            (1, _) => Self::Wake,
            (u64::MAX, _) => Self::Receiver,
            (word, _) if word == u64::MAX - 1 => Self::Supervisor,
            (_, 0) => Self::Connection(word >> 1),
            _ => Self::Process(word >> 1),
        }
    }
}

/// The daemon's end of the socket.
#[derive(Debug)]
pub struct Server {
    epoll: Arc<Epoll>,
    listener: Listener,
    /// Something to read here means: look whether to go on.
    woken: UnixStream,
    waker: UnixStream,
    tree: Arc<Tree>,
    journal: Arc<Journal>,
    receivers: Receivers,
    /// To the supervisor, if there is one.
    line: Option<OwnedFd>,
    registry: Registry,
    enquiries: Enquiries,
    connections: Connections,
    last_number: u64,
    /// Nobody is accepted before: there is no room.
    full_until: Option<Instant>,
    complaints: Rate,
    shares: Shares,
    next_tidy: Instant,
    strangers: Strangers,
    next_tend: Option<Instant>,
    next_journal: Instant,
    /// When to look for those that have not come back after a restart.
    all_back: Option<Instant>,
    /// When to look whether the socket's file is there.
    next_look: Option<Instant>,
}

impl Server {
    /// Begins to watch, with what the journal remembers; serves nobody yet.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(
        listener: Listener,
        tree: Arc<Tree>,
        journal: Arc<Journal>,
        remembered: BTreeMap<Key, Saved>,
        grace_msec: u32,
        receiver: StartReceiver,
    ) -> anyhow::Result<Self> {
        let epoll =
            Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("cannot watch descriptors")?);
        let (woken, waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        epoll.add(
            &listener,
            EpollEvent::new(EpollFlags::EPOLLIN, Token::Listener.into()),
        )?;
        epoll.add(&woken, EpollEvent::new(EpollFlags::EPOLLIN, Token::Wake.into()))?;
        let next_look = listener.next_look(Instant::now());
        let bells = Arc::new(Bells::default());
        // The bells first: a thaw should not wait for the disk.
        tree.listen(bells.clone());
        show_condition(&tree, &journal);
        tree.listen(Arc::new(Scribe::new(&tree, journal.clone(), waker.try_clone()?)));
        let receivers = Receivers::new(receiver, epoll.clone());
        let enquiries = Enquiries::start(waker.try_clone()?)?;
        let mut registry = Registry::new(
            tree.clone(),
            bells,
            epoll.clone(),
            journal.clone(),
            grace_msec,
            remembered,
        );
        let mut last_number = 0;
        registry.watch_remembered(|| {
            last_number += 1;
            last_number
        });
        Ok(Self {
            epoll,
            listener,
            woken,
            waker,
            tree,
            journal,
            receivers,
            line: None,
            registry,
            enquiries,
            connections: Connections::new(room::for_visitors()),
            last_number,
            full_until: None,
            complaints: Rate::new(MAX_COMPLAINTS),
            shares: Shares::new(ADVANCE),
            next_tidy: Instant::now(),
            strangers: Strangers::default(),
            // Whoever was here before may come back.
            next_tend: Some(Instant::now() + TICK),
            next_journal: Instant::now(),
            all_back: Some(Instant::now() + RETURN),
            next_look,
        })
    }

    /// A byte written to it makes [`Self::run`] look whether to go on.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn waker(&self) -> std::io::Result<UnixStream> {
        self.waker.try_clone()
    }

    /// The rules that whoever registers is asked by. There are none at first.
    pub fn rules(&self) -> CurrentRules {
        self.enquiries.rules()
    }

    /// Tells a supervisor at the other end of this socket that the daemon serves, and then, whenever it asks,
    /// that it still does.
    ///
    /// # Errors
    /// The kernel refuses to tell of events.
    pub fn report_to(&mut self, line: OwnedFd) -> anyhow::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Token::Supervisor.into());
        self.epoll
            .add(&line, event)
            .context("cannot watch the supervisor")?;
        self.line = Some(line);
        self.reassure();
        Ok(())
    }

    fn reassure(&self) {
        // Takes the lock that everything takes: so it has not been lost.
        let _ = self.tree.processes();
        if let Some(line) = &self.line {
            let _ = send(
                line.as_raw_fd(),
                &[0],
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
            );
        }
    }

    fn answer_supervisor(&mut self) {
        let Some(line) = &self.line else { return };
        match sys::receive(line, &mut [0]) {
            Ok(Received {
                length: 1..,
                descriptors,
                ..
            }) => match descriptors.into_iter().next() {
                Some(socket) => {
                    let old = self.listener.replace(socket);
                    self.listen_anew(old);
                }
                None => self.reassure(),
            },
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // It has ended, and we are told by a signal.
            Ok(_) | Err(_) => {
                let _ = self.epoll.delete(line);
                self.line = None;
            }
        }
    }

    /// Serves until `go_on`, asked after each wake-up, says no.
    ///
    /// # Errors
    /// The kernel refuses to tell of events.
    pub fn run(&mut self, mut go_on: impl FnMut() -> bool) -> anyhow::Result<()> {
        let mut events = [EpollEvent::empty(); 64];
        while go_on() {
            let ready = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error).context("cannot wait for events"),
            };
            for event in events.iter().take(ready) {
                match Token::from(event.data()) {
                    Token::Listener => self.accept(),
                    Token::Wake => self.drain_wake(),
                    Token::Receiver => self.take_usage_blocks(),
                    Token::Supervisor => self.answer_supervisor(),
                    Token::Connection(number) => self.serve(number),
                    Token::Process(number) => self.registry.died(number),
                }
            }
            self.tick();
        }
        self.tree.write_all_counts();
        self.retire_all();
        Ok(())
    }

    /// Without anything that depends on time the loop sleeps until something happens.
    fn timeout(&self) -> EpollTimeout {
        let now = Instant::now();
        let tick = self.receivers.depends_on_time().then(|| now + TICK);
        match [
            tick,
            self.connections.next_due(),
            self.full_until,
            self.next_tend,
            self.all_back,
            Some(self.next_journal),
            self.next_look,
        ]
        .into_iter()
        .flatten()
        .min()
        {
            // Rounded up, or the loop would spin through the last millisecond.
            Some(next) => u16::try_from(next.saturating_duration_since(now).as_millis() + 1)
                .map_or(EpollTimeout::ZERO, EpollTimeout::from),
            None => EpollTimeout::NONE,
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if now >= self.next_tidy {
            self.shares.tidy(now);
            self.next_tidy = now + TICK;
            if let Some((number, usage)) = self.receivers.tick(now) {
                self.take_usage(number, usage);
            }
        }
        if now >= self.next_journal || self.journal.is_due() {
            self.tend_journal(now);
        }
        for _ in 0..MAX_DUE {
            let Some(number) = self.connections.pop_due(now) else {
                break;
            };
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            if connection.is_expired(now) {
                self.hang_up(number);
                continue;
            }
            connection.unmute(now, |socket| {
                watch(&self.epoll, socket, number, EpollFlags::EPOLLIN)
            });
            if let Some(when) = connection.next_look() {
                self.connections.look_at(number, when);
            }
        }
        if self.next_tend.is_some_and(|when| when <= now) {
            self.next_tend = self.registry.tend(now).map(|pause| now + pause);
        }
        if self.all_back.is_some_and(|when| when <= now) {
            self.all_back = self.registry.tend_remembered().then_some(now + RETURN);
        }
        if self.next_look.is_some_and(|when| when <= now) {
            self.next_look = self.listener.next_look(now);
            if let Some(old) = self.listener.look() {
                self.listen_anew(old);
            }
        }
        if self.full_until.is_some_and(|when| when <= now) {
            self.full_until = None;
            self.listen(EpollFlags::EPOLLIN);
        }
    }

    fn drain_wake(&mut self) {
        // Empty or closed: either way there is nothing more to know.
        while matches!(self.woken.read(&mut [0; 64]), Ok(64)) {}
        while let Some((applicant, verdict)) = self.enquiries.answer() {
            self.admit_or_refuse(applicant, verdict);
        }
    }

    fn accept(&mut self) {
        match sys::accept(&self.listener) {
            Ok(socket) => self.welcome(socket),
            Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                if self.complaints.allows(Instant::now()) {
                    warn!("no room for another connection: clients wait");
                }
                self.pause();
            }
            // Nobody there any more, or gone before being accepted.
            Err(error) => debug!("accept: {error}"),
        }
    }

    fn welcome(&mut self, socket: OwnedFd) {
        let Ok((pid, uid, gid)) = process::owner(&socket) else {
            return self.receivers.retire(Arc::new(socket));
        };
        match self.connections.admission(uid) {
            Admission::Free => {}
            Admission::InPlaceOf(other) => self.hang_up(other),
            Admission::Refused => {
                debug!("user {uid} has too many connections");
                return self.receivers.retire(Arc::new(socket));
            }
        }
        let number = self.new_number();
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Token::Connection(number).into());
        if let Err(error) = self.epoll.add(&socket, event) {
            warn!("cannot watch a connection: {error}");
            return self.receivers.retire(Arc::new(socket));
        }
        let connection = Box::new(Connection::new(socket, pid, uid, gid));
        self.connections.insert(number, connection);
    }

    /// Accepts nobody for a while.
    fn pause(&mut self) {
        self.full_until = Some(Instant::now() + TICK);
        self.listen(EpollFlags::empty());
    }

    fn listen(&self, flags: EpollFlags) {
        let mut event = EpollEvent::new(flags, Token::Listener.into());
        if let Err(error) = self.epoll.modify(&self.listener, &mut event) {
            warn!("cannot watch the socket: {error}");
        }
    }

    /// Listens on the socket that has taken the place of `old`, after those who are waiting there have been
    /// let in.
    fn listen_anew(&mut self, old: OwnedFd) {
        let _ = self.epoll.delete(&old);
        // Whoever still has a way to it gets no further, or there could be no end.
        let _ = shutdown(old.as_raw_fd(), Shutdown::Both);
        while let Ok(socket) = sys::accept(&old) {
            self.welcome(socket);
        }
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Token::Listener.into());
        if let Err(error) = self.epoll.add(&self.listener, event) {
            warn!("cannot watch the socket: {error}");
        }
    }

    /// Before the end: closes all connections, so that nothing that clients have sent is left for exit(2) to
    /// close.
    fn retire_all(&mut self) {
        self.listener.refuse();
        while let Ok(socket) = sys::accept(&self.listener) {
            self.receivers.retire(Arc::new(socket));
        }
        for connection in self.connections.take_all() {
            self.receivers.retire(connection.into_socket());
        }
        self.receivers.close_doomed();
    }

    /// Keeps the journal, and shows at the root whether it can be.
    fn tend_journal(&mut self, now: Instant) {
        let is_kept = |key: Key| match key.group_number() {
            Some(number) => self.tree.has_group(GroupId(number)),
            // Of one whose end has not been noticed, it is still to be told what it had counted.
            None => self.registry.has_in_mind(key) || is_kept(key),
        };
        self.next_journal = self.journal.tend(now, is_kept);
        show_condition(&self.tree, &self.journal);
    }

    fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

/// Leaves out those that have ended: what they had counted stays in the groups that they were in, and in the
/// root.
pub fn sift(records: &mut BTreeMap<Key, Saved>) {
    let dead = records.extract_if(.., |key, _| !is_kept(*key));
    for dead in dead.map(|(_, dead)| dead).collect::<Vec<_>>() {
        leave_behind(&dead, |group, add| match group {
            Some(GroupId(number)) => records.get_mut(&Key::group(number)).into_iter().for_each(add),
            None if dead.has_counts() => add(records.entry(Key::ROOT).or_default()),
            None => {}
        });
    }
}

/// Whether what is on file under a key may still mean somebody.
fn is_kept(key: Key) -> bool {
    key.pid == 0 || process::is_alive(key.pid, key.start_time)
}

/// Gives the root and the groups what they had before. A policy of the command line takes the place of what
/// was written.
pub fn restore(tree: &Tree, journal: &Journal, remembered: &mut BTreeMap<Key, Saved>, has_policy: bool) {
    let mut root = remembered.remove(&Key::ROOT).unwrap_or_default();
    if has_policy {
        root.settings = Settings::default();
    }
    let groups = remembered.extract_if(.., |key, _| key.group_number().is_some());
    let groups = groups.filter_map(|(key, saved)| Some((GroupId(key.group_number()?), saved)));
    tree.restore(root, groups.collect());
    // With the number that the next group has: what told of the last one that was removed is soon forgotten.
    journal.append(journal.number(), Key::ROOT, &tree.saved_root());
}

fn show_condition(tree: &Tree, journal: &Journal) {
    let Condition {
        is_degraded,
        nr_damaged,
    } = journal.condition();
    tree.set_storage(is_degraded, nr_damaged);
}

/// Changes what of a connection the loop is told.
fn watch(epoll: &Epoll, socket: &OwnedFd, number: u64, flags: EpollFlags) {
    let mut event = EpollEvent::new(flags, Token::Connection(number).into());
    if let Err(error) = epoll.modify(socket, &mut event) {
        warn!("cannot watch a connection: {error}");
    }
}
