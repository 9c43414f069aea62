//! What a control file is, and how a path, a name or a slot leads to one. Adapters (the mount, the socket) speak to
//! the tree through this module and know no file by name.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::files;
use crate::tree::{Access, Caller, Edit, GroupId, Level, Owner, Place, Transient, Tree, View};

/// Most bytes of one write, and the constant size of every file whose contents have a bound.
pub const PAGE: usize = 4096;

/// Renders the file's whole contents.
pub type Show = fn(&View<'_>) -> Result<String>;

/// Takes one write, blanks around it stripped.
pub type Store = fn(&mut Edit<'_>, &str) -> Result<()>;

/// What may be done with the file. The mode follows from it and is written nowhere.
#[derive(Debug, Clone, Copy)]
pub enum Io {
    /// 0444
    Read(Show),
    /// 0644
    ReadWrite(Show, Store),
    /// 0200
    Write(Store),
}

/// Which directories have the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct On {
    pub root: bool,
    pub process: bool,
    pub group: bool,
    /// The directories of processes and groups on one device.
    pub device: bool,
}

impl On {
    pub const ROOT: Self = Self {
        root: true,
        process: false,
        group: false,
        device: false,
    };
    pub const MEMBERS: Self = Self {
        root: true,
        process: true,
        group: true,
        device: false,
    };
    pub const GOVERNED: Self = Self {
        root: false,
        process: true,
        group: true,
        device: true,
    };
    pub const EVERY: Self = Self {
        root: true,
        process: true,
        group: true,
        device: true,
    };

    fn has(self, level: Level) -> bool {
        match level {
            Level::Root => self.root,
            Level::Process => self.process,
            Level::ProcessDevice => self.process && self.device,
            Level::Group => self.group,
            Level::GroupDevice => self.group && self.device,
        }
    }
}

/// What the contents are like.
#[derive(Debug, Clone, Copy)]
pub enum Contents {
    /// At most [`PAGE`] bytes.
    Page,
    /// As long as there are entries.
    List,
    /// What is asked for when it is read; a reader is kept waiting for the answer, a little.
    Asked(Asked),
    /// At most [`PAGE`] bytes, and poll(2) waits for changes. The function counts them.
    Events(fn(&View<'_>) -> Result<u64>),
}

impl Contents {
    /// Whether they are as long as there are entries; else they are at most [`PAGE`] bytes.
    pub fn are_list(&self) -> bool {
        matches!(self, Self::List | Self::Asked(Asked { is_list: true, .. }))
    }
}

/// How contents that others must tell are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub is_list: bool,
    pub ask: fn(&View<'_>),
    /// Whether those that were asked have answered.
    pub is_answered: fn(&View<'_>) -> bool,
    /// The longest that a reader waits. Then it is shown what was told last.
    pub patience: Duration,
}

/// One row of the table of control files.
#[derive(Debug)]
pub struct ControlFile {
    pub name: &'static str,
    pub on: On,
    pub contents: Contents,
    pub io: Io,
    /// The entry in the manual, and the file's line in README.md.
    pub doc: &'static str,
}

/// A directory or a file.
#[derive(Debug, Clone, Copy)]
pub enum Node {
    Dir(Place),
    File(Place, &'static ControlFile),
}

/// What stat(2) tells of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    pub owner: Owner,
    /// Permission bits.
    pub mode: u16,
    pub size: u64,
    /// Whether all of it stays as it is for as long as the node exists.
    pub constant: bool,
}

impl ControlFile {
    pub fn mode(&self) -> u16 {
        match self.io {
            Io::Read(_) => 0o444,
            Io::ReadWrite(..) => 0o644,
            Io::Write(_) => 0o200,
        }
    }

    /// The file's contents, whole.
    ///
    /// # Errors
    /// `ENODEV` if its directory is gone.
    pub fn show(&self, tree: &Tree, place: Place) -> Result<String> {
        self.show_and_count(tree, place).map(|(text, _)| text)
    }

    /// The file's contents, and the number of changes up to these; always zero if they are not [`Contents::Events`].
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn show_and_count(&self, tree: &Tree, place: Place) -> Result<(String, u64)> {
        let (Io::Read(show) | Io::ReadWrite(show, _)) = self.io else {
            return Err(Error::WrongAccess);
        };
        tree.view(place, |view| Ok((show(view)?, self.count(view)?)))
    }

    /// Asks, where the contents are others' to tell. For how long a reader should wait for the answer.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn ask(&self, tree: &Tree, place: Place) -> Result<Option<Duration>> {
        let Contents::Asked(Asked { ask, patience, .. }) = self.contents else {
            return Ok(None);
        };
        tree.view(place, |view| {
            ask(view);
            Ok(())
        })?;
        self.has_answer(tree, place)
            .map(|answered| (!answered).then_some(patience))
    }

    /// Whether everybody who was asked has answered.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn has_answer(&self, tree: &Tree, place: Place) -> Result<bool> {
        let Contents::Asked(Asked { is_answered, .. }) = self.contents else {
            return Ok(true);
        };
        tree.view(place, |view| Ok(is_answered(view)))
    }

    /// The number of changes so far.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn nr_changes(&self, tree: &Tree, place: Place) -> Result<u64> {
        tree.view(place, |view| self.count(view))
    }

    fn count(&self, view: &View<'_>) -> Result<u64> {
        match self.contents {
            Contents::Page | Contents::List | Contents::Asked(_) => Ok(0),
            Contents::Events(count) => count(view),
        }
    }

    /// Takes one write as one command: blanks around it and the newline that ends it do not count, and it holds
    /// as a whole or not at all.
    ///
    /// # Errors
    /// `EACCES` if the file or the directory's owner does not let the caller write; `E2BIG` beyond [`PAGE`] bytes;
    /// `EINVAL` for an empty one or a wrong format; `ERANGE`, `EPERM` as the file says; `ENODEV` if it is gone.
    pub fn store(&self, tree: &Tree, place: Place, caller: Caller, data: &[u8]) -> Result<()> {
        let (Io::ReadWrite(_, store) | Io::Write(store)) = self.io else {
            return Err(Error::WrongAccess);
        };
        if caller.uid != tree.owner(place)?.uid && !tree.is_root(caller) {
            return Err(Error::WrongAccess);
        }
        if data.len() > PAGE {
            return Err(Error::TooLong(PAGE));
        }
        let text = std::str::from_utf8(data).map_err(|_| Error::bad("text", "bytes that are none"))?;
        let text = text.trim_matches([' ', '\t', '\n']);
        if text.is_empty() {
            return Err(Error::bad("a value", text));
        }
        tree.edit(place, caller, |edit| store(edit, text))
    }
}

/// Makes a group. The caller's right to change the directory is checked by who asks.
///
/// # Errors
/// As [`Tree::make_group`]; `EEXIST` or `EINVAL` for the name of a control file.
pub fn make_group(tree: &Tree, parent: Place, name: &str, caller: Caller, mode: u16) -> Result<Place> {
    check_free(tree, parent, name)?;
    tree.make_group(parent, name, caller, mode).map(Place::group)
}

/// Makes a group that goes with the last that is in it; one that is there already is as good.
///
/// # Errors
/// As [`make_group`].
pub fn make_transient_group(
    tree: &Tree,
    parent: Place,
    name: &str,
    caller: Caller,
    transient: Transient,
) -> Result<GroupId> {
    check_free(tree, parent, name)?;
    tree.make_transient_group(parent, name, caller, transient)
}

/// Whether any directory has a control file of that name, so that no group can be called so.
pub fn is_taken(name: &str) -> bool {
    files::all().any(|file| file.name == name)
}

/// Checks that no control file has the name.
fn check_free(tree: &Tree, parent: Place, name: &str) -> Result<()> {
    if !is_taken(name) {
        return Ok(());
    }
    Err(match lookup(tree, parent, name) {
        Ok(_) => Error::Exists,
        Err(_) => Error::BadName("it is that of a control file"),
    })
}

/// The files of a directory, in the table's order.
///
/// # Errors
/// `ENODEV` if the directory is gone.
pub fn files_in(tree: &Tree, place: Place) -> Result<impl Iterator<Item = &'static ControlFile>> {
    let level = tree.level(place)?;
    Ok(files::all().filter(move |file| file.on.has(level)))
}

/// Whether this directory has the file.
///
/// # Errors
/// `ENODEV` if the directory is gone, `ENOENT` if it has no such file.
pub fn check(tree: &Tree, place: Place, file: &ControlFile) -> Result<()> {
    let level = tree.level(place)?;
    if file.on.has(level) {
        Ok(())
    } else {
        Err(Error::NotFound)
    }
}

/// What a name means in a directory.
///
/// # Errors
/// `ENOENT`, also if the directory itself is gone.
pub fn lookup(tree: &Tree, place: Place, name: &str) -> Result<Node> {
    let level = tree.level(place).map_err(|_| Error::NotFound)?;
    match files::all().find(|file| file.name == name) {
        Some(file) if file.on.has(level) => Ok(Node::File(place, file)),
        Some(_) => Err(Error::NotFound),
        None => tree.directory(place, name).map(Node::Dir),
    }
}

/// What a path from the root means. Empty components and a leading slash do not count.
///
/// # Errors
/// `ENOENT`, and `ENOTDIR` below a file.
pub fn resolve(tree: &Tree, path: &str) -> Result<Node> {
    path.split('/')
        .filter(|name| !name.is_empty())
        .try_fold(Node::Dir(Place::ROOT), |at, name| match at {
            Node::Dir(place) => lookup(tree, place, name),
            Node::File(..) => Err(Error::NotDirectory),
        })
}

/// What stat(2) tells of a node.
///
/// # Errors
/// `ENODEV` if it is gone.
pub fn attributes(tree: &Tree, node: Node) -> Result<Attributes> {
    match node {
        Node::Dir(place) => {
            let Access { owner, mode } = tree.access(place)?;
            Ok(Attributes {
                owner,
                mode,
                size: 0,
                constant: true,
            })
        }
        Node::File(place, file) => {
            let constant = !file.contents.are_list();
            let length = if constant {
                PAGE
            } else {
                file.show(tree, place)?.len()
            };
            let size = length.max(1).next_multiple_of(PAGE) as u64;
            Ok(Attributes {
                owner: tree.owner(place)?,
                mode: file.mode(),
                size,
                constant,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fixture::{OWNER, ROOT, STRANGER, World};

    fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
        result.map(drop).unwrap_err().errno()
    }

    fn file(world: &World, path: &str) -> (Place, &'static ControlFile) {
        match resolve(&world.tree, path).unwrap() {
            Node::File(place, file) => (place, file),
            Node::Dir(_) => panic!("{path} is a directory"),
        }
    }

    fn store(world: &World, path: &str, caller: Caller, data: &[u8]) -> Result<()> {
        let (place, file) = file(world, path);
        file.store(&world.tree, place, caller, data)
    }

    fn show(world: &World, path: &str) -> String {
        let (place, file) = file(world, path);
        file.show(&world.tree, place).unwrap()
    }

    #[test]
    fn one_write_is_one_command_without_the_blanks_around_it() {
        let world = World::new(1);
        world.join(100);
        for data in ["4096", "4096\n", " 4096 \n", "\t4K\n"] {
            store(&world, "100/memory.limit", ROOT, b"max\n").unwrap();
            store(&world, "100/memory.limit", ROOT, data.as_bytes()).unwrap();
            assert_eq!(show(&world, "100/memory.limit"), "4096\n");
        }
        for data in [&b""[..], b"\n", b"  ", b"1\n2", b"1 2", b"\xff", b"1\0"] {
            assert_eq!(
                errno(store(&world, "100/memory.limit", ROOT, data)),
                libc::EINVAL,
                "{data:?}"
            );
        }
        assert_eq!(
            errno(store(&world, "100/memory.limit", ROOT, &[b'1'; PAGE + 1])),
            libc::E2BIG
        );
        assert_eq!(show(&world, "100/memory.limit"), "4096\n");
    }

    #[test]
    fn only_the_owner_and_root_write() {
        let world = World::new(1);
        world.join(100);
        assert_eq!(
            errno(store(&world, "100/compute.freeze", STRANGER, b"1")),
            libc::EACCES
        );
        store(&world, "100/compute.freeze", OWNER, b"1").unwrap();
        store(&world, "100/compute.freeze", ROOT, b"1").unwrap();
        assert_eq!(
            errno(store(&world, "100/compute.freeze", OWNER, b"0")),
            libc::EPERM
        );
        assert_eq!(show(&world, "100/compute.freeze"), "1\n");
        assert_eq!(
            errno(store(&world, "100/memory.current", ROOT, b"1")),
            libc::EACCES
        );
    }

    #[test]
    fn paths_lead_to_nodes() {
        let world = World::new(2);
        let id = world.join(100);
        for path in ["", "/", "100", "/100/", "100/0", "100//1"] {
            assert!(matches!(resolve(&world.tree, path), Ok(Node::Dir(_))), "{path}");
        }
        for path in [
            "0100",
            "+100",
            "101",
            "100/2",
            "100/00",
            "100/0/0",
            "memory.limit",
            "nothing",
            "100/devices",
        ] {
            assert_eq!(errno(resolve(&world.tree, path)), libc::ENOENT, "{path}");
        }
        assert_eq!(errno(resolve(&world.tree, "devices/x")), libc::ENOTDIR);
        let (place, file) = file(&world, "100/0/memory.limit");
        world.tree.leave(id, 0);
        assert_eq!(errno(resolve(&world.tree, "100/0/memory.limit")), libc::ENOENT);
        assert_eq!(errno(file.show(&world.tree, place)), libc::ENODEV);
        assert_eq!(errno(file.store(&world.tree, place, ROOT, b"1")), libc::ENODEV);
    }

    #[test]
    fn sizes_are_whole_pages() {
        let world = World::new(1);
        for pid in 1..3000 {
            world.join(pid);
        }
        let (place, procs) = file(&world, "gcgroup.procs");
        let size = attributes(&world.tree, Node::File(place, procs)).unwrap().size;
        assert!(
            size >= show(&world, "gcgroup.procs").len() as u64 && size > 4096 && size.is_multiple_of(4096),
            "{size}"
        );
        let (place, limit) = file(&world, "7/memory.limit");
        assert_eq!(
            attributes(&world.tree, Node::File(place, limit)).unwrap().size,
            4096
        );
    }
}
