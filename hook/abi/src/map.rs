//! Conversion of mapped memory to references; the only place where either side casts.
//!
//! Both blocks consist of atomics only, so a shared reference is sound whatever the other process stores
//! meanwhile.

use crate::{Control, Usage};

/// Exact size of a control block's file, bytes.
pub const CONTROL_SIZE: usize = size_of::<Control>();

/// Exact size of a usage block's file, bytes.
pub const USAGE_SIZE: usize = size_of::<Usage>();

/// Returns a reference to a mapped control block.
///
/// # Safety
/// `address` must be page-aligned and stay mapped readable for `'a`, [`CONTROL_SIZE`] bytes long. If the
/// mapping is read-only, nothing may be stored through the reference (SIGSEGV).
#[must_use]
pub unsafe fn control<'a>(address: *const u8) -> &'a Control {
    // SAFETY: the caller guarantees alignment, length and lifetime; every bit pattern is a valid `Control`.
    unsafe { &*address.cast() }
}

/// Returns a reference to a mapped usage block.
///
/// # Safety
/// As for [`control`], with [`USAGE_SIZE`] bytes.
#[must_use]
pub unsafe fn usage<'a>(address: *const u8) -> &'a Usage {
    // SAFETY: the caller guarantees alignment, length and lifetime; every bit pattern is a valid `Usage`.
    unsafe { &*address.cast() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C, align(4096))]
    struct Page<const N: usize>([u8; N]);

    #[test]
    fn zero_filled_block_is_not_understood() {
        let mut page = Page([0; CONTROL_SIZE]);
        // SAFETY: aligned, long enough, and alive for the test. From a mutable pointer, because atomics may
        // write.
        let control = unsafe { control((&raw mut page).cast()) };
        assert!(!control.is_understood());

        let mut page = Page([0; USAGE_SIZE]);
        // SAFETY: as above.
        let usage = unsafe { usage((&raw mut page).cast()) };
        assert!(!usage.is_understood());
    }
}
