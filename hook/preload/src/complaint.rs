//! The one line that this library may write: why the hook cannot be loaded.

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

/// Writes to standard error, once, that the hook cannot be loaded. `reason` is a C string.
pub(crate) fn complain(reason: *const c_char) {
    static HAS_COMPLAINED: AtomicBool = AtomicBool::new(false);
    const BEGIN: &CStr = c"gcgroup: not governed, since the hook cannot be loaded: ";
    if !arch::set(&HAS_COMPLAINED) {
        arch::write_error(&[BEGIN.as_ptr(), reason, c"\n".as_ptr()].map(part));
    }
}
