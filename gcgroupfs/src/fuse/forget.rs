//! Has the kernel forget names. It locks the directory for that, and who holds the lock may wait for our
//! answer. A daemon that was killed in that write would not come to its end before it is answered, and so
//! never. So another process writes, a helper: under a supervisor its, since the next daemon gives the
//! answer; else ours.

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

/// Numbers of notifications in the kernel's `include/uapi/linux/fuse.h`.
const INVAL_ENTRY: u32 = 3;
const DELETE: u32 = 6;
pub(super) const RESEND: u32 = 7;

/// The longest message to who writes.
const MAX_LENGTH: usize = 1024;

/// How long what is being forgotten may take when the daemon stops. It waits for nobody but us.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who writes to the kernel.
#[derive(Debug, Clone)]
pub enum Forgetter {
    /// A helper of ours. It has been done when it is back.
    Helped(Arc<Mutex<Relay>>),
    /// The supervisor's helper, some time.
    Relayed(Arc<OwnedFd>),
}

impl Forgetter {
    pub(super) fn helped(relay: Relay) -> Self {
        Self::Helped(Arc::new(Mutex::new(relay)))
    }

    /// The directory entry has gone. Whether the kernel knows it is its own matter.
    pub(super) fn delete(&self, parent: INodeNo, child: INodeNo, name: &OsStr) -> io::Result<()> {
        // Deleting also wakes those who watch the directory, but the kernel refuses it while something below
        // is in use; then it is enough to have the name asked for again. The mount itself may be gone by now.
        self.pass(&[delete(parent, child, name), inval_entry(parent, name)])
    }

    /// The name is to be asked for again.
    pub(super) fn inval_entry(&self, parent: INodeNo, name: &OsStr) -> io::Result<()> {
        self.pass(&[inval_entry(parent, name)])
    }

    /// Sends notifications of which the second is for when the kernel refuses the first.
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

    /// Has nothing forgotten any more, and ends the helper. To be called while requests are still answered:
    /// who waits for a directory's lock would go on waiting.
    pub fn stop(&self) {
        if let Self::Helped(relay) = self {
            match relay.try_lock_for(PATIENCE) {
                Some(mut relay) => relay.stop(),
                None => tracing::warn!("the kernel still has not forgotten what has gone"),
            }
        }
    }
}

/// What comes over a relay, if there is still somebody to send. It stays there until it is [`done`]: should
/// we be killed before that, another finds it.
///
/// # Errors
/// The relay is broken.
pub fn next(relay: &impl AsFd) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; MAX_LENGTH];
    let length = recv(relay.as_fd().as_raw_fd(), &mut buffer, MsgFlags::MSG_PEEK)?;
    buffer.truncate(length);
    Ok(Some(buffer).filter(|messages| !messages.is_empty()))
}

/// Takes what has come out of the relay, and says so with a byte. Daemons of a supervisor do not wait for it:
/// when too many are there, it is left unsaid.
///
/// # Errors
/// The relay is broken.
pub fn done(relay: &impl AsFd) -> io::Result<()> {
    let relay = relay.as_fd().as_raw_fd();
    recv(relay, &mut [0], MsgFlags::empty())?;
    let _ = send(relay, &[0], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    Ok(())
}

/// Writes to `device` the first of these notifications that the kernel takes.
pub fn deliver(messages: &[u8], device: &impl AsFd) {
    let mut rest = messages;
    while let Some((message, others)) = first(rest) {
        rest = others;
        // That the kernel knows no such entry is as good.
        match nix::unistd::write(device, message) {
            Ok(_) | Err(nix::errno::Errno::ENOENT) => break,
            Err(_) => {}
        }
    }
}

/// Splits off a message, by the length it begins with.
fn first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, _) = bytes.split_first_chunk::<4>()?;
    bytes.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// A notification: `struct fuse_out_header`, whose error is the notification's number, and its body.
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

/// The name with the zero that ends it, and its length without.
fn named(name: &OsStr) -> (Vec<u8>, [u8; 4]) {
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    ([name.as_bytes(), b"\0"].concat(), length.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_by_their_lengths() {
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
