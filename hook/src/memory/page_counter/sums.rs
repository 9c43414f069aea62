//! Sums after a charge, from which peaks are raised.

use std::num::NonZero;

use crate::driver::cuda::CUerror;

/// Bytes charged in total after a charge.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    pub(super) in_device: u64,
    pub(super) in_process: u64,
}

impl Sums {
    /// Returns the sums where everything is charged on one device.
    pub(crate) fn of_one(sum: u64) -> Self {
        Self {
            in_device: sum,
            in_process: sum,
        }
    }

    /// Packs sums or an error into two words, so that a caller on the fast path does not need them in memory.
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

    /// Returns the sums after `bytes` were uncharged again.
    pub(crate) fn less(self, bytes: u64) -> Self {
        Self {
            in_device: self.in_device.saturating_sub(bytes),
            in_process: self.in_process.saturating_sub(bytes),
        }
    }
}
