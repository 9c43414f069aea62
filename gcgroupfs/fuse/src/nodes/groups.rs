//! Creates and removes directories of groups, and changes owners and modes.

use std::ffi::OsStr;

use fuser::{FileAttr, INodeNo};

use super::Nodes;
use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::file::{self, Node};
use gcgroupfs_model::tree::{Caller, DIRECTORY_MODE, NewGroup};

impl Nodes {
    /// Creates a group in a directory that the kernel lets the caller write. `is_again`: the request is
    /// resent, so an earlier daemon may have done it without answering.
    pub(in super::super) fn make_group(
        &self,
        caller: Caller,
        (parent, name): (INodeNo, &OsStr),
        mode: u32,
        is_again: bool,
    ) -> Result<FileAttr> {
        let Node::Dir(parent) = self.node(parent)? else {
            return Err(Error::NotDirectory);
        };
        let name = name.to_str().ok_or(Error::BadName("it is not UTF-8"))?;
        // Only the permission bits are used, and these fit.
        let mode = u16::try_from(mode & 0o777).unwrap_or(DIRECTORY_MODE);
        let new = NewGroup {
            parent,
            name,
            caller,
            mode,
        };
        let made = match file::make_group(&self.tree, &new) {
            Ok((made, change)) => {
                self.tree.finish(change);
                made
            }
            // Created by an earlier daemon that could not answer.
            Err(Error::Exists) if is_again => self.tree.made_by(parent, name, caller).ok_or(Error::Exists)?,
            Err(error) => return Err(error),
        };
        self.attributes(Node::Dir(made))
    }

    /// Removes a group from a directory that the kernel lets the caller write. `is_again`: the request is
    /// resent, so an earlier daemon may have done it without answering.
    pub(in super::super) fn remove_group(
        &self,
        caller: Caller,
        (parent, name): (INodeNo, &OsStr),
        is_again: bool,
    ) -> Result<()> {
        let Node::Dir(parent) = self.node(parent)? else {
            return Err(Error::NotDirectory);
        };
        let name = name.to_str().ok_or(Error::NotFound)?;
        let mut removed = file::remove_group(&self.tree, caller, parent, name);
        if matches!(removed, Err(Error::NotEmpty)) {
            // Its last process may have ended, and been waited for, before the server has noticed.
            self.notice_ends();
            removed = file::remove_group(&self.tree, caller, parent, name);
        }
        match removed {
            Ok(change) => self.tree.finish(change),
            Err(Error::NotFound) if is_again => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Changes the owner or the mode of a directory or file.
    pub(in super::super) fn set_access(
        &self,
        caller: Caller,
        ino: INodeNo,
        owner: (Option<u32>, Option<u32>),
        mode: Option<u32>,
    ) -> Result<FileAttr> {
        let node = self.node(ino)?;
        let mode = mode.and_then(|mode| u16::try_from(mode & 0o777).ok());
        let change = file::set_access(&self.tree, node, caller, owner, mode)?;
        self.tree.finish(change);
        self.attributes(node)
    }
}
