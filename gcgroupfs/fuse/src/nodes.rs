//! Implements the adapter's callbacks; each returns a value or an error for the reply.

mod ends;
mod groups;

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileHandle, FileType, INodeNo, OpenAccMode, OpenFlags, PollEvents, PollNotifier};

use super::handles::{DirEntry, Handles, OpenFile};
use super::inode;
use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::file::{self, Attributes, Contents, Node};
use gcgroupfs_model::tree::{Caller, Change, Tree};

/// Block size shown, in bytes.
pub(super) const BLOCK: u32 = 4096;

/// The tree as inodes and open files.
#[derive(Debug)]
pub(super) struct Nodes {
    tree: Arc<Tree>,
    pub(super) handles: Handles,
    /// Timestamp of every node.
    since: SystemTime,
}

impl Nodes {
    pub(super) fn new(tree: Arc<Tree>) -> Self {
        Self {
            tree,
            handles: Handles::default(),
            since: SystemTime::now(),
        }
    }

    pub(super) fn node(&self, ino: INodeNo) -> Result<Node> {
        inode::node(&self.tree, ino)
    }

    /// Returns the node of an inode reached by a path. A process's directory may be gone by now, while
    /// another one has that name: after an exec(2). ESTALE makes the kernel resolve the path again.
    pub(super) fn reached(&self, ino: INodeNo) -> Result<Node> {
        self.node(ino).map_err(stale)
    }

    /// Returns the file attributes of a node.
    pub(super) fn attributes(&self, node: Node) -> Result<FileAttr> {
        let Attributes { owner, mode, size } = file::attributes(&self.tree, node)?;
        let (kind, nlink) = match node {
            Node::Dir(_) => (FileType::Directory, 2),
            Node::File(..) => (FileType::RegularFile, 1),
        };
        Ok(FileAttr {
            ino: inode::number(node),
            size,
            blocks: size.div_ceil(512),
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind,
            perm: mode,
            nlink,
            uid: owner.uid,
            gid: owner.gid,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        })
    }

    /// Returns the node of that name in a directory.
    pub(super) fn lookup(&self, parent: INodeNo, name: &OsStr) -> Result<Node> {
        let Node::Dir(directory) = self.reached(parent)? else {
            return Err(Error::NotDirectory);
        };
        let found = file::lookup(&self.tree, directory, name.to_str().ok_or(Error::NotFound)?);
        found.or_else(|error| self.reached(parent).and(Err(error)))
    }

    /// Returns the file attributes of a node reached by a path.
    pub(super) fn reached_attributes(&self, node: Node) -> Result<FileAttr> {
        self.attributes(node).map_err(stale)
    }

    pub(super) fn open(&self, caller: Caller, ino: INodeNo, flags: OpenFlags) -> Result<FileHandle> {
        let Node::File(directory, file) = self.reached(ino)? else {
            return Err(Error::IsDirectory);
        };
        let wanted = match flags.acc_mode() {
            OpenAccMode::O_RDONLY => 0o400,
            OpenAccMode::O_WRONLY => 0o200,
            OpenAccMode::O_RDWR => 0o600,
        };
        // The kernel has checked the mode for the caller, but lets root pass in any case. As with cgroups,
        // root cannot do what the file cannot, or what nobody may.
        let mode = self.tree.access(file.item(directory))?.mode;
        let anybody = (mode | mode << 3 | mode << 6) & file.mode();
        if anybody & wanted != wanted {
            return Err(match wanted & !anybody & 0o200 {
                0 => Error::WriteOnly,
                _ => Error::ReadOnly,
            });
        }
        self.handles.open_file(OpenFile::new(caller, ino))
    }

    /// Returns the text to read from: rendered at offset 0, and unchanged for later offsets.
    pub(super) fn read(&self, ino: INodeNo, handle: FileHandle, offset: u64, size: u32) -> Result<Arc<str>> {
        // A stored text is not readable either once the directory is gone.
        let Node::File(directory, file) = self.node(ino)? else {
            return Err(Error::IsDirectory);
        };
        if let Some(text) = self.handles.text(handle, ino).filter(|_| offset > 0) {
            return Ok(text);
        }
        let (text, nr_changes) = file.show_and_count(&self.tree, directory)?;
        let text = Arc::<str>::from(text);
        // A reader that continues where a predecessor's answer ended, beyond this text, has read all of that
        // answer. So it gets the end of the file, not the tail of another text.
        if offset > 0 && self.handles.is_inherited(handle, ino) && text.len() <= size as usize {
            return Ok(Arc::from(""));
        }
        self.handles.keep_text(handle, ino, text.clone(), nr_changes)?;
        Ok(text)
    }

    /// Requests the data that a read from the start would show. Returns how long to wait for the answer.
    pub(super) fn ask(&self, ino: INodeNo, offset: u64) -> Result<Option<Duration>> {
        match self.node(ino)? {
            Node::File(directory, file) if offset == 0 => file.ask(&self.tree, directory),
            _ => Ok(None),
        }
    }

    /// Returns whether the answer has arrived, or is no longer needed.
    pub(super) fn has_answer(&self, ino: INodeNo) -> bool {
        match self.node(ino) {
            Ok(Node::File(directory, file)) => file.has_answer(&self.tree, directory).unwrap_or(true),
            _ => true,
        }
    }

    /// Returns the poll events of a file: whether an events file has changed. Other files are always ready,
    /// like any plain file.
    pub(super) fn poll(
        &self,
        ino: INodeNo,
        handle: FileHandle,
        notifier: PollNotifier,
    ) -> Result<PollEvents> {
        const PLAIN: PollEvents = PollEvents::POLLIN
            .union(PollEvents::POLLRDNORM)
            .union(PollEvents::POLLOUT)
            .union(PollEvents::POLLWRNORM);
        const CHANGED: PollEvents = PLAIN.union(PollEvents::POLLPRI).union(PollEvents::POLLERR);
        let Ok(Node::File(directory, file)) = self.node(ino) else {
            return Ok(CHANGED);
        };
        if !matches!(file.contents, Contents::Events(_) | Contents::Polled(..)) {
            return Ok(PLAIN);
        }
        file.set_polled(&self.tree, directory, true);
        let has_news = self.handles.wait(handle, ino, notifier);
        // The directory may have disappeared before the poller was registered.
        let has_news = has_news || self.node(ino).is_err();
        Ok(if has_news { CHANGED } else { PLAIN })
    }

    /// Returns how often the contents of an open file have changed; those of a file that is gone never change
    /// again.
    pub(super) fn nr_changes(&self, ino: INodeNo) -> u64 {
        match self.node(ino) {
            Ok(Node::File(directory, file)) => file.nr_changes(&self.tree, directory).unwrap_or(u64::MAX),
            Ok(Node::Dir(_)) => 0,
            Err(_) => u64::MAX,
        }
    }

    /// Writes a file and announces the change. The caller answers once it is stored.
    pub(super) fn write(
        &self,
        caller: Caller,
        ino: INodeNo,
        handle: FileHandle,
        data: &[u8],
    ) -> Result<Change> {
        let Node::File(directory, file) = self.node(ino)? else {
            return Err(Error::IsDirectory);
        };
        // The opener's rights count, as with cgroups: a descriptor passed to a more privileged program does
        // not gain its rights.
        let caller = self.handles.opener(handle, caller);
        let change = file.store(&self.tree, directory, caller, data);
        let change = change.inspect_err(|error| {
            tracing::debug!(pid = caller.pid, uid = caller.uid, file = file.name, ?directory, %error, "refused a write");
        })?;
        Ok(self.tree.announce(change))
    }

    /// Closes an open file.
    pub(super) fn close(&self, handle: FileHandle) {
        let Some((closed, others)) = self.handles.close_file(handle) else {
            return;
        };
        let others = others.into_iter().map(|ino| (ino, true));
        for (ino, is_polled) in [(closed, false)].into_iter().chain(others) {
            if let Ok(Node::File(directory, file)) = self.node(ino) {
                file.set_polled(&self.tree, directory, is_polled);
            }
        }
    }

    /// Keeps averages that are read up to date. Returns the time until that is due again, if any are.
    pub(super) fn average_pressure(&self) -> Option<Duration> {
        self.tree.average_pressure().map(Duration::from_nanos)
    }

    /// Makes an announced change durable; waits for the disk.
    pub(super) fn store(&self, change: Change) {
        self.tree.store(change);
    }

    pub(super) fn entries(&self, ino: INodeNo) -> Result<Vec<DirEntry>> {
        let Node::Dir(directory) = self.node(ino)? else {
            return Err(Error::NotDirectory);
        };
        let entry = |node, name: &str| DirEntry {
            ino: inode::number(node),
            kind: match node {
                Node::Dir(_) => FileType::Directory,
                Node::File(..) => FileType::RegularFile,
            },
            name: name.into(),
        };
        let mut entries = vec![
            entry(Node::Dir(directory), "."),
            entry(Node::Dir(self.tree.parent(directory)), ".."),
        ];
        entries.extend(
            file::files_in(&self.tree, directory)?.map(|file| entry(Node::File(directory, file), file.name)),
        );
        let directories = self.tree.subdirectories(directory)?;
        entries.extend(
            directories
                .iter()
                .map(|(name, directory)| entry(Node::Dir(*directory), name)),
        );
        Ok(entries)
    }
}

fn stale(error: Error) -> Error {
    match error {
        Error::Gone => Error::Stale,
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroupfs_model::tree::fixture::{OWNER, World};

    /// ESTALE makes the kernel resolve the path again and find the present process, or none.
    #[test]
    fn path_to_an_ended_process_is_reported_as_stale() {
        let world = World::new(1);
        let id = world.join(100);
        let nodes = Nodes::new(world.tree.clone());
        let number = |path: &str| inode::number(file::resolve(&world.tree, path).unwrap());
        let (directory, file) = (number("100"), number("100/gcgroup.stat"));
        nodes.lookup(directory, OsStr::new("gcgroup.stat")).unwrap();
        world.tree.leave(id, 0);
        world.join(100);
        let stale = [
            nodes.lookup(directory, OsStr::new("gcgroup.stat")).map(drop),
            nodes.reached(directory).map(drop),
            nodes.open(OWNER, file, OpenFlags(libc::O_RDONLY)).map(drop),
        ];
        for result in stale {
            assert_eq!(result.map_err(|error| error.errno()), Err(libc::ESTALE));
        }
        assert_eq!(
            nodes.attributes(nodes.node(number("100")).unwrap()).map(drop),
            Ok(())
        );
        let never = nodes.lookup(number("100"), OsStr::new("never"));
        assert_eq!(never.map(drop).map_err(|error| error.errno()), Err(libc::ENOENT));
    }
}
