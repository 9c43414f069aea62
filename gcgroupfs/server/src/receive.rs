//! A client can send any descriptor, even one whose close waits for that client for ever, such as a file on
//! its own FUSE mount. So the daemon never receives a descriptor from a client. It passes the client's
//! connection to this process, which receives the message and forwards the descriptor only if it is a memfd,
//! whose close never waits. It keeps anything else open until the daemon replaces it: then it ends, which may
//! take for ever.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::{Deserialize, Serialize};

use crate::block;
use gcgroupfs_sys::{self as sys, Received};

/// Room for a registration message, bytes; the daemon has examined it already.
const MAX_MESSAGE: usize = 512;

/// Length of the longest packet of either side, bytes.
pub const LONGEST: usize = 64;

/// Request of the daemon, a packet of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Receive a message over the attached connection, and answer with its descriptor.
    Take,
    /// Keep the attached connections, in whose queues descriptors may lie. There is no answer.
    Keep,
}

/// Packet of JSON to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The first packet: ready for tasks.
    Ready,
    /// To [`Task::Take`]. A usage block's descriptor is attached if there is no error.
    Taken {
        /// 0; `EINVAL` if the message did not carry exactly one memfd; otherwise the errno of recvmsg(2).
        error: i32,
        /// Whether the receiver keeps descriptors of the message.
        has_kept: bool,
    },
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
    send(daemon, &Answer::Ready, &[], MsgFlags::empty())?;
    loop {
        let mut watched = [PollFd::new(daemon.as_fd(), PollFlags::POLLIN)];
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        let mut buffer = [0; LONGEST];
        let Received {
            length, descriptors, ..
        } = match sys::receive(daemon, &mut buffer) {
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            received => received?,
        };
        match serde_json::from_slice(buffer.get(..length).unwrap_or_default()) {
            Ok(Task::Take) => {}
            Ok(Task::Keep) => {
                kept.extend(descriptors);
                continue;
            }
            Err(_) => return Ok(()),
        }
        let Ok([connection]) = <[OwnedFd; 1]>::try_from(descriptors) else {
            return Ok(());
        };
        let (taken, others) = take(&connection);
        // Closed before the answer, while the daemon still has it: so this is not the last close, which could
        // block.
        drop(connection);
        let answer = Answer::Taken {
            error: taken.as_ref().map_or_else(|errno| *errno as i32, |_| 0),
            has_kept: !others.is_empty(),
        };
        kept.extend(others);
        let memfd: Vec<_> = taken.iter().map(AsRawFd::as_raw_fd).collect();
        send(daemon, &answer, &memfd, MsgFlags::empty())?;
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

/// Sends a packet with descriptors.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send(
    to: &impl AsFd,
    packet: &impl Serialize,
    descriptors: &[RawFd],
    flags: MsgFlags,
) -> nix::Result<()> {
    let bytes = serde_json::to_vec(packet).map_err(|_| Errno::EINVAL)?;
    let rights = [ControlMessage::ScmRights(descriptors)];
    let rights = if descriptors.is_empty() { &[] } else { &rights[..] };
    let (to, parts) = (to.as_fd().as_raw_fd(), [io::IoSlice::new(&bytes)]);
    sendmsg::<()>(to, &parts, rights, flags | MsgFlags::MSG_NOSIGNAL, None).map(drop)
}
