//! Which processes are registered, by whom the kernel says they are; and what is remembered of them between
//! registrations.
//!
//! A process is named by pid and start time. It keeps its settings for as long as it lives: over an exec, over a
//! lost connection, over a restart of the daemon.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gcgroup_abi::message::Hello;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use tracing::{debug, info, warn};

use super::awaited::Awaited;
use super::begin::{Beginner, Credentials, begin};
use super::bells::{Bells, Mapped};
use super::enquiry::Applicant;
use super::rate::Rate;
use super::remembered::Remembered;
use super::{TEND, TICK, Token};
use crate::block;
use crate::journal::{Journal, Key};
use crate::process::{self, Peer, Stat};
use crate::rules::{Given, Verdict};
use crate::sys;
use crate::tree::{GroupId, Identity, ProcessId, Saved, Settings, Tree};

/// Registered processes of one user. The other users' share is theirs.
const MAX_PER_UID: usize = 4096;

/// Registrations of one process in a second. An honest one needs one for each program it executes.
const MAX_PER_SECOND: u32 = 16;

/// How often a group is looked for that others empty meanwhile.
const MAX_BEGINNINGS: usize = 8;

/// How far up a governed ancestor is looked for.
const MAX_ANCESTORS: usize = 64;

#[derive(Debug)]
pub struct Registry {
    tree: Arc<Tree>,
    bells: Arc<Bells>,
    epoll: Arc<Epoll>,
    journal: Arc<Journal>,
    /// For the control blocks: how long gates stay closed without a daemon.
    grace_msec: u32,
    /// Boxed, as the map may have twice the room that it needs.
    processes: HashMap<u64, Box<Known>>,
    numbers: HashMap<Key, u64>,
    /// Of those that are not registered now.
    remembered: Remembered,
    awaited: Awaited,
}

/// A living process that is or was registered.
#[derive(Debug)]
struct Known {
    key: Key,
    uid: u32,
    pidfd: OwnedFd,
    registration: Option<Registration>,
    rate: Rate,
}

#[derive(Debug)]
struct Registration {
    id: ProcessId,
    /// The hook's connection; none when it is lost.
    connection: Option<u64>,
    /// What the process was executing.
    image: Option<(u64, u64)>,
}

/// What a registration gives.
#[derive(Debug)]
pub struct Registered {
    /// The process's number.
    pub number: u64,
    pub id: ProcessId,
    /// The control block, to be sent.
    pub control: OwnedFd,
    /// The connection of an earlier registration, to be closed.
    pub superseded: Option<u64>,
}

impl Registry {
    pub fn new(
        tree: Arc<Tree>,
        bells: Arc<Bells>,
        epoll: Arc<Epoll>,
        journal: Arc<Journal>,
        grace_msec: u32,
        remembered: BTreeMap<Key, Saved>,
    ) -> Self {
        let (processes, numbers) = (HashMap::new(), HashMap::new());
        let awaited = Awaited::new(tree.clone(), &remembered);
        let remembered = Remembered::new(tree.clone(), remembered);
        Self {
            tree,
            bells,
            epoll,
            journal,
            grace_msec,
            processes,
            numbers,
            remembered,
            awaited,
        }
    }

    /// Whether the end of the process, if it has ended, is still to be noticed.
    pub fn has_in_mind(&self, key: Key) -> bool {
        self.numbers.contains_key(&key) || self.remembered.get(key).is_some()
    }

    /// Whether the process has been here before: then what holds for it is known.
    pub fn is_known(&self, peer: &Peer) -> bool {
        let key = key(peer);
        self.numbers
            .get(&key)
            .is_some_and(|process| self.saved(*process, key).is_some())
            || self.remembered.get(key).is_some()
    }

    /// Gives a process its directory, in place of the one it may have. The verdict counts for one that has not been here
    /// before.
    ///
    /// # Errors
    /// `EDQUOT` if its user has too many, `EAGAIN` if it comes too often; out of memory or descriptors.
    pub fn register(
        &mut self,
        applicant: Applicant,
        verdict: &Verdict,
        socket: Arc<OwnedFd>,
    ) -> nix::Result<Registered> {
        let Applicant {
            number,
            peer,
            hello,
            usage,
        } = applicant;
        let key = key(&peer);
        let Peer {
            pid,
            uid,
            gid,
            groups,
            is_contained,
            stat,
            pidfd,
        } = peer;
        let known = self
            .numbers
            .get(&key)
            .and_then(|number| self.processes.get(number));
        if known.is_none_or(|known| known.uid != uid) && self.nr_of(uid) >= MAX_PER_UID {
            return Err(Errno::EDQUOT);
        }
        let process = self.know(number, key, uid, pidfd)?;
        if self
            .processes
            .get_mut(&process)
            .is_some_and(|known| !known.rate.allows(Instant::now()))
        {
            return Err(Errno::EAGAIN);
        }
        let (control, file) = block::new_control()?;
        control.grace_msec.store(self.grace_msec, Relaxed);
        // Before the process is there for others to write to: what they write has a higher number.
        let seq = self.journal.number();
        self.remembered.comes_as(key, stat.image);
        let (saved, is_new) = match self.saved(process, key) {
            Some(saved) => (saved, false),
            None => {
                let who = Credentials {
                    uid,
                    gid,
                    groups,
                    is_contained,
                };
                let mut saved = Saved::from(settings_of(verdict, &hello));
                saved.group = self.begin(pid, &stat, &who, verdict, &hello)?;
                (saved, true)
            }
        };
        let held = saved.group.filter(|_| is_new);
        if is_new && (verdict.process != Given::default() || held.is_some()) {
            self.journal.append(seq, key, &saved);
        }
        let identity = Identity {
            pid,
            start_time: stat.start_time,
            image: stat.image,
            started: now(),
            uid,
            gid,
            comm: stat.comm.into(),
        };
        let place = match self.tree.path(saved.group).as_str() {
            "" => String::new(),
            path => format!(" {path:?}"),
        };
        info!(
            "{} ({}) of user {} joined{place}",
            identity.pid, identity.comm, identity.uid
        );
        let blocks = Arc::new(Mapped { control, usage });
        let id = self.tree.join(identity, blocks.clone(), saved);
        if let Some(group) = held {
            self.tree.release_group(group);
        }
        self.bells.hang(id, blocks, socket);
        self.awaited.came(key);
        let registration = Registration {
            id,
            connection: Some(number),
            image: stat.image,
        };
        let known = self.processes.get_mut(&process).ok_or(Errno::ESRCH)?;
        let old = known.registration.replace(registration);
        self.remembered.remove(key);
        if let Some(old) = old.as_ref().filter(|old| old.id != id) {
            self.bells.remove(old.id);
        }
        Ok(Registered {
            number: process,
            id,
            control: file,
            superseded: old.and_then(|old| old.connection),
        })
    }

    /// The process's connection has closed. It has ended, or executes another program, or has closed what it did not
    /// know: in the last case its directory stays, and what is written there still holds it by shared memory.
    pub fn lost(&mut self, process: u64, connection: u64) {
        let Some(known) = self.processes.get_mut(&process) else {
            return;
        };
        let Some(registration) = &mut known.registration else {
            return;
        };
        if registration.connection != Some(connection) {
            return;
        }
        registration.connection = None;
        let id = registration.id;
        self.bells.mute(id);
        if self.is_same_program(process) {
            info!("{}: connection to its hook lost", self.pid(process));
            self.tree.set_hook(id, false);
        } else {
            self.end_registration(process);
        }
    }

    /// The pidfd says that the process has ended.
    pub fn died(&mut self, process: u64) {
        self.end_registration(process);
        let Some(known) = self.processes.remove(&process) else {
            return;
        };
        // Closing the last descriptor of it takes the pidfd out of the epoll set too; this is for form.
        let _ = self.epoll.delete(&known.pidfd);
        self.remembered.ended(known.key);
        if self.numbers.get(&known.key) == Some(&process) {
            self.numbers.remove(&known.key);
        }
    }

    /// Looks after those who are waited for, and those whose connection is lost. Returns when to look again, if there are
    /// any left.
    pub fn tend(&mut self, now: Instant) -> Option<Duration> {
        self.awaited.tend(now);
        let is_any_lost = self.tend_lost();
        self.awaited
            .is_any()
            .then_some(TICK)
            .or(is_any_lost.then_some(TEND))
    }

    /// Has it noticed at once when those end that were in groups and have not come back: a group is not removed while it
    /// is held for somebody.
    pub fn watch_remembered(&mut self, mut new_number: impl FnMut() -> u64) {
        for key in self.remembered.in_groups() {
            match self.watch(new_number(), key) {
                Ok(()) => {}
                Err(Errno::ESRCH) => self.remembered.ended(key),
                // They are looked for from time to time, too.
                Err(error) => debug!("{}: cannot be watched: {error}", key.pid),
            }
        }
    }

    fn watch(&mut self, number: u64, key: Key) -> nix::Result<()> {
        let errno = |error: std::io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        let pid = i32::try_from(key.pid).map_err(|_| Errno::ESRCH)?;
        let pidfd = sys::pidfd_open(pid).map_err(errno)?;
        let owner = std::fs::metadata(format!("/proc/{pid}")).map_err(|_| Errno::ESRCH)?;
        // Looked at last: so all this was about that one, and not about a successor to its pid.
        if !process::is_alive(key.pid, key.start_time) {
            return Err(Errno::ESRCH);
        }
        self.know(number, key, owner.uid(), pidfd).map(drop)
    }

    /// Forgets those that have ended since the last daemon, and with them groups that were there for them alone. Whether
    /// there are any left that have not come back.
    pub fn tend_remembered(&mut self) -> bool {
        let is_any_left = self.remembered.tend();
        self.tree.reap_transient(None);
        is_any_left
    }

    /// Those whose connection is lost: an exec may have followed. Returns whether there are any left.
    fn tend_lost(&mut self) -> bool {
        let is_lost = |known: &Known| {
            known
                .registration
                .as_ref()
                .is_some_and(|r| r.connection.is_none())
        };
        let lost: Vec<u64> = self
            .processes
            .iter()
            .filter(|(_, known)| is_lost(known))
            .map(|(n, _)| *n)
            .collect();
        let (same, gone): (Vec<_>, Vec<_>) =
            lost.into_iter().partition(|number| self.is_same_program(*number));
        gone.into_iter().for_each(|number| self.end_registration(number));
        !same.is_empty()
    }

    /// Removes the directory; the settings stay in mind until the process dies.
    fn end_registration(&mut self, process: u64) {
        let Some(known) = self.processes.get_mut(&process) else {
            return;
        };
        let Some(registration) = known.registration.take() else {
            return;
        };
        if let Some(identity) = self.tree.identity(registration.id) {
            info!("{} ({}) left", identity.pid, identity.comm);
        }
        // Before it is taken down.
        if let Some(mut saved) = self.tree.saved(registration.id) {
            // Its groups and the root are about to have its counts.
            saved.take_counts();
            if !saved.is_default() {
                self.remembered.insert(known.key, saved);
            }
        }
        self.tree.leave(registration.id, now());
        self.bells.remove(registration.id);
    }

    /// The process's number: the one it has, or `number`, and then its death is watched for.
    fn know(&mut self, number: u64, key: Key, uid: u32, pidfd: OwnedFd) -> nix::Result<u64> {
        if let Some(number) = self.numbers.get(&key) {
            if let Some(known) = self.processes.get_mut(number) {
                known.uid = uid;
            }
            return Ok(*number);
        }
        self.epoll.add(
            &pidfd,
            EpollEvent::new(EpollFlags::EPOLLIN, Token::Process(number).into()),
        )?;
        self.numbers.insert(key, number);
        let known = Known {
            key,
            uid,
            pidfd,
            registration: None,
            rate: Rate::new(MAX_PER_SECOND),
        };
        self.processes.insert(number, Box::new(known));
        Ok(number)
    }

    /// What holds for a process that registers again: as it was when it last was registered.
    fn saved(&self, process: u64, key: Key) -> Option<Saved> {
        let registered = self
            .processes
            .get(&process)
            .and_then(|known| known.registration.as_ref());
        match registered.and_then(|registration| self.tree.saved(registration.id)) {
            Some(saved) => Some(saved),
            None => self.remembered.get(key).cloned(),
        }
    }

    /// The group that a new process begins in, held until it has come in: meanwhile others may empty it, and it would go.
    ///
    /// # Errors
    /// `EAGAIN` if it always went before it could be held.
    fn begin(
        &self,
        pid: u32,
        stat: &Stat,
        who: &Credentials,
        verdict: &Verdict,
        hello: &Hello,
    ) -> nix::Result<Option<GroupId>> {
        for _ in 0..MAX_BEGINNINGS {
            let beginner = Beginner {
                above: self.group_above(stat),
                verdict,
                wish: hello.group.as_str(),
                who,
            };
            let (group, troubles) = begin(&self.tree, &beginner);
            if group.is_some_and(|group| !self.tree.hold_group(group)) {
                continue;
            }
            for trouble in troubles {
                warn!("{pid} ({}) of user {} {trouble}", stat.comm, who.uid);
            }
            return Ok(group);
        }
        Err(Errno::EAGAIN)
    }

    /// The group of the nearest of a process's ancestors that is governed. Where a parent has ended, its children are
    /// others', and nobody can know.
    fn group_above(&self, stat: &Stat) -> Option<GroupId> {
        let (mut parent, mut start_time) = (stat.parent, stat.start_time);
        for _ in 0..MAX_ANCESTORS {
            let stat = process::stat(parent)?;
            // Younger than its child: a successor to the parent's pid.
            if stat.start_time > start_time {
                return None;
            }
            let key = Key {
                pid: parent,
                start_time: stat.start_time,
            };
            let known = self
                .numbers
                .get(&key)
                .and_then(|number| self.processes.get(number));
            let registered = known.and_then(|known| known.registration.as_ref());
            if let Some(group) = registered.and_then(|registration| self.tree.group_of(registration.id)) {
                return group;
            }
            if let Some(saved) = self.remembered.get(key) {
                return saved.group;
            }
            (parent, start_time) = (stat.parent, stat.start_time);
        }
        None
    }

    fn is_same_program(&self, process: u64) -> bool {
        let Some(known) = self.processes.get(&process) else {
            return false;
        };
        let Some(Registration {
            image: Some(image), ..
        }) = known.registration
        else {
            return false;
        };
        let now = process::stat(known.key.pid).filter(|stat| stat.start_time == known.key.start_time);
        debug!("{}: was {image:x?}, is {now:x?}", known.key.pid);
        now.is_some_and(|stat| stat.image == Some(image))
    }

    fn pid(&self, process: u64) -> u32 {
        self.processes.get(&process).map_or(0, |known| known.key.pid)
    }

    fn nr_of(&self, uid: u32) -> usize {
        self.processes.values().filter(|known| known.uid == uid).count()
    }
}

fn key(peer: &Peer) -> Key {
    Key {
        pid: peer.pid,
        start_time: peer.stat.start_time,
    }
}

/// What holds for a new process: what the rules say, and within that what it wishes.
fn settings_of(verdict: &Verdict, hello: &Hello) -> Settings {
    let mut settings = verdict.process.settings();
    settings.wish(hello);
    settings
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
