//! Tells the kernel what it must forget. With lifetimes of an hour, a directory that has gone would seem alive
//! without it.
//!
//! The kernel takes the directory's lock to forget an entry, and whoever holds that lock may be waiting for us: so
//! this is done on a thread of its own, never on one that answers requests.

use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

use fuser::{INodeNo, Notifier};

use super::announce::{Announcer, News, Spelt, is_told};
use super::backlog::{Sender, backlog};
use super::forget::Forgetter;
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

/// What the thread does, in order.
#[derive(Debug)]
enum Task {
    Forget(Forget),
    /// All of a directory has been forgotten: now its end can be announced.
    Announce(News),
}

/// Passes on what is to be forgotten. What comes before [`start`](Self::start) is dropped: the kernel cannot know it.
#[derive(Debug)]
pub(super) struct Invalidator {
    announcer: Arc<Announcer>,
    queue: OnceLock<Sender<Task>>,
    notifier: OnceLock<Notifier>,
}

impl Invalidator {
    pub(super) fn new(announcer: Arc<Announcer>) -> Self {
        Self {
            announcer,
            queue: OnceLock::new(),
            notifier: OnceLock::new(),
        }
    }

    /// Starts the thread that tells the kernel.
    pub(super) fn start(&self, forgetter: Forgetter, notifier: Notifier) -> io::Result<()> {
        let (sender, receiver) = backlog("having the kernel forget names");
        let announcer = self.announcer.clone();
        thread::Builder::new()
            .name("fuse-forget".to_owned())
            .spawn(move || {
                while let Some(task) = receiver.next() {
                    match task {
                        Task::Forget(entry) => forget(&forgetter, &entry),
                        Task::Announce(news) => announcer.tell(news),
                    }
                }
            })?;
        // Called once.
        let _ = self.queue.set(sender);
        let _ = self.notifier.set(notifier);
        Ok(())
    }

    /// Has the kernel ask again whom these belong to. No lock of its own is in the way of that, so whoever answers a
    /// request may do it.
    pub(super) fn change(&self, nodes: Vec<INodeNo>) {
        // A negative offset: the attributes alone.
        const ATTRIBUTES: i64 = -1;
        for ino in nodes {
            let known = self
                .notifier
                .get()
                .map(|notifier| notifier.inval_inode(ino, ATTRIBUTES, 0));
            // Of most files the kernel knows nothing.
            tracing::trace!(?ino, ?known, "attributes have changed");
        }
    }

    /// Has an entry forgotten that had gone by the time the kernel was told of it: nothing would tell it again.
    pub(super) fn forget(&self, parent: INodeNo, name: &OsStr, node: Node) {
        self.push(Task::Forget(Forget {
            parent,
            child: inode::number(node),
            name: name.into(),
        }));
    }

    /// A directory has gone.
    fn gone(&self, directory: Spelt) {
        let Spelt { place, parent, name } = &directory;
        // First the files that may be watched: with the directory they would go unnoticed.
        for child in self.announcer.known.take(place.entity) {
            if let Ok((place, Some(file))) = inode::parts(child) {
                self.push(Task::Forget(Forget {
                    parent: inode::number(Node::Dir(place)),
                    child,
                    name: OsStr::new(file.name).into(),
                }));
            }
        }
        self.push(Task::Forget(Forget {
            parent: inode::number(Node::Dir(*parent)),
            child: inode::number(Node::Dir(*place)),
            name: OsStr::new(name).into(),
        }));
        if !is_told() {
            self.push(Task::Announce(News::Gone(directory)));
        }
    }

    fn push(&self, task: Task) {
        if let Some(queue) = self.queue.get() {
            // A name that is not forgotten leads to nobody, and is looked up again.
            queue.send(task);
        }
    }
}

impl Listener for Invalidator {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Left { id, pid, .. } => self.gone(Spelt {
                place: Place::process(*id),
                parent: Place::ROOT,
                name: pid.to_string(),
            }),
            Notice::Removed { id, parent, name } => self.gone(Spelt {
                place: Place::group(*id),
                parent: *parent,
                name: name.clone(),
            }),
            // An absent name is never remembered, so a new one needs no announcement.
            _ => {}
        }
    }
}

fn forget(forgetter: &Forgetter, Forget { parent, child, name }: &Forget) {
    if let Err(error) = forgetter.delete(*parent, *child, name) {
        tracing::debug!(%error, ?name, "cannot have an entry forgotten");
    }
}
