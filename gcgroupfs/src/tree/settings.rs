//! Settings of processes and groups, and the check of permissions to set them. Pure values; serialised, they
//! are the persistent state.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use gcgroup_abi::message::Hello;
use gcgroup_abi::{DEFAULT_PRIORITY, NO_LIMIT};
use serde::{Deserialize, Serialize};

use super::{MAX_PRIORITY, Quota};
use crate::arbiter::Policy;
use crate::error::{Error, Result};

/// One setting. Both values are absent until written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Setting<T> {
    /// The value in force.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    value: Option<T>,
    /// The last value written by root, which bounds what other users may set.
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

/// Settings of a process or a group, as a whole and on single devices. Devices are named by UUID.
///
/// Limits, quotas and freezes of the process and of a device apply independently. A priority set for the
/// process replaces those set for its devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    #[serde(skip_serializing_if = "is_default")]
    process: Values,
    #[serde(skip_serializing_if = "is_default")]
    devices: BTreeMap<String, Values>,
    /// Set for the root only.
    #[serde(skip_serializing_if = "is_default")]
    policy: Option<Policy>,
}

/// A priority in force at some level, and its bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ranked {
    /// `compute.priority`; `None` if it is not set here or above.
    pub priority: Option<u32>,
    /// The nearest priority that root has set, here or above. Other users may set higher numbers only;
    /// without it they are bounded by [`DEFAULT_PRIORITY`].
    pub root: Option<u32>,
}

impl Ranked {
    /// Returns the priority in force.
    pub fn in_force(self) -> u32 {
        self.priority.unwrap_or(DEFAULT_PRIORITY)
    }

    /// Returns the lowest number that a user other than root may set.
    pub fn least(self) -> u32 {
        self.root.unwrap_or(DEFAULT_PRIORITY)
    }
}

impl Settings {
    /// Applies the settings that a process was started with, as far as they are within root's. Invalid ones
    /// are ignored. `bound` is the lowest priority number that the process's user may set
    /// ([`Tree::least_priority`]); `None` for root, whose request counts as set by root unless a rule has set
    /// the priority. Returns the bound if the requested priority was below it and was raised to it.
    ///
    /// [`Tree::least_priority`]: super::Tree::least_priority
    pub fn wish(&mut self, hello: &Hello, bound: Option<u32>) -> Option<u32> {
        // A limit beyond root's is ignored.
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

    /// Returns the settings of a process in no group, as its user requests them.
    #[cfg(any(test, fuzzing))]
    pub fn wished(hello: &Hello) -> Self {
        let mut settings = Self::default();
        settings.wish(hello, Some(DEFAULT_PRIORITY));
        settings
    }

    /// Returns whether nothing is set.
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

    /// Returns `memory.limit` of the process, or of it on a device: bytes, [`NO_LIMIT`] for none.
    pub fn memory_limit(&self, device: Option<&str>) -> u64 {
        self.at(device).memory_limit.value.unwrap_or(NO_LIMIT)
    }

    /// Returns `memory.swap.max` in bytes: of the process (0 if unset), or of it on a device ([`NO_LIMIT`] if
    /// unset).
    pub fn memory_swap_max(&self, device: Option<&str>) -> u64 {
        let unset = if device.is_some() { NO_LIMIT } else { 0 };
        self.at(device).memory_swap_max.value.unwrap_or(unset)
    }

    /// Returns whether `memory.swap.max` of a group limits anything, as a whole or on a device.
    pub fn bounds_swap(&self) -> bool {
        let mut all = self.devices.values().chain([&self.process]);
        all.any(|values| {
            values
                .memory_swap_max
                .value
                .is_some_and(|bytes| bytes != NO_LIMIT)
        })
    }

    /// Returns `memory.swap.max` of a group, or of it on a device, in bytes; [`NO_LIMIT`] if unset.
    pub fn group_swap_max(&self, device: Option<&str>) -> u64 {
        self.at(device).memory_swap_max.value.unwrap_or(NO_LIMIT)
    }

    /// Returns `compute.priority` in force with these settings below `above`. A number set by a user other
    /// than root is raised to the bound, since it may have been set in another group, or before root wrote.
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

    /// Returns `compute.priority` of a process in no group.
    pub fn priority(&self, device: Option<&str>) -> u32 {
        self.rank(device, Ranked::default()).in_force()
    }

    /// Returns `compute.priority` set for the process itself, or for it on a device.
    #[cfg(test)]
    pub fn own_priority(&self, device: Option<&str>) -> Option<u32> {
        self.at(device).priority.value
    }

    /// Returns `compute.freeze` of the process, or of it on a device. A device is frozen if either is set.
    pub fn freeze(&self, device: Option<&str>) -> bool {
        self.at(device).freeze.value.unwrap_or(false)
    }

    /// Returns whether root froze the process or group, as a whole or on a device.
    pub fn is_frozen_by_root(&self) -> bool {
        let mut all = self.devices.values().chain([&self.process]);
        all.any(|values| values.freeze.root == Some(true))
    }

    /// Sets `memory.limit` in bytes.
    ///
    /// # Errors
    /// `EPERM` if a user other than root sets more than root has set.
    pub fn set_memory_limit(&mut self, device: Option<&str>, limit: u64, by_root: bool) -> Result<()> {
        let bound = self.at(device).memory_limit.root.unwrap_or(NO_LIMIT);
        if !by_root && limit > bound {
            return Err(Error::BeyondRoot("the memory limit can only be lowered"));
        }
        self.at_mut(device).memory_limit.store(limit, by_root);
        Ok(())
    }

    /// Sets `memory.swap.max` in bytes.
    ///
    /// # Errors
    /// `EPERM` if a user other than root sets more than root has set.
    pub fn set_memory_swap_max(&mut self, device: Option<&str>, bytes: u64, by_root: bool) -> Result<()> {
        let bound = self.at(device).memory_swap_max.root.unwrap_or(NO_LIMIT);
        if !by_root && bytes > bound {
            return Err(Error::BeyondRoot("memory.swap.max can only be lowered"));
        }
        self.at_mut(device).memory_swap_max.store(bytes, by_root);
        Ok(())
    }

    /// Sets `compute.priority`; for the process as a whole, also replaces the priorities on its devices.
    ///
    /// # Errors
    /// `EPERM` if a user other than root sets a lower number than root has set, here or, for the process as a
    /// whole, on any of its devices. The caller checks the bound of the groups above
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

    /// Returns `compute.policy`, if it has been written.
    pub fn policy(&self) -> Option<Policy> {
        self.policy
    }

    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = Some(policy);
    }

    /// Returns `compute.max` of the process, or of it on a device.
    pub fn compute_max(&self, device: Option<&str>) -> Quota {
        self.at(device).compute_max.value.unwrap_or_default()
    }

    /// Returns every quota of the process, as a whole and on devices.
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

    /// Sets `compute.max` in microseconds. Without a period, the previous one is kept.
    ///
    /// # Errors
    /// `EPERM` if a user other than root sets a larger share than root has set, or a larger quota per period.
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

    /// Sets `compute.freeze`.
    ///
    /// # Errors
    /// `EPERM` if a user other than root thaws what root froze.
    pub fn set_freeze(&mut self, device: Option<&str>, freeze: bool, by_root: bool) -> Result<()> {
        let bound = self.at(device).freeze.root.unwrap_or(false);
        if !by_root && bound && !freeze {
            return Err(Error::BeyondRoot("root froze it"));
        }
        self.at_mut(device).freeze.store(freeze, by_root);
        Ok(())
    }
}
