//! Owners and modes of directories and control files.

use super::{
    Access, Caller, Change, DIRECTORY_MODE, Directory, Entity, Item, Notice, Owner, Scope, Settings, State,
    Tree,
};
use crate::error::{Error, Result};

impl Tree {
    /// Returns the owner and mode of a directory or file.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn access(&self, item: impl Into<Item>) -> Result<Access> {
        self.state.lock().access(item.into())
    }

    /// Returns an error unless the caller is root, owns the file, or is no owner and the mode lets some of
    /// those write: the adapter has checked the mode. Unless it was changed, a process's file belongs to the
    /// user to whom the process belongs now.
    ///
    /// # Errors
    /// [`Error::NotOwner`], [`Error::Gone`].
    pub fn check_writer(&self, file: Item, caller: Caller) -> Result<()> {
        let mut state = self.state.lock();
        state.settle_owner(file.directory, caller);
        let Access { owner, mode } = state.access(file)?;
        match caller.uid == owner.uid || mode & 0o022 != 0 || state.is_root(caller) {
            true => Ok(()),
            false => Err(Error::NotOwner { owner: owner.uid }),
        }
    }

    /// Returns whether the caller may make and remove groups in a directory, by its owner, group and mode.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn may_change(&self, directory: Directory, caller: Caller) -> Result<bool> {
        self.lets(directory, caller, &[], 0o3)
    }

    /// Returns whether the caller has all `wanted` permission bits (read 4, write 2, search 1) on a directory
    /// or file, by its owner, group and mode. `groups` are the caller's supplementary groups.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn lets(&self, item: impl Into<Item>, caller: Caller, groups: &[u32], wanted: u16) -> Result<bool> {
        self.state.lock().lets(item.into(), caller, groups, wanted)
    }

    /// Changes owner and mode of a directory or file. The control files of a group belong to the owner of its
    /// directory, unless they were given to another user.
    ///
    /// # Errors
    /// `EPERM` for a caller other than root that does not own it, that changes the uid, or if it is of a
    /// process; [`Error::Gone`].
    pub fn set_access(
        &self,
        item: impl Into<Item>,
        caller: Caller,
        (uid, gid): (Option<u32>, Option<u32>),
        mode: Option<u16>,
    ) -> Result<Change> {
        let item = item.into();
        let mut state = self.state.lock();
        let old = state.access(item)?;
        let access = Access {
            owner: Owner {
                uid: uid.unwrap_or(old.owner.uid),
                gid: gid.unwrap_or(old.owner.gid),
            },
            mode: mode.map_or(old.mode, |mode| mode & 0o777),
        };
        let is_process = matches!(item.directory.whose(), Entity::Process(_));
        let is_owner = caller.uid == old.owner.uid && access.owner.uid == old.owner.uid && !is_process;
        if !is_owner && !state.is_root(caller) {
            return Err(Error::NotYours(
                "only the owner can change a group's directories and files, and only root others or a uid",
            ));
        }
        if access == old {
            return Ok(Change::new(vec![]));
        }
        let uuid = state.uuid_of(item.directory);
        let given = (uid, gid, mode);
        let notice = match item.directory.whose() {
            Entity::Group(id) => {
                let group = state.groups.get_mut(&id).ok_or(Error::Gone)?;
                match item.is_whole_directory() {
                    true => group.access = access,
                    false => group.settings.given_access.set(item, &uuid, given),
                }
                Notice::GroupChanged(id)
            }
            Entity::Process(id) => {
                let process = state.processes.get_mut(&id).ok_or(Error::Gone)?;
                process.settings.given_access.set(item, &uuid, given);
                Notice::SettingsChanged(id)
            }
            Entity::Root => {
                match item.is_whole_directory() {
                    true => state.access = Some(access),
                    false => state.root.given_access.set(item, &uuid, given),
                }
                Notice::RootChanged
            }
        };
        Ok(Change::new(vec![notice]))
    }
}

impl State {
    /// Returns an error unless the caller is root or the owner of the process or group.
    pub(super) fn check_owner(&mut self, directory: Directory, caller: Caller) -> Result<()> {
        self.settle_owner(directory, caller);
        let owner = self.files_owner(directory)?.uid;
        match caller.uid == owner || self.is_root(caller) {
            true => Ok(()),
            false => Err(Error::NotOwner { owner }),
        }
    }

    /// Gives the files of a process whose credentials have changed since it registered to the user to whom it
    /// belongs now, before a user other than root acts upon it.
    pub(super) fn settle_owner(&mut self, directory: Directory, caller: Caller) {
        if self.is_root(caller) {
            return;
        }
        let (root, user_of) = (self.owner.uid, self.devices.host.user_of);
        if let Entity::Process(id) = directory.whose()
            && let Some(process) = self.processes.get_mut(&id)
        {
            process.identity.uid = user_of(&process.identity).unwrap_or(root);
        }
    }

    /// As [`Tree::lets`].
    pub(super) fn lets(&self, item: Item, caller: Caller, groups: &[u32], wanted: u16) -> Result<bool> {
        let Access { owner, mode } = self.access(item)?;
        let bits = if caller.uid == owner.uid {
            mode >> 6
        } else if caller.gid == owner.gid || groups.contains(&owner.gid) {
            mode >> 3
        } else {
            mode
        };
        Ok(self.is_root(caller) || bits & wanted == wanted)
    }

    /// As [`Tree::owner`].
    pub(super) fn files_owner(&self, directory: Directory) -> Result<Owner> {
        match self.scope(directory)? {
            Scope::Root => Ok(self.owner),
            Scope::Process(process, _) => Ok(process.identity.owner()),
            Scope::Group(group, _) => Ok(group.access.owner),
        }
    }

    /// As [`Tree::access`].
    pub(super) fn access(&self, item: Item) -> Result<Access> {
        let owner = self.files_owner(item.directory)?;
        let settings = match (item.directory.whose(), item.is_whole_directory()) {
            (Entity::Group(id), true) => return Ok(self.groups.get(&id).ok_or(Error::Gone)?.access),
            (Entity::Root, true) => {
                let mode = DIRECTORY_MODE;
                return Ok(self.access.unwrap_or(Access { owner, mode }));
            }
            (Entity::Group(id), false) => self.groups.get(&id).map(|group| &group.settings),
            (Entity::Process(id), _) => self.processes.get(&id).map(|process| &process.settings),
            (Entity::Root, false) => Some(&self.root),
        };
        let mode = item.file.map_or(DIRECTORY_MODE, |(_, mode)| mode);
        let given = settings.map(|Settings { given_access, .. }| given_access);
        Ok(match given {
            Some(given) if !given.is_empty() => {
                given.over(Access { owner, mode }, item, &self.uuid_of(item.directory))
            }
            _ => Access { owner, mode },
        })
    }

    /// Returns the UUID of a directory's device; empty if it is of the whole.
    fn uuid_of(&self, directory: Directory) -> String {
        let device = directory
            .device
            .and_then(|device| self.devices.get(usize::from(device)));
        device.map(|device| device.uuid_text.clone()).unwrap_or_default()
    }
}
