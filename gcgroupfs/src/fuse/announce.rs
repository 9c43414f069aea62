//! Has inotify(7) see what the daemon does: IN_MODIFY of events files, IN_CREATE and IN_DELETE of the directories of
//! processes, and of groups that nobody has made or removed through the mount. The kernel tells watchers only of what somebody does through the mount, and the daemon never touches
//! its mount; so a helper process does it once more, and is recognised by its pid. To it a new directory is not there
//! yet and one that has gone still is, so the kernel lets it make the one and remove the other.
//!
//! Nobody can know whether anybody watches. So it is cheap: a batch each 10 ms at most, on a thread that nobody waits
//! for, and of files only those that the kernel knows. Without the helper everything works but inotify.

mod helper;

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use fuser::{INodeNo, Request};
use nix::errno::Errno;
use parking_lot::Mutex;

use self::helper::Helper;
use super::backlog::{Receiver, Sender, backlog};
use super::forget::Forgetter;
use super::inode;
use super::known::Known;
use super::nodes::Nodes;
use crate::error::Error;
use crate::file::Node;
use crate::launch::Launcher;
use crate::touch;
use crate::tree::{Entity, Listener, Notice, Place, ProcessId};

/// The least time between two batches: what changes several times meanwhile is told once.
const PAUSE: Duration = Duration::from_millis(10);

/// Processes up to which nobody looks whether they are still there.
const FEWEST: usize = 1024;

/// Where the helper finds what it is to touch.
#[derive(Debug, Clone)]
pub struct Spot {
    /// The mount point.
    pub point: PathBuf,
    /// The mount's device number.
    pub device: u64,
}

/// A directory in another.
#[derive(Debug)]
pub(super) struct Spelt {
    pub(super) place: Place,
    pub(super) parent: Place,
    pub(super) name: String,
}

/// What is to be told.
#[derive(Debug)]
pub(super) enum News {
    Appeared(Spelt),
    Gone(Spelt),
    /// Events files of that entity's.
    Changed(u64),
}

thread_local! {
    static IS_TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Makes or removes a directory for who has asked the kernel to: then the kernel tells of it by itself.
pub(super) fn told_by_kernel<T>(change: impl FnOnce() -> T) -> T {
    /// Also when the change panics.
    struct Until;
    impl Drop for Until {
        fn drop(&mut self) {
            IS_TOLD.set(false);
        }
    }
    IS_TOLD.set(true);
    let _until = Until;
    change()
}

/// Whether what this thread does now, the kernel tells of.
pub(super) fn is_told() -> bool {
    IS_TOLD.get()
}

/// What the kernel is told when it asks on behalf of the helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disguise {
    /// There is no such directory.
    Absent,
    /// There is a directory of this number.
    Present(INodeNo),
}

/// Passes on what has happened. What comes before [`start`](Self::start) is dropped: nobody can watch yet.
#[derive(Debug, Default)]
pub(super) struct Announcer {
    pub(super) known: Known,
    queue: OnceLock<Sender<News>>,
    /// The helper's pid; zero if there is none.
    helper: AtomicU32,
    /// The directory and the name in it that the helper is at, and what it is to find there.
    disguise: Mutex<Option<(INodeNo, String, Disguise)>>,
    /// Entities whose directory watchers have not been told of. The kernel must not hold on to their names, or the
    /// helper could not make them.
    fresh: Mutex<HashSet<u64>>,
    /// Entities that the kernel knows, and watchers may watch, from the time of a predecessor.
    inherited: OnceLock<HashSet<u64>>,
}

impl Announcer {
    /// Starts the thread that tells.
    pub(super) fn start(
        self: &Arc<Self>,
        launcher: Arc<Launcher>,
        spot: Spot,
        nodes: Arc<Nodes>,
        forgetter: Forgetter,
    ) -> io::Result<()> {
        let (sender, receiver) = backlog("telling watchers");
        let worker = Worker {
            announcer: self.clone(),
            nodes,
            forgetter,
            pids: HashMap::new(),
            next_tidy: FEWEST,
            helper: Helper::new(launcher, spot),
        };
        thread::Builder::new()
            .name("fuse-announce".to_owned())
            .spawn(move || worker.run(&receiver))?;
        // Called once.
        let _ = self.queue.set(sender);
        Ok(())
    }

    /// What the kernel is to be told of a name in a directory, if it asks for the helper.
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

    /// These are not new to the kernel.
    pub(super) fn inherit(&self, entities: HashSet<u64>) {
        // Called once.
        let _ = self.inherited.set(entities);
    }

    fn is_inherited(&self, entity: u64) -> bool {
        self.inherited
            .get()
            .is_some_and(|entities| entities.contains(&entity))
    }

    /// Of a directory that has gone, only once the kernel has forgotten it.
    pub(super) fn tell(&self, news: News) {
        let entity = match &news {
            News::Appeared(Spelt { place, .. }) | News::Gone(Spelt { place, .. }) => Some(place.entity),
            News::Changed(_) => None,
        };
        if self.queue.get().is_some_and(|queue| !queue.send(news))
            && let Some(entity) = entity
        {
            // Watchers will not be told of it.
            self.fresh.lock().remove(&entity);
        }
    }

    /// Whether watchers are still to be told of the directory.
    pub(super) fn is_fresh(&self, node: Node) -> bool {
        matches!(node, Node::Dir(Place { entity, device: None }) if self.fresh.lock().contains(&entity))
    }
}

impl Listener for Announcer {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Joined { id, pid, .. } => {
                if !self.is_inherited(id.0) {
                    self.fresh.lock().insert(id.0);
                }
                self.tell(News::Appeared(Spelt {
                    place: Place::process(*id),
                    parent: Place::ROOT,
                    name: pid.to_string(),
                }));
            }
            Notice::Made { id, parent, name } if !is_told() => {
                self.fresh.lock().insert(id.0);
                self.tell(News::Appeared(Spelt {
                    place: Place::group(*id),
                    parent: *parent,
                    name: name.clone(),
                }));
            }
            Notice::Events(id) => self.tell(News::Changed(id.0)),
            Notice::GroupEvents(id) => self.tell(News::Changed(id.0)),
            Notice::RootEvents => self.tell(News::Changed(Place::ROOT.entity)),
            // What has gone comes by way of the invalidator.
            _ => {}
        }
    }
}

/// The thread's own.
struct Worker {
    announcer: Arc<Announcer>,
    nodes: Arc<Nodes>,
    forgetter: Forgetter,
    /// Of processes: what their directories are named by.
    pids: HashMap<u64, u32>,
    /// How many of them call for a look whether they are still there.
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
                    News::Appeared(directory) => self.appeared(&directory),
                    News::Gone(directory) => self.gone(&directory),
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

    /// Forgets those that have gone without that it was told.
    fn tidy(&mut self) {
        if self.pids.len() < self.next_tidy {
            return;
        }
        let nodes = &self.nodes;
        self.pids
            .retain(|entity, _| !nodes.is_gone(Node::Dir(Place::process(ProcessId(*entity)))));
        self.next_tidy = 2 * self.pids.len().max(FEWEST);
    }

    fn appeared(&mut self, directory: &Spelt) {
        let Spelt { place, parent, name } = directory;
        let entity = place.entity;
        if let (Entity::Process(_), Ok(pid)) = (place.whose(), name.parse()) {
            if self.pids.insert(entity, pid).is_some() {
                // It has only registered again.
                self.announcer.fresh.lock().remove(&entity);
                return;
            }
            if self.announcer.is_inherited(entity) {
                // What of it is watched is not known, so everything may be.
                self.nodes.know_events(&self.announcer.known, *place);
                return;
            }
        }
        if self.nodes.is_gone(Node::Dir(*place)) {
            // It stays fresh: of its end nobody need be told either.
            return;
        }
        let mut done = self.ask(touch::CREATE, directory, Disguise::Absent);
        if done == Err(Errno::EEXIST) {
            // The name's last owner has not been forgotten yet.
            let parent = inode::number(Node::Dir(*parent));
            let _ = self.forgetter.inval_entry(parent, OsStr::new(name));
            done = self.ask(touch::CREATE, directory, Disguise::Absent);
        }
        tracing::trace!(name, ?done, "announced a directory");
        self.announcer.fresh.lock().remove(&entity);
    }

    fn gone(&mut self, directory: &Spelt) {
        let Spelt { place, parent, name } = directory;
        self.pids.remove(&place.entity);
        let was_announced = !self.announcer.fresh.lock().remove(&place.entity);
        // Where the name has a new owner, it stays.
        if was_announced && self.nodes.has_no_directory(*parent, name) {
            let dead = inode::number(Node::Dir(*place));
            let done = self.ask(touch::DELETE, directory, Disguise::Present(dead));
            tracing::trace!(name, ?done, "announced the end of a directory");
        }
    }

    /// Touches those of an entity's events files that show something new.
    fn changed(&mut self, entity: u64) {
        for ino in self.announcer.known.of(entity) {
            let Ok(Node::File(place, file)) = self.nodes.node(ino) else {
                continue;
            };
            if !self.announcer.known.tell(ino, self.nodes.nr_changes(ino)) {
                continue;
            }
            let directory = match place.whose() {
                Entity::Root => Some(String::new()),
                Entity::Group(_) => Some(self.nodes.path(place) + "/"),
                Entity::Process(_) => self.pids.get(&entity).map(|pid| format!("{pid}/")),
            };
            let Some(directory) = directory else { continue };
            let device = place
                .device
                .map_or_else(String::new, |device| format!("{device}/"));
            let path = format!("{directory}{device}{}", file.name);
            let done = self.helper.ask(touch::MODIFY, &path, &self.announcer.helper);
            tracing::trace!(path, ?done, "announced a change");
        }
    }

    /// Has the helper do something with a directory, which looks to it as `disguise` says.
    fn ask(&mut self, command: &str, directory: &Spelt, disguise: Disguise) -> nix::Result<()> {
        let Spelt { parent, name, .. } = directory;
        let path = match self.nodes.path(*parent) {
            above if above.is_empty() => name.clone(),
            above => format!("{above}/{name}"),
        };
        let at = inode::number(Node::Dir(*parent));
        *self.announcer.disguise.lock() = Some((at, name.clone(), disguise));
        let done = self.helper.ask(command, &path, &self.announcer.helper);
        *self.announcer.disguise.lock() = None;
        done
    }
}

impl Disguise {
    /// What the helper's look-up finds: a directory's number.
    pub(super) fn found(self) -> crate::error::Result<INodeNo> {
        match self {
            Self::Absent => Err(Error::NotFound),
            Self::Present(ino) => Ok(ino),
        }
    }
}
