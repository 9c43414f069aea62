//! Wakes those who poll events files. On a thread of its own, so that whoever causes an event does not wait for the
//! kernel to tell of it.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use super::nodes::Nodes;
use crate::tree::{Listener, Notice};

/// The least time between two wake-ups of the same sleeper: what happens meanwhile it sees all at once. A process
/// that makes events in a loop must not keep its watchers busy.
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
                    for notifier in entities.into_iter().flat_map(|entity| nodes.handles.wake(entity)) {
                        if let Err(error) = notifier.notify() {
                            tracing::debug!(%error, "cannot wake a poller");
                        }
                    }
                    thread::sleep(PAUSE);
                }
            })?;
        Ok(Self(sender))
    }
}

impl Listener for Waker {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Events(id) | Notice::Left { id, .. } => {
                // The thread ends with the daemon.
                let _ = self.0.send(id.0);
            }
            Notice::Joined { .. } | Notice::SettingsChanged(_) | Notice::Ring(_) => {}
        }
    }
}
