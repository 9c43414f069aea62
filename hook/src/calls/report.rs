//! Memory sizes reported to the program: its limit instead of the device's memory. Never more than the device
//! has; adds no errors.

use std::ffi::c_uint;

use crate::driver::cuda::{CUdevice, CUresult};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::rewrite;
use crate::hook::{self};
use crate::memory::room::Room;
use crate::shared::device::LocalDevice;

/// A number of the width that the caller's function has.
pub(crate) trait Bytes: Copy {
    /// Returns the smaller of the two.
    fn at_most(self, bytes: u64) -> Self;
}

macro_rules! bytes {
    ($($ty:ty),*) => {$(
        impl Bytes for $ty {
            fn at_most(self, bytes: u64) -> Self {
                Self::try_from(bytes).map_or(self, |bytes| self.min(bytes))
            }
        }
    )*};
}

bytes!(c_uint, usize, u64);

/// `cuMemGetInfo`.
pub(crate) fn info<B: Bytes>(free: *mut B, total: *mut B, next: Next<'_>) -> CUresult {
    next()?;
    let Some(hook) = hook::get() else {
        return Ok(());
    };
    if let Some(bound) = hook.program.bind() {
        let room = Room::on(hook.memory, bound.index());
        rewrite(free, |bytes| bytes.at_most(room.free));
        rewrite(total, |bytes| bytes.at_most(room.total));
    }
    Ok(())
}

/// `cuDeviceTotalMem`.
pub(crate) fn total<B: Bytes>(total: *mut B, device: CUdevice, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(local)) = (hook::get(), LocalDevice::of(device)) {
        let index = hook.session.devices.learn(hook.session.control(), local);
        rewrite(total, |bytes| bytes.at_most(Room::on(hook.memory, index).total));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_does_not_fit_changes_nothing() {
        assert_eq!(7_usize.at_most(u64::MAX), 7);
        assert_eq!(7_u32.at_most(u64::MAX), 7);
        assert_eq!(7_u32.at_most(5), 5);
    }
}
