//! Processes that live, and are or were registered, each by a number of the server's; and how their end is
//! told.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use gcgroup_abi::message::GroupName;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use tracing::debug;

use super::Token;
use super::rate::Pace;
use super::room::Processes;
use crate::journal::Key;
use crate::process;
use crate::sys;
use crate::tree::ProcessId;

/// Registrations of one process in a second; those beyond wait. A process needs one for each program that it
/// executes.
pub const MAX_PER_SECOND: u32 = 16;

#[derive(Debug)]
pub struct Living {
    /// Tells of the end of each.
    epoll: Arc<Epoll>,
    /// Boxed, as the map may have twice the room that it needs.
    processes: HashMap<u64, Box<Known>>,
    /// Sorted, so that a pid's are found.
    numbers: BTreeMap<Key, u64>,
    room: Processes,
}

/// One process.
#[derive(Debug)]
pub struct Known {
    pub key: Key,
    uid: u32,
    pidfd: OwnedFd,
    pub registration: Option<Registration>,
    /// How often it registers.
    pub pace: Pace,
    /// A hook in it has asked to be registered and has not been, so it may have given up waiting.
    pub is_asking: bool,
    /// The group that it asked for when it registered last, if it was given that.
    pub wish: GroupName,
}

#[derive(Debug)]
pub struct Registration {
    pub id: ProcessId,
    /// The hook's connection; none when it is lost.
    pub connection: Option<u64>,
    /// What the process was executing.
    pub image: Option<(u64, u64)>,
}

impl Living {
    pub fn new(epoll: Arc<Epoll>) -> Self {
        Self {
            epoll,
            processes: HashMap::new(),
            numbers: BTreeMap::new(),
            room: Processes::new(),
        }
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Known> {
        self.processes.get_mut(&number).map(AsMut::as_mut)
    }

    pub fn find(&self, key: Key) -> Option<&Known> {
        let number = self.numbers.get(&key)?;
        self.processes.get(number).map(AsRef::as_ref)
    }

    /// The living process of this pid, for when its start time cannot be asked for.
    pub fn find_pid(&self, pid: u32) -> Option<&Known> {
        self.processes.get(&self.number_of(pid)?).map(AsRef::as_ref)
    }

    /// As [`find_pid`](Self::find_pid), to be changed.
    pub fn find_pid_mut(&mut self, pid: u32) -> Option<&mut Known> {
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

    /// Whether the process is among them as the user's, or may come to be.
    pub fn has_room_for(&self, key: Key, uid: u32) -> bool {
        self.find(key).is_some_and(|known| known.uid == uid) || self.room.has_room(uid)
    }

    /// Those whose connection is lost: an exec may have followed.
    pub fn lost(&self) -> Vec<u64> {
        let is_lost = |known: &Known| {
            let registration = known.registration.as_ref();
            registration.is_some_and(|registration| registration.connection.is_none())
        };
        let lost = self.processes.iter().filter(|(_, known)| is_lost(known));
        lost.map(|(number, _)| *number).collect()
    }

    /// The process's number: the one it has, or `number`, and then its death is watched for.
    pub fn know(&mut self, number: u64, key: Key, uid: u32, pidfd: OwnedFd) -> nix::Result<u64> {
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
        let known = Known {
            key,
            uid,
            pidfd,
            registration: None,
            pace: Pace::new(MAX_PER_SECOND),
            is_asking: false,
            wish: GroupName::NONE,
        };
        self.processes.insert(number, Box::new(known));
        self.room.add(uid);
        Ok(number)
    }

    /// Likewise of one that has not registered.
    ///
    /// # Errors
    /// `ESRCH` if it has ended; out of memory or descriptors.
    pub fn watch(&mut self, number: u64, key: Key) -> nix::Result<()> {
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

    /// The process has ended.
    pub fn remove(&mut self, number: u64) -> Option<Key> {
        let known = self.processes.remove(&number)?;
        self.room.remove(known.uid);
        // Closing the last descriptor of it takes the pidfd out of the epoll set too; this is for form.
        let _ = self.epoll.delete(&known.pidfd);
        if self.numbers.get(&known.key) == Some(&number) {
            self.numbers.remove(&known.key);
        }
        Some(known.key)
    }
}

impl Known {
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether it executes what it executed when it registered.
    pub fn is_same_program(&self) -> bool {
        let Some(Registration {
            image: Some(image), ..
        }) = self.registration
        else {
            return false;
        };
        let now = process::stat(self.key.pid);
        debug!("{}: was {image:x?}, is {now:x?}", self.key.pid);
        match now {
            Ok(stat) => stat.start_time == self.key.start_time && stat.image == Some(image),
            // It holds up looking at it; what it is about to execute is seen when it does not any more.
            Err(errno) => errno == Errno::ETIMEDOUT,
        }
    }
}
