//! Has the kernel forget names. It locks the directory for that, and who holds the lock may wait for our answer; so
//! under a supervisor, where the next daemon gives that answer, it is the supervisor that writes to the kernel: a
//! daemon that was killed in that write would not come to its end before.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{INodeNo, Notifier};
use nix::sys::socket::{MsgFlags, send};

/// Numbers of notifications in the kernel's `include/uapi/linux/fuse.h`.
const INVAL_ENTRY: u32 = 3;
const DELETE: u32 = 6;
pub(super) const RESEND: u32 = 7;

/// The longest message to the supervisor.
const MAX_LENGTH: usize = 1024;

#[derive(Debug, Clone)]
pub(super) enum Forgetter {
    Direct(Notifier),
    Relayed(Arc<OwnedFd>),
}

impl Forgetter {
    /// The directory entry has gone. Whether the kernel knows it is its own matter.
    pub(super) fn delete(&self, parent: INodeNo, child: INodeNo, name: &OsStr) -> io::Result<()> {
        // Deleting also wakes those who watch the directory, but the kernel refuses it while something below is in
        // use; then it is enough to have the name asked for again. The mount itself may be gone by now.
        match self {
            Self::Direct(notifier) => notifier
                .delete(parent, child, name)
                .or_else(|_| notifier.inval_entry(parent, name)),
            Self::Relayed(relay) => {
                relay_to(relay, &[delete(parent, child, name), inval_entry(parent, name)])
            }
        }
    }

    /// The name is to be asked for again.
    pub(super) fn inval_entry(&self, parent: INodeNo, name: &OsStr) -> io::Result<()> {
        match self {
            Self::Direct(notifier) => notifier.inval_entry(parent, name),
            Self::Relayed(relay) => relay_to(relay, &[inval_entry(parent, name)]),
        }
    }
}

/// Sends notifications of which the second is for when the kernel refuses the first.
fn relay_to(relay: &OwnedFd, messages: &[Vec<u8>]) -> io::Result<()> {
    send(relay.as_raw_fd(), &messages.concat(), MsgFlags::MSG_NOSIGNAL)?;
    Ok(())
}

/// The supervisor's part: writes what comes over `relay` to `device`, until there is nobody left to send.
///
/// # Errors
/// The relay is broken.
pub fn pass_on(relay: &impl AsFd, device: &impl AsFd) -> io::Result<()> {
    let mut buffer = [0; MAX_LENGTH];
    loop {
        let length = nix::unistd::read(relay, &mut buffer)?;
        let mut rest = buffer.get(..length).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        while let Some((message, others)) = first(rest) {
            rest = others;
            // That the kernel knows no such entry is as good.
            match nix::unistd::write(device, message) {
                Ok(_) | Err(nix::errno::Errno::ENOENT) => break,
                Err(_) => {}
            }
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
