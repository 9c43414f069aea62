//! Reading and changing what the driver wrote to the program's out-pointers.
//!
//! Only for pointers that the driver has just accepted by returning success.

/// Returns what the driver wrote; `None` for a null pointer.
pub(crate) fn written<T: Copy>(place: *const T) -> Option<T> {
    // SAFETY: null, or a pointer to a `T` that the driver has just written.
    unsafe { place.as_ref() }.copied()
}

/// Returns what the program passed by pointer; `None` for a null pointer.
pub(crate) fn given<T: Copy>(place: *const T) -> Option<T> {
    // SAFETY: null, or a pointer to the program's `T`, which the driver reads in this call as well.
    unsafe { place.as_ref() }.copied()
}

/// Returns an array that the program passed by pointer; empty for a null pointer.
pub(crate) fn given_list<T: Copy>(place: *const T, count: u32) -> Vec<T> {
    if place.is_null() {
        return Vec::new();
    }
    // SAFETY: not null, and points to `count` elements of the program, which the driver has just read.
    unsafe { std::slice::from_raw_parts(place, count as usize) }.to_vec()
}

/// Changes what the driver wrote.
pub(crate) fn rewrite<T: Copy>(place: *mut T, change: impl FnOnce(T) -> T) {
    // SAFETY: null, or a pointer to a `T` that the driver has just written and that the program lends for the
    // call.
    if let Some(value) = unsafe { place.as_mut() } {
        *value = change(*value);
    }
}

/// Writes a result in the driver's place; does nothing for a null pointer.
pub(crate) fn answer<T: Copy>(place: *mut T, value: T) {
    // SAFETY: null, or room for a `T` that the program lends for the call, as the driver's header requires.
    if let Some(place) = unsafe { place.as_mut() } {
        *place = value;
    }
}
