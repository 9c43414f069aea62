//! Reading and changing what the driver wrote to the program's out-pointers.
//!
//! Only for pointers that the driver has just accepted by returning success.

/// Returns what the driver wrote; `None` for a null pointer.
pub(crate) fn written<T: Copy>(pointer: *const T) -> Option<T> {
    // SAFETY: null, or a pointer to a `T` that the driver has just written.
    unsafe { pointer.as_ref() }.copied()
}

/// Returns what the program passed by pointer; `None` for a null pointer.
pub(crate) fn argument<T: Copy>(pointer: *const T) -> Option<T> {
    // SAFETY: null, or a pointer to the program's `T`, which the driver reads in this call as well.
    unsafe { pointer.as_ref() }.copied()
}

/// Returns an array that the program passed by pointer; empty for a null pointer.
pub(crate) fn argument_list<T: Copy>(pointer: *const T, count: u32) -> Vec<T> {
    if pointer.is_null() {
        return Vec::new();
    }
    // SAFETY: not null, and points to `count` elements of the program, which the driver has just read.
    unsafe { std::slice::from_raw_parts(pointer, count as usize) }.to_vec()
}

/// Changes what the driver wrote.
pub(crate) fn rewrite<T: Copy>(pointer: *mut T, change: impl FnOnce(T) -> T) {
    // SAFETY: null, or a pointer to a `T` that the driver has just written and that the program lends for the
    // call.
    if let Some(value) = unsafe { pointer.as_mut() } {
        *value = change(*value);
    }
}

/// Writes a result instead of the driver; does nothing for a null pointer.
pub(crate) fn answer<T: Copy>(pointer: *mut T, value: T) {
    // SAFETY: null, or room for a `T` that the program lends for the call, as the driver's header requires.
    if let Some(pointer) = unsafe { pointer.as_mut() } {
        *pointer = value;
    }
}
