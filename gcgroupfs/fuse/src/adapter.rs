//! Callbacks for the kernel's requests.
//!
//! No callback waits for anything but the tree's lock, and none accesses the mount, which would wait for this
//! very loop.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyPoll, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::ask::{Asks, Read};
use super::deferred::Deferred;
use super::nodes::{BLOCK, Nodes};
use super::outcome::{errno, guarded};
use super::queue::Queue;
use gcgroupfs_model::error::Error;
use gcgroupfs_model::tree::Caller;
use gcgroupfs_sys::process;

/// Longest write(2) that arrives in one piece, in bytes. Must exceed the longest command: otherwise the
/// kernel would split one that is too long into several that are not.
const MAX_WRITE: u32 = 128 << 10;

/// How long the kernel may use a name without asking again: not at all, so that none is ever stale.
const NAME: Duration = Duration::ZERO;

/// How long the kernel may use attributes without asking again: the least time, which it rounds up to two
/// ticks of its clock. Each look-up brings new ones, which must hold for the permission checks of the same
/// path: without that each check is a request.
const ATTRIBUTES: Duration = Duration::from_nanos(1);

pub(super) struct Adapter {
    pub(super) nodes: Arc<Nodes>,
    /// Stores changes before their writes are answered, so that reads do not wait for a disk.
    pub(super) stores: Queue,
    pub(super) deferred: Arc<Deferred>,
    pub(super) asks: Asks,
}

/// Returns the caller of a request that changes something. A process in a container may change nothing, as on
/// the socket: root in there is not the machine's root.
///
/// # Errors
/// `EACCES`.
fn changer(request: &Request) -> Result<Caller, Errno> {
    match process::is_in_container(request.pid()) {
        true => Err(errno(&Error::Contained)),
        false => Ok(caller(request)),
    }
}

fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

/// Returns whether the kernel sends this request again, because an earlier daemon did not answer it:
/// `FUSE_UNIQUE_RESEND` in include/uapi/linux/fuse.h.
fn is_again(request: &Request) -> bool {
    u64::from(request.unique()) >> 63 != 0
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Optimisations; without them everything works.
        for capability in [InitFlags::FUSE_PARALLEL_DIROPS, InitFlags::FUSE_ATOMIC_O_TRUNC] {
            let _ = config.add_capabilities(capability);
        }
        // The kernel treats RELEASE as background work and keeps back what exceeds this number, while reads
        // and opens go on: many threads at once would close fewer files than they open.
        let _ = config.set_max_background(u16::MAX);
        config
            .set_max_write(MAX_WRITE)
            .map(drop)
            .map_err(|_| io::ErrorKind::Unsupported.into())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let node = match guarded(|| self.nodes.lookup(parent, name)) {
            Ok(node) => node,
            Err(errno) => return reply.error(errno),
        };
        let answer = move |nodes: &Nodes| match guarded(|| nodes.reached_attributes(node)) {
            Ok(attr) => reply.entry_with_ttls(&ATTRIBUTES, &NAME, &attr, Generation(0)),
            Err(errno) => reply.error(errno),
        };
        if node.is_list() {
            // The whole list is read for its size.
            self.deferred.run(request.uid(), answer);
        } else {
            // Never deferred: the kernel may hold the directory's lock, for which other users wait.
            answer(&self.nodes);
        }
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.deferred.run(request.uid(), move |nodes| {
            match guarded(|| nodes.reached_attributes(nodes.reached(ino)?)) {
                Ok(attr) => reply.attr(&ATTRIBUTES, &attr),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Accepts and ignores size and times, since `echo 1 > file` truncates first.
    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_none() && uid.is_none() && gid.is_none() {
            return self.getattr(request, ino, None, reply);
        }
        let caller = match changer(request) {
            Ok(caller) => caller,
            Err(errno) => return reply.error(errno),
        };
        self.stores.push(caller.uid, move |nodes| {
            match guarded(|| nodes.set_access(caller, ino, (uid, gid), mode)) {
                Ok(attr) => reply.attr(&ATTRIBUTES, &attr),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let caller = match flags.acc_mode() {
            OpenAccMode::O_RDONLY => Ok(caller(request)),
            OpenAccMode::O_WRONLY | OpenAccMode::O_RDWR => changer(request),
        };
        match caller.and_then(|caller| guarded(|| self.nodes.open(caller, ino, flags))) {
            // Contents change at any time, so no page is cached; close(2) never commits anything.
            Ok(handle) => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = Read {
            uid: request.uid(),
            ino,
            handle,
            offset,
            size,
            reply,
        };
        let asks = self.asks.clone();
        self.deferred
            .run(read.uid, move |nodes| match guarded(|| nodes.ask(ino, offset)) {
                Ok(Some(patience)) => asks.push(read, patience),
                // An error here is reported again by the read.
                Ok(None) | Err(_) => read.answer(nodes),
            });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // In force at once: a thaw does not wait for the thread that stores it.
        let caller = caller(request);
        let change = match guarded(|| self.nodes.write(caller, ino, handle, data)) {
            Ok(change) => change,
            Err(errno) => return reply.error(errno),
        };
        // At most a page, or it would have been refused.
        let length = u32::try_from(data.len()).unwrap_or(0);
        if !change.must_be_stored() {
            return reply.written(length);
        }
        self.stores.push(caller.uid, move |nodes| {
            nodes.store(change);
            reply.written(length);
        });
    }

    fn poll(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        notifier: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        match guarded(|| self.nodes.poll(ino, handle, notifier)) {
            Ok(events) => reply.poll(events),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.nodes.close(handle);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let uid = request.uid();
        self.deferred.run(uid, move |nodes| {
            let opened = guarded(|| {
                nodes.reached(ino)?;
                nodes.handles.open_dir(uid, ino, nodes.entries(ino)?)
            });
            match opened {
                Ok(handle) => reply.opened(handle, FopenFlags::empty()),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Uses positions in the snapshot as cookies, so that no entry is repeated or missed.
    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.deferred.run(request.uid(), move |nodes| {
            let entries = guarded(|| match nodes.handles.entries(handle, ino, offset == 0) {
                Some(entries) => Ok(entries),
                // Rewound: take a new snapshot.
                None => nodes.handles.keep_entries(handle, ino, nodes.entries(ino)?),
            });
            let entries = match entries {
                Ok(entries) => entries,
                Err(errno) => return reply.error(errno),
            };
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            for (position, entry) in entries.iter().enumerate().skip(start) {
                if reply.add(entry.ino, position as u64 + 1, entry.kind, &*entry.name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.nodes.handles.close_dir(handle);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, BLOCK, 255, BLOCK);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(errno(&Error::NoCreate));
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, mode: u32, _: u32, _: u32, reply: ReplyEntry) {
        let regular = mode & libc::S_IFMT == libc::S_IFREG;
        reply.error(errno(if regular {
            &Error::NoCreate
        } else {
            &Error::FixedShape
        }));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let caller = match changer(request) {
            Ok(caller) => caller,
            Err(errno) => return reply.error(errno),
        };
        let (name, again) = (name.to_owned(), is_again(request));
        self.stores.push(caller.uid, move |nodes| {
            match guarded(|| nodes.make_group(caller, (parent, &name), mode, again)) {
                Ok(attr) => reply.entry_with_ttls(&ATTRIBUTES, &NAME, &attr, Generation(0)),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(errno(&Error::FixedShape));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = match changer(request) {
            Ok(caller) => caller,
            Err(errno) => return reply.error(errno),
        };
        let (name, again) = (name.to_owned(), is_again(request));
        self.stores.push(request.uid(), move |nodes| {
            match guarded(|| nodes.remove_group(caller, (parent, &name), again)) {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(errno(&Error::FixedShape));
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(errno(&Error::FixedShape));
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(errno(&Error::FixedShape));
    }
}
