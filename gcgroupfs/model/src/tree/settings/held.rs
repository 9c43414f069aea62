//! Values that are held on a process or group beside those that were written (`tree/holds.rs`).

use super::{COMPUTE_PRIORITY, Setting, Settings, Value};

/// The strictest value of a setting that is held in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tree) struct HeldValue {
    pub(in crate::tree) setting: &'static Setting,
    /// UUID of a device; `None`: the whole.
    pub(in crate::tree) device: Option<String>,
    pub(in crate::tree) value: Value,
    /// True if root holds a value here.
    pub(in crate::tree) by_root: bool,
}

/// Held values, one for each setting and place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::tree) struct HeldValues(Vec<HeldValue>);

impl HeldValues {
    /// Adds a value; the strictest of a setting in a place stays.
    pub(in crate::tree) fn add(&mut self, new: HeldValue) {
        let same = |held: &&mut HeldValue| held.setting == new.setting && held.device == new.device;
        match self.0.iter_mut().find(same) {
            Some(held) => {
                held.value = new.setting.tighter.stricter(held.value, new.value);
                held.by_root |= new.by_root;
            }
            None => self.0.push(new),
        }
    }

    fn get(&self, setting: &Setting, device: Option<&str>) -> Option<&HeldValue> {
        let is_it = |held: &&HeldValue| held.setting == setting && held.device.as_deref() == device;
        self.0.iter().find(is_it)
    }

    /// Returns whether root holds a value of the setting, as a whole or on a device.
    pub(super) fn is_by_root(&self, setting: &Setting) -> bool {
        let mut held = self.0.iter();
        held.any(|held| held.setting == setting && held.by_root)
    }
}

impl Settings {
    /// Returns the strictest value that is held in a place.
    pub fn held(&self, setting: &Setting, device: Option<&str>) -> Option<Value> {
        Some(self.held.get(setting, device)?.value)
    }

    /// Replaces the held values. Returns whether there was a change.
    pub(in crate::tree) fn set_held(&mut self, held: HeldValues) -> bool {
        let changed = self.held != held;
        self.held = held;
        changed
    }

    /// Returns these settings without the held values.
    pub(in crate::tree) fn without_held(&self) -> Self {
        Self {
            held: HeldValues::default(),
            ..self.clone()
        }
    }

    /// Returns the priority number that is held in a place: the highest of the device's, the whole's and
    /// `above`.
    pub(super) fn held_priority(&self, device: Option<&str>, above: Option<u32>) -> Option<u32> {
        let own = device.and_then(|_| self.held(COMPUTE_PRIORITY, device));
        let both = own.into_iter().chain(self.held(COMPUTE_PRIORITY, None));
        both.map(Value::priority).chain(above).max()
    }
}
