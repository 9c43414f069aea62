//! A client can send any descriptor, even one whose close waits for that client for ever, such as a file on
//! its own FUSE mount. So the daemon never receives a descriptor from a client. It passes the client's
//! connection to this process, which receives the message and forwards the descriptor only if it is a memfd,
//! whose close never waits. It keeps anything else open until the daemon replaces it: then it ends, which may
//! take for ever.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::block;
use gcgroupfs_sys::{self as sys, Received};

/// Room for a registration message, bytes; the daemon has examined it already.
const MAX_MESSAGE: usize = 512;

/// Request of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Receive a message over the attached connection, and answer with its descriptor.
    Take(u64),
    /// Keep the attached connections, in whose queues descriptors may lie. There is no answer.
    Keep,
}

/// First packet of a receiver: it is ready for tasks.
pub const READY: u8 = b'r';

/// Answer to [`Task::Take`]. A usage block's descriptor is attached if there is no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Number of the task.
    pub number: u64,
    /// 0; `EINVAL` if the message did not carry exactly one memfd; otherwise the errno of recvmsg(2).
    pub error: i32,
    /// Whether the receiver keeps descriptors of the message.
    pub has_kept: bool,
}

impl Task {
    pub const LENGTH: usize = 9;

    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let (kind, number) = match self {
            Self::Take(number) => (b't', number),
            Self::Keep => (b'k', 0),
        };
        let mut bytes = [kind; Self::LENGTH];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, number) = <&[u8; Self::LENGTH]>::try_from(bytes).ok()?.split_first()?;
        match kind {
            b't' => Some(Self::Take(u64::from_le_bytes(number.try_into().ok()?))),
            b'k' => Some(Self::Keep),
            _ => None,
        }
    }
}

impl Taken {
    pub const LENGTH: usize = 13;

    fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [u8::from(self.has_kept); Self::LENGTH];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.error.to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = <&[u8; Self::LENGTH]>::try_from(bytes).ok()?.split_first_chunk()?;
        let (error, rest) = rest.split_first_chunk()?;
        Some(Self {
            number: u64::from_le_bytes(*number),
            error: i32::from_le_bytes(*error),
            has_kept: rest != [0],
        })
    }
}

/// Serves the daemon at the other end of standard input until that is closed.
///
/// # Errors
/// Standard input is not a socket of the daemon's.
pub fn run() -> anyhow::Result<()> {
    // Descriptors that the daemon's starter had open (Linux 5.9; before that, the daemon's own are closed on
    // exec).
    let _ = sys::close_from(3);
    // Room for what it keeps.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    Ok(serve(&io::stdin())?)
}

/// Serves as [`run`], over any socket.
///
/// # Errors
/// The socket fails.
pub fn serve(daemon: &impl AsFd) -> nix::Result<()> {
    // Closing one of them may take for ever, so none is closed before the end.
    let mut kept: Vec<OwnedFd> = Vec::new();
    send(daemon, &[READY], None)?;
    loop {
        let mut watched = [PollFd::new(daemon.as_fd(), PollFlags::POLLIN)];
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        let mut buffer = [0; Task::LENGTH];
        let Received {
            length, descriptors, ..
        } = match sys::receive(daemon, &mut buffer) {
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            received => received?,
        };
        let number = match Task::from_bytes(buffer.get(..length).unwrap_or_default()) {
            Some(Task::Take(number)) => number,
            Some(Task::Keep) => {
                kept.extend(descriptors);
                continue;
            }
            None => return Ok(()),
        };
        let Ok([connection]) = <[OwnedFd; 1]>::try_from(descriptors) else {
            return Ok(());
        };
        let (taken, others) = take(&connection);
        // Closed before the answer, while the daemon still has it: so this is not the last close, which could
        // block.
        drop(connection);
        let answer = Taken {
            number,
            error: taken.as_ref().map_or_else(|errno| *errno as i32, |_| 0),
            has_kept: !others.is_empty(),
        };
        kept.extend(others);
        send(daemon, &answer.to_bytes(), taken.ok().as_ref())?;
    }
}

/// Receives the next message. Returns its memfd, and other descriptors whose close may never return.
fn take(connection: &OwnedFd) -> (nix::Result<OwnedFd>, Vec<OwnedFd>) {
    let mut buffer = [0; MAX_MESSAGE];
    let descriptors = match sys::receive(connection, &mut buffer) {
        Ok(received) if !received.truncated => received.descriptors,
        Ok(received) => return (Err(Errno::EINVAL), received.descriptors),
        Err(errno) => return (Err(errno), Vec::new()),
    };
    if !descriptors.iter().all(block::is_memfd) {
        return (Err(Errno::EINVAL), descriptors);
    }
    let one = <[OwnedFd; 1]>::try_from(descriptors);
    (one.map(|[one]| one).map_err(|_| Errno::EINVAL), Vec::new())
}

fn send(to: &impl AsFd, bytes: &[u8], descriptor: Option<&OwnedFd>) -> nix::Result<()> {
    let raw = descriptor.map(AsRawFd::as_raw_fd);
    let rights = [ControlMessage::ScmRights(raw.as_slice())];
    let rights = if raw.is_some() { &rights[..] } else { &[] };
    let parts = [io::IoSlice::new(bytes)];
    sendmsg::<()>(
        to.as_fd().as_raw_fd(),
        &parts,
        rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_answers_round_trip() {
        for task in [Task::Take(7), Task::Take(u64::MAX), Task::Keep] {
            assert_eq!(Task::from_bytes(&task.to_bytes()), Some(task));
        }
        for (error, has_kept) in [(0, false), (libc::EINVAL, true)] {
            let answer = Taken {
                number: 1 << 40,
                error,
                has_kept,
            };
            assert_eq!(Taken::from_bytes(&answer.to_bytes()), Some(answer));
        }
        assert_eq!(Task::from_bytes(b""), None);
        assert_eq!(Task::from_bytes(b"x12345678"), None);
        assert_eq!(Taken::from_bytes(b"short"), None);
    }
}
