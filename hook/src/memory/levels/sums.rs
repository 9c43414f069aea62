//! What a charge came to, for the peaks.

use std::num::NonZero;

use crate::cuda::CUerror;

/// What was charged after a charge.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    pub(super) in_device: u64,
    pub(super) in_process: u64,
}

impl Sums {
    /// All that is charged is on one device.
    pub(crate) fn of_one(sum: u64) -> Self {
        Self {
            in_device: sum,
            in_process: sum,
        }
    }

    /// These, or an error, in two words, so that where they hardly ever come from does not have them lie in memory.
    pub(crate) fn packed(result: Result<Self, CUerror>) -> (u64, u64) {
        match result {
            Ok(sums) => (sums.in_device, sums.in_process),
            Err(error) => (u64::MAX, error.0.get().into()),
        }
    }

    #[inline]
    pub(crate) fn unpacked(words: (u64, u64)) -> Result<Self, CUerror> {
        let (in_device, in_process) = words;
        let error = u32::try_from(in_process).ok().and_then(NonZero::new);
        match error {
            Some(error) if in_device == u64::MAX => Err(CUerror(error)),
            _ => Ok(Self {
                in_device,
                in_process,
            }),
        }
    }

    /// Less was charged in the end.
    pub(crate) fn less(self, bytes: u64) -> Self {
        Self {
            in_device: self.in_device.saturating_sub(bytes),
            in_process: self.in_process.saturating_sub(bytes),
        }
    }
}
