//! Puts settings on file when they change, on the thread that changed them, before its caller is answered.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use crate::journal::{Journal, Key};
use crate::tree::{Identity, Listener, Notice, Saved, Tree};

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
        self.notices(std::slice::from_ref(notice));
    }

    /// One write, so that what goes from one to another is not on file of both, or of neither.
    fn notices(&self, notices: &[Notice]) {
        let is_ours = |notice: &&Notice| {
            matches!(
                notice,
                Notice::SettingsChanged(_)
                    | Notice::GroupChanged(_)
                    | Notice::RootChanged
                    | Notice::Departed { .. }
            )
        };
        if !notices.iter().any(|notice| is_ours(&notice)) {
            return;
        }
        let Some(tree) = self.tree.upgrade() else { return };
        let lines = notices.iter().filter(is_ours).filter_map(|notice| {
            // First the number, then what is to be kept: so a higher number never comes with something older.
            let number = self.journal.number();
            let (key, saved) = changed(&tree, notice)?;
            Some((number, key, saved))
        });
        self.journal.append_all(&lines.collect::<Vec<_>>());
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
        Notice::SettingsChanged(id) => Some((key(&tree.identity(*id)?), tree.saved(*id)?)),
        Notice::Departed {
            pid,
            start_time,
            saved,
        } => {
            let key = Key {
                pid: *pid,
                start_time: *start_time,
            };
            let again = tree
                .find(*pid)
                .and_then(|id| changed(tree, &Notice::SettingsChanged(id)));
            Some(
                again
                    .filter(|again| again.0 == key)
                    .unwrap_or_else(|| (key, (**saved).clone())),
            )
        }
        Notice::GroupChanged(id) => Some((Key::group(id.0), tree.saved_group(*id))),
        _ => Some((Key::ROOT, tree.saved_root())),
    }
}

fn key(identity: &Identity) -> Key {
    Key {
        pid: identity.pid,
        start_time: identity.start_time,
    }
}
