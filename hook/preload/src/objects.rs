//! Search for the definitions of a symbol in the loaded objects.
//!
//! Objects are visited in load order. For those loaded at program start this is the symbol search order;
//! objects opened later come last.

use core::ffi::{c_char, c_void};

use crate::elf::{Object, visit_objects};

/// Returns an address in this library.
fn here() -> usize {
    crate::arch::unbound().addr()
}

fn is_this(object: &Object) -> bool {
    object.contains(here())
}

/// Visits the objects until `find` returns a value.
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

/// Returns the first definition.
pub(crate) fn definition(name: *const c_char) -> Option<*mut c_void> {
    first(|object| object.find(name))
}

/// Returns the first definition in another object.
pub(crate) fn definition_elsewhere(name: *const c_char) -> Option<*mut c_void> {
    first(|object| if is_this(object) { None } else { object.find(name) })
}

/// Returns the first definition in an object loaded after the one that contains `address`.
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

/// Returns the definition that this library shadows.
pub(crate) fn next_definition(name: *const c_char) -> Option<*mut c_void> {
    definition_after(here(), name)
}

/// Returns the C library's definition of a function, even if another library shadows it.
pub(crate) fn c_library(name: *const c_char) -> Option<*mut c_void> {
    first(|object| {
        if object.is_c_library() {
            object.find(name)
        } else {
            None
        }
    })
}

/// Returns whether `address` lies in this library.
pub(crate) fn is_ours(address: *mut c_void) -> bool {
    this(|object| object.contains(address.addr())) == Some(true)
}
