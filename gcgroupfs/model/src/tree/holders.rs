//! The processes that hold values of settings, and how many values they may hold.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::settings::{SETTINGS, Setting, Value};
use crate::error::{Error, Result};
use crate::user_counts::UserCounts;

/// Maximum number of holders of one user other than root.
const MAX_PER_UID: usize = 256;

/// Maximum number of holders.
const MAX_HOLDERS: usize = 4096;

/// Number of holders at which only root may have another.
const MAX_OTHERS: usize = 3072;

/// Maximum number of processes and groups on which one process of root holds values.
const MAX_TARGETS: usize = 256;

/// Maximum number of processes and groups on which one process of another user holds values.
const MAX_TARGETS_OF_OTHERS: usize = 64;

/// Maximum number of values that are held on one process or group.
const MAX_ON_TARGET: usize = 64;

/// Number of values held on one process or group at which only root may hold another there.
const MAX_ON_TARGET_OF_OTHERS: usize = 48;

/// A process that holds values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    /// Clock ticks since boot.
    pub start_time: u64,
    /// Its user when it began to hold.
    pub uid: u32,
}

/// One value that a process holds on a process or group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    #[serde(flatten)]
    pub(super) holder: Holder,
    /// UUID of a device; `None`: the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<String>,
    /// [`Setting::key`].
    pub(super) setting: String,
    pub(super) value: Value,
}

/// The living holders, and the numbers of the processes and groups on which each holds values.
#[derive(Debug, Default)]
pub(super) struct Holders {
    targets: BTreeMap<Holder, BTreeSet<u64>>,
    users: UserCounts,
}

impl Hold {
    /// Returns the setting; `None` if this daemon cannot hold it or the value is invalid.
    pub(super) fn setting(&self) -> Option<&'static Setting> {
        let mut settings = SETTINGS.iter().copied();
        let setting = settings.find(|setting| setting.key == self.setting)?;
        (setting.hold_option.is_some() && setting.kind.has(self.value)).then_some(setting)
    }
}

fn max_targets(is_root: bool) -> usize {
    match is_root {
        true => MAX_TARGETS,
        false => MAX_TARGETS_OF_OTHERS,
    }
}

pub(super) fn max_on_target(is_root: bool) -> usize {
    match is_root {
        true => MAX_ON_TARGET,
        false => MAX_ON_TARGET_OF_OTHERS,
    }
}

pub(super) fn too_many(is_root: bool) -> Error {
    Error::TooManyHolds {
        per_user: MAX_PER_UID,
        all: MAX_HOLDERS,
        targets: max_targets(is_root),
        values: max_on_target(is_root),
    }
}

impl Holders {
    pub(super) fn add(&mut self, holder: Holder) {
        if let Entry::Vacant(entry) = self.targets.entry(holder) {
            entry.insert(BTreeSet::new());
            self.users.add(holder.uid);
        }
    }

    /// Returns whether a holder may hold values on these too.
    ///
    /// # Errors
    /// [`Error::TooManyHolds`].
    pub(super) fn admit(&self, holder: Holder, is_root: bool, targets: &BTreeSet<u64>) -> Result<()> {
        let held = self.targets.get(&holder);
        let nr_targets = held.map_or(targets.len(), |held| held.union(targets).count());
        let has_room = held.is_some()
            || (self.users.total() < MAX_HOLDERS
                && (is_root || (self.users.total() < MAX_OTHERS && self.users.of(holder.uid) < MAX_PER_UID)));
        match has_room && nr_targets <= max_targets(is_root) {
            true => Ok(()),
            false => Err(too_many(is_root)),
        }
    }

    pub(super) fn has(&self, holder: Holder) -> bool {
        self.targets.contains_key(&holder)
    }

    /// Notes that a holder holds values on a process or group.
    pub(super) fn note(&mut self, holder: Holder, target: u64) {
        self.add(holder);
        if let Some(targets) = self.targets.get_mut(&holder) {
            targets.insert(target);
        }
    }

    /// Notes that a process or group is gone.
    pub(super) fn drop_target(&mut self, holds: &[Hold], target: u64) {
        for hold in holds {
            if let Some(targets) = self.targets.get_mut(&hold.holder) {
                targets.remove(&target);
            }
        }
    }

    /// Removes a process that has ended; returns the processes and groups on which it held values.
    pub(super) fn end(&mut self, pid: u32, start_time: u64) -> BTreeSet<u64> {
        let [first, last] = [0, u32::MAX].map(|uid| Holder { pid, start_time, uid });
        let ended = self.targets.range(first..=last);
        let ended: Vec<Holder> = ended.map(|(holder, _)| *holder).collect();
        let mut all = BTreeSet::new();
        for holder in ended {
            all.extend(self.targets.remove(&holder).unwrap_or_default());
            self.users.remove(holder.uid);
        }
        all
    }

    /// Returns all holders.
    pub(super) fn all(&self) -> impl Iterator<Item = Holder> {
        self.targets.keys().copied()
    }
}
