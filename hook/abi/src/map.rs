//! From mapped memory to references: the only place where either side casts.
//!
//! Both blocks consist of atomics alone, so a shared reference to one is sound whatever the other process
//! stores there meanwhile.

use crate::{Control, Usage};

/// Bytes of a control block's file; exact.
pub const CONTROL_SIZE: usize = size_of::<Control>();

/// Bytes of a usage block's file; exact.
pub const USAGE_SIZE: usize = size_of::<Usage>();

/// # Safety
/// `address` must be page-aligned and stay mapped readable for `'a`, [`CONTROL_SIZE`] bytes long. Where the mapping
/// is read-only, nothing may be stored through the reference (the hardware refuses it with SIGSEGV).
#[must_use]
pub unsafe fn control<'a>(address: *const u8) -> &'a Control {
    // SAFETY: the caller vouches for alignment, length and lifetime; every bit pattern is a valid Control.
    unsafe { &*address.cast() }
}

/// # Safety
/// As for [`control`], with [`USAGE_SIZE`] bytes.
#[must_use]
pub unsafe fn usage<'a>(address: *const u8) -> &'a Usage {
    // SAFETY: the caller vouches for alignment, length and lifetime; every bit pattern is a valid Usage.
    unsafe { &*address.cast() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C, align(4096))]
    struct Page<const N: usize>([u8; N]);

    #[test]
    fn a_zero_filled_block_is_not_understood_until_published() {
        let mut page = Page([0; CONTROL_SIZE]);
        // SAFETY: aligned, long enough, and alive for the test. By a pointer that may write, as atomics do.
        let control = unsafe { control((&raw mut page).cast()) };
        assert!(!control.is_understood());

        let mut page = Page([0; USAGE_SIZE]);
        // SAFETY: as above.
        let usage = unsafe { usage((&raw mut page).cast()) };
        assert!(!usage.is_understood());
    }
}
