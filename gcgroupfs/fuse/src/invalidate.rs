//! Invalidates directory entries in the kernel's cache. They are cached for an hour, so without this a
//! removed directory would seem to exist.
//!
//! The kernel locks the directory for that, and the thread that holds the lock may be waiting for the daemon.
//! So this is done on a thread of its own, never on one that answers requests.

use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

use fuser::{INodeNo, Notifier};

use super::backlog::{Sender, backlog};
use super::inode;
use super::inotify_replay::{NamedDirectory, News, Replayer};
use super::invalidation_writer::InvalidationWriter;
use gcgroupfs_model::file::Node;
use gcgroupfs_model::tree::{Directory, Listener, Notice};

/// A directory entry to be invalidated.
#[derive(Debug)]
struct Entry {
    parent: INodeNo,
    child: INodeNo,
    name: Box<OsStr>,
}

/// Tasks of the thread, done in order.
#[derive(Debug)]
enum Task {
    Invalidate(Entry),
    /// Sent after all entries of a directory have been invalidated; then its removal can be replayed.
    Replay(News),
}

/// Queues invalidations. Those before [`start`](Self::start) are dropped, since the kernel cannot know the
/// entries.
#[derive(Debug)]
pub(super) struct Invalidator {
    replayer: Arc<Replayer>,
    queue: OnceLock<Sender<Task>>,
    notifier: OnceLock<Notifier>,
}

impl Invalidator {
    pub(super) fn new(replayer: Arc<Replayer>) -> Self {
        Self {
            replayer,
            queue: OnceLock::new(),
            notifier: OnceLock::new(),
        }
    }

    /// Starts the invalidating thread.
    pub(super) fn start(&self, writer: InvalidationWriter, notifier: Notifier) -> io::Result<()> {
        let (sender, receiver) = backlog("invalidating names in the kernel");
        let replayer = self.replayer.clone();
        thread::Builder::new()
            .name("fuse-invalidate".to_owned())
            .spawn(move || {
                while let Some(task) = receiver.next() {
                    match task {
                        Task::Invalidate(entry) => invalidate(&writer, &entry),
                        Task::Replay(news) => replayer.tell(news),
                    }
                }
            })?;
        // Called once.
        let _ = self.queue.set(sender);
        let _ = self.notifier.set(notifier);
        Ok(())
    }

    /// Invalidates the attributes of these inodes. This takes no lock that a waiting process can hold, so any
    /// thread may do it.
    pub(super) fn invalidate_attributes(&self, nodes: Vec<INodeNo>) {
        // A negative offset invalidates the attributes only.
        const ATTRIBUTES: i64 = -1;
        for ino in nodes {
            let known = self
                .notifier
                .get()
                .map(|notifier| notifier.inval_inode(ino, ATTRIBUTES, 0));
            // Most files are unknown to the kernel.
            tracing::trace!(?ino, ?known, "attributes have changed");
        }
    }

    /// Invalidates an entry that went before the kernel was told of it, for which no further notice comes.
    pub(super) fn invalidate_entry(&self, parent: INodeNo, name: &OsStr, node: Node) {
        self.push(Task::Invalidate(Entry {
            parent,
            child: inode::number(node),
            name: name.into(),
        }));
    }

    /// Invalidates a removed directory and its watched files. `is_reported`: the kernel itself reports it to
    /// watchers.
    fn gone(&self, named: NamedDirectory, is_reported: bool) {
        let NamedDirectory {
            directory,
            parent,
            name,
        } = &named;
        // Files first: after the directory, their removal would not be reported to watchers.
        for child in self.replayer.looked_up.take(directory.entity) {
            if let Ok((directory, Some(file))) = inode::parts(child) {
                self.push(Task::Invalidate(Entry {
                    parent: inode::number(Node::Dir(directory)),
                    child,
                    name: OsStr::new(file.name).into(),
                }));
            }
        }
        self.push(Task::Invalidate(Entry {
            parent: inode::number(Node::Dir(*parent)),
            child: inode::number(Node::Dir(*directory)),
            name: OsStr::new(name).into(),
        }));
        if !is_reported {
            self.push(Task::Replay(News::Gone(named)));
        }
    }

    fn push(&self, task: Task) {
        if let Some(queue) = self.queue.get() {
            // An entry that stays cached leads to no inode, and is looked up again.
            queue.send(task);
        }
    }
}

impl Listener for Invalidator {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Left { id, pid, .. } => {
                let named = NamedDirectory {
                    directory: Directory::process(*id),
                    parent: Directory::ROOT,
                    name: pid.to_string(),
                };
                self.gone(named, false);
            }
            Notice::Removed {
                id,
                parent,
                name,
                is_reported,
            } => {
                let named = NamedDirectory {
                    directory: Directory::group(*id),
                    parent: *parent,
                    name: name.clone(),
                };
                self.gone(named, *is_reported);
            }
            // Absent names are not cached, so a new one needs no invalidation.
            _ => {}
        }
    }
}

fn invalidate(writer: &InvalidationWriter, Entry { parent, child, name }: &Entry) {
    if let Err(error) = writer.delete(*parent, *child, name) {
        tracing::debug!(%error, ?name, "cannot invalidate a directory entry");
    }
}
