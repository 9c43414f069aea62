//! Invalidates names in the kernel's cache. The kernel locks the directory for that, and the holder of the
//! lock may be waiting for the daemon's answer: a daemon killed in that write could not exit before that
//! answer, so never. So a helper process does the write: the supervisor's, because the next daemon gives the
//! answer; otherwise the daemon's own.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::INodeNo;
use nix::sys::socket::{MsgFlags, recv, send};
use parking_lot::Mutex;

use super::relay::Relay;

/// Notification codes of the kernel's `include/uapi/linux/fuse.h`.
const INVAL_ENTRY: u32 = 3;
const DELETE: u32 = 6;
pub(super) const RESEND: u32 = 7;

/// Maximum length of a message to the helper, in bytes.
const MAX_LENGTH: usize = 1024;

/// How long a pending invalidation may take when the daemon stops. It waits only for the daemon.
const PATIENCE: Duration = Duration::from_secs(5);

/// The process that writes invalidations to the kernel.
#[derive(Debug, Clone)]
pub enum InvalidationWriter {
    /// A helper of this daemon; calls return once the kernel has taken the message.
    Helped(Arc<Mutex<Relay>>),
    /// The supervisor's helper, which writes the message later.
    Relayed(Arc<OwnedFd>),
}

impl InvalidationWriter {
    pub(super) fn helped(relay: Relay) -> Self {
        Self::Helped(Arc::new(Mutex::new(relay)))
    }

    /// Reports that a directory entry was deleted, whether or not the kernel has cached it.
    pub(super) fn delete(&self, parent: INodeNo, child: INodeNo, name: &OsStr) -> io::Result<()> {
        // FUSE_NOTIFY_DELETE also wakes watchers of the directory, but the kernel refuses it while something
        // below is in use; then invalidating the name is enough. The mount itself may be gone by now.
        self.pass(&[delete(parent, child, name), inval_entry(parent, name)])
    }

    /// Invalidates a cached name.
    pub(super) fn inval_entry(&self, parent: INodeNo, name: &OsStr) -> io::Result<()> {
        self.pass(&[inval_entry(parent, name)])
    }

    /// Sends notifications; the second is used if the kernel refuses the first.
    fn pass(&self, messages: &[Vec<u8>]) -> io::Result<()> {
        let messages = messages.concat();
        match self {
            Self::Helped(relay) => relay.lock().pass(&messages),
            Self::Relayed(relay) => {
                send(relay.as_raw_fd(), &messages, MsgFlags::MSG_NOSIGNAL)?;
                Ok(())
            }
        }
    }

    /// Stops invalidating and ends the helper. Call it while requests are still answered: otherwise a helper
    /// that waits for a directory's lock would wait for ever.
    pub fn stop(&self) {
        if let Self::Helped(relay) = self {
            match relay.try_lock_for(PATIENCE) {
                Some(mut relay) => relay.stop(),
                None => tracing::warn!("the kernel has not invalidated all removed names"),
            }
        }
    }
}

/// Returns the next message of a relay; `None` once the other end is closed. The message stays in the socket
/// until it is [`done`]: if this process is killed before that, the next helper finds it.
///
/// # Errors
/// The relay is broken.
pub fn next(relay: &impl AsFd) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; MAX_LENGTH];
    let length = recv(relay.as_fd().as_raw_fd(), &mut buffer, MsgFlags::MSG_PEEK)?;
    buffer.truncate(length);
    Ok(Some(buffer).filter(|messages| !messages.is_empty()))
}

/// Removes the current message from the relay and acknowledges it with a byte. Daemons under a supervisor do
/// not read these bytes: when the socket is full, the acknowledgement is dropped.
///
/// # Errors
/// The relay is broken.
pub fn done(relay: &impl AsFd) -> io::Result<()> {
    let relay = relay.as_fd().as_raw_fd();
    recv(relay, &mut [0], MsgFlags::empty())?;
    let _ = send(relay, &[0], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    Ok(())
}

/// Encodes a notification: `struct fuse_out_header`, whose error field is the notification's code, and its
/// body.
pub(super) fn notification(code: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let unique = 0_u64;
    [
        &length.to_le_bytes()[..],
        &code.to_le_bytes(),
        &unique.to_le_bytes(),
        &body,
    ]
    .concat()
}

fn inval_entry(INodeNo(parent): INodeNo, name: &OsStr) -> Vec<u8> {
    let (name, length) = named(name);
    notification(INVAL_ENTRY, &[&parent.to_le_bytes(), &length, &[0; 4], &name])
}

fn delete(INodeNo(parent): INodeNo, INodeNo(child): INodeNo, name: &OsStr) -> Vec<u8> {
    let (name, length) = named(name);
    let nodes = [parent.to_le_bytes(), child.to_le_bytes()].concat();
    notification(DELETE, &[&nodes, &length, &[0; 4], &name])
}

/// Returns the name with a terminating zero, and its length without it.
fn named(name: &OsStr) -> (Vec<u8>, [u8; 4]) {
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    ([name.as_bytes(), b"\0"].concat(), length.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::first;

    #[test]
    fn messages_are_separated_by_their_lengths() {
        let (parent, child, name) = (INodeNo(1), INodeNo(2), OsStr::new("100"));
        let both = [delete(parent, child, name), inval_entry(parent, name)];
        assert_eq!((both[0].len(), both[1].len()), (16 + 24 + 4, 16 + 16 + 4));
        let bytes = both.concat();
        let (one, rest) = first(&bytes).unwrap();
        assert_eq!(one, both[0]);
        assert_eq!(first(rest).unwrap(), (&both[1][..], &[][..]));
        assert_eq!(first(&[]), None);
        assert_eq!(first(&[9, 0, 0, 0, 1]), None);
    }
}
