//! Puts settings on file when they change, on the thread that changed them, before its caller is answered.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use crate::journal::{Journal, Key};
use crate::tree::{Listener, Notice, Settings, Tree};

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
        if !matches!(notice, Notice::SettingsChanged(_) | Notice::RootChanged) {
            return;
        }
        // First the number, then the settings: so a higher number never comes with older settings.
        let number = self.journal.number();
        let Some((key, settings)) = self.tree.upgrade().and_then(|tree| changed(&tree, notice)) else {
            return;
        };
        self.journal.append(number, key, &settings);
        if self.journal.is_long() {
            // A full pipe wakes as well as one byte more.
            let _ = (&self.waker).write(&[0]);
        }
    }
}

fn changed(tree: &Tree, notice: &Notice) -> Option<(Key, Settings)> {
    let Notice::SettingsChanged(id) = notice else {
        return Some((Key::ROOT, tree.root_settings()));
    };
    let (identity, settings) = tree.settings(*id)?;
    let key = Key {
        pid: identity.pid,
        start_time: identity.start_time,
    };
    Some((key, settings))
}
