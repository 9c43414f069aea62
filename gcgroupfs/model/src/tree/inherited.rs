//! Settings that a group passes down to its processes and child groups: freeze, suspension, `gcgroup.idle`,
//! the list of devices, `memory.visible` and the priority of those that have none of their own, and root's
//! priority, which bounds what other users may set. Limits are not inherited: each applies by itself.

use std::sync::{Arc, LazyLock};

use super::settings::{COMPUTE_FREEZE, DeviceSet, IDLE, MEMORY_VISIBLE, Ranked, SUSPEND, Value};
use super::{Device, Settings};

/// Settings in force for the contents of a group, from the group itself and all above.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inherited {
    freeze: bool,
    suspend: bool,
    idle: Option<Value>,
    rank: Ranked,
    visible: Option<Value>,
    /// Devices in the lists of all groups; `None`: no group has a list.
    device_list: Option<DeviceSet>,
    devices: Vec<OnDevice>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct OnDevice {
    freeze: bool,
    rank: Ranked,
    visible: Option<Value>,
}

impl Inherited {
    /// Returns the shared value for the root, where nothing is inherited.
    pub(super) fn nothing() -> Arc<Self> {
        static NOTHING: LazyLock<Arc<Inherited>> = LazyLock::new(Arc::default);
        NOTHING.clone()
    }

    /// Returns what a group with these settings passes down.
    pub(super) fn through(&self, settings: &Settings, devices: &[Device]) -> Self {
        let on = |device: &Device| {
            let uuid = Some(device.uuid_text.as_str());
            let above = self.at(device.index);
            OnDevice {
                freeze: above.freeze || settings.of_group(COMPUTE_FREEZE, uuid).is_on(),
                rank: settings.rank(uuid, above.rank),
                visible: settings.nearest(MEMORY_VISIBLE, uuid).or(above.visible),
            }
        };
        Self {
            freeze: self.freeze || settings.of_group(COMPUTE_FREEZE, None).is_on(),
            suspend: self.suspend || settings.of_group(SUSPEND, None).is_on(),
            idle: Some(IDLE.tighter.stricter(settings.of_group(IDLE, None), self.idle())),
            rank: settings.rank(None, self.rank),
            visible: settings.nearest(MEMORY_VISIBLE, None).or(self.visible),
            device_list: match (&self.device_list, settings.device_list()) {
                (Some(above), Some(own)) => Some(above.intersection(own).cloned().collect()),
                (above, own) => above.as_ref().or(own).cloned(),
            },
            devices: devices.iter().map(on).collect(),
        }
    }

    fn at(&self, device: usize) -> OnDevice {
        self.devices.get(device).copied().unwrap_or_default()
    }

    /// Returns whether a freeze is inherited: on all devices, or on `device`, where either suffices.
    pub(super) fn freeze(&self, device: Option<usize>) -> bool {
        self.freeze || device.is_some_and(|device| self.at(device).freeze)
    }

    /// Returns whether a suspension is inherited.
    pub(super) fn suspend(&self) -> bool {
        self.suspend
    }

    /// Returns the strictest `gcgroup.idle` of the groups.
    pub(super) fn idle(&self) -> Value {
        self.idle.unwrap_or(IDLE.default)
    }

    /// Returns the UUIDs of the devices that processes may use; `None`: all devices.
    pub(super) fn device_list(&self) -> Option<&DeviceSet> {
        self.device_list.as_ref()
    }

    /// Returns the inherited priority and its bound, as a whole or on a device. An unknown device has those
    /// of the whole.
    pub(super) fn rank(&self, device: Option<usize>) -> Ranked {
        match device.and_then(|device| self.devices.get(device)) {
            Some(on) => on.rank,
            None => self.rank,
        }
    }

    /// Returns the inherited `memory.visible`, as a whole or on a device; `None` if no group sets it.
    pub(super) fn visible(&self, device: Option<usize>) -> Option<Value> {
        match device.and_then(|device| self.devices.get(device)) {
            Some(on) => on.visible,
            None => self.visible,
        }
    }
}
