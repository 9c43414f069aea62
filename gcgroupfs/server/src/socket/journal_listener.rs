//! Journals settings when they change, on the thread that changed them, before the writer is answered.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::history::History;
use crate::journal::{Journal, Key};
use gcgroupfs_model::tree::{Listener, Notice, Subject, Tree};

#[derive(Debug)]
pub(super) struct JournalListener {
    /// Weak, because the tree owns its listeners.
    tree: Weak<Tree>,
    journal: Arc<Journal>,
    history: Arc<History>,
    /// Wakes the event loop, which compacts the file and retries what could not be stored.
    waker: UnixStream,
    /// Held from the collection of records until they are written.
    writing: Mutex<()>,
}

impl JournalListener {
    pub(super) fn new(
        tree: &Arc<Tree>,
        (journal, history): (Arc<Journal>, Arc<History>),
        waker: UnixStream,
    ) -> Self {
        tree.keep_records();
        Self {
            tree: Arc::downgrade(tree),
            journal,
            history,
            waker,
            writing: Mutex::default(),
        }
    }
}

impl Listener for JournalListener {
    fn notice(&self, notice: &Notice) {
        self.notices(std::slice::from_ref(notice));
    }

    /// Writes all records with one write, so that counts that move between two lines are never stored in both
    /// or in neither.
    fn notices(&self, notices: &[Notice]) {
        if !notices.iter().any(Notice::is_of_record) {
            return;
        }
        let Some(tree) = self.tree.upgrade() else { return };
        {
            let _writing = self.writing.lock();
            // The number is taken before the records, so that a higher number never comes with older
            // contents.
            let number = self.journal.number();
            let records = tree.records(notices).into_iter();
            let lines = records.map(|(subject, saved)| (number, key(subject), saved));
            self.journal.append_all(&lines.collect::<Vec<_>>());
            let exited = notices.iter().filter_map(|notice| match notice {
                Notice::Departed { saved, .. } => Some((**saved.exited.as_ref()?).clone()),
                _ => None,
            });
            let exited: Vec<_> = exited.collect();
            if !exited.is_empty() {
                self.history.append(exited);
            }
        }
        if self.journal.is_due() {
            // If the socket is full, the loop has been woken already.
            let _ = (&self.waker).write(&[0]);
        }
    }

    fn may_wait(&self) -> bool {
        true
    }
}

fn key(subject: Subject) -> Key {
    match subject {
        Subject::Process { pid, start_time } => Key { pid, start_time },
        Subject::Group(id) => Key::group(id.0),
        Subject::Root => Key::ROOT,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::socket::{restore, sift};
    use gcgroupfs_model::tree::Saved;
    use gcgroupfs_model::tree::fixture::{ROOT, World};

    /// Simulates another writer, and a daemon killed between each change and its record or while it writes.
    struct Killer {
        listener: Arc<JournalListener>,
        directory: PathBuf,
        others: Mutex<Vec<Notice>>,
        left: Mutex<Vec<tempfile::TempDir>>,
        /// The state file at the last kill.
        before: Mutex<Option<Vec<u8>>>,
    }

    impl Killer {
        /// Saves the state file as a daemon killed now would leave it, or after a line since the last kill.
        fn kill(&self) {
            let name = "settings.jsonl";
            let text = fs::read(self.directory.join(name)).unwrap();
            let before = self.before.lock().replace(text.clone());
            let before = before.unwrap_or_else(|| text.clone());
            let added = &text[before.len()..];
            // The first line is written last.
            let mut files = vec![text.clone()];
            for (end, _) in added.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
                files.push([&before, &added[..=end]].concat());
            }
            for file in files {
                let left = tempfile::tempdir().unwrap();
                fs::write(left.path().join(name), file).unwrap();
                self.left.lock().push(left);
            }
        }
    }

    impl Listener for Killer {
        fn notice(&self, notice: &Notice) {
            self.notices(std::slice::from_ref(notice));
        }

        fn notices(&self, _: &[Notice]) {
            let others = std::mem::take(&mut *self.others.lock());
            for other in others {
                self.kill();
                self.listener.notice(&other);
                self.kill();
            }
        }
    }

    fn launches(world: &World, path: &str) -> u64 {
        let stat = world.show(format!("{path}/compute.stat").trim_start_matches('/'));
        let launches = stat.lines().find_map(|line| line.strip_prefix("nr_launches "));
        launches.unwrap().parse().unwrap()
    }

    /// Makes a change while other threads write these records. Returns, for each moment at which the daemon
    /// may be killed, the launches that the next daemon finds in these places if all processes have ended.
    fn found(places: &[&str], change: impl Fn(&World)) -> Vec<Vec<u64>> {
        let directory = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open::<Saved>(directory.path(), |_| ()).unwrap();
        let (waker, _woken) = UnixStream::pair().unwrap();
        let world = World::new(1);
        let files = (Arc::new(journal), Arc::new(History::open(directory.path())));
        let listener = Arc::new(JournalListener::new(&world.tree, files, waker));
        let killer = Arc::new(Killer {
            listener: listener.clone(),
            directory: directory.path().to_owned(),
            others: Mutex::default(),
            left: Mutex::default(),
            before: Mutex::default(),
        });
        world.tree.listen(killer.clone());
        world.tree.listen(listener);
        let [a, b] = ["a/b", "c"].map(|path| world.group(path));
        let outer = world.group("a");
        let id = world.join(100);
        world.submit(id, 0, 1);
        world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
        world.submit(id, 0, 2);
        world.tree.write_all_counts();
        *killer.others.lock() = vec![
            Notice::RootChanged,
            Notice::GroupChanged(outer),
            Notice::GroupChanged(a),
            Notice::GroupChanged(b),
            Notice::SettingsChanged(id),
        ];
        change(&world);
        assert_eq!(*killer.others.lock(), []);
        killer.kill();
        let left = killer.left.lock();
        let found = left.iter().map(|left| {
            let history = History::open(left.path());
            let sift = |records: &mut _| sift(records, &history);
            let (journal, mut records) = Journal::open(left.path(), sift).unwrap();
            let after = World::new(1);
            restore(&after.tree, &journal, &mut records, false);
            places.iter().map(|place| launches(&after, place)).collect()
        });
        let found: Vec<_> = found.collect();
        assert!(found.len() > 11, "killed only between writes");
        found
    }

    #[test]
    fn ended_process_counts_once_wherever_the_daemon_is_killed() {
        let found = found(&["", "a", "a/b"], |world| {
            world.tree.leave(world.tree.find(100).unwrap(), 1);
        });
        assert_eq!(found, vec![[3, 2, 2]; found.len()]);
    }

    #[test]
    fn move_keeps_counts_wherever_the_daemon_is_killed() {
        let found = found(&["", "a", "a/b", "c"], |world| {
            world.store("c/gcgroup.procs", ROOT, "100").unwrap();
        });
        assert_eq!(found, vec![[3, 2, 2, 0]; found.len()]);
    }
}
