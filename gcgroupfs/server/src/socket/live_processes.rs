//! Live processes that are or were registered, by the server's numbers, and how their end is noticed.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use gcgroup_abi::message::GroupName;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::signal::Signal;
use tracing::debug;

use super::Token;
use super::rate::Pace;
use super::room::Processes;
use crate::host::unix_time;
use crate::journal::Key;
use gcgroupfs_model::tree::{Ending, Killer, ProcessId};
use gcgroupfs_sys as sys;
use gcgroupfs_sys::process;

/// Registrations of one process per second; further ones wait. A process needs one for each program that it
/// executes.
pub(super) const MAX_PER_SECOND: u32 = 16;

#[derive(Debug)]
pub(super) struct LiveProcesses {
    /// Reports the end of each process.
    epoll: Arc<Epoll>,
    /// Boxed, because the map may allocate twice the room it needs.
    processes: HashMap<u64, Box<LiveProcess>>,
    /// Sorted, so that all entries of a pid are adjacent.
    numbers: BTreeMap<Key, u64>,
    room: Processes,
}

/// One process.
#[derive(Debug)]
pub(super) struct LiveProcess {
    pub key: Key,
    uid: u32,
    pidfd: OwnedFd,
    pub registration: Option<Registration>,
    /// Limits how often it registers.
    pub pace: Pace,
    /// A hook in the process has asked to be registered and has not been, so it may have given up waiting.
    pub is_asking: bool,
    /// The group that it asked for at its last registration, if the request was fulfilled.
    pub wish: GroupName,
    /// For what the daemon has killed it.
    pub killer: Option<Killer>,
}

/// The program that a process executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// The one with which it registered.
    Same,
    Other,
    /// None: the process is about to end.
    Ending,
}

#[derive(Debug)]
pub(super) struct Registration {
    pub id: ProcessId,
    /// The hook's connection; `None` when it is lost.
    pub connection: Option<u64>,
    /// Identifies the program that the process was executing.
    pub image: Option<(u64, u64)>,
}

impl LiveProcesses {
    pub(super) fn new(epoll: Arc<Epoll>) -> Self {
        Self {
            epoll,
            processes: HashMap::new(),
            numbers: BTreeMap::new(),
            room: Processes::new(),
        }
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut LiveProcess> {
        self.processes.get_mut(&number).map(AsMut::as_mut)
    }

    pub(super) fn find(&self, key: Key) -> Option<&LiveProcess> {
        let number = self.numbers.get(&key)?;
        self.processes.get(number).map(AsRef::as_ref)
    }

    /// Returns the living process with this pid, for use when its start time cannot be read.
    pub(super) fn find_pid(&self, pid: u32) -> Option<&LiveProcess> {
        self.processes.get(&self.number_of(pid)?).map(AsRef::as_ref)
    }

    /// Returns a mutable reference to the process that [`find_pid`](Self::find_pid) returns.
    pub(super) fn find_pid_mut(&mut self, pid: u32) -> Option<&mut LiveProcess> {
        self.get_mut(self.number_of(pid)?)
    }

    fn number_of(&self, pid: u32) -> Option<u64> {
        let [first, last] = [0, u64::MAX].map(|start_time| Key { pid, start_time });
        let numbers = self.numbers.range(first..=last).map(|(_, number)| *number);
        let lives = |number: &u64| {
            let known = self.processes.get(number);
            known.is_some_and(|known| !process::is_dead(&known.pidfd))
        };
        numbers.rev().find(lives)
    }

    /// Returns whether the process is known as this user's, or there is room for it.
    pub(super) fn has_room_for(&self, key: Key, uid: u32) -> bool {
        self.find(key).is_some_and(|known| known.uid == uid) || self.room.has_room(uid)
    }

    /// Returns the numbers of all processes.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.processes.keys().copied().collect()
    }

    /// Returns the registered processes whose connection is lost; they may have executed another program.
    pub(super) fn lost(&self) -> Vec<u64> {
        let is_lost = |known: &LiveProcess| {
            let registration = known.registration.as_ref();
            registration.is_some_and(|registration| registration.connection.is_none())
        };
        let lost = self.processes.iter().filter(|(_, known)| is_lost(known));
        lost.map(|(number, _)| *number).collect()
    }

    /// Returns the process's number: its existing one, or `number` for a new process, whose end is watched
    /// from then on.
    pub(super) fn add(&mut self, number: u64, key: Key, uid: u32, pidfd: OwnedFd) -> nix::Result<u64> {
        if let Some(number) = self.numbers.get(&key) {
            if let Some(known) = self.processes.get_mut(number) {
                self.room.remove(known.uid);
                self.room.add(uid);
                known.uid = uid;
            }
            return Ok(*number);
        }
        self.epoll.add(
            &pidfd,
            EpollEvent::new(EpollFlags::EPOLLIN, Token::Process(number).into()),
        )?;
        self.numbers.insert(key, number);
        let known = LiveProcess {
            key,
            uid,
            pidfd,
            registration: None,
            pace: Pace::new(MAX_PER_SECOND),
            is_asking: false,
            wish: GroupName::NONE,
            killer: None,
        };
        self.processes.insert(number, Box::new(known));
        self.room.add(uid);
        Ok(number)
    }

    /// Watches a process that has not registered, as `number`.
    ///
    /// # Errors
    /// `ESRCH` if it has ended; out of memory or descriptors.
    pub(super) fn watch(&mut self, number: u64, key: Key) -> nix::Result<()> {
        let errno = |error: std::io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        let pid = i32::try_from(key.pid).map_err(|_| Errno::ESRCH)?;
        let pidfd = sys::pidfd_open(pid).map_err(errno)?;
        let owner = std::fs::metadata(format!("/proc/{pid}")).map_err(|_| Errno::ESRCH)?;
        // Checked last: the facts above then belong to this process and not to a later one with its pid.
        if !process::is_alive(key.pid, key.start_time) {
            return Err(Errno::ESRCH);
        }
        self.add(number, key, owner.uid(), pidfd).map(drop)
    }

    /// Removes a process that has ended and returns its key.
    pub(super) fn remove(&mut self, number: u64) -> Option<Key> {
        let known = self.processes.remove(&number)?;
        self.room.remove(known.uid);
        // Closing the pidfd's last descriptor would remove it from the epoll set as well.
        let _ = self.epoll.delete(&known.pidfd);
        if self.numbers.get(&known.key) == Some(&number) {
            self.numbers.remove(&known.key);
        }
        Some(known.key)
    }
}

impl LiveProcess {
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Sends the process a signal as [`process::kill_for`].
    pub(super) fn kill_for(&self, user: Option<u32>, signal: Signal) -> nix::Result<()> {
        process::kill_for(user, self.key.pid, &self.pidfd, signal)
    }

    /// Returns the program that the process executes.
    pub(super) fn program(&self) -> Program {
        let image = self
            .registration
            .as_ref()
            .and_then(|registration| registration.image);
        let now = process::stat(self.key.pid);
        debug!("{}: was {image:x?}, is {now:x?}", self.key.pid);
        match now {
            Ok(stat) if stat.start_time != self.key.start_time => Program::Other,
            Ok(stat) if stat.is_ending => Program::Ending,
            Ok(stat) if image.is_some() && stat.image == image => Program::Same,
            Ok(_) => Program::Other,
            // Its /proc files block, because it is executing a program; the new program is seen later.
            Err(Errno::ETIMEDOUT) if image.is_some() => Program::Same,
            Err(_) => Program::Other,
        }
    }

    /// Returns how the program ends now: with the process, or because it executes another one.
    pub(super) fn ending(&self) -> Ending {
        let how = match process::is_dead(&self.pidfd) {
            true => process::how_ended(self.key.pid, self.key.start_time, &self.pidfd).unwrap_or_default(),
            false if self.program() == Program::Other => "exec".to_owned(),
            false => String::new(),
        };
        let killer = self.killer.filter(|_| how.starts_with("signal:"));
        Ending {
            time: unix_time(),
            how,
            by: killer.map_or(String::new(), |killer| killer.to_string()),
        }
    }
}
