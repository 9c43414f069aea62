//! Owners and modes given by chmod(1) and chown(1) to control files, and to directories other than the root's
//! and a group's own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Access, Item};

/// Owners and modes given to the files and directories of one entity. They do not count for another entity: a
/// process has a new directory after an exec(2).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenAccess {
    entity: u64,
    /// By `UUID/FILE`. Without a UUID the item is not of one device; without a file it is the directory.
    items: BTreeMap<String, Given>,
}

/// Parts of an [`Access`] that have been changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Given {
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<u16>,
}

impl GivenAccess {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.entity = 0;
    }

    /// Returns the access of an item that has `access` unless changed.
    pub(super) fn over(&self, mut access: Access, item: Item, uuid: &str) -> Access {
        let given = self.items.get(&key(item, uuid)).copied();
        let given = given
            .filter(|_| self.entity == item.directory.entity)
            .unwrap_or_default();
        access.owner.uid = given.uid.unwrap_or(access.owner.uid);
        access.owner.gid = given.gid.unwrap_or(access.owner.gid);
        access.mode = given.mode.unwrap_or(access.mode) & 0o777;
        access
    }

    /// Changes those parts that are given.
    pub(super) fn set(
        &mut self,
        item: Item,
        uuid: &str,
        (uid, gid, mode): (Option<u32>, Option<u32>, Option<u16>),
    ) {
        if self.entity != item.directory.entity {
            self.items.clear();
            self.entity = item.directory.entity;
        }
        let given = self.items.entry(key(item, uuid)).or_default();
        given.uid = uid.or(given.uid);
        given.gid = gid.or(given.gid);
        given.mode = mode.or(given.mode);
    }
}

fn key(item: Item, uuid: &str) -> String {
    format!("{uuid}/{}", item.file.map_or("", |(name, _)| name))
}
