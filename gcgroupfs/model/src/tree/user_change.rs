//! Changes that users have requested, for the log.

use super::{Access, Caller, Directory, Entity, State, Tree};
use crate::text::word;

/// Kind of a requested change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A write to a control file.
    Write {
        file: &'static str,
        /// Text that the file showed before; `None` if it shows none, or a list.
        old: Option<String>,
        /// Text that it shows now, or that was written.
        new: String,
    },
    /// A group was made.
    Make,
    /// A group was removed.
    Remove,
    /// Owner or mode of a directory or file was changed.
    SetAccess {
        file: Option<&'static str>,
        old: Access,
        new: Access,
    },
}

/// A change that a user has requested and that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserChange {
    pub caller: Caller,
    /// Path of the directory from the root, as one word: `/`, `/4711`, `/team/a`, `/team/a/0`.
    pub directory: String,
    /// Pid of the process whose directory it is.
    pub process: Option<u32>,
    /// Path of the group whose directory it is, below the root.
    pub group: Option<String>,
    /// Device whose directory it is.
    pub device: Option<u8>,
    /// Whether a command that starts a job has set up the job's group.
    pub is_set_up: bool,
    pub action: Action,
}

impl UserChange {
    /// Returns the path of what was changed: the file or the directory.
    pub fn path(&self) -> String {
        match &self.action {
            Action::Write { file, .. } | Action::SetAccess { file: Some(file), .. } => {
                format!("{}/{file}", self.directory.trim_end_matches('/'))
            }
            _ => self.directory.clone(),
        }
    }
}

impl State {
    /// Describes a change of a directory that exists.
    pub(super) fn user_change(&self, caller: Caller, directory: Directory, action: Action) -> UserChange {
        let (process, group) = match directory.whose() {
            Entity::Root => (None, None),
            Entity::Process(id) => (self.processes.get(&id).map(|process| process.identity.pid), None),
            Entity::Group(id) => (None, Some(self.path(Some(id)))),
        };
        let job = match directory.whose() {
            Entity::Group(id) => self.groups.get(&id).and_then(|group| group.job.as_ref()),
            Entity::Root | Entity::Process(_) => None,
        };
        let is_set_up = job.is_some_and(|job| job.pid == caller.pid && !job.has_ended);
        let whole = match (&process, &group) {
            (Some(pid), _) => format!("/{pid}"),
            (None, Some(path)) => format!("/{}", word(path)),
            (None, None) => "/".to_owned(),
        };
        UserChange {
            caller,
            directory: directory
                .device
                .map_or(whole.clone(), |device| format!("{whole}/{device}")),
            process,
            group,
            device: directory.device,
            is_set_up,
            action,
        }
    }
}

impl Tree {
    /// Describes a change of a directory that exists.
    pub(crate) fn user_change(&self, caller: Caller, directory: Directory, action: Action) -> UserChange {
        self.state.lock().user_change(caller, directory, action)
    }
}
