//! What is kept for each open file and directory: who opened it, and the snapshot it is being read from.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fuser::{FileHandle, FileType, INodeNo, PollNotifier};
use parking_lot::Mutex;

use crate::tree::{Caller, Place};

/// An open control file.
#[derive(Debug)]
pub(super) struct OpenFile {
    opener: Caller,
    /// The directory's entity, whose events the file may be waiting for.
    entity: u64,
    /// What the last read at offset 0 rendered; later offsets are slices of it.
    text: Option<Arc<str>>,
    /// The number of changes up to that read. None before it, so that the first poll is answered at once, as kernfs
    /// does.
    seen: Option<u64>,
    /// How to wake who polls.
    waiting: Option<PollNotifier>,
}

impl OpenFile {
    pub(super) fn new(opener: Caller, place: Place) -> Self {
        Self {
            opener,
            entity: place.entity,
            text: None,
            seen: None,
            waiting: None,
        }
    }
}

/// One line of a listing.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) ino: INodeNo,
    pub(super) kind: FileType,
    pub(super) name: Box<str>,
}

/// An open directory.
#[derive(Debug)]
struct OpenDir {
    entries: Arc<[Entry]>,
    /// Whether reading has begun, so that offset 0 means a rewind.
    begun: bool,
}

/// All that is open. Handles are never reused.
#[derive(Debug, Default)]
pub(super) struct Handles {
    last: AtomicU64,
    files: Mutex<HashMap<u64, OpenFile>>,
    dirs: Mutex<HashMap<u64, OpenDir>>,
}

impl Handles {
    fn next(&self) -> u64 {
        self.last.fetch_add(1, Relaxed) + 1
    }

    pub(super) fn open_file(&self, file: OpenFile) -> FileHandle {
        let handle = self.next();
        self.files.lock().insert(handle, file);
        FileHandle(handle)
    }

    pub(super) fn close_file(&self, FileHandle(handle): FileHandle) {
        self.files.lock().remove(&handle);
    }

    pub(super) fn opener(&self, FileHandle(handle): FileHandle) -> Option<Caller> {
        self.files.lock().get(&handle).map(|file| file.opener)
    }

    pub(super) fn text(&self, FileHandle(handle): FileHandle) -> Option<Arc<str>> {
        self.files.lock().get(&handle)?.text.clone()
    }

    /// Notes what was read, and the number of changes up to it.
    pub(super) fn keep_text(&self, FileHandle(handle): FileHandle, text: Arc<str>, nr_changes: u64) {
        if let Some(file) = self.files.lock().get_mut(&handle) {
            file.text = Some(text);
            file.seen = Some(nr_changes);
        }
    }

    /// Has `notifier` woken at the next [`wake`](Self::wake). Returns the number of changes up to the last read.
    pub(super) fn wait(&self, FileHandle(handle): FileHandle, notifier: PollNotifier) -> Option<u64> {
        let mut files = self.files.lock();
        let file = files.get_mut(&handle)?;
        file.waiting = Some(notifier);
        file.seen
    }

    /// Takes those who wait for an entity's events.
    pub(super) fn wake(&self, entity: u64) -> Vec<PollNotifier> {
        let mut files = self.files.lock();
        files
            .values_mut()
            .filter(|file| file.entity == entity)
            .filter_map(|file| file.waiting.take())
            .collect()
    }

    pub(super) fn open_dir(&self, entries: Vec<Entry>) -> FileHandle {
        let handle = self.next();
        self.dirs.lock().insert(
            handle,
            OpenDir {
                entries: entries.into(),
                begun: false,
            },
        );
        FileHandle(handle)
    }

    pub(super) fn close_dir(&self, FileHandle(handle): FileHandle) {
        self.dirs.lock().remove(&handle);
    }

    /// The snapshot to read from; nothing if a new one is due, because reading starts `from_start` again.
    pub(super) fn entries(&self, FileHandle(handle): FileHandle, from_start: bool) -> Option<Arc<[Entry]>> {
        let mut dirs = self.dirs.lock();
        let dir = dirs.get_mut(&handle)?;
        if from_start && dir.begun {
            return None;
        }
        dir.begun = true;
        Some(dir.entries.clone())
    }

    /// Replaces the snapshot.
    pub(super) fn keep_entries(&self, FileHandle(handle): FileHandle, entries: Vec<Entry>) -> Arc<[Entry]> {
        let entries = Arc::<[Entry]>::from(entries);
        if let Some(dir) = self.dirs.lock().get_mut(&handle) {
            dir.entries = entries.clone();
        }
        entries
    }
}
