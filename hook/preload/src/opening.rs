//! `dlopen` and `dlmopen` of the driver, where this library notices that the program's look-ups of driver
//! functions pass by it: another library defines `dlsym` before it and calls the C library's, or the driver
//! is opened in a namespace of its own.

use core::ffi::{CStr, c_char, c_long, c_void};
use core::ptr::null_mut;

use crate::arch::{self, Verdict};
use crate::shadowed::{DLMOPEN, DLOPEN, DLSYM};
use crate::{Dlsym, RTLD_DEFAULT, answer, complaint, elf, hook, jump};

const LM_ID_BASE: c_long = 0;

/// A name that no object defines and that this library's `dlsym` answers.
pub(crate) const PROBE: &CStr = c"gcgroup_probe";

/// Decides on `dlopen(file, flags)`.
pub(crate) fn dlopen(file: *const c_char) -> Verdict {
    verdict(DLOPEN.next(), file, || {
        (!is_asked())
            .then_some(c"another library defines dlsym before libgcgroup.so, and calls the C library's")
    })
}

/// Decides on `dlmopen(namespace, file, flags)`.
pub(crate) fn dlmopen(namespace: c_long, file: *const c_char) -> Verdict {
    verdict(DLMOPEN.next(), file, || {
        (namespace != LM_ID_BASE).then_some(c"it opens the driver with dlmopen, in another namespace")
    })
}

/// Decides on opening `file` by `real`; `evasion` says why look-ups in the driver would pass by this library.
fn verdict(
    real: Option<*mut c_void>,
    file: *const c_char,
    evasion: impl FnOnce() -> Option<&'static CStr>,
) -> Verdict {
    let Some(real) = real else {
        return answer(null_mut());
    };
    if !file.is_null()
        && elf::is_named(file, b"libcuda.so")
        && let Some(why) = evasion()
    {
        complaint::complain(c"gcgroup: the program is not governed: ", why.as_ptr());
        if hook::is_required() {
            return answer(hook::refuse_to_open());
        }
    }
    jump(real)
}

/// Returns whether the program's look-ups reach this library.
fn is_asked() -> bool {
    // SAFETY: static, and filled in by the loader.
    let first = unsafe { (*arch::links()).first_dlsym };
    if first.is_null() || first == DLSYM.own() {
        return true;
    }
    // SAFETY: the program's function of this name.
    let first = unsafe { core::mem::transmute::<*mut c_void, Dlsym>(first) };
    // SAFETY: a C string.
    let answer = unsafe { first(core::ptr::without_provenance_mut(RTLD_DEFAULT), PROBE.as_ptr()) };
    if answer.is_null() {
        hook::take_error();
    }
    !answer.is_null()
}
