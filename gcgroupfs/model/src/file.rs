//! Control files, and how a path or name leads to one. Adapters (the mount, the socket) use the tree through
//! this module and know no file by name.

mod node;
#[cfg(test)]
mod tests;

use std::time::Duration;

use gcgroup_abi::Pressure;

use crate::error::{Error, Result};
use crate::tree::{Action, Caller, Change, Directory, Edit, Item, Level, Setting, Tree, View};

pub use node::{
    Attributes, Node, attributes, check, check_group_name, check_group_path, files_in, is_taken, lookup,
    make_group, make_job_group, make_transient_group, named, remove_group, resolve_if, set_access, those_in,
};

#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use node::resolve;

/// Longest write in bytes, and the constant size of every file whose contents are bounded.
pub const PAGE: usize = 4096;

/// Renders the file's whole contents.
pub type Show = fn(&View<'_>) -> Result<String>;

/// Applies one write, with surrounding blanks stripped.
pub type Store = fn(&mut Edit<'_>, &str) -> Result<()>;

/// Access to the file. Its mode follows from this alone.
#[derive(Debug, Clone, Copy)]
pub enum Io {
    /// 0444
    Read(Show),
    /// 0644
    ReadWrite(Show, Store),
    /// 0200
    Write(Store),
    /// 0644
    Setting(&'static Setting),
    /// 0444
    Pressure(Pressure),
}

impl Io {
    fn show(self, view: &View<'_>) -> Result<String> {
        match self {
            Self::Read(show) | Self::ReadWrite(show, _) => show(view),
            Self::Setting(setting) => Ok(setting.show(view.setting(setting)?)),
            // Pressure is shown past the view, since it is brought up to date.
            Self::Write(_) | Self::Pressure(_) => Err(Error::WriteOnly),
        }
    }

    fn store(self, edit: &mut Edit<'_>, text: &str) -> Result<()> {
        match self {
            Self::Write(store) | Self::ReadWrite(_, store) => store(edit, text),
            Self::Setting(setting) => edit.set(setting, text),
            Self::Read(_) | Self::Pressure(_) => Err(Error::ReadOnly),
        }
    }
}

/// Directories that have the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct On {
    pub root: bool,
    pub process: bool,
    pub group: bool,
    /// Directories of processes and groups on one device, too.
    pub device: bool,
}

impl On {
    pub const NONE: Self = Self {
        root: false,
        process: false,
        group: false,
        device: false,
    };
    pub const ROOT: Self = Self {
        root: true,
        ..Self::NONE
    };
    pub const MEMBERS: Self = Self {
        root: true,
        process: true,
        group: true,
        device: false,
    };
    /// Directories of processes and groups, not those on one device.
    pub const WHOLE: Self = Self {
        root: false,
        process: true,
        group: true,
        device: false,
    };
    /// Directories of groups, not those on one device.
    pub const GROUPS: Self = Self {
        root: false,
        process: false,
        group: true,
        device: false,
    };
    pub const PROCESSES: Self = Self {
        root: false,
        process: true,
        group: false,
        device: true,
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

/// Kind of contents.
#[derive(Debug, Clone, Copy)]
pub enum Contents {
    /// At most [`PAGE`] bytes.
    Page,
    /// Unbounded: grows with the number of entries.
    List,
    /// Requested from processes at each read; the reader waits for the answers, [`Asked::patience`] at most.
    Asked(Asked),
    /// At most [`PAGE`] bytes, and poll(2) waits for changes. The function counts the changes.
    Events(fn(&View<'_>) -> Result<u64>),
    /// As `Events`, and the second function is told whether there is a poller.
    Polled(fn(&View<'_>) -> Result<u64>, fn(&View<'_>, bool)),
}

impl Contents {
    /// Returns whether they are unbounded; otherwise they are at most [`PAGE`] bytes.
    pub fn are_list(&self) -> bool {
        matches!(self, Self::List | Self::Asked(Asked { is_list: true, .. }))
    }
}

/// How to request contents that processes must provide.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub is_list: bool,
    pub ask: fn(&View<'_>),
    /// Whether all processes that were asked have answered.
    pub is_answered: fn(&View<'_>) -> bool,
    /// Longest wait of a reader, after which the last known values are shown.
    pub patience: Duration,
}

/// Row of the table of control files.
#[derive(Debug)]
pub struct ControlFile {
    pub name: &'static str,
    pub on: On,
    pub contents: Contents,
    pub io: Io,
    /// Entry in the manual page gcgroupfs(5).
    pub doc: &'static str,
}

impl ControlFile {
    /// Returns whether directories of processes have it.
    pub fn is_of_processes(&self) -> bool {
        self.on.process
    }

    /// Returns the row of a setting's control file.
    pub const fn of(setting: &'static Setting) -> Self {
        Self {
            name: setting.name,
            on: On::GOVERNED,
            contents: Contents::Page,
            io: Io::Setting(setting),
            doc: setting.doc,
        }
    }

    /// Returns the permission bits unless changed; those of the owner are what the file supports.
    pub fn mode(&self) -> u16 {
        match self.io {
            Io::Read(_) | Io::Pressure(_) => 0o444,
            Io::ReadWrite(..) | Io::Setting(_) => 0o644,
            Io::Write(_) => 0o200,
        }
    }

    /// Returns the file in a directory as the object of owners and modes.
    pub fn item(&self, directory: Directory) -> Item {
        Item {
            directory,
            file: Some((self.name, self.mode())),
        }
    }

    /// Returns the file's whole contents.
    ///
    /// # Errors
    /// * `ENODEV`: its directory is gone.
    /// * `EACCES`: the file is write-only.
    pub fn show(&self, tree: &Tree, directory: Directory) -> Result<String> {
        self.show_and_count(tree, directory).map(|(text, _)| text)
    }

    /// Returns the file's contents and the number of changes up to them; 0 unless they are
    /// [`Contents::Events`].
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn show_and_count(&self, tree: &Tree, directory: Directory) -> Result<(String, u64)> {
        if let Io::Pressure(what) = self.io {
            return Ok((tree.show_pressure(directory, what)?, 0));
        }
        let show = |view: &View<'_>| Ok((self.io.show(view)?, self.count(view)?));
        match self.contents {
            Contents::Events(_) | Contents::Polled(..) => tree.view_events(directory, show),
            Contents::Page | Contents::List | Contents::Asked(_) => tree.view(directory, show),
        }
    }

    /// Requests the contents from the processes that provide them. Returns how long a reader should wait for
    /// the answer; `None` if it need not.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn ask(&self, tree: &Tree, directory: Directory) -> Result<Option<Duration>> {
        let Contents::Asked(Asked { ask, patience, .. }) = self.contents else {
            return Ok(None);
        };
        tree.view(directory, |view| {
            ask(view);
            Ok(())
        })?;
        self.has_answer(tree, directory)
            .map(|answered| (!answered).then_some(patience))
    }

    /// Returns whether all processes that were asked have answered.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn has_answer(&self, tree: &Tree, directory: Directory) -> Result<bool> {
        let Contents::Asked(Asked { is_answered, .. }) = self.contents else {
            return Ok(true);
        };
        tree.view(directory, |view| Ok(is_answered(view)))
    }

    /// Returns the number of changes so far; 0 unless the contents are [`Contents::Events`].
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn nr_changes(&self, tree: &Tree, directory: Directory) -> Result<u64> {
        tree.view(directory, |view| self.count(view))
    }

    fn count(&self, view: &View<'_>) -> Result<u64> {
        match self.contents {
            Contents::Page | Contents::List | Contents::Asked(_) => Ok(0),
            Contents::Events(count) | Contents::Polled(count, _) => count(view),
        }
    }

    /// Notes whether the file has a poller.
    pub fn set_polled(&self, tree: &Tree, directory: Directory, is_polled: bool) {
        if let Contents::Polled(_, poll) = self.contents {
            // A process that has ended has no use for it.
            let _ = tree.view(directory, |view| {
                poll(view, is_polled);
                Ok(())
            });
        }
    }

    /// Applies one write as one command, as a whole or not at all. Surrounding blanks and the final newline
    /// are ignored. A newline alone is accepted only by a file that accepts anything, as cgroup v2's
    /// `memory.peak`.
    ///
    /// # Errors
    /// * `EACCES`: the file is read-only, or the caller is neither the directory's owner nor root.
    /// * `E2BIG`: more than [`PAGE`] bytes.
    /// * `EINVAL`: empty, or in a wrong format.
    /// * `ERANGE`, `EPERM`: as documented for the file.
    /// * `ENODEV`: its directory is gone.
    pub fn store(&self, tree: &Tree, directory: Directory, caller: Caller, data: &[u8]) -> Result<Change> {
        let text = self.command(tree, directory, caller, data)?;
        let mut by_user = None;
        let change = tree.edit(directory, caller, |edit| {
            let old = self.text_for_log(edit);
            self.io.store(edit, text)?;
            let new = self.text_for_log(edit);
            if old.is_none() || old != new {
                let new = new.unwrap_or_else(|| text.to_owned());
                let file = self.name;
                by_user = Some(edit.user_change(Action::Write { file, old, new }));
            }
            Ok(())
        })?;
        Ok(change.by_user(by_user))
    }

    /// Returns the contents as one line for the log; `None` if they are a list or cannot be read.
    fn text_for_log(&self, edit: &Edit<'_>) -> Option<String> {
        let is_page = matches!(self.contents, Contents::Page) && self.mode() & 0o400 != 0;
        let view = is_page.then(|| edit.view().ok()).flatten()?;
        Some(self.io.show(&view).ok()?.trim_end().replace('\n', "; "))
    }

    /// Checks a write; returns its text without surrounding blanks.
    fn command<'a>(
        &self,
        tree: &Tree,
        directory: Directory,
        caller: Caller,
        data: &'a [u8],
    ) -> Result<&'a str> {
        if self.mode() & 0o200 == 0 {
            return Err(Error::ReadOnly);
        }
        tree.check_writer(self.item(directory), caller)?;
        if data.is_empty() {
            return Err(Error::bad("a value", ""));
        }
        if data.len() > PAGE {
            return Err(Error::TooLong(PAGE));
        }
        let text = std::str::from_utf8(data).map_err(|_| Error::bad("text", "bytes that are not UTF-8"))?;
        Ok(text.trim_matches([' ', '\t', '\n']))
    }
}
