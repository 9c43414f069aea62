//! Has inotify(7) see what the daemon does: IN_MODIFY of events files, IN_CREATE and IN_DELETE of processes'
//! directories. The kernel tells watchers only of what somebody does through the mount, and the daemon never touches
//! its mount; so a helper process does it once more, and is recognised by its pid. To it a new directory is not there
//! yet and one that has gone still is, so the kernel lets it make the one and remove the other.
//!
//! Nobody can know whether anybody watches. So it is cheap: a batch each 10 ms at most, on a thread that nobody waits
//! for, and of files only those that the kernel knows. Without the helper everything works but inotify.

mod helper;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use fuser::{INodeNo, Request};
use nix::errno::Errno;
use parking_lot::Mutex;

use self::helper::Helper;
use super::forget::Forgetter;
use super::inode;
use super::known::Known;
use super::nodes::Nodes;
use crate::error::Error;
use crate::file::Node;
use crate::touch;
use crate::tree::{Listener, Notice, Place, ProcessId};

/// The least time between two batches: what changes several times meanwhile is told once.
const PAUSE: Duration = Duration::from_millis(10);

/// Where the helper finds what it is to touch.
#[derive(Debug, Clone)]
pub struct Spot {
    /// The mount point.
    pub point: PathBuf,
    /// The mount's device number.
    pub device: u64,
}

/// What is to be told.
#[derive(Debug)]
pub(super) enum News {
    Appeared(ProcessId, u32),
    Gone(ProcessId, u32),
    Changed(ProcessId),
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
    /// The name that the helper is at, and what it is to find there.
    disguise: Mutex<Option<(String, Disguise)>>,
    /// Held by whoever has the kernel change a directory, ours or the helper. It locks the directory for both, and the
    /// helper keeps that lock until it has our answer: were we killed then, with the other waiting for the lock, our
    /// end of the mount would never be closed, and so nobody ever answered.
    turn: Mutex<()>,
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
        spot: Spot,
        nodes: Arc<Nodes>,
        forgetter: Forgetter,
    ) -> io::Result<()> {
        let (sender, receiver) = channel();
        let worker = Worker {
            announcer: self.clone(),
            nodes,
            forgetter,
            names: HashMap::new(),
            helper: Helper::new(spot),
        };
        // The helper dies with the thread that has started it.
        thread::Builder::new()
            .name("fuse-announce".to_owned())
            .spawn(move || worker.run(&receiver))?;
        // Called once.
        let _ = self.queue.set(sender);
        Ok(())
    }

    /// What the kernel is to be told of a name in the root, if it asks for the helper.
    pub(super) fn disguise(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Option<Disguise> {
        let is_helper = request.pid() != 0 && request.pid() == self.helper.load(Relaxed);
        if !is_helper || parent != INodeNo::ROOT {
            return None;
        }
        let disguise = self.disguise.lock();
        disguise
            .as_ref()
            .filter(|(at, _)| name == at.as_str())
            .map(|(_, disguise)| *disguise)
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
        if let Some(queue) = self.queue.get() {
            // The thread ends with the daemon.
            let _ = queue.send(news);
        }
    }

    /// Has the kernel change a directory while the helper is at none.
    pub(super) fn in_turn<T>(&self, change: impl FnOnce() -> T) -> T {
        let _turn = self.turn.lock();
        change()
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
                self.tell(News::Appeared(*id, *pid));
            }
            Notice::Events(id) => self.tell(News::Changed(*id)),
            // That one has left comes by way of the invalidator.
            _ => {}
        }
    }
}

/// The thread's own.
struct Worker {
    announcer: Arc<Announcer>,
    nodes: Arc<Nodes>,
    forgetter: Forgetter,
    /// Of processes' directories.
    names: HashMap<u64, String>,
    helper: Helper,
}

impl Worker {
    fn run(mut self, receiver: &Receiver<News>) {
        while let Ok(first) = receiver.recv() {
            let mut changed = BTreeSet::new();
            for news in [first].into_iter().chain(receiver.try_iter()) {
                match news {
                    News::Appeared(id, pid) => self.appeared(id, &pid.to_string()),
                    News::Gone(id, pid) => self.gone(id, &pid.to_string()),
                    News::Changed(id) => {
                        changed.insert(id.0);
                    }
                }
            }
            changed.into_iter().for_each(|entity| self.changed(entity));
            thread::sleep(PAUSE);
        }
    }

    fn appeared(&mut self, id: ProcessId, name: &str) {
        if self.names.insert(id.0, name.to_owned()).is_some() {
            // It has only registered again.
            self.announcer.fresh.lock().remove(&id.0);
            return;
        }
        if self.announcer.is_inherited(id.0) {
            // What of it is watched is not known, so everything may be.
            for ino in self.nodes.events_files(Place::process(id)) {
                self.announcer.known.look_up(ino, self.nodes.nr_changes(ino));
            }
            return;
        }
        if self.nodes.is_gone(Node::Dir(Place::process(id))) {
            // It stays fresh: of its end nobody need be told either.
            return;
        }
        let mut done = self.ask(touch::CREATE, name, Disguise::Absent);
        if done == Err(Errno::EEXIST) {
            // The name's last owner has not been forgotten yet.
            let _ = (self.announcer).in_turn(|| self.forgetter.inval_entry(INodeNo::ROOT, OsStr::new(name)));
            done = self.ask(touch::CREATE, name, Disguise::Absent);
        }
        tracing::trace!(name, ?done, "announced a directory");
        self.announcer.fresh.lock().remove(&id.0);
    }

    fn gone(&mut self, id: ProcessId, name: &str) {
        self.names.remove(&id.0);
        let was_announced = !self.announcer.fresh.lock().remove(&id.0);
        // Where the name has a new owner, it stays.
        if was_announced && self.nodes.has_no_directory(name) {
            let dead = inode::number(Node::Dir(Place::process(id)));
            let done = self.ask(touch::DELETE, name, Disguise::Present(dead));
            tracing::trace!(name, ?done, "announced the end of a directory");
        }
    }

    /// Touches those of an entity's events files that show something new.
    fn changed(&mut self, entity: u64) {
        for ino in self.announcer.known.of(entity) {
            let Ok(Node::File(Place { device, .. }, file)) = self.nodes.node(ino) else {
                continue;
            };
            if !self.announcer.known.tell(ino, self.nodes.nr_changes(ino)) {
                continue;
            }
            let Some(name) = self.names.get(&entity) else {
                continue;
            };
            let device = device.map_or_else(String::new, |device| format!("{device}/"));
            let path = format!("{name}/{device}{}", file.name);
            let announcer = &self.announcer;
            let done = announcer.in_turn(|| self.helper.ask(touch::MODIFY, &path, &announcer.helper));
            tracing::trace!(path, ?done, "announced a change");
        }
    }

    /// Has the helper do something with a directory, which looks to it as `disguise` says.
    fn ask(&mut self, command: &str, name: &str, disguise: Disguise) -> nix::Result<()> {
        *self.announcer.disguise.lock() = Some((name.to_owned(), disguise));
        let announcer = &self.announcer;
        let done = announcer.in_turn(|| self.helper.ask(command, name, &announcer.helper));
        *announcer.disguise.lock() = None;
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
