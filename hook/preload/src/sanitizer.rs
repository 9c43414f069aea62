//! Options of AddressSanitizer, whose runtime ends a program at start if another library comes before it.

use core::ffi::c_char;

/// Returns the options that hold unless `ASAN_OPTIONS` says otherwise: a library may come before the
/// runtime. A program that defines options is asked in place of this library.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
