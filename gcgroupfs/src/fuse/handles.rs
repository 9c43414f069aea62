//! What is kept for each open file and directory: who opened it, and the snapshot it is being read from.
//!
//! Nothing of it is needed to answer: of a handle that is not known, because a predecessor gave it, only the opener
//! matters, and that is in its number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use fuser::{FileHandle, FileType, INodeNo, PollHandle, PollNotifier};
use parking_lot::Mutex;

use super::inode;
use crate::keep::Slots;
use crate::tree::Caller;

/// An open control file.
#[derive(Debug)]
pub(super) struct OpenFile {
    opener: Caller,
    ino: INodeNo,
    /// What the last read at offset 0 rendered; later offsets are slices of it.
    text: Option<Arc<str>>,
    /// The number of changes up to that read. None before it, so that the first poll is answered at once, as kernfs
    /// does.
    seen: Option<u64>,
    /// The number of changes that pollers have been told of. What has changed beyond that they will be told when
    /// their pause is over.
    announced: u64,
    /// How to wake who polls.
    waiting: Option<PollNotifier>,
    /// The kernel's number for that, once somebody has polled.
    polled: Option<u64>,
}

impl OpenFile {
    pub(super) fn new(opener: Caller, ino: INodeNo) -> Self {
        Self {
            opener,
            ino,
            text: None,
            seen: None,
            announced: 0,
            waiting: None,
            polled: None,
        }
    }

    fn has_news(&self) -> bool {
        self.seen.is_none_or(|seen| self.announced > seen)
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
    ino: INodeNo,
    entries: Arc<[Entry]>,
    /// Whether reading has begun, so that offset 0 means a rewind.
    begun: bool,
}

/// All that is open. A handle is the opener's uid, and a number that no other open handle of that user has.
#[derive(Debug, Default)]
pub(super) struct Handles {
    last: AtomicU32,
    files: Mutex<HashMap<u64, OpenFile>>,
    dirs: Mutex<HashMap<u64, OpenDir>>,
    /// Where a successor finds who was asleep.
    pollers: OnceLock<Arc<Slots<8>>>,
}

impl Handles {
    /// Has those who poll written down.
    pub(super) fn note_pollers(&self, pollers: Arc<Slots<8>>) {
        // Called once.
        let _ = self.pollers.set(pollers);
    }

    fn next<T>(&self, uid: u32, open: &HashMap<u64, T>) -> u64 {
        loop {
            let number = self.last.fetch_add(1, Relaxed).wrapping_add(1);
            let handle = u64::from(uid) << 32 | u64::from(number);
            if !open.contains_key(&handle) {
                return handle;
            }
        }
    }

    pub(super) fn open_file(&self, file: OpenFile) -> FileHandle {
        let mut files = self.files.lock();
        let handle = self.next(file.opener.uid, &files);
        files.insert(handle, file);
        FileHandle(handle)
    }

    pub(super) fn close_file(&self, FileHandle(handle): FileHandle) {
        let file = self.files.lock().remove(&handle);
        if let (Some(polled), Some(pollers)) = (file.and_then(|file| file.polled), self.pollers.get()) {
            pollers.remove(polled.to_le_bytes());
        }
    }

    /// Who opened the file, when `caller` uses it.
    pub(super) fn opener(&self, handle: FileHandle, caller: Caller) -> Caller {
        let FileHandle(number) = handle;
        let opener = self.files.lock().get(&number).map(|file| file.opener);
        opener.unwrap_or(Caller {
            uid: uid(handle),
            ..caller
        })
    }

    pub(super) fn text(&self, FileHandle(handle): FileHandle, ino: INodeNo) -> Option<Arc<str>> {
        let files = self.files.lock();
        files.get(&handle).filter(|file| file.ino == ino)?.text.clone()
    }

    /// Notes what was read, and the number of changes up to it.
    pub(super) fn keep_text(&self, handle: FileHandle, ino: INodeNo, text: Arc<str>, nr_changes: u64) {
        let mut files = self.files.lock();
        let file = adopt(&mut files, handle, ino);
        file.text = Some(text);
        file.seen = Some(nr_changes);
        file.announced = file.announced.max(nr_changes);
    }

    /// Has `notifier` woken by the next [`announce`](Self::announce) of something new. Returns whether there is
    /// something already.
    pub(super) fn wait(&self, handle: FileHandle, ino: INodeNo, notifier: PollNotifier) -> bool {
        let mut files = self.files.lock();
        let file = adopt(&mut files, handle, ino);
        let PollHandle(number) = notifier.handle();
        if let (Some(pollers), None) = (self.pollers.get(), file.polled.replace(number)) {
            pollers.put(number.to_le_bytes());
        }
        file.waiting = Some(notifier);
        file.has_news()
    }

    /// The open files of an entity.
    pub(super) fn of(&self, entity: u64) -> Vec<(FileHandle, INodeNo)> {
        let files = self.files.lock();
        let of = files.iter().filter(|(_, file)| inode::entity(file.ino) == entity);
        of.map(|(handle, file)| (FileHandle(*handle), file.ino)).collect()
    }

    /// There have been so many changes. Gives who must be told.
    pub(super) fn announce(&self, FileHandle(handle): FileHandle, nr_changes: u64) -> Option<PollNotifier> {
        let mut files = self.files.lock();
        let file = files.get_mut(&handle)?;
        file.announced = file.announced.max(nr_changes);
        if file.has_news() {
            file.waiting.take()
        } else {
            None
        }
    }

    pub(super) fn open_dir(&self, ino: INodeNo, entries: Vec<Entry>) -> FileHandle {
        let mut dirs = self.dirs.lock();
        let handle = self.next(0, &dirs);
        dirs.insert(
            handle,
            OpenDir {
                ino,
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
    pub(super) fn entries(
        &self,
        FileHandle(handle): FileHandle,
        ino: INodeNo,
        from_start: bool,
    ) -> Option<Arc<[Entry]>> {
        let mut dirs = self.dirs.lock();
        let dir = dirs.get_mut(&handle).filter(|dir| dir.ino == ino)?;
        if from_start && dir.begun {
            return None;
        }
        dir.begun = true;
        Some(dir.entries.clone())
    }

    /// Replaces the snapshot.
    pub(super) fn keep_entries(
        &self,
        FileHandle(handle): FileHandle,
        ino: INodeNo,
        entries: Vec<Entry>,
    ) -> Arc<[Entry]> {
        let entries = Arc::<[Entry]>::from(entries);
        let dir = OpenDir {
            ino,
            entries: entries.clone(),
            begun: true,
        };
        self.dirs.lock().insert(handle, dir);
        entries
    }
}

/// The open file of a handle, which a predecessor may have given.
fn adopt(files: &mut HashMap<u64, OpenFile>, handle: FileHandle, ino: INodeNo) -> &mut OpenFile {
    let opener = Caller {
        uid: uid(handle),
        gid: u32::MAX,
        pid: 0,
    };
    let file = files
        .entry(handle.0)
        .or_insert_with(|| OpenFile::new(opener, ino));
    if file.ino != ino {
        // Ours and a predecessor's have the same number. They share what can be made anew at any time.
        *file = OpenFile::new(file.opener, ino);
    }
    file
}

fn uid(FileHandle(handle): FileHandle) -> u32 {
    u32::try_from(handle >> 32).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENER: Caller = Caller {
        uid: 1000,
        gid: 7,
        pid: 1,
    };
    const OTHER: Caller = Caller {
        uid: 0,
        gid: 9,
        pid: 2,
    };
    const INO: INodeNo = INodeNo(5 << 15);

    #[test]
    fn a_handle_of_a_predecessor_tells_its_opener_and_is_taken_up_by_reading() {
        let before = Handles::default();
        let handle = before.open_file(OpenFile::new(OPENER, INO));
        assert_eq!(before.opener(handle, OTHER), OPENER);
        let after = Handles::default();
        assert_eq!(after.opener(handle, OTHER), Caller { uid: 1000, ..OTHER });
        assert!(after.text(handle, INO).is_none());
        after.keep_text(handle, INO, "text".into(), 3);
        assert_eq!(after.text(handle, INO).as_deref(), Some("text"));
        assert_eq!(after.of(5), [(handle, INO)]);
        after.close_file(handle);
        assert!(after.text(handle, INO).is_none());
    }

    #[test]
    fn two_files_with_one_number_do_not_show_each_others_text() {
        let handles = Handles::default();
        let handle = handles.open_file(OpenFile::new(OPENER, INO));
        handles.keep_text(handle, INO, "one".into(), 0);
        let other = INodeNo(INO.0 + 1);
        assert!(handles.text(handle, other).is_none());
        handles.keep_text(handle, other, "other".into(), 0);
        assert!(handles.text(handle, INO).is_none());
    }

    #[test]
    fn numbers_in_use_are_not_given_again() {
        let handles = Handles::default();
        let first = handles.open_file(OpenFile::new(OPENER, INO));
        handles.last.store(u32::MAX, Relaxed);
        let wrapped = handles.open_file(OpenFile::new(OPENER, INO));
        let next = handles.open_file(OpenFile::new(OPENER, INO));
        assert_ne!(wrapped, first);
        assert_ne!(next, first);
    }
}
