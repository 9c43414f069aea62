//! Wakes those who poll events files. On a thread of its own, so that whoever causes an event does not wait for the
//! kernel to tell of it.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use super::nodes::Nodes;
use crate::tree::{Listener, Notice};

/// The least time between two wake-ups of the same sleeper: what happens meanwhile it sees all at once. A process
/// that makes events in a loop must not keep its watchers busy. (What they were not told of yet does not end their
/// poll(2) either, so reading again at once gains them nothing.)
const PAUSE: Duration = Duration::from_millis(10);

/// Passes events on to the pollers.
#[derive(Debug)]
pub(super) struct Waker(Sender<u64>);

impl Waker {
    /// Starts the thread that wakes.
    pub(super) fn start(nodes: Arc<Nodes>) -> io::Result<Self> {
        let (sender, receiver) = channel();
        thread::Builder::new()
            .name("fuse-wake".to_owned())
            .spawn(move || {
                while let Ok(first) = receiver.recv() {
                    let entities: BTreeSet<u64> = receiver.try_iter().chain([first]).collect();
                    entities.into_iter().for_each(|entity| wake(&nodes, entity));
                    thread::sleep(PAUSE);
                }
            })?;
        Ok(Self(sender))
    }
}

/// Wakes those for whom there is something new.
fn wake(nodes: &Nodes, entity: u64) {
    // Many may watch one file.
    let mut counts = HashMap::new();
    for (handle, ino) in nodes.handles.of(entity) {
        let count = *counts.entry(ino).or_insert_with(|| nodes.nr_changes(ino));
        if let Some(notifier) = nodes.handles.announce(handle, count)
            && let Err(error) = notifier.notify()
        {
            tracing::debug!(%error, "cannot wake a poller");
        }
    }
}

impl Listener for Waker {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Events(id) | Notice::Left { id, .. } => {
                // The thread ends with the daemon.
                let _ = self.0.send(id.0);
            }
            Notice::GroupEvents(id) | Notice::Removed { id, .. } => {
                let _ = self.0.send(id.0);
            }
            Notice::Joined { .. }
            | Notice::Made { .. }
            | Notice::GroupChanged(_)
            | Notice::SettingsChanged(_)
            | Notice::RootChanged
            | Notice::Ring(_)
            | Notice::Answered { .. }
            | Notice::Rung(_)
            | Notice::Watched(_)
            | Notice::AuditAsked => {}
        }
    }
}
