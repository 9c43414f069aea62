//! Who defines a symbol: this library, the C library, whoever comes next.
//!
//! Objects are in the order they were loaded, which for those of the program's start is the order in which
//! symbols are searched. What is opened later comes last.

use core::ffi::{c_char, c_void};

use crate::elf::{Object, visit_objects};

/// Any address in this library.
fn here() -> usize {
    crate::arch::unbound().addr()
}

fn is_this(object: &Object) -> bool {
    object.contains(here())
}

/// Visits the objects until `find` gives something.
fn first<T>(mut find: impl FnMut(&Object) -> Option<T>) -> Option<T> {
    let mut found = None;
    visit_objects(|object| {
        found = find(object);
        found.is_some()
    });
    found
}

/// Visits this library.
pub(crate) fn this<T>(find: impl FnOnce(&Object) -> T) -> Option<T> {
    let mut find = Some(find);
    first(|object| {
        if is_this(object) {
            find.take().map(|find| find(object))
        } else {
            None
        }
    })
}

/// The definition that comes first of all.
pub(crate) fn definition(name: *const c_char) -> Option<*mut c_void> {
    first(|object| object.find(name))
}

/// The first definition in another object than this.
pub(crate) fn definition_elsewhere(name: *const c_char) -> Option<*mut c_void> {
    first(|object| if is_this(object) { None } else { object.find(name) })
}

/// The first definition in an object loaded after the one that `address` lies in.
pub(crate) fn definition_after(address: usize, name: *const c_char) -> Option<*mut c_void> {
    let mut is_past = false;
    first(|object| {
        if is_past {
            return object.find(name);
        }
        is_past = object.contains(address);
        None
    })
}

/// The definition that this library shadows.
pub(crate) fn next_definition(name: *const c_char) -> Option<*mut c_void> {
    definition_after(here(), name)
}

/// The C library's definition of a function of its dynamic linker, whoever else stands before that. `dlinfo`
/// tells the C library: in glibc it has always been beside `dlsym`, in musl too, and nobody has a reason to
/// stand before it.
pub(crate) fn c_library(name: *const c_char) -> Option<*mut c_void> {
    first(|object| object.find(c"dlinfo".as_ptr()).and_then(|_| object.find(name)))
}

/// Whether `address` lies in this library.
pub(crate) fn is_ours(address: *mut c_void) -> bool {
    this(|object| object.contains(address.addr())) == Some(true)
}
