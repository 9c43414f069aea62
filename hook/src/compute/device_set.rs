//! Sets of the program's devices.

use gcgroup_abi::MAX_DEVICES;

use crate::shared::device::LocalDevice;

/// Set of the program's devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DeviceSet(pub(super) u64);

const _: () = assert!(MAX_DEVICES <= 64);

impl DeviceSet {
    pub(super) fn one(local: LocalDevice) -> Self {
        Self(1 << local.number())
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set without one device.
    pub(super) fn without(self, local: LocalDevice) -> Self {
        Self(self.0 & !Self::one(local).0)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = LocalDevice> {
        (0..i32::try_from(MAX_DEVICES).unwrap_or(0))
            .filter_map(LocalDevice::of)
            .filter(move |local| self.0 & Self::one(*local).0 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_lists_its_devices() {
        let [zero, two] = [0, 2].map(|device| LocalDevice::of(device).unwrap());
        assert_eq!(DeviceSet(0b101).iter().collect::<Vec<_>>(), [zero, two]);
    }
}
