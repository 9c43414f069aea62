//! `gcgroup.devices`: the GPUs that a group's processes may use. Not a [`Setting`](super::Setting), because
//! its value is a list.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// UUIDs of devices. Devices that do not exist now may appear later, so the list is not reduced to those
/// known.
pub type DeviceSet = BTreeSet<String>;

/// The list of a group. Absent lists contain all devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct DeviceList {
    /// The list in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<DeviceSet>,
    /// The last list that root has set, which bounds those of other users.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<DeviceSet>,
}

impl DeviceList {
    /// Sets the list; `None`: all devices.
    ///
    /// # Errors
    /// `EPERM` if a user other than root adds a device to root's list.
    pub(super) fn set(&mut self, list: Option<DeviceSet>, by_root: bool) -> Result<()> {
        if by_root {
            self.root.clone_from(&list);
        } else if let Some(bound) = &self.root
            && !list.as_ref().is_some_and(|list| list.is_subset(bound))
        {
            return Err(Error::BeyondRoot {
                rule: "devices can only be removed",
                bound: names(bound),
            });
        }
        self.value = list;
        Ok(())
    }
}

/// Returns a list for people to read.
fn names(list: &DeviceSet) -> String {
    match list.is_empty() {
        true => "none".to_owned(),
        false => list.iter().map(String::as_str).collect::<Vec<_>>().join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Option<DeviceSet> {
        Some(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn users_can_only_remove_devices_from_roots_list() {
        let mut devices = DeviceList::default();
        devices.set(list(&["a"]), false).unwrap();
        devices.set(list(&["a", "b"]), true).unwrap();
        for beyond in [None, list(&["c"]), list(&["a", "b", "c"])] {
            let before = devices.clone();
            assert!(devices.set(beyond, false).is_err());
            assert_eq!(devices, before);
        }
        for within in [list(&["b"]), list(&[]), list(&["a", "b"])] {
            devices.set(within.clone(), false).unwrap();
            assert_eq!(devices.value, within);
        }
        devices.set(None, true).unwrap();
        devices.set(list(&["c"]), false).unwrap();
    }
}
