//! Sizes of contexts: what the last context of each user took on each device.

use gcgroup_abi::ContextKind;
use serde::{Deserialize, Serialize};

/// Most users and devices whose sizes are kept; the oldest are dropped.
const MOST: usize = 64;

/// Sizes of the last contexts of a user on a device, in bytes by [`ContextKind`]; 0: unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Sizes {
    uid: u32,
    /// UUID of the device.
    device: String,
    kinds: [u64; ContextKind::COUNT],
}

/// Sizes of all users' contexts.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    /// Latest first.
    sizes: Vec<Sizes>,
    /// Set if `sizes` have changed since they were last written.
    is_changed: bool,
    /// Bytes expected where a user's size is not known.
    pub(super) default: u64,
}

impl Contexts {
    pub(super) fn saved(&self) -> Vec<Sizes> {
        self.sizes.clone()
    }

    pub(super) fn restore(&mut self, sizes: Vec<Sizes>) {
        self.sizes = sizes;
        self.sizes.truncate(MOST);
    }

    /// Returns whether the sizes have changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Returns the bytes that contexts of a user are expected to take on a device, by kind.
    pub(super) fn of(&self, uid: u32, device: &str) -> [u64; ContextKind::COUNT] {
        let mut kinds = self.measured(uid, device);
        for kind in [ContextKind::Primary, ContextKind::Created] {
            if kinds[kind as usize] == 0 {
                kinds[kind as usize] = self.default;
            }
        }
        kinds
    }

    fn measured(&self, uid: u32, device: &str) -> [u64; ContextKind::COUNT] {
        let is_it = |sizes: &&Sizes| sizes.uid == uid && sizes.device == device;
        let found = self.sizes.iter().find(is_it);
        found.map_or([0; ContextKind::COUNT], |sizes| sizes.kinds)
    }

    /// Sets a size. Returns whether it has changed.
    pub(super) fn set(&mut self, uid: u32, device: &str, kind: ContextKind, bytes: u64) -> bool {
        let mut kinds = self.measured(uid, device);
        let before = std::mem::replace(&mut kinds[kind as usize], bytes);
        if before == bytes {
            return false;
        }
        self.sizes
            .retain(|sizes| (sizes.uid, sizes.device.as_str()) != (uid, device));
        let sizes = Sizes {
            uid,
            device: device.to_owned(),
            kinds,
        };
        self.sizes.insert(0, sizes);
        self.sizes.truncate(MOST);
        self.is_changed = true;
        true
    }
}
