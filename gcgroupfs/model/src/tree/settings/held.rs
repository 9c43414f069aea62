//! Values that are held on a process or group beside the written ones (`tree/holds.rs`).

use serde::{Deserialize, Serialize};

use super::{COMPUTE_FREEZE, COMPUTE_PRIORITY, SUSPEND, Setting, Settings, Value};

/// A process that holds values, or the expired lease of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder {
    /// 0: the lease of the group.
    pub pid: u32,
    /// Clock ticks since boot.
    pub start_time: u64,
    /// Its user when it began to hold; of a lease 0 if root has set it.
    pub uid: u32,
}

/// One held value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::tree) struct Hold {
    #[serde(flatten)]
    pub(in crate::tree) holder: Holder,
    /// UUID of a device; `None`: the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::tree) device: Option<String>,
    /// [`Setting::key`].
    pub(in crate::tree) setting: String,
    pub(in crate::tree) value: Value,
}

impl Holder {
    pub(in crate::tree) fn is_lease(self) -> bool {
        self.pid == 0
    }
}

impl Hold {
    /// Returns whether this is a valid value of a setting in a place.
    pub(in crate::tree) fn is_of(&self, setting: &Setting, device: Option<&str>) -> bool {
        (self.setting == setting.key && self.device.as_deref() == device)
            && (setting.hold_option.is_some() && setting.kind.has(self.value))
    }

    /// Returns whether another value of its holder takes its place.
    pub(in crate::tree) fn is_replaced_by(&self, new: &Self) -> bool {
        (self.holder, &self.device, &self.setting) == (new.holder, &new.device, &new.setting)
    }
}

impl Settings {
    /// Returns the strictest value that is held in a place.
    pub fn held(&self, setting: &Setting, device: Option<&str>) -> Option<Value> {
        let here = self.holds.iter().filter(|hold| hold.is_of(setting, device));
        let values = here.map(|hold| hold.value);
        values.reduce(|one, other| setting.tighter.stricter(one, other))
    }

    /// Returns whether one of `root` holds it frozen or suspended, as a whole or on a device.
    pub(super) fn is_held_stopped(&self, root: [u32; 2]) -> bool {
        let stops = [COMPUTE_FREEZE.key, SUSPEND.key];
        let mut by_root = self.holds.iter().filter(|hold| root.contains(&hold.holder.uid));
        by_root.any(|hold| stops.contains(&hold.setting.as_str()) && hold.value.is_on())
    }

    /// Returns the priority number that is held in a place: the highest of the device's, the whole's and
    /// `above`.
    pub(super) fn held_priority(&self, device: Option<&str>, above: Option<u32>) -> Option<u32> {
        let own = device.and_then(|_| self.held(COMPUTE_PRIORITY, device));
        let both = own.into_iter().chain(self.held(COMPUTE_PRIORITY, None));
        both.map(Value::priority).chain(above).max()
    }
}
