//! Puts settings on file when they change, on the thread that changed them, before its caller is answered.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use crate::journal::{Journal, Key};
use crate::tree::{Listener, Notice, Saved, Tree};

#[derive(Debug)]
pub struct Scribe {
    /// The tree owns its listeners.
    tree: Weak<Tree>,
    journal: Arc<Journal>,
    /// Of the event loop, which keeps the file short.
    waker: UnixStream,
}

impl Scribe {
    pub fn new(tree: &Arc<Tree>, journal: Arc<Journal>, waker: UnixStream) -> Self {
        Self {
            tree: Arc::downgrade(tree),
            journal,
            waker,
        }
    }
}

impl Listener for Scribe {
    fn notice(&self, notice: &Notice) {
        if !matches!(
            notice,
            Notice::SettingsChanged(_) | Notice::GroupChanged(_) | Notice::RootChanged
        ) {
            return;
        }
        // First the number, then what is to be kept: so a higher number never comes with something older.
        let number = self.journal.number();
        let Some((key, saved)) = self.tree.upgrade().and_then(|tree| changed(&tree, notice)) else {
            return;
        };
        self.journal.append(number, key, &saved);
        if self.journal.is_long() {
            // A full pipe wakes as well as one byte more.
            let _ = (&self.waker).write(&[0]);
        }
    }

    fn may_wait(&self) -> bool {
        true
    }
}

fn changed(tree: &Tree, notice: &Notice) -> Option<(Key, Saved)> {
    match notice {
        Notice::SettingsChanged(id) => {
            let identity = tree.identity(*id)?;
            let key = Key {
                pid: identity.pid,
                start_time: identity.start_time,
            };
            Some((key, tree.saved(*id)?))
        }
        Notice::GroupChanged(id) => Some((Key::group(id.0), tree.saved_group(*id))),
        _ => Some((Key::ROOT, tree.saved_root())),
    }
}
