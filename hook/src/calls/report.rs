//! Memory sizes reported to the program (`memory.visible`). Adds no errors.

use std::ffi::c_uint;
use std::ptr::null_mut;

use crate::calls::visible::{Sizes, Visible};
use crate::driver::cuda::{CUdevice, CUresult};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{rewrite, written};
use crate::hook;
use crate::shared::device::LocalDevice;

/// A number of the width that the caller's function has.
pub(crate) trait Bytes: Copy {
    fn get(self) -> u64;

    /// Returns `bytes`, or this number if it does not fit.
    fn replaced(self, bytes: u64) -> Self;
}

macro_rules! bytes {
    ($($ty:ty),*) => {$(
        impl Bytes for $ty {
            fn get(self) -> u64 {
                u64::try_from(self).unwrap_or(u64::MAX)
            }

            fn replaced(self, bytes: u64) -> Self {
                Self::try_from(bytes).unwrap_or(self)
            }
        }
    )*};
}

bytes!(c_uint, usize, u64);

/// Handles `cuMemGetInfo`.
pub(crate) fn info<B: Bytes>(free: *mut B, total: *mut B, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(hook) = hook::get()
        && let Some(bound) = hook.program.bind()
    {
        let visible = Visible::on(hook, bound.index());
        rewrite_sizes(visible, free, total);
    }
    Ok(())
}

/// Handles `cuDeviceTotalMem`.
pub(crate) fn total<B: Bytes>(total: *mut B, device: CUdevice, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(local)) = (hook::get(), LocalDevice::of(device)) {
        let index = hook.session.devices.learn(hook.session.control(), local);
        rewrite_sizes(Visible::on(hook, index), null_mut(), total);
    }
    Ok(())
}

fn rewrite_sizes<B: Bytes>(visible: Visible, free: *mut B, total: *mut B) {
    let bytes = |at: *mut B| written(at).map_or(0, B::get);
    let shown = visible.apply(Sizes {
        total: bytes(total),
        free: bytes(free),
    });
    rewrite(free, |bytes| bytes.replaced(shown.free));
    rewrite(total, |bytes| bytes.replaced(shown.total));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_does_not_fit_changes_nothing() {
        assert_eq!(7_u32.replaced(u64::MAX), 7);
        assert_eq!(7_u32.replaced(5), 5);
    }
}
