//! The target of an allocation: where a thread allocates.

use gcgroup_abi::MAX_DEVICES;

use super::device::LocalDevice;

/// The device of an allocation and the context that owns it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) local: LocalDevice,
    /// The device's slot in the control and usage blocks.
    pub(crate) index: usize,
    pub(crate) context: u32,
}

impl Target {
    pub(crate) fn packed(self) -> u64 {
        u64::from(self.context) << 32 | (self.index as u64) << 8 | u64::from(self.local.number())
    }

    #[inline]
    pub(crate) fn unpacked(word: u64) -> Self {
        let [local, index, _, _, context @ ..] = word.to_le_bytes();
        Self {
            local: LocalDevice::from_number(local),
            index: index.into(),
            context: u32::from_le_bytes(context),
        }
    }
}

const _: () = assert!(MAX_DEVICES <= 1 << 8);
