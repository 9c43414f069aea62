//! The one line that this library may write: why the program is not governed.

use core::ffi::{CStr, c_char};
use core::sync::atomic::AtomicBool;

use crate::arch::{self, Part};
use crate::elf;

fn part(text: *const c_char) -> Part {
    Part {
        start: text,
        length: elf::bytes(text).count(),
    }
}

/// Writes to standard error, once, why the program is not governed. `reason` is a C string.
pub(crate) fn complain(begin: &CStr, reason: *const c_char) {
    static HAS_COMPLAINED: AtomicBool = AtomicBool::new(false);
    if !arch::set(&HAS_COMPLAINED) {
        arch::write_error(&[begin.as_ptr(), reason, c"\n".as_ptr()].map(part));
    }
}
