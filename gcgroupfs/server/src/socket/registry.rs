//! Registered processes, identified by the kernel's word, and what is remembered of them between
//! registrations.
//!
//! A process is identified by pid and start time. It keeps its settings while it lives: over an exec, a lost
//! connection and a restart of the daemon.

mod begin;
mod end;
mod first;
mod holders;
mod killed;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gcgroup_abi::message::GroupName;
use nix::errno::Errno;
use nix::sys::epoll::Epoll;
use tracing::{debug, warn};

use self::first::FirstRegistration;
use self::killed::Killed;
use super::activity_log::ActivityLog;
use super::awaited_members::AwaitedMembers;
use super::bells::{Bells, Mapped};
use super::initial_group::Credentials;
use super::live_processes::{LiveProcesses, Registration};
use super::rule_queries::Registrant;
use super::unregistered::Unregistered;
use crate::block;
use crate::host::unix_time;
use crate::journal::Key;
use crate::log_limit::LogLimit;
use gcgroupfs_model::rules::Verdict;
use gcgroupfs_model::text::{MAX_COMMAND_LINE, command_line};
use gcgroupfs_model::tree::{Identity, ProcessId, Saved, Tree};
use gcgroupfs_sys::process::Peer;
use gcgroupfs_sys::procfs;

#[derive(Debug)]
pub(super) struct Registry {
    tree: Arc<Tree>,
    bells: Arc<Bells>,
    /// Stored in each control block: how long gates stay closed without a daemon, in ms.
    grace_msec: u32,
    /// Stored in each control block: the size of a page of device memory, bytes.
    device_page: u64,
    live: LiveProcesses,
    /// Processes that are not registered now.
    unregistered: Unregistered,
    awaited: AwaitedMembers,
    killed: Killed,
    log_limit: LogLimit,
    activity_log: Arc<ActivityLog>,
}

/// Result of a registration.
#[derive(Debug)]
pub(super) struct Registered {
    /// The process's number.
    pub number: u64,
    pub id: ProcessId,
    /// Descriptor of the control block, to be sent to the process.
    pub control: OwnedFd,
    /// Connection of an earlier registration, to be closed.
    pub superseded: Option<u64>,
}

/// Parts that a registry works with.
#[derive(Debug)]
pub(super) struct Options {
    pub tree: Arc<Tree>,
    pub bells: Arc<Bells>,
    pub epoll: Arc<Epoll>,
    /// Milliseconds after the loss of the daemon at which held gates open; all ones: never.
    pub grace_msec: u32,
    /// Size of a page of device memory, bytes, and [`gcgroup_abi::KEEPS_PAGES`].
    pub device_page: u64,
    /// Records of the journal.
    pub records: BTreeMap<Key, Saved>,
    pub activity_log: Arc<ActivityLog>,
}

impl Registry {
    pub(super) fn new(options: Options) -> Self {
        let records = options.records.values();
        records.for_each(|saved| options.tree.know_holders(saved));
        Self {
            live: LiveProcesses::new(options.epoll),
            awaited: AwaitedMembers::new(options.tree.clone(), &options.records),
            unregistered: Unregistered::new(options.tree.clone(), options.records),
            killed: Killed::default(),
            log_limit: LogLimit::default(),
            activity_log: options.activity_log,
            tree: options.tree,
            bells: options.bells,
            grace_msec: options.grace_msec,
            device_page: options.device_page,
        }
    }

    pub(super) fn activity_log(&self) -> &ActivityLog {
        &self.activity_log
    }

    /// Returns whether a further line about the user may be logged.
    pub(super) fn may_log_of(&mut self, uid: u32) -> bool {
        self.log_limit.allows(uid, Instant::now())
    }

    /// Returns whether a further line about the user may be logged at level debug.
    fn may_debug_of(&mut self, uid: u32) -> bool {
        self.log_limit.allows_debug(uid, Instant::now())
    }

    /// Returns whether the process is still tracked, so that its end, if it has ended, is yet to be handled.
    pub(super) fn is_tracked(&self, key: Key) -> bool {
        self.live.find(key).is_some() || self.unregistered.get(key).is_some()
    }

    /// Returns whether the process has registered before, so that its settings are known.
    pub(super) fn is_known(&self, peer: &Peer) -> bool {
        self.saved(key(peer)).is_some()
    }

    /// Returns how long the registration of the process with this pid must wait, if it registers too often.
    pub(super) fn delay(&self, pid: u32, now: Instant) -> Option<Duration> {
        let delay = self.live.find_pid(pid)?.pace.delay(now);
        (!delay.is_zero()).then_some(delay)
    }

    /// Notes that a hook in the process with this pid has asked to be registered, or has closed its
    /// connection without an answer: from then until it is registered it may give up waiting and let
    /// everything through.
    pub(super) fn asks(&mut self, pid: u32) {
        if let Some(known) = self.live.find_pid_mut(pid) {
            known.is_asking = true;
            self.unregistered.set_ungoverned(known.key);
        }
    }

    /// Registers a process and creates its directory, in place of any earlier one. The verdict is used only
    /// at the first registration.
    ///
    /// # Errors
    /// `EDQUOT` if its user has too many processes, `EAGAIN` if it comes before [`delay`](Self::delay) is
    /// over, `EACCES` if it insists on a group and would not be in it; out of memory or descriptors.
    pub(super) fn register(
        &mut self,
        registrant: Registrant,
        verdict: &Verdict,
        socket: Arc<OwnedFd>,
    ) -> nix::Result<Registered> {
        let Registrant {
            number,
            peer,
            hello,
            usage,
            ..
        } = registrant;
        let key = key(&peer);
        let who = Credentials::of(&peer);
        let Peer {
            pid,
            uid,
            gid,
            stat,
            pidfd,
            ..
        } = peer;
        if !self.live.has_room_for(key, uid) {
            return Err(Errno::EDQUOT);
        }
        let process = self.live.add(number, key, uid, pidfd)?;
        if self
            .live
            .get_mut(process)
            .is_some_and(|known| !known.pace.allows(Instant::now()))
        {
            return Err(Errno::EAGAIN);
        }
        let (control, file) = block::new_control()?;
        control.grace_msec.store(self.grace_msec, Relaxed);
        control.device_page.store(self.device_page, Relaxed);
        self.unregistered.settle_counts(key, stat.image);
        let is_kept;
        let (mut saved, is_new) = match self.saved(key) {
            Some(saved) => {
                let before = self.live.find(key).map(|known| known.wish);
                is_kept = self.is_kept(hello.group, saved.group, before);
                if hello.insists != 0 && !is_kept {
                    return Err(Errno::EACCES);
                }
                if let Some(registration) = self.registration(key)
                    && saved.is_of_another(stat.image)
                {
                    self.tree.write_counts_of(registration.id);
                }
                (saved, false)
            }
            None => {
                let first = FirstRegistration {
                    pid,
                    stat: &stat,
                    who: &who,
                    verdict,
                    hello: &hello,
                };
                let (saved, kept) = self.first_record(&first)?;
                is_kept = kept;
                (saved, true)
            }
        };
        saved.is_awaited = self.awaited.is_awaited(key);
        saved.is_held = is_new || self.registration(key).is_none() && self.unregistered.take(key);
        let identity = Identity {
            pid,
            start_time: stat.start_time,
            image: stat.image,
            started: unix_time(),
            uid,
            gid,
            comm: stat.comm,
            args: command_line(
                &procfs::read_start(pid, "cmdline", MAX_COMMAND_LINE as u64).unwrap_or_default(),
            ),
        };
        let path = self.tree.path(saved.group);
        let place = match path.as_str() {
            "" => String::new(),
            path => format!(" {path:?}"),
        };
        if self.may_debug_of(uid) {
            debug!(
                PID = identity.pid,
                UID = identity.uid,
                GROUP = %format_args!("/{path}"),
                "{} ({}) of user {} joined{place}",
                identity.pid, identity.comm, identity.uid
            );
        }
        let group = saved.group;
        let blocks = Arc::new(Mapped { control, usage });
        let id = self.tree.join(identity, blocks.clone(), saved);
        self.bells.hang(id, blocks, socket);
        self.awaited.registered(key);
        if is_new
            && let Some(text) = self.tree.count_joined_above(id)
            && self.may_log_of(uid)
        {
            warn!(PID = pid, UID = uid, "{pid} of user {uid} {text}");
        }
        let registration = Registration {
            id,
            connection: Some(number),
            image: stat.image,
        };
        let known = self.live.get_mut(process).ok_or(Errno::ESRCH)?;
        known.wish = if is_kept { hello.group } else { GroupName::NONE };
        known.is_asking = false;
        let old = known.registration.replace(registration);
        self.unregistered.remove(key);
        if let Some(old) = old.as_ref().filter(|old| old.id != id) {
            self.bells.remove(old.id);
        }
        if is_new {
            self.kill_late(process, key, group);
        }
        Ok(Registered {
            number: process,
            id,
            control: file,
            superseded: old.and_then(|old| old.connection),
        })
    }

    /// Returns the record of a process that registers again, as of its last registration.
    fn saved(&self, key: Key) -> Option<Saved> {
        let registration = self.registration(key);
        let saved = registration.and_then(|registration| self.tree.saved(registration.id));
        saved.or_else(|| self.unregistered.get(key).cloned())
    }

    fn registration(&self, key: Key) -> Option<&Registration> {
        self.live.find(key)?.registration.as_ref()
    }
}

fn key(peer: &Peer) -> Key {
    Key {
        pid: peer.pid,
        start_time: peer.stat.start_time,
    }
}
