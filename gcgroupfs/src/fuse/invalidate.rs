//! Tells the kernel what it must forget. With lifetimes of an hour, a directory that has gone would seem alive
//! without it.
//!
//! The kernel takes the directory's lock to forget an entry, and whoever holds that lock may be waiting for us: so
//! this is done on a thread of its own, never on one that answers requests.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use fuser::{INodeNo, Notifier};

use super::inode;
use crate::file::Node;
use crate::tree::{Listener, Notice, Place};

/// A directory entry that the kernel is to forget.
#[derive(Debug)]
struct Forget {
    parent: INodeNo,
    child: INodeNo,
    name: Box<OsStr>,
}

/// Passes on what is to be forgotten. What comes before [`start`](Self::start) is dropped: the kernel cannot know it.
#[derive(Debug, Default)]
pub(super) struct Invalidator {
    queue: OnceLock<Sender<Forget>>,
}

impl Invalidator {
    /// Starts the thread that tells the kernel.
    pub(super) fn start(&self, notifier: Notifier) -> io::Result<()> {
        let (sender, receiver) = channel();
        thread::Builder::new()
            .name("fuse-forget".to_owned())
            .spawn(move || receiver.into_iter().for_each(|entry| forget(&notifier, &entry)))?;
        // Called once.
        let _ = self.queue.set(sender);
        Ok(())
    }

    /// Has an entry forgotten that had gone by the time the kernel was told of it: nothing would tell it again.
    pub(super) fn forget(&self, parent: INodeNo, name: &OsStr, node: Node) {
        self.push(Forget {
            parent,
            child: inode::number(node),
            name: name.into(),
        });
    }

    fn push(&self, entry: Forget) {
        if let Some(queue) = self.queue.get() {
            // The thread ends with the daemon.
            let _ = queue.send(entry);
        }
    }
}

impl Listener for Invalidator {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Left { id, pid, .. } => self.push(Forget {
                parent: INodeNo::ROOT,
                child: inode::number(Node::Dir(Place::process(*id))),
                name: OsString::from(pid.to_string()).into(),
            }),
            // An absent name is never remembered, so a new one needs no announcement.
            Notice::Joined { .. }
            | Notice::SettingsChanged(_)
            | Notice::RootChanged
            | Notice::Ring(_)
            | Notice::Events(_)
            | Notice::Rung(_)
            | Notice::Watched(_) => {}
        }
    }
}

fn forget(notifier: &Notifier, Forget { parent, child, name }: &Forget) {
    // Deleting also wakes those who watch the directory, but the kernel refuses it while something below is in use;
    // then it is enough to have the name asked for again. The mount itself may be gone by now.
    let result = notifier
        .delete(*parent, *child, name)
        .or_else(|_| notifier.inval_entry(*parent, name));
    if let Err(error) = result {
        tracing::debug!(%error, ?name, "cannot have an entry forgotten");
    }
}
