//! Open files and directories: opener, and the snapshot that is being read.
//!
//! All of it is optional. For an unknown handle, given by a previous daemon, only the opener matters, and its
//! uid is in the number.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use fuser::{FileHandle, FileType, INodeNo, PollHandle, PollNotifier};
use parking_lot::Mutex;

use super::inode;
use super::table::{Table, uid};
use crate::slots::Slots;
use gcgroupfs_model::error::Result;
use gcgroupfs_model::file::PAGE;
use gcgroupfs_model::tree::Caller;

/// An open control file.
#[derive(Debug)]
pub(super) struct OpenFile {
    opener: Caller,
    ino: INodeNo,
    /// Contents rendered by the last read at offset 0; reads at later offsets are slices of it.
    text: Option<Arc<str>>,
    /// Number of changes up to that read. `None` before it, so that the first poll is answered at once, as
    /// with kernfs.
    seen: Option<u64>,
    /// Number of changes announced to pollers. Further changes are announced after their pause.
    announced: u64,
    /// Wakes the pollers.
    waiting: Option<PollNotifier>,
    /// The kernel's poll handle, once the file has been polled.
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

/// One entry of a listing.
#[derive(Debug)]
pub(super) struct DirEntry {
    pub(super) ino: INodeNo,
    pub(super) kind: FileType,
    pub(super) name: Box<str>,
}

/// An open directory.
#[derive(Debug)]
struct OpenDir {
    ino: INodeNo,
    entries: Arc<[DirEntry]>,
    /// True once reading has begun, so that offset 0 means a rewind.
    begun: bool,
}

impl OpenDir {
    fn weight(&self) -> usize {
        // 32 bytes for an entry, and as much for its name.
        (self.entries.len() * 64).div_ceil(PAGE).max(1)
    }
}

/// All open files and directories.
#[derive(Debug, Default)]
pub(super) struct Handles {
    files: Mutex<Table<OpenFile>>,
    dirs: Mutex<Table<OpenDir>>,
    /// Memory in which the next daemon finds the sleeping pollers.
    pollers: OnceLock<Arc<Slots<8>>>,
}

impl Handles {
    /// Records pollers in `pollers` from now on.
    pub(super) fn note_pollers(&self, pollers: Arc<Slots<8>>) {
        // Called once.
        let _ = self.pollers.set(pollers);
    }

    /// Adds an open file and returns its handle.
    ///
    /// # Errors
    /// `EMFILE` if the opener has too many.
    pub(super) fn open_file(&self, file: OpenFile) -> Result<FileHandle> {
        self.files.lock().open(file.opener.uid, 1, file).map(FileHandle)
    }

    /// Closes an open file. If it has been polled, returns its inode and those of the open files of the same
    /// entity that have been, too.
    pub(super) fn close_file(&self, FileHandle(handle): FileHandle) -> Option<(INodeNo, Vec<INodeNo>)> {
        let mut files = self.files.lock();
        let OpenFile { ino, polled, .. } = files.close(handle)?;
        let polled = polled?;
        if let Some(pollers) = self.pollers.get() {
            pollers.remove(polled.to_le_bytes());
        }
        let is_polled =
            |file: &&OpenFile| file.polled.is_some() && inode::entity(file.ino) == inode::entity(ino);
        let others = files.iter().map(|(_, file)| file).filter(is_polled);
        Some((ino, others.map(|file| file.ino).collect()))
    }

    /// Returns the opener of the file that `caller` uses.
    pub(super) fn opener(&self, handle: FileHandle, caller: Caller) -> Caller {
        let FileHandle(handle) = handle;
        let opener = self.files.lock().get(handle).map(|file| file.opener);
        opener.unwrap_or(Caller {
            uid: uid(handle),
            ..caller
        })
    }

    pub(super) fn text(&self, FileHandle(handle): FileHandle, ino: INodeNo) -> Option<Arc<str>> {
        let files = self.files.lock();
        files.get(handle).filter(|file| file.ino == ino)?.text.clone()
    }

    /// Returns whether a previous daemon gave the handle, so that what was read from it is not known.
    pub(super) fn is_inherited(&self, FileHandle(handle): FileHandle, ino: INodeNo) -> bool {
        let files = self.files.lock();
        let own = files.get(handle).filter(|file| file.ino == ino);
        // Openers have pids, except those made up by [`adopt`] and those in pid namespaces that are not
        // visible.
        own.is_none_or(|file| file.opener.pid == 0)
    }

    /// Stores what was read, and the number of changes up to then.
    ///
    /// # Errors
    /// `EMFILE` if the opener has too much open.
    pub(super) fn keep_text(
        &self,
        handle: FileHandle,
        ino: INodeNo,
        text: Arc<str>,
        nr_changes: u64,
    ) -> Result<()> {
        let mut files = self.files.lock();
        adopt(&mut files, handle, ino);
        files.weigh(handle.0, text.len().div_ceil(PAGE).max(1))?;
        let file = adopt(&mut files, handle, ino);
        file.text = Some(text);
        file.seen = Some(nr_changes);
        file.announced = file.announced.max(nr_changes);
        Ok(())
    }

    /// Registers `notifier` for the next [`announce`](Self::announce) of something new. Returns whether there
    /// is something new already.
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

    /// Returns the inodes of the open files of these entities.
    pub(super) fn of(&self, entities: &BTreeSet<u64>) -> BTreeSet<INodeNo> {
        let files = self.files.lock();
        let inos = files.iter().map(|(_, file)| file.ino);
        inos.filter(|ino| entities.contains(&inode::entity(*ino)))
            .collect()
    }

    /// Announces numbers of changes by inode. Returns the notifiers to be woken, possibly a thousand; all
    /// under one lock, which the request loop needs for each woken poller.
    pub(super) fn announce(&self, nr_changes: &HashMap<INodeNo, u64>) -> Vec<PollNotifier> {
        let mut files = self.files.lock();
        let mut told = Vec::new();
        for file in files.iter_mut() {
            let Some(nr_changes) = nr_changes.get(&file.ino) else {
                continue;
            };
            file.announced = file.announced.max(*nr_changes);
            if file.has_news() {
                told.extend(file.waiting.take());
            }
        }
        told
    }

    /// Adds an open directory and returns its handle.
    ///
    /// # Errors
    /// `EMFILE` if the opener has too many.
    pub(super) fn open_dir(&self, uid: u32, ino: INodeNo, entries: Vec<DirEntry>) -> Result<FileHandle> {
        let dir = OpenDir {
            ino,
            entries: entries.into(),
            begun: false,
        };
        let weight = dir.weight();
        self.dirs.lock().open(uid, weight, dir).map(FileHandle)
    }

    pub(super) fn close_dir(&self, FileHandle(handle): FileHandle) {
        self.dirs.lock().close(handle);
    }

    /// Returns the snapshot to read from; `None` if reading starts over, which needs a new one.
    pub(super) fn entries(
        &self,
        FileHandle(handle): FileHandle,
        ino: INodeNo,
        from_start: bool,
    ) -> Option<Arc<[DirEntry]>> {
        let mut dirs = self.dirs.lock();
        let dir = dirs.get_mut(handle).filter(|dir| dir.ino == ino)?;
        if from_start && dir.begun {
            return None;
        }
        dir.begun = true;
        Some(dir.entries.clone())
    }

    /// Replaces the snapshot.
    ///
    /// # Errors
    /// `EMFILE` if the opener has too much open.
    pub(super) fn keep_entries(
        &self,
        FileHandle(handle): FileHandle,
        ino: INodeNo,
        entries: Vec<DirEntry>,
    ) -> Result<Arc<[DirEntry]>> {
        let entries = Arc::<[DirEntry]>::from(entries);
        let dir = OpenDir {
            ino,
            entries: entries.clone(),
            begun: true,
        };
        let mut dirs = self.dirs.lock();
        dirs.weigh(handle, dir.weight())?;
        dirs.put(handle, dir.weight(), dir);
        Ok(entries)
    }
}

/// Returns the open file of a handle; adds it if a previous daemon gave the handle.
fn adopt(files: &mut Table<OpenFile>, FileHandle(handle): FileHandle, ino: INodeNo) -> &mut OpenFile {
    let opener = match files.get(handle) {
        Some(file) if file.ino == ino => None,
        // Two daemons gave the same number. The handles share state that can be rebuilt at any time.
        Some(file) => Some(file.opener),
        None => Some(Caller {
            uid: uid(handle),
            gid: u32::MAX,
            pid: 0,
        }),
    };
    if let Some(opener) = opener {
        files.put(handle, 1, OpenFile::new(opener, ino));
    }
    files.get_mut(handle).expect("it was just added")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroupfs_model::error::Error;

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
    fn inherited_handle_has_uid_and_is_adopted_by_read() {
        let before = Handles::default();
        let handle = before.open_file(OpenFile::new(OPENER, INO)).unwrap();
        assert_eq!(before.opener(handle, OTHER), OPENER);
        let after = Handles::default();
        assert_eq!(after.opener(handle, OTHER), Caller { uid: 1000, ..OTHER });
        assert!(after.text(handle, INO).is_none());
        after.keep_text(handle, INO, "text".into(), 3).unwrap();
        assert_eq!(after.text(handle, INO).as_deref(), Some("text"));
        assert_eq!(after.of(&[5, 9].into()), [INO].into());
        after.close_file(handle);
        assert!(after.text(handle, INO).is_none());
    }

    #[test]
    fn files_with_same_handle_do_not_share_text() {
        let handles = Handles::default();
        let handle = handles.open_file(OpenFile::new(OPENER, INO)).unwrap();
        handles.keep_text(handle, INO, "one".into(), 0).unwrap();
        let other = INodeNo(INO.0 + 1);
        assert!(handles.text(handle, other).is_none());
        handles.keep_text(handle, other, "other".into(), 0).unwrap();
        assert!(handles.text(handle, INO).is_none());
    }

    #[test]
    fn long_texts_and_listings_count_by_pages() {
        let handles = Handles::default();
        let long: Arc<str> = "x".repeat(1 << 20).into();
        let mut nr_read = 0;
        loop {
            let opened = handles.open_file(OpenFile::new(OPENER, INO));
            match opened.and_then(|handle| handles.keep_text(handle, INO, long.clone(), 0)) {
                Ok(()) => nr_read += 1,
                Err(error) => break assert_eq!(error, Error::TooManyOpen),
            }
        }
        assert_eq!(nr_read, 64, "MiB");
        let listing = |nr: u64| -> Vec<DirEntry> {
            let entry = |number| DirEntry {
                ino: INodeNo(number),
                kind: FileType::Directory,
                name: number.to_string().into(),
            };
            (0..nr).map(entry).collect()
        };
        let first = handles.open_dir(OPENER.uid, INO, listing(1 << 19)).unwrap();
        handles.open_dir(OPENER.uid, INO, listing(1 << 18)).unwrap();
        assert!(handles.open_dir(OPENER.uid, INO, listing(1 << 19)).is_err());
        assert!(handles.keep_entries(first, INO, listing(1 << 20)).is_err());
        assert!(handles.keep_entries(first, INO, listing(3 << 18)).is_ok());
    }

    #[test]
    fn handles_in_use_are_not_reused() {
        let handles = Handles::default();
        let first = handles.open_file(OpenFile::new(OPENER, INO)).unwrap();
        handles.files.lock().wrap();
        let wrapped = handles.open_file(OpenFile::new(OPENER, INO)).unwrap();
        let next = handles.open_file(OpenFile::new(OPENER, INO)).unwrap();
        assert_ne!(wrapped, first);
        assert_ne!(next, first);
    }
}
