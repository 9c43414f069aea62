//! What a control file is, and how a path or a name leads to one. Adapters (the mount, the socket) speak to the tree
//! through this module and know no file by name.

mod node;

use std::time::Duration;

use crate::error::{Error, Result};
use crate::tree::{Caller, Edit, Level, Place, Tree, View};

pub use node::{
    Attributes, Node, attributes, check, check_group_path, files_in, is_taken, lookup, make_group,
    make_transient_group, resolve_if,
};

#[cfg(any(test, fuzzing))]
pub use node::resolve;

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
    /// The entry in the manual page gcgroupfs(5).
    pub doc: &'static str,
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
        let show = |view: &View<'_>| Ok((show(view)?, self.count(view)?));
        match self.contents {
            Contents::Events(_) => tree.view_events(place, show),
            Contents::Page | Contents::List | Contents::Asked(_) => tree.view(place, show),
        }
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
    /// as a whole or not at all. Only a file that takes anything takes a newline alone, as cgroup v2's `memory.peak` does.
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
        if data.is_empty() {
            return Err(Error::bad("a value", ""));
        }
        if data.len() > PAGE {
            return Err(Error::TooLong(PAGE));
        }
        let text = std::str::from_utf8(data).map_err(|_| Error::bad("text", "bytes that are none"))?;
        let text = text.trim_matches([' ', '\t', '\n']);
        tree.edit(place, caller, |edit| store(edit, text))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::tree::fixture::{OWNER, ROOT, STRANGER, World};

    pub(super) fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
        result.map(drop).unwrap_err().errno()
    }

    pub(super) fn file(world: &World, path: &str) -> (Place, &'static ControlFile) {
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
    fn a_read_counts_the_changes_that_it_shows() {
        let world = World::new(1);
        let id = world.join(100);
        world.group("a/b");
        world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
        world.store("a/compute.freeze", ROOT, "1").unwrap();
        let count = |path: &str| {
            let (place, file) = file(&world, path);
            file.nr_changes(&world.tree, place).unwrap()
        };
        let read = |path: &str| {
            let (place, file) = file(&world, path);
            file.show_and_count(&world.tree, place).unwrap()
        };
        // As the hook does before it rings.
        let drain = |generation: u32| {
            for (usage, control) in world.usage(id).devices.iter().zip(&world.control(id).devices) {
                let frozen = control.freeze_generation.load(Relaxed).wrapping_sub(generation);
                usage.drained_generation.store(frozen, Relaxed);
            }
        };
        for place in ["100", "100/0", "a/b", "a/0"] {
            let events = format!("{place}/gcgroup.events");
            drain(1);
            world.tree.rung(id);
            let before = count(&events);
            drain(0);
            let (text, counted) = read(&events);
            assert!(text.contains("frozen 1\n"), "{place}: {text}");
            assert_eq!(counted, before + 1, "{place}");
            world.tree.rung(id);
            assert_eq!(count(&events), counted, "{place}: a change that was read before");
        }
        for place in ["100", "100/0", "a/b", "a/0"] {
            let events = format!("{place}/memory.events");
            let before = count(&events);
            let max = &world.usage(id).devices[0].nr_max;
            let seen = max.fetch_add(1, Relaxed) + 1;
            let (text, counted) = read(&events);
            assert!(text.contains(&format!("max {seen}\n")), "{place}: {text}");
            assert!(counted > before, "{place}");
            world.tree.rung(id);
            assert_eq!(count(&events), counted, "{place}: a change that was read before");
        }
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
    fn a_newline_alone_is_no_value_but_starts_a_peak_anew() {
        let world = World::new(1);
        world.join(100);
        let places = [
            (Level::Root, ""),
            (Level::Process, "100/"),
            (Level::ProcessDevice, "100/0/"),
        ];
        for (level, place) in places {
            let writable = |file: &&ControlFile| matches!(file.io, Io::ReadWrite(..) | Io::Write(_));
            let here = crate::files::all().filter(|file| file.on.has(level));
            for file in here.filter(writable) {
                let path = format!("{place}{}", file.name);
                let stored = store(&world, &path, ROOT, b"\n");
                match file.name {
                    "memory.peak" => stored.unwrap(),
                    _ => assert_eq!(errno(stored), libc::EINVAL, "{path}"),
                }
            }
        }
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
}
