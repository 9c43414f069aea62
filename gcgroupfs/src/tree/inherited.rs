//! What a group hands down to its processes and child groups: whether they stand still, the priority of those that have
//! none of their own, and root's priority, which bounds what other users may set. Limits are not handed down: each holds
//! by itself.

use std::sync::{Arc, LazyLock};

use super::settings::Ranked;
use super::{Device, Settings};

/// What holds in a group for what is in it, by the group itself and all above.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inherited {
    freeze: bool,
    rank: Ranked,
    devices: Vec<OnDevice>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct OnDevice {
    freeze: bool,
    rank: Ranked,
}

impl Inherited {
    /// What is handed down where there is nothing above: one for all.
    pub(super) fn nothing() -> Arc<Self> {
        static NOTHING: LazyLock<Arc<Inherited>> = LazyLock::new(Arc::default);
        NOTHING.clone()
    }

    /// What a group of these settings hands on.
    pub(super) fn through(&self, settings: &Settings, devices: &[Device]) -> Self {
        let on = |device: &Device| {
            let uuid = Some(device.uuid_text.as_str());
            let above = self.at(device.index);
            OnDevice {
                freeze: above.freeze || settings.freeze(uuid),
                rank: settings.rank(uuid, above.rank),
            }
        };
        Self {
            freeze: self.freeze || settings.freeze(None),
            rank: settings.rank(None, self.rank),
            devices: devices.iter().map(on).collect(),
        }
    }

    fn at(&self, device: usize) -> OnDevice {
        self.devices.get(device).copied().unwrap_or_default()
    }

    /// Whether everything is to stand still: on all devices, or on one, there for either.
    pub(super) fn freeze(&self, device: Option<usize>) -> bool {
        self.freeze || device.is_some_and(|device| self.at(device).freeze)
    }

    /// The priority handed down and its bound, as a whole or on a device. A device that the daemon does not know has those
    /// of the whole.
    pub(super) fn rank(&self, device: Option<usize>) -> Ranked {
        match device.and_then(|device| self.devices.get(device)) {
            Some(on) => on.rank,
            None => self.rank,
        }
    }
}
