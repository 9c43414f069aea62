//! The names of the table, collected by `build.rs`, and an exported stub for each.

use core::cmp::Ordering;
use core::ffi::c_char;

include!(concat!(env!("OUT_DIR"), "/names.rs"));

/// Returns the name with this index.
pub(crate) fn name(index: usize) -> *const c_char {
    let start = STARTS.get(index).copied().unwrap_or(0);
    NAMES.as_ptr().wrapping_add(start.into()).cast()
}

/// Returns whether the table has exactly this name. Nearly all names looked up are not the driver's, which
/// the first two letters show.
pub(crate) fn contains(wanted: *const c_char) -> bool {
    let mut letters = crate::elf::bytes(wanted);
    matches!(
        (letters.next(), letters.next()),
        (Some(b'c'), Some(b'u')) | (Some(b'n'), Some(b'v'))
    ) && STARTS.binary_search_by(|start| compare(*start, wanted)).is_ok()
}

fn compare(start: u16, wanted: *const c_char) -> Ordering {
    let name = NAMES.as_ptr().wrapping_add(start.into()).cast();
    crate::elf::bytes(name).cmp(crate::elf::bytes(wanted))
}
