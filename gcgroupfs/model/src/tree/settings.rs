//! Settings of processes and groups, and the check of permissions to set them. Pure values; serialised, they
//! are the persistent state.

mod devices;
mod held;
mod row;
mod table;
#[cfg(test)]
mod tests;
mod value;
mod values;

use std::collections::BTreeMap;

use gcgroup_abi::DEFAULT_PRIORITY;
use gcgroup_abi::message::Hello;
use serde::{Deserialize, Serialize};

use self::devices::DeviceList;
pub(in crate::tree) use self::held::Hold;
pub(in crate::tree) use self::row::{AfterWrite, Check, Computed, Publish};
use self::values::{Bounded, Values};
use crate::arbiter::Policy;
use crate::error::{Error, Result};
use crate::quota::Quota;
use crate::tree::GivenAccess;

pub use self::devices::DeviceSet;
pub use self::held::Holder;
pub use self::row::{HoldOption, RunOption, Setting};
pub use self::table::*;
pub use self::value::{Kind, Tighter, Value};

/// Settings of a process or a group, as a whole and on single devices. Devices are named by UUID.
///
/// Those of the process and of a device apply independently, unless the setting
/// [inherits](Setting::inherits): then one set for the process replaces those set for its devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    #[serde(skip_serializing_if = "is_default")]
    process: Values,
    #[serde(skip_serializing_if = "is_default")]
    devices: BTreeMap<String, Values>,
    /// Set for the root only.
    #[serde(skip_serializing_if = "is_default")]
    policy: Option<&'static Policy>,
    /// `memory.notice.grace`, for the root only.
    #[serde(skip_serializing_if = "is_default")]
    notice_grace: Option<u32>,
    /// Set for groups only.
    #[serde(skip_serializing_if = "is_default")]
    device_list: DeviceList,
    /// Owners and modes of control files and directories.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::tree) given_access: GivenAccess,
    /// Values that are held beside these.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::tree) holds: Vec<Hold>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A priority in force at some level, and its bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ranked {
    /// `compute.priority`; `None` if it is not set here or above.
    pub priority: Option<u32>,
    /// The nearest priority that root has set, here or above. Other users may set higher numbers only;
    /// without it they are bounded by [`DEFAULT_PRIORITY`].
    pub root: Option<u32>,
    /// The highest number that is held here or above.
    pub held: Option<u32>,
}

impl Ranked {
    /// Returns the priority in force.
    pub fn in_force(self) -> u32 {
        self.priority
            .unwrap_or(DEFAULT_PRIORITY)
            .max(self.held.unwrap_or(0))
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
    pub fn apply_request(&mut self, hello: &Hello, bound: Option<u32>) -> Option<u32> {
        let bound = bound.or_else(|| Some(self.process.get(COMPUTE_PRIORITY).root?.priority()));
        for setting in SETTINGS {
            let asked = setting.run_option.as_ref().map(|option| option.asked);
            let Some(asked) = asked.and_then(|asked| asked(hello)) else {
                continue;
            };
            // A value beyond root's is ignored.
            let _ = if *setting == COMPUTE_PRIORITY {
                let least = Value::Number(bound.unwrap_or(0).into());
                let value = if asked.number() < least.number() {
                    least
                } else {
                    asked
                };
                self.set(setting, None, value, bound.is_none())
            } else {
                self.set(setting, None, asked, false)
            };
        }
        bound.filter(|bound| hello.priority < *bound)
    }

    /// Returns the settings of a process in no group, as its user requests them.
    #[cfg(any(test, fuzzing, feature = "fixture"))]
    pub fn requested(hello: &Hello) -> Self {
        let mut settings = Self::default();
        settings.apply_request(hello, Some(DEFAULT_PRIORITY));
        settings
    }

    /// Returns whether nothing is set.
    #[cfg(test)]
    pub fn is_default(&self) -> bool {
        is_default(self)
    }

    fn at(&self, device: Option<&str>) -> Option<&Values> {
        match device {
            None => Some(&self.process),
            Some(uuid) => self.devices.get(uuid),
        }
    }

    fn at_mut(&mut self, device: Option<&str>) -> &mut Values {
        match device {
            None => &mut self.process,
            Some(uuid) => self.devices.entry(uuid.to_owned()).or_default(),
        }
    }

    /// Returns the values of the whole and of all devices.
    fn all(&self) -> impl Iterator<Item = (Option<&str>, &Values)> {
        let devices = self.devices.iter();
        let devices = devices.map(|(uuid, values)| (Some(uuid.as_str()), values));
        [(None, &self.process)].into_iter().chain(devices)
    }

    /// Returns the value that has been set for the process or group itself, or for it on a device.
    pub fn written(&self, setting: &Setting, device: Option<&str>) -> Option<Value> {
        self.at(device)?.get(setting).value
    }

    /// Returns the value in force for the process or group itself, or for it on a device: the one that has
    /// been set, or a stricter one that is held. Values of a setting that inherits are held beside it
    /// ([`Ranked::held`]).
    pub fn own(&self, setting: &Setting, device: Option<&str>) -> Option<Value> {
        let written = self.written(setting, device);
        match self.held(setting, device).filter(|_| !setting.inherits) {
            Some(held) => Some(written.map_or(held, |written| setting.tighter.stricter(written, held))),
            None => written,
        }
    }

    /// Returns the value of a setting that [inherits](Setting::inherits): of the device, else of the whole.
    pub fn nearest(&self, setting: &Setting, device: Option<&str>) -> Option<Value> {
        self.own(setting, device).or_else(|| self.own(setting, None))
    }

    /// Returns the last value that root has set for it.
    pub fn root(&self, setting: &Setting, device: Option<&str>) -> Option<Value> {
        self.at(device)?.get(setting).root
    }

    /// Returns the value of a group, or of a group or process on a device.
    pub fn of_group(&self, setting: &Setting, device: Option<&str>) -> Value {
        self.own(setting, device).unwrap_or(setting.default)
    }

    /// Returns the value of a process, or of it on a device.
    pub fn get(&self, setting: &Setting, device: Option<&str>) -> Value {
        let of_whole = setting.process_default.filter(|_| device.is_none());
        self.own(setting, device).or(of_whole).unwrap_or(setting.default)
    }

    /// Returns `compute.priority` in force with these settings below `above`. A number set by a user other
    /// than root is raised to the bound, since it may have been set in another group, or before root wrote.
    pub fn rank(&self, device: Option<&str>, above: Ranked) -> Ranked {
        let find = |get: fn(&Self, &Setting, Option<&str>) -> Option<Value>| {
            let at = get(self, COMPUTE_PRIORITY, device);
            at.or_else(|| get(self, COMPUTE_PRIORITY, None))
                .map(Value::priority)
        };
        let bound = Ranked {
            priority: None,
            root: find(Self::root).or(above.root),
            held: self.held_priority(device, above.held),
        };
        let own = find(Self::own).map(|own| own.max(bound.least()));
        Ranked {
            priority: own.or(above.priority),
            ..bound
        }
    }

    /// Returns `compute.priority` of a process in no group.
    #[cfg(test)]
    pub fn priority(&self, device: Option<&str>) -> u32 {
        self.rank(device, Ranked::default()).in_force()
    }

    /// Returns whether root froze or suspended the process or group, or a user of `root` holds it so, as a
    /// whole or on a device.
    pub fn is_stopped_by_root(&self, root: [u32; 2]) -> bool {
        let is_stopped = |setting: &Setting| {
            let mut all = self.all().filter_map(|(_, values)| values.get(setting).root);
            all.any(Value::is_on)
        };
        is_stopped(COMPUTE_FREEZE) || is_stopped(SUSPEND) || self.is_held_stopped(root)
    }

    /// Sets a value. One that inherits, for the process as a whole, also replaces those on its devices.
    ///
    /// # Errors
    /// `EPERM` if a user other than root exceeds what root has set here. Of a setting that inherits, root's
    /// value for the whole also bounds a device without one, and those of all devices bound the whole; the
    /// caller checks the bound of the groups above ([`Tree::least_priority`](super::Tree::least_priority)).
    pub fn set(
        &mut self,
        setting: &'static Setting,
        device: Option<&str>,
        value: Value,
        by_root: bool,
    ) -> Result<()> {
        let own = self.root(setting, device);
        let bounds = match device {
            Some(_) if setting.inherits => vec![own.or_else(|| self.root(setting, None))],
            None if setting.inherits => self.all().map(|(_, values)| values.get(setting).root).collect(),
            _ => vec![own],
        };
        let mut bounds = bounds.into_iter().flatten();
        let exceeded = bounds.find(|bound| !setting.tighter.is_within(value, *bound));
        if let Some(bound) = exceeded.filter(|_| !by_root) {
            return Err(setting.beyond_root(bound));
        }
        if device.is_none() && setting.inherits {
            for values in self.devices.values_mut() {
                values.change(setting, |bounded| {
                    bounded.value = None;
                    bounded.root = bounded.root.filter(|_| !by_root);
                });
            }
            self.devices.retain(|_, values| !values.is_empty());
        }
        self.at_mut(device).change(setting, |bounded| {
            bounded.value = Some(value);
            if by_root {
                bounded.root = Some(value);
            }
        });
        Ok(())
    }

    /// Unsets a setting that inherits, for the whole also on all devices.
    ///
    /// # Errors
    /// `EPERM` if a user other than root unsets what root has set.
    pub fn unset(&mut self, setting: &'static Setting, device: Option<&str>, by_root: bool) -> Result<()> {
        let bounds = match device {
            Some(_) => vec![self.root(setting, device)],
            None => self.all().map(|(_, values)| values.get(setting).root).collect(),
        };
        if !by_root && bounds.into_iter().flatten().next().is_some() {
            return Err(Error::SetByRoot);
        }
        let unset = |values: &mut Values| values.change(setting, |bounded| *bounded = Bounded::default());
        if device.is_none() {
            self.devices.values_mut().for_each(unset);
        }
        unset(self.at_mut(device));
        self.devices.retain(|_, values| !values.is_empty());
        Ok(())
    }

    /// Returns `compute.policy`, if it has been written.
    pub fn policy(&self) -> Option<&'static Policy> {
        self.policy
    }

    /// Sets `compute.policy`; `None`: the one of the command line or the configuration.
    pub fn set_policy(&mut self, policy: Option<&'static Policy>) {
        self.policy = policy;
    }

    /// Returns `memory.notice.grace`, if it has been written.
    pub fn notice_grace(&self) -> Option<u32> {
        self.notice_grace
    }

    pub fn set_notice_grace(&mut self, msec: u32) {
        self.notice_grace = Some(msec);
    }

    /// Returns `gcgroup.devices`; `None`: all devices.
    pub fn device_list(&self) -> Option<&DeviceSet> {
        self.device_list.value.as_ref()
    }

    /// Sets `gcgroup.devices`; `None`: all devices.
    ///
    /// # Errors
    /// `EPERM` if a user other than root adds a device to root's list.
    pub fn set_device_list(&mut self, list: Option<DeviceSet>, by_root: bool) -> Result<()> {
        self.device_list.set(list, by_root)
    }

    /// Returns every quota of the process, as a whole and on devices.
    pub fn quotas(&self) -> impl Iterator<Item = (Option<&str>, Quota)> {
        let all = self.all();
        all.filter_map(|(device, values)| Some((device, values.get(COMPUTE_MAX).value?.quota())))
            .filter(|(_, quota)| !quota.is_none())
    }
}
