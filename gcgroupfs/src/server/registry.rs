//! Which processes are registered, by whom the kernel says they are; and what is remembered of them between
//! registrations.
//!
//! A process is named by pid and start time. It keeps its settings for as long as it lives: over an exec, over a
//! lost connection, over a restart of the daemon.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gcgroup_abi::message::Hello;
use nix::errno::Errno;
use nix::sys::epoll::Epoll;
use tracing::{debug, info, warn};

use super::awaited::Awaited;
use super::begin::{Beginner, Credentials, begin};
use super::bells::{Bells, Mapped};
use super::enquiry::Applicant;
use super::living::{Living, Registration};
use super::remembered::Remembered;
use super::{TEND, TICK};
use crate::block;
use crate::journal::{Journal, Key};
use crate::process::{self, Peer, Stat};
use crate::rules::{Given, Verdict};
use crate::tree::{GroupId, Identity, ProcessId, Saved, Settings, Tree};

/// Registered processes of one user. The other users' share is theirs.
const MAX_PER_UID: usize = 4096;

/// How often a group is looked for that others empty meanwhile.
const MAX_BEGINNINGS: usize = 8;

/// How far up a governed ancestor is looked for.
const MAX_ANCESTORS: usize = 64;

#[derive(Debug)]
pub struct Registry {
    tree: Arc<Tree>,
    bells: Arc<Bells>,
    journal: Arc<Journal>,
    /// For the control blocks: how long gates stay closed without a daemon.
    grace_msec: u32,
    living: Living,
    /// Of those that are not registered now.
    remembered: Remembered,
    awaited: Awaited,
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
        let awaited = Awaited::new(tree.clone(), &remembered);
        let remembered = Remembered::new(tree.clone(), remembered);
        Self {
            tree,
            bells,
            journal,
            grace_msec,
            living: Living::new(epoll),
            remembered,
            awaited,
        }
    }

    /// Whether the end of the process, if it has ended, is still to be noticed.
    pub fn has_in_mind(&self, key: Key) -> bool {
        self.living.find(key).is_some() || self.remembered.get(key).is_some()
    }

    /// Whether the process has been here before: then what holds for it is known.
    pub fn is_known(&self, peer: &Peer) -> bool {
        self.saved(key(peer)).is_some()
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
        let known = self.living.find(key);
        if known.is_none_or(|known| !known.is_of(uid)) && self.living.nr_of(uid) >= MAX_PER_UID {
            return Err(Errno::EDQUOT);
        }
        let process = self.living.know(number, key, uid, pidfd)?;
        if self
            .living
            .get_mut(process)
            .is_some_and(|known| !known.rate.allows(Instant::now()))
        {
            return Err(Errno::EAGAIN);
        }
        let (control, file) = block::new_control()?;
        control.grace_msec.store(self.grace_msec, Relaxed);
        // Before the process is there for others to write to: what they write has a higher number.
        let seq = self.journal.number();
        self.remembered.comes_as(key, stat.image);
        let (saved, is_new) = match self.saved(key) {
            Some(saved) => {
                if let Some(registration) = self.registration(key)
                    && saved.is_of_another(stat.image)
                {
                    self.tree.write_counts_of(registration.id);
                }
                (saved, false)
            }
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
        let known = self.living.get_mut(process).ok_or(Errno::ESRCH)?;
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
        let Some(known) = self.living.get_mut(process) else {
            return;
        };
        let Some(registration) = &mut known.registration else {
            return;
        };
        if registration.connection != Some(connection) {
            return;
        }
        registration.connection = None;
        let (id, pid) = (registration.id, known.key.pid);
        self.bells.mute(id);
        if known.is_same_program() {
            info!("{pid}: connection to its hook lost");
            self.tree.set_hook(id, false);
        } else {
            self.end_registration(process);
        }
    }

    /// The pidfd says that the process has ended.
    pub fn died(&mut self, process: u64) {
        self.end_registration(process);
        if let Some(key) = self.living.remove(process) {
            self.remembered.ended(key);
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
            match self.living.watch(new_number(), key) {
                Ok(()) => {}
                Err(Errno::ESRCH) => self.remembered.ended(key),
                // They are looked for from time to time, too.
                Err(error) => debug!("{}: cannot be watched: {error}", key.pid),
            }
        }
    }

    /// Forgets those that have ended since the last daemon, and with them groups that were there for them alone. Whether
    /// there are any left that have not come back.
    pub fn tend_remembered(&mut self) -> bool {
        let is_any_left = self.remembered.tend();
        self.tree.reap_transient(None);
        is_any_left
    }

    /// Those whose connection is lost and who have executed another program leave. Whether there are any others.
    fn tend_lost(&mut self) -> bool {
        let mut is_any_left = false;
        for process in self.living.lost() {
            match self.living.get_mut(process) {
                Some(known) if known.is_same_program() => is_any_left = true,
                _ => self.end_registration(process),
            }
        }
        is_any_left
    }

    /// Removes the directory; the settings stay in mind until the process dies.
    fn end_registration(&mut self, process: u64) {
        let Some(known) = self.living.get_mut(process) else {
            return;
        };
        let Some(registration) = known.registration.take() else {
            return;
        };
        let key = known.key;
        if let Some(identity) = self.tree.identity(registration.id) {
            info!("{} ({}) left", identity.pid, identity.comm);
        }
        // Before it is shown as what has been left behind: so a daemon that is killed then has told of nothing that the next
        // one does not know.
        self.tree.write_counts_of(registration.id);
        if let Some(mut saved) = self.tree.saved(registration.id) {
            // Its groups and the root are about to have its counts.
            saved.take_counts();
            if !saved.is_default() {
                self.remembered.insert(key, saved);
            }
        }
        self.tree.leave(registration.id, now());
        self.bells.remove(registration.id);
    }

    /// What holds for a process that registers again: as it was when it last was registered.
    fn saved(&self, key: Key) -> Option<Saved> {
        let registration = self.registration(key);
        let saved = registration.and_then(|registration| self.tree.saved(registration.id));
        saved.or_else(|| self.remembered.get(key).cloned())
    }

    fn registration(&self, key: Key) -> Option<&Registration> {
        self.living.find(key)?.registration.as_ref()
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
            let known = self.living.find(key);
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
