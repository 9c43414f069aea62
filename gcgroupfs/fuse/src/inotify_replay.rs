//! inotify replay: makes inotify(7) report what the daemon does. IN_MODIFY of events files; IN_CREATE and
//! IN_DELETE of the directories of processes, and of groups that were not made or removed through the mount.
//! The kernel reports only what is done through the mount, and the daemon never accesses its mount; so a
//! helper process repeats the change, recognised by its pid. For the helper alone a new directory is absent
//! and a removed one present, so that it can make the one and remove the other.
//!
//! The daemon cannot know whether anything is watched, so this is cheap: at most one batch in 10 ms, on a
//! thread of its own, and of files only those that the kernel knows. Without the helper everything but
//! inotify works.

mod helper;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use fuser::{INodeNo, Request};
use nix::errno::Errno;
use parking_lot::Mutex;

use self::helper::Helper;
use super::Spot;
use super::backlog::{Receiver, Sender, backlog};
use super::inode;
use super::invalidation_writer::InvalidationWriter;
use super::looked_up::LookedUp;
use super::nodes::Nodes;
use crate::inotify_helper;
use gcgroupfs_model::error::Error;
use gcgroupfs_model::file::Node;
use gcgroupfs_model::tree::{Directory, Entity, Listener, Notice, ProcessId};
use gcgroupfs_sys::launch::Launcher;

/// Least time between two batches; several changes of one file in between are reported once.
const PAUSE: Duration = Duration::from_millis(10);

/// Number of processes up to which no check is made whether they are still there.
const FEWEST: usize = 1024;

/// A directory with its parent and name.
#[derive(Debug)]
pub(super) struct NamedDirectory {
    pub(super) directory: Directory,
    pub(super) parent: Directory,
    pub(super) name: String,
}

/// A change to be replayed.
#[derive(Debug)]
pub(super) enum News {
    Appeared(NamedDirectory),
    Gone(NamedDirectory),
    /// Events files of the entity with that number have changed.
    Changed(u64),
}

/// Answer to the helper's lookup of the directory that it repeats a change of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disguise {
    /// The directory does not exist.
    Absent,
    /// The directory exists with this inode number.
    Present(INodeNo),
}

/// Replays changes. Changes before [`start`](Self::start) are dropped, since nothing can be watched yet.
#[derive(Debug, Default)]
pub(super) struct Replayer {
    pub(super) looked_up: LookedUp,
    queue: OnceLock<Sender<News>>,
    /// The helper's pid; 0 if there is none.
    helper: AtomicU32,
    /// Parent and name that the helper is working on, and the answer to its lookup.
    disguise: Mutex<Option<(INodeNo, String, Disguise)>>,
    /// Entities whose directory has not been replayed for watchers. The kernel must not cache their names, or
    /// the helper could not make them.
    fresh: Mutex<HashSet<u64>>,
    /// Entities from the previous daemon, which the kernel may know and watchers may watch.
    inherited: OnceLock<HashSet<u64>>,
}

impl Replayer {
    /// Starts the replaying thread.
    pub(super) fn start(
        self: &Arc<Self>,
        launcher: Arc<Launcher>,
        spot: Spot,
        nodes: Arc<Nodes>,
        writer: InvalidationWriter,
    ) -> io::Result<()> {
        let (sender, receiver) = backlog("telling watchers");
        let worker = Worker {
            replayer: self.clone(),
            nodes,
            writer,
            pids: HashMap::new(),
            next_tidy: FEWEST,
            helper: Helper::new(launcher, spot),
        };
        thread::Builder::new()
            .name("inotify-replay".to_owned())
            .spawn(move || worker.run(&receiver))?;
        // Called once.
        let _ = self.queue.set(sender);
        Ok(())
    }

    /// Returns the answer to a lookup of `name` in `parent` if the helper asks and is working on that name.
    pub(super) fn disguise(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Option<Disguise> {
        let is_helper = request.pid() != 0 && request.pid() == self.helper.load(Relaxed);
        if !is_helper {
            return None;
        }
        let disguise = self.disguise.lock();
        disguise
            .as_ref()
            .filter(|(at, of, _)| parent == *at && name == of.as_str())
            .map(|(.., disguise)| *disguise)
    }

    /// Sets the entities of the previous daemon, which need no replay.
    pub(super) fn inherit(&self, entities: HashSet<u64>) {
        // Called once.
        let _ = self.inherited.set(entities);
    }

    fn is_inherited(&self, entity: u64) -> bool {
        self.inherited
            .get()
            .is_some_and(|entities| entities.contains(&entity))
    }

    /// Queues a change. For a removed directory, only after its entry has been invalidated.
    pub(super) fn tell(&self, news: News) {
        let entity = match &news {
            News::Appeared(NamedDirectory { directory, .. })
            | News::Gone(NamedDirectory { directory, .. }) => Some(directory.entity),
            News::Changed(_) => None,
        };
        if self.queue.get().is_some_and(|queue| !queue.send(news))
            && let Some(entity) = entity
        {
            // The queue is full: watchers are not notified of this directory.
            self.fresh.lock().remove(&entity);
        }
    }

    /// Returns whether the directory is still to be replayed.
    pub(super) fn is_fresh(&self, node: Node) -> bool {
        matches!(node, Node::Dir(Directory { entity, device: None }) if self.fresh.lock().contains(&entity))
    }
}

impl Listener for Replayer {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Joined { id, pid, .. } => {
                if !self.is_inherited(id.0) {
                    self.fresh.lock().insert(id.0);
                }
                self.tell(News::Appeared(NamedDirectory {
                    directory: Directory::process(*id),
                    parent: Directory::ROOT,
                    name: pid.to_string(),
                }));
            }
            Notice::Made {
                id,
                parent,
                name,
                is_reported: false,
            } => {
                self.fresh.lock().insert(id.0);
                self.tell(News::Appeared(NamedDirectory {
                    directory: Directory::group(*id),
                    parent: *parent,
                    name: name.clone(),
                }));
            }
            Notice::Events(id) => self.tell(News::Changed(id.0)),
            Notice::GroupEvents(id) => self.tell(News::Changed(id.0)),
            Notice::RootEvents => self.tell(News::Changed(Directory::ROOT.entity)),
            // Removals come from the invalidator.
            _ => {}
        }
    }
}

/// State of the replaying thread.
struct Worker {
    replayer: Arc<Replayer>,
    nodes: Arc<Nodes>,
    writer: InvalidationWriter,
    /// Pids of processes, the names of their directories.
    pids: HashMap<u64, u32>,
    /// Number of processes at which the next check for gone processes is made.
    next_tidy: usize,
    helper: Helper,
}

impl Worker {
    fn run(mut self, receiver: &Receiver<News>) {
        while let Some(first) = receiver.next() {
            let mut changed = BTreeSet::new();
            for news in [first]
                .into_iter()
                .chain(std::iter::from_fn(|| receiver.try_next()))
            {
                match news {
                    News::Appeared(named) => self.appeared(&named),
                    News::Gone(named) => self.gone(&named),
                    News::Changed(entity) => {
                        changed.insert(entity);
                    }
                }
            }
            changed.into_iter().for_each(|entity| self.changed(entity));
            self.tidy();
            thread::sleep(PAUSE);
        }
    }

    /// Drops processes that have gone without a notice.
    fn tidy(&mut self) {
        if self.pids.len() < self.next_tidy {
            return;
        }
        let nodes = &self.nodes;
        self.pids
            .retain(|entity, _| !nodes.is_gone(Node::Dir(Directory::process(ProcessId(*entity)))));
        self.next_tidy = 2 * self.pids.len().max(FEWEST);
    }

    fn appeared(&mut self, named: &NamedDirectory) {
        let NamedDirectory {
            directory,
            parent,
            name,
        } = named;
        let entity = directory.entity;
        if let (Entity::Process(_), Ok(pid)) = (directory.whose(), name.parse()) {
            if self.pids.insert(entity, pid).is_some() {
                // The process has only registered again.
                self.replayer.fresh.lock().remove(&entity);
                return;
            }
            if self.replayer.is_inherited(entity) {
                // Which of its files are watched is not known, so all may be.
                self.nodes.know_events(&self.replayer.looked_up, *directory);
                return;
            }
        }
        if self.nodes.is_gone(Node::Dir(*directory)) {
            // It stays fresh, so its removal is not replayed either.
            return;
        }
        let mut done = self.ask(inotify_helper::CREATE, named, Disguise::Absent);
        if done == Err(Errno::EEXIST) {
            // The name's previous owner has not been invalidated yet.
            let parent = inode::number(Node::Dir(*parent));
            let _ = self.writer.inval_entry(parent, OsStr::new(name));
            done = self.ask(inotify_helper::CREATE, named, Disguise::Absent);
        }
        tracing::trace!(name, ?done, "replayed a directory");
        self.replayer.fresh.lock().remove(&entity);
    }

    fn gone(&mut self, named: &NamedDirectory) {
        let NamedDirectory {
            directory,
            parent,
            name,
        } = named;
        self.pids.remove(&directory.entity);
        let was_replayed = !self.replayer.fresh.lock().remove(&directory.entity);
        // If the name has a new owner, it stays.
        if was_replayed && self.nodes.has_no_directory(*parent, name) {
            let dead = inode::number(Node::Dir(*directory));
            let done = self.ask(inotify_helper::DELETE, named, Disguise::Present(dead));
            tracing::trace!(name, ?done, "replayed the end of a directory");
        }
    }

    /// Makes the helper modify those of an entity's events files that have changed.
    fn changed(&mut self, entity: u64) {
        for ino in self.replayer.looked_up.of(entity) {
            let Ok(Node::File(directory, file)) = self.nodes.node(ino) else {
                continue;
            };
            if !self.replayer.looked_up.tell(ino, self.nodes.nr_changes(ino)) {
                continue;
            }
            let above = match directory.whose() {
                Entity::Root => Some(String::new()),
                Entity::Group(_) => Some(self.nodes.path(directory) + "/"),
                Entity::Process(_) => self.pids.get(&entity).map(|pid| format!("{pid}/")),
            };
            let Some(above) = above else { continue };
            let device = directory
                .device
                .map_or_else(String::new, |device| format!("{device}/"));
            let path = format!("{above}{device}{}", file.name);
            let done = self
                .helper
                .ask(inotify_helper::MODIFY, &path, &self.replayer.helper);
            tracing::trace!(path, ?done, "replayed a change");
        }
    }

    /// Makes the helper execute a command on a directory while its lookup is answered by `disguise`.
    fn ask(&mut self, command: &str, named: &NamedDirectory, disguise: Disguise) -> nix::Result<()> {
        let NamedDirectory { parent, name, .. } = named;
        let path = match self.nodes.path(*parent) {
            above if above.is_empty() => name.clone(),
            above => format!("{above}/{name}"),
        };
        let at = inode::number(Node::Dir(*parent));
        *self.replayer.disguise.lock() = Some((at, name.clone(), disguise));
        let done = self.helper.ask(command, &path, &self.replayer.helper);
        *self.replayer.disguise.lock() = None;
        done
    }
}

impl Disguise {
    /// Returns the result of the helper's lookup: an inode number.
    pub(super) fn found(self) -> gcgroupfs_model::error::Result<INodeNo> {
        match self {
            Self::Absent => Err(Error::NotFound),
            Self::Present(ino) => Ok(ino),
        }
    }
}
