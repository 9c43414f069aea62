//! Owners and modes of directories.

use super::{Access, Caller, Change, DIRECTORY_MODE, Directory, Entity, Notice, Owner, Scope, State, Tree};
use crate::error::{Error, Result};

impl Tree {
    /// Returns the owner and mode of a directory.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn access(&self, directory: Directory) -> Result<Access> {
        self.state.lock().access(directory)
    }

    /// Returns an error unless the caller is root or owns the directory. A process's directory belongs to the
    /// user to whom the process belongs now.
    ///
    /// # Errors
    /// [`Error::NotOwner`], [`Error::Gone`].
    pub fn check_owner(&self, directory: Directory, caller: Caller) -> Result<()> {
        self.state.lock().check_owner(directory, caller)
    }

    /// Returns whether the caller may make and remove groups in a directory, by its owner, group and mode.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn may_change(&self, directory: Directory, caller: Caller) -> Result<bool> {
        self.lets(directory, caller, 0o3)
    }

    /// Returns whether the caller may open entries of a directory, by its owner, group and mode.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn may_search(&self, directory: Directory, caller: Caller) -> Result<bool> {
        self.lets(directory, caller, 0o1)
    }

    /// Returns whether the caller may list the names in a directory and open them, by its owner, group and
    /// mode.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn may_find(&self, directory: Directory, caller: Caller) -> Result<bool> {
        self.lets(directory, caller, 0o5)
    }

    fn lets(&self, directory: Directory, caller: Caller, wanted: u16) -> Result<bool> {
        let state = self.state.lock();
        let Access { owner, mode } = state.access(directory)?;
        let bits = if caller.uid == owner.uid {
            mode >> 6
        } else if caller.gid == owner.gid {
            mode >> 3
        } else {
            mode
        };
        Ok(state.is_root(caller) || bits & wanted == wanted)
    }

    /// Changes owner and mode of a directory. Its control files belong to the owner too, except in the root,
    /// whose files keep theirs.
    ///
    /// # Errors
    /// `EPERM` for a process's or a device's directory, for a caller other than root that does not own the
    /// directory, or that changes the uid; [`Error::Gone`].
    pub fn set_access(
        &self,
        directory: Directory,
        caller: Caller,
        (uid, gid): (Option<u32>, Option<u32>),
        mode: Option<u16>,
    ) -> Result<Change> {
        let mut state = self.state.lock();
        let is_root = state.is_root(caller);
        let old = state.access(directory)?;
        let access = Access {
            owner: Owner {
                uid: uid.unwrap_or(old.owner.uid),
                gid: gid.unwrap_or(old.owner.gid),
            },
            mode: mode.map_or(old.mode, |mode| mode & 0o777),
        };
        if directory.device.is_some() || matches!(directory.whose(), Entity::Process(_)) {
            return Err(Error::FixedShape);
        }
        if !is_root && (caller.uid != old.owner.uid || access.owner.uid != old.owner.uid) {
            return Err(Error::NotYours(
                "only the owner can change the directory, and only root its uid",
            ));
        }
        let notice = match directory.whose() {
            Entity::Group(id) => {
                state.groups.get_mut(&id).ok_or(Error::Gone)?.access = access;
                Notice::GroupChanged(id)
            }
            _ => {
                state.access = Some(access);
                Notice::RootChanged
            }
        };
        Ok(Change::new(if access == old { vec![] } else { vec![notice] }))
    }
}

impl State {
    /// As [`Tree::check_owner`].
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

    /// As [`Tree::owner`].
    pub(super) fn files_owner(&self, directory: Directory) -> Result<Owner> {
        match self.scope(directory)? {
            Scope::Root => Ok(self.owner),
            Scope::Process(process, _) => Ok(process.identity.owner()),
            Scope::Group(group, _) => Ok(group.access.owner),
        }
    }

    pub(super) fn access(&self, directory: Directory) -> Result<Access> {
        self.level(directory)?;
        match directory.whose() {
            Entity::Group(id) => Ok(self.groups.get(&id).ok_or(Error::Gone)?.access),
            Entity::Root => Ok(self.access.unwrap_or(Access {
                owner: self.owner,
                mode: DIRECTORY_MODE,
            })),
            Entity::Process(id) => Ok(Access {
                owner: self.processes.get(&id).ok_or(Error::Gone)?.identity.owner(),
                mode: DIRECTORY_MODE,
            }),
        }
    }
}
