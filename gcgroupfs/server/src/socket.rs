//! The daemon's Unix socket: hooks register on it, the command line sends requests on it. One thread runs one
//! epoll loop, which never waits for a client, whether it does not read its answers or sent a descriptor that
//! takes long to close (the daemon never holds such a descriptor).
//!
//! All input is treated as hostile until it has been checked. This module does not know what control files
//! mean.
#![doc = include_str!("socket/takeover.md")]

mod accept;
mod activity_log;
pub mod answer;
mod awaited_members;
mod bells;
mod connection;
mod connections;
mod initial_group;
mod journal_listener;
mod kill;
mod leases;
mod listener;
mod live_processes;
mod logged_once;
mod rate;
mod receivers;
mod registry;
mod room;
mod rule_queries;
mod stored;
#[cfg(test)]
mod tests;
mod timers;
mod token;
mod unregistered;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use self::activity_log::ActivityLog;
use self::bells::Bells;
use self::connections::Connections;
use self::journal_listener::JournalListener;
use self::kill::{Kills, LoopWaker};
use self::logged_once::LoggedOnce;
use self::rate::Rate;
use self::receivers::Receivers;
use self::registry::Registry;
use self::rule_queries::{RuleAnswer, RuleQueries};
use self::stored::show_condition;
use self::token::Token;
use crate::history::History;
use crate::journal::{Journal, Key};
use gcgroupfs_model::share::Shares;
use gcgroupfs_model::tree::{Killer, Saved, Tree};
use gcgroupfs_model::user_queue::UserQueue;
use gcgroupfs_sys::{self as sys, process};

pub use self::listener::Listener;
pub use self::receivers::Start as StartReceiver;
pub use self::rule_queries::CurrentRules;
pub use self::stored::{restore, sift};

/// Log lines per second that misbehaving clients can cause.
const MAX_COMPLAINTS: u32 = 5;

/// Loop time that one user may use in one burst.
const ADVANCE: Duration = Duration::from_millis(25);

/// Time for packets of clients in one turn of the loop.
const ROUND: Duration = Duration::from_micros(500);

/// Granularity of timers in this module.
const TICK: Duration = Duration::from_millis(100);

/// Maximum number of the rules' answers that are handled in one turn of the loop.
const MAX_RULE_ANSWERS: usize = 16;

/// Interval between checks of processes whose connection was lost but that have not died.
const TEND: Duration = Duration::from_secs(1);

/// Time after start at which processes governed before the restart are taken to have registered again.
/// Transient groups that are empty by then are removed. Processes that are alive but have not registered are
/// checked again after each such interval.
const RETURN: Duration = Duration::from_secs(10);

/// Event loop of the daemon's socket.
#[derive(Debug)]
pub struct Server {
    epoll: Arc<Epoll>,
    listener: Listener,
    /// Readable when [`Self::run`] must call `go_on` again or a verdict of the rules has arrived.
    woken: UnixStream,
    waker: UnixStream,
    tree: Arc<Tree>,
    journal: Arc<Journal>,
    history: Arc<History>,
    receivers: Receivers,
    registry: Registry,
    kills: Arc<Kills>,
    rule_queries: RuleQueries,
    connections: Connections,
    /// Numbers of the connections that have something to read.
    turns: UserQueue<u64>,
    last_number: u64,
    /// No connection is accepted before this time, because descriptors or memory had run out.
    full_until: Option<Instant>,
    complaints: Rate,
    shares: Shares,
    next_tidy: Instant,
    logged_once: LoggedOnce,
    next_tend: Option<Instant>,
    next_journal: Instant,
    /// Next time that a lease may expire.
    next_lease: Instant,
    /// Next check of unused grants, while there are any.
    next_unused: Option<Instant>,
    /// Next check for processes that have not registered again after a restart.
    all_back: Option<Instant>,
    /// Next check that the socket's file exists.
    next_look: Instant,
}

/// Parts that a server works with.
#[allow(missing_debug_implementations, reason = "the receiver's starter is a closure")]
pub struct Options {
    pub listener: Listener,
    pub tree: Arc<Tree>,
    pub journal: Arc<Journal>,
    pub history: Arc<History>,
    /// Records of the journal.
    pub records: BTreeMap<Key, Saved>,
    /// Milliseconds after the loss of the daemon at which held gates open; all ones: never.
    pub grace_msec: u32,
    /// Size of a page of device memory, bytes, and [`gcgroup_abi::KEEPS_PAGES`].
    pub device_page: u64,
    /// Starts the receiver of usage blocks.
    pub receiver: StartReceiver,
}

impl Server {
    /// Sets up the event loop with the records remembered from the journal. Serves nothing until
    /// [`Self::run`].
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let Options {
            listener,
            tree,
            journal,
            history,
            records,
            grace_msec,
            device_page,
            receiver,
        } = options;
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
        let bells = Arc::new(Bells::default());
        // Doorbells before the journal: a thaw should not wait for the disk.
        tree.listen(bells.clone());
        let kills = Arc::new(Kills::default());
        tree.listen(Arc::new(LoopWaker::new(kills.clone(), waker.try_clone()?)));
        let activity_log = Arc::new(ActivityLog::new(&tree));
        tree.listen(activity_log.clone());
        show_condition(&tree, &journal);
        tree.listen(Arc::new(JournalListener::new(
            &tree,
            (journal.clone(), history.clone()),
            waker.try_clone()?,
        )));
        let receivers = Receivers::new(receiver, epoll.clone());
        let rule_queries = RuleQueries::start(waker.try_clone()?)?;
        let mut registry = Registry::new(registry::Options {
            tree: tree.clone(),
            bells,
            epoll: epoll.clone(),
            grace_msec,
            device_page,
            records,
            activity_log,
        });
        let mut last_number = 0;
        registry.watch_unregistered(|| {
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
            history,
            receivers,
            registry,
            kills,
            rule_queries,
            connections: Connections::new(room::for_unregistered()),
            turns: UserQueue::default(),
            last_number,
            full_until: None,
            complaints: Rate::new(MAX_COMPLAINTS),
            shares: Shares::new(ADVANCE),
            next_tidy: Instant::now(),
            logged_once: LoggedOnce::default(),
            // Processes governed before a restart may register again.
            next_tend: Some(Instant::now() + TICK),
            next_journal: Instant::now(),
            next_lease: Instant::now(),
            next_unused: None,
            all_back: Some(Instant::now() + RETURN),
            next_look: Instant::now(),
        })
    }

    /// Returns a socket to which a byte is written to make [`Self::run`] call `go_on` again.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn waker(&self) -> std::io::Result<UnixStream> {
        self.waker.try_clone()
    }

    /// Returns the rules that are applied to new processes. They are empty at first.
    pub fn rules(&self) -> CurrentRules {
        self.rule_queries.rules()
    }

    /// Serves until `go_on`, which is called after each wake-up, returns false.
    ///
    /// # Errors
    /// The kernel refuses to report events.
    pub fn run(&mut self, mut go_on: impl FnMut() -> bool) -> anyhow::Result<()> {
        self.listener.serve()?;
        let mut events = [EpollEvent::empty(); 64];
        while go_on() {
            let ends_asked = self.tree.nr_ends_asked();
            let timeout = match self.turns.is_empty() {
                true => self.timeout(),
                false => EpollTimeout::ZERO,
            };
            let ready = match self.epoll.wait(&mut events, timeout) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error).context("cannot wait for events"),
            };
            for event in events.iter().take(ready) {
                match Token::from(event.data()) {
                    Token::Listener => self.accept(),
                    Token::Wake => self.drain_wake(),
                    Token::Receiver => self.take_usage_blocks(),
                    Token::Connection(number) => self.note_event(number, event.events()),
                    Token::Process(number) => self.registry.died(number),
                }
            }
            // With fewer events than room, these were all, among them each end before the requests.
            if ready < events.len() {
                self.tree.answer_ends(ends_asked);
            }
            self.serve_round();
            self.tick();
        }
        self.tree.write_all_counts();
        self.retire_all();
        Ok(())
    }

    fn drain_wake(&mut self) {
        // Stops when the socket is empty or closed.
        while matches!(self.woken.read(&mut [0; 64]), Ok(64)) {}
        for ((directory, uid), (cause, time)) in self.kills.take() {
            let killer = Killer { uid, cause };
            self.registry.kill(&self.tree.doomed(directory), killer, time);
        }
        for _ in 0..MAX_RULE_ANSWERS {
            match self.rule_queries.answer() {
                Some(RuleAnswer::Registrant(registrant, verdict)) => {
                    self.admit_or_refuse(*registrant, verdict);
                }
                Some(RuleAnswer::Devices(request, verdict)) => self.tell_devices(*request, verdict),
                Some(RuleAnswer::Job(request, judged)) => self.begin_job(*request, judged),
                None => return,
            }
        }
        // More may be there. If the socket is full, the next turn comes here anyway.
        let _ = (&self.waker).write(&[0]);
    }

    /// Closes all connections before the daemon ends, so that exit(2) does not have to close descriptors that
    /// clients have sent.
    fn retire_all(&mut self) {
        self.listener.refuse();
        while let Ok(socket) = sys::accept(&self.listener) {
            let uid = process::owner(&socket).map_or(u32::MAX, |(_, uid, _)| uid);
            self.receivers.retire(uid, Arc::new(socket));
        }
        for connection in self.connections.take_all() {
            self.receivers.retire(connection.uid(), connection.into_socket());
        }
        self.receivers.pass_unread();
    }

    fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}
