//! The functions of the C library that this library shadows.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::arch::{self, Verdict};
use crate::{RTLD_DEFAULT, RTLD_NEXT, answer, elf, objects};

/// A shadowed function.
pub(crate) struct Shadowed {
    name: &'static CStr,
    /// Its index in `Links::own`.
    index: usize,
    /// The definition that is shadowed: the C library's, or that of another library that shadows it too.
    /// Null: not found so far; it is looked up again, since libraries may be loaded later.
    next: AtomicPtr<c_void>,
}

pub(crate) static DLSYM: Shadowed = Shadowed::new(c"dlsym", 0);
pub(crate) static DLVSYM: Shadowed = Shadowed::new(c"dlvsym", 1);
pub(crate) static DLOPEN: Shadowed = Shadowed::new(c"dlopen", 2);
pub(crate) static DLMOPEN: Shadowed = Shadowed::new(c"dlmopen", 3);

impl Shadowed {
    const fn new(name: &'static CStr, index: usize) -> Self {
        Self {
            name,
            index,
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// Returns the definition that is shadowed.
    pub(crate) fn next(&self) -> Option<*mut c_void> {
        let known = self.next.load(Relaxed);
        if !known.is_null() {
            return Some(known);
        }
        // musl lists itself before this library.
        let name = self.name.as_ptr();
        let found = objects::next_definition(name).or_else(|| objects::definition_elsewhere(name))?;
        self.next.store(found, Relaxed);
        Some(found)
    }

    /// Returns this library's function.
    pub(crate) fn own(&self) -> *mut c_void {
        // SAFETY: static, and filled in by the loader.
        let own = unsafe { &(*arch::links()).own };
        own.get(self.index).copied().unwrap_or(null_mut())
    }
}

/// Decides on a look-up that may find the C library's definition of a shadowed function: it is answered with
/// this library's, so that a library that asks the C library for `dlsym` does not pass by. Not if another
/// library shadows the function behind this one: what it looks up is what this library's would call, for
/// ever.
pub(crate) fn verdict(
    handle: usize,
    name: *const c_char,
    caller: usize,
    look_up: impl Fn() -> *mut c_void,
) -> Option<Verdict> {
    let all = [&DLSYM, &DLVSYM, &DLOPEN, &DLMOPEN];
    let shadowed = all
        .into_iter()
        .find(|shadowed| elf::is_same(shadowed.name.as_ptr(), name))?;
    let found = match handle {
        RTLD_DEFAULT => return None,
        RTLD_NEXT => objects::definition_after(caller, name)?,
        _ => look_up(),
    };
    let last = objects::c_library(name)?;
    (found == last && shadowed.next() == Some(last)).then(|| answer(shadowed.own()))
}
