//! Where a program has the driver write its answers: reading and changing what was written there.
//!
//! Only for pointers that the driver has just accepted: it answered with success.

/// What the driver wrote; `None` where the program wanted no answer.
pub(crate) fn written<T: Copy>(place: *const T) -> Option<T> {
    // SAFETY: null, or a place that the driver has just written a T to.
    unsafe { place.as_ref() }.copied()
}

/// What the program gave the driver to read; `None` if nothing.
pub(crate) fn given<T: Copy>(place: *const T) -> Option<T> {
    // SAFETY: null, or a T of the program's, which the driver reads in this call as well.
    unsafe { place.as_ref() }.copied()
}

/// The same of so many in a row.
pub(crate) fn given_list<T: Copy>(place: *const T, count: u32) -> Vec<T> {
    if place.is_null() {
        return Vec::new();
    }
    // SAFETY: not null, and so many Ts of the program's, which the driver has just read.
    unsafe { std::slice::from_raw_parts(place, count as usize) }.to_vec()
}

/// Changes what the driver wrote.
pub(crate) fn rewrite<T: Copy>(place: *mut T, change: impl FnOnce(T) -> T) {
    // SAFETY: null, or a place that the driver has just written a T to, and that the program lends for the call.
    if let Some(value) = unsafe { place.as_mut() } {
        *value = change(*value);
    }
}

/// Answers the program in the driver's place; nothing where the program wanted no answer.
pub(crate) fn answer<T: Copy>(place: *mut T, value: T) {
    // SAFETY: null, or a place for a T that the program lends for the call, as the driver's header asks.
    if let Some(place) = unsafe { place.as_mut() } {
        *place = value;
    }
}
