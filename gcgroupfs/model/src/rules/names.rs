//! Numbers of users and groups of users by name. A configuration may contain names; the caller that reads it
//! provides their numbers.

use std::cell::Cell;

/// Returns the number for a name; `None` if there is no such name.
///
/// # Errors
/// Why it cannot be looked up, for people to read.
pub(super) type Lookup = fn(&str) -> Result<Option<u32>, String>;

/// Names of users and of groups of users.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    pub user: Lookup,
    pub group: Lookup,
}

thread_local! {
    /// Names for what this thread deserializes, since serde passes no parameter through.
    static NAMES: Cell<Option<Names>> = const { Cell::new(None) };
}

/// Calls `read`, which deserializes rules, with these names.
pub fn with_names<T>(names: Names, read: impl FnOnce() -> T) -> T {
    NAMES.set(Some(names));
    let rules = read();
    NAMES.set(None);
    rules
}

/// Returns the names of [`with_names`].
pub(super) fn names() -> Option<Names> {
    NAMES.get()
}
