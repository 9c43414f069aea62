//! A view: files that another program computes, at a mount of its own. It has no state but its open files.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use nix::unistd::{getegid, geteuid};
use parking_lot::Mutex;

use super::nodes::BLOCK;
use super::outcome::slice;

/// The number of the root directory.
pub const ROOT: u64 = 1;

/// How long the kernel may use a name or attributes without asking again: not at all.
const NAME: Duration = Duration::ZERO;

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Directory,
    /// With these permission bits.
    File(u16),
}

/// Files and directories, by numbers that the view chooses. All belong to the user that serves the view, and
/// only that user reaches them.
pub trait View: Send + Sync + 'static {
    /// Returns the kind of a node, which may be gone.
    ///
    /// # Errors
    /// `ENOENT` if there never was such a node.
    fn kind(&self, node: u64) -> nix::Result<Kind>;

    /// Returns the node of that name in a directory.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    fn lookup(&self, directory: u64, name: &str) -> nix::Result<u64>;

    /// Returns the names and nodes in a directory.
    ///
    /// # Errors
    /// `ENOENT` if it is gone.
    fn list(&self, directory: u64) -> nix::Result<Vec<(String, u64)>>;

    /// Returns the contents of a file.
    ///
    /// # Errors
    /// The view's own, for the reader.
    fn read(&self, file: u64) -> nix::Result<String>;

    /// Performs one write.
    ///
    /// # Errors
    /// The view's own, for the writer.
    fn write(&self, file: u64, data: &[u8]) -> nix::Result<()>;
}

/// Answers the requests of the mount whose open /dev/fuse this is, until it is unmounted everywhere.
///
/// # Errors
/// The kernel's first message is not understood.
pub fn serve(view: impl View, device: OwnedFd) -> io::Result<()> {
    let adapter = Adapter {
        view,
        texts: Mutex::default(),
        since: SystemTime::now(),
    };
    // The kernel checks access: it lets no other user reach the mount.
    match Session::from_fd(adapter, device, SessionACL::All, fuser::Config::default()) {
        // Unmounted before the first request was read.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        session => session?.run(),
    }
}

struct Adapter<V> {
    view: V,
    /// Texts of the open files that have been read, and the last handle.
    texts: Mutex<(HashMap<u64, Arc<str>>, u64)>,
    /// Timestamp of every node.
    since: SystemTime,
}

impl<V: View> Adapter<V> {
    fn attributes(&self, INodeNo(node): INodeNo) -> nix::Result<FileAttr> {
        let (kind, perm, nlink) = match self.view.kind(node)? {
            Kind::Directory => (FileType::Directory, 0o755, 2),
            Kind::File(mode) => (FileType::RegularFile, mode, 1),
        };
        Ok(FileAttr {
            ino: INodeNo(node),
            size: 0,
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind,
            perm,
            nlink,
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        })
    }

    /// Returns the text to read from: made at offset 0, and unchanged for later offsets.
    fn text(&self, file: u64, handle: u64, offset: u64) -> nix::Result<Arc<str>> {
        let kept = || self.texts.lock().0.get(&handle).cloned();
        if let Some(text) = (offset > 0).then(kept).flatten() {
            return Ok(text);
        }
        let text: Arc<str> = self.view.read(file)?.into();
        self.texts.lock().0.insert(handle, text.clone());
        Ok(text)
    }
}

fn errno(errno: nix::Error) -> Errno {
    Errno::from_i32(errno as i32)
}

impl<V: View> Filesystem for Adapter<V> {
    fn lookup(&self, _: &Request, INodeNo(parent): INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_str().ok_or(nix::Error::ENOENT);
        let found = name.and_then(|name| self.attributes(INodeNo(self.view.lookup(parent, name)?)));
        match found {
            Ok(attributes) => reply.entry(&NAME, &attributes, Generation(0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Ok(attributes) => reply.attr(&NAME, &attributes),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Accepts and ignores everything: owner and mode are always the same.
    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.getattr(request, ino, handle, reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let handle = {
            let (_, last) = &mut *self.texts.lock();
            *last += 1;
            *last
        };
        // Contents change at any time, so no page is cached.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(handle), flags);
    }

    fn read(
        &self,
        _: &Request,
        INodeNo(file): INodeNo,
        FileHandle(handle): FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.text(file, handle, offset) {
            Ok(text) => reply.data(slice(text.as_bytes(), offset, size)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        INodeNo(file): INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.view.write(file, data) {
            // A request has less than 4 GiB.
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        FileHandle(handle): FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.texts.lock().0.remove(&handle);
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        INodeNo(directory): INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.view.list(directory) {
            Ok(entries) => entries,
            Err(error) => return reply.error(errno(error)),
        };
        let dots = [".", ".."].map(|name| (name.to_owned(), directory));
        let entries = (1..).zip(dots.into_iter().chain(entries));
        for (next, (name, node)) in entries.skip_while(|(next, _)| *next <= offset) {
            let kind = match self.view.kind(node) {
                Ok(Kind::File(_)) => FileType::RegularFile,
                Ok(Kind::Directory) => FileType::Directory,
                Err(_) => continue,
            };
            if reply.add(INodeNo(node), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
