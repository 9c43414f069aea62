//! What is asked of a process or a group, by whom, and who may ask for what. Pure values: serialised, they are what survives
//! the daemon.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use gcgroup_abi::message::Hello;
use gcgroup_abi::{DEFAULT_PRIORITY, NO_LIMIT};
use serde::{Deserialize, Serialize};

use super::{MAX_PRIORITY, Quota};
use crate::arbiter::Policy;
use crate::error::{Error, Result};

/// One setting. Both are absent until somebody writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Setting<T> {
    /// What holds.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    value: Option<T>,
    /// What root wrote last: others may go as far and no further.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    root: Option<T>,
}

fn none<T>() -> Option<T> {
    None
}

impl<T> Default for Setting<T> {
    fn default() -> Self {
        Self {
            value: None,
            root: None,
        }
    }
}

impl<T: Copy> Setting<T> {
    fn store(&mut self, value: T, by_root: bool) {
        self.value = Some(value);
        if by_root {
            self.root = Some(value);
        }
    }
}

/// The settings of one directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Values {
    #[serde(skip_serializing_if = "is_default")]
    memory_limit: Setting<u64>,
    #[serde(skip_serializing_if = "is_default")]
    priority: Setting<u32>,
    #[serde(skip_serializing_if = "is_default")]
    freeze: Setting<bool>,
    #[serde(skip_serializing_if = "is_default")]
    compute_max: Setting<Quota>,
    #[serde(skip_serializing_if = "is_default")]
    memory_swap_max: Setting<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What is asked of a process or a group, as a whole and on single devices. Devices are named by their UUID.
///
/// Limits hold side by side, and so do quotas and freezes: the process's and the device's, each by itself. A priority given
/// to the process replaces those given to its devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    #[serde(skip_serializing_if = "is_default")]
    process: Values,
    #[serde(skip_serializing_if = "is_default")]
    devices: BTreeMap<String, Values>,
    /// Of the root alone.
    #[serde(skip_serializing_if = "is_default")]
    policy: Option<Policy>,
}

/// A priority that holds somewhere, and what bounds it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ranked {
    /// `compute.priority`; none: nobody has set it here or above.
    pub priority: Option<u32>,
    /// The nearest priority that root has set, here or above. Other users may set higher numbers only; without it,
    /// [`DEFAULT_PRIORITY`] bounds them.
    pub root: Option<u32>,
}

impl Ranked {
    /// The priority in force.
    pub fn in_force(self) -> u32 {
        self.priority.unwrap_or(DEFAULT_PRIORITY)
    }

    /// The least number that a user other than root may set.
    pub fn least(self) -> u32 {
        self.root.unwrap_or(DEFAULT_PRIORITY)
    }
}

impl Settings {
    /// Applies what a process was started with, as far as it is within what root has set. A wish that makes no sense is
    /// ignored. `bound` is the least priority number that the process's user may set ([`Tree::least_priority`]); `None`
    /// for root, whose wish counts as root's word where no rule has set the priority. Returns the bound if the priority
    /// wished for was below it and so was raised to it.
    ///
    /// [`Tree::least_priority`]: super::Tree::least_priority
    pub fn wish(&mut self, hello: &Hello, bound: Option<u32>) -> Option<u32> {
        // A wish beyond root's word is ignored.
        if hello.memory_limit != NO_LIMIT {
            let _ = self.set_memory_limit(None, hello.memory_limit, false);
        }
        let bound = bound.or(self.process.priority.root);
        if hello.priority <= MAX_PRIORITY {
            let priority = hello.priority.max(bound.unwrap_or(0));
            let _ = self.set_priority(None, priority, bound.is_none());
        }
        if hello.freeze == 1 {
            let _ = self.set_freeze(None, true, false);
        }
        if hello.can_swap != 0 && hello.memory_swap_max != 0 {
            let _ = self.set_memory_swap_max(None, hello.memory_swap_max, false);
        }
        bound.filter(|bound| hello.priority < *bound)
    }

    /// The settings of a process in no group whose user wishes so.
    #[cfg(any(test, fuzzing))]
    pub fn wished(hello: &Hello) -> Self {
        let mut settings = Self::default();
        settings.wish(hello, Some(DEFAULT_PRIORITY));
        settings
    }

    /// Whether nobody has asked for anything.
    #[cfg(test)]
    pub fn is_default(&self) -> bool {
        is_default(self)
    }

    fn at(&self, device: Option<&str>) -> Values {
        match device {
            None => self.process,
            Some(uuid) => self.devices.get(uuid).copied().unwrap_or_default(),
        }
    }

    fn at_mut(&mut self, device: Option<&str>) -> &mut Values {
        match device {
            None => &mut self.process,
            Some(uuid) => self.devices.entry(uuid.to_owned()).or_default(),
        }
    }

    /// `memory.limit` of the process, or of it on a device: bytes, [`NO_LIMIT`] for none.
    pub fn memory_limit(&self, device: Option<&str>) -> u64 {
        self.at(device).memory_limit.value.unwrap_or(NO_LIMIT)
    }

    /// `memory.swap.max` of the process, which is 0 unless set, or of it on a device, which bounds nothing unless set.
    pub fn memory_swap_max(&self, device: Option<&str>) -> u64 {
        let unset = if device.is_some() { NO_LIMIT } else { 0 };
        self.at(device).memory_swap_max.value.unwrap_or(unset)
    }

    /// Whether `memory.swap.max` of a group bounds anything, as a whole or on a device.
    pub fn bounds_swap(&self) -> bool {
        let mut all = self.devices.values().chain([&self.process]);
        all.any(|values| {
            values
                .memory_swap_max
                .value
                .is_some_and(|bytes| bytes != NO_LIMIT)
        })
    }

    /// `memory.swap.max` of a group, or of it on a device; it bounds nothing unless set.
    pub fn group_swap_max(&self, device: Option<&str>) -> u64 {
        self.at(device).memory_swap_max.value.unwrap_or(NO_LIMIT)
    }

    /// `compute.priority` that holds with these settings beneath what `above` hands down. A number that another user than
    /// root has set is raised to the bound: it may have been set elsewhere, or before root wrote.
    pub fn rank(&self, device: Option<&str>, above: Ranked) -> Ranked {
        let (at, whole) = (self.at(device).priority, self.process.priority);
        let bound = Ranked {
            priority: None,
            root: at.root.or(whole.root).or(above.root),
        };
        let own = at.value.or(whole.value).map(|own| own.max(bound.least()));
        Ranked {
            priority: own.or(above.priority),
            ..bound
        }
    }

    /// `compute.priority` of a process in no group.
    pub fn priority(&self, device: Option<&str>) -> u32 {
        self.rank(device, Ranked::default()).in_force()
    }

    /// `compute.priority` that was given to the process, or to it on a device.
    #[cfg(test)]
    pub fn own_priority(&self, device: Option<&str>) -> Option<u32> {
        self.at(device).priority.value
    }

    /// `compute.freeze` of the process, or of it on a device; a device stands still for either.
    pub fn freeze(&self, device: Option<&str>) -> bool {
        self.at(device).freeze.value.unwrap_or(false)
    }

    /// Whether root froze it, as a whole or on a device.
    pub fn is_frozen_by_root(&self) -> bool {
        let mut all = self.devices.values().chain([&self.process]);
        all.any(|values| values.freeze.root == Some(true))
    }

    /// # Errors
    /// `EPERM` if somebody other than root asks for more than root has set.
    pub fn set_memory_limit(&mut self, device: Option<&str>, limit: u64, by_root: bool) -> Result<()> {
        let bound = self.at(device).memory_limit.root.unwrap_or(NO_LIMIT);
        if !by_root && limit > bound {
            return Err(Error::BeyondRoot("the memory limit can only be lowered"));
        }
        self.at_mut(device).memory_limit.store(limit, by_root);
        Ok(())
    }

    /// # Errors
    /// `EPERM` if somebody other than root asks for more than root has set.
    pub fn set_memory_swap_max(&mut self, device: Option<&str>, bytes: u64, by_root: bool) -> Result<()> {
        let bound = self.at(device).memory_swap_max.root.unwrap_or(NO_LIMIT);
        if !by_root && bytes > bound {
            return Err(Error::BeyondRoot("what may be swapped out can only be lowered"));
        }
        self.at_mut(device).memory_swap_max.store(bytes, by_root);
        Ok(())
    }

    /// # Errors
    /// `EPERM` if somebody other than root asks for a more important one than root has set, here or, for the
    /// process as a whole, on any of its devices. The bound by the groups above is the caller's to check
    /// ([`Tree::least_priority`](super::Tree::least_priority)).
    pub fn set_priority(&mut self, device: Option<&str>, priority: u32, by_root: bool) -> Result<()> {
        let bounds = match device {
            Some(_) => vec![self.at(device).priority.root.or(self.process.priority.root)],
            None => self
                .devices
                .values()
                .chain([&self.process])
                .map(|values| values.priority.root)
                .collect(),
        };
        if !by_root && bounds.into_iter().flatten().any(|bound| priority < bound) {
            return Err(Error::BeyondRoot("the priority number can only be raised"));
        }
        if device.is_none() {
            for values in self.devices.values_mut() {
                values.priority.value = None;
                if by_root {
                    values.priority.root = None;
                }
            }
        }
        self.at_mut(device).priority.store(priority, by_root);
        Ok(())
    }

    /// `compute.policy`, if it has been written.
    pub fn policy(&self) -> Option<Policy> {
        self.policy
    }

    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = Some(policy);
    }

    /// `compute.max` of the process, or of it on a device.
    pub fn compute_max(&self, device: Option<&str>) -> Quota {
        self.at(device).compute_max.value.unwrap_or_default()
    }

    /// Every quota there is, of the process or of it on a device.
    pub fn quotas(&self) -> impl Iterator<Item = (Option<&str>, Quota)> {
        let devices = self
            .devices
            .iter()
            .map(|(uuid, values)| (Some(uuid.as_str()), values));
        [(None, &self.process)]
            .into_iter()
            .chain(devices)
            .filter_map(|(device, values)| Some((device, values.compute_max.value?)))
            .filter(|(_, quota)| !quota.is_none())
    }

    /// Without a period, the one that was there stays.
    ///
    /// # Errors
    /// `EPERM` if somebody other than root asks for a larger share than root has set, or for more at once.
    pub fn set_compute_max(
        &mut self,
        device: Option<&str>,
        usec: u64,
        period_usec: Option<u64>,
        by_root: bool,
    ) -> Result<()> {
        let quota = Quota {
            usec,
            period_usec: period_usec.unwrap_or(self.compute_max(device).period_usec),
        };
        let bound = self.at(device).compute_max.root.unwrap_or_default();
        if !by_root && !quota.is_within(bound) {
            return Err(Error::BeyondRoot("the quota can only be lowered"));
        }
        self.at_mut(device).compute_max.store(quota, by_root);
        Ok(())
    }

    /// # Errors
    /// `EPERM` if somebody other than root thaws what root froze.
    pub fn set_freeze(&mut self, device: Option<&str>, freeze: bool, by_root: bool) -> Result<()> {
        let bound = self.at(device).freeze.root.unwrap_or(false);
        if !by_root && bound && !freeze {
            return Err(Error::BeyondRoot("root froze it"));
        }
        self.at_mut(device).freeze.store(freeze, by_root);
        Ok(())
    }
}
