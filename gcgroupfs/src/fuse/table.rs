//! What is open, by handle, and how much of it is each user's. A handle is the opener's uid, and a number that no other open
//! handle of that user has in the table.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};

/// The most that a user who is not root can have open in a table: each costs us what it is being read from.
const MAX_PER_UID: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Table<T> {
    open: HashMap<u64, T>,
    by_uid: HashMap<u32, usize>,
    last: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            by_uid: HashMap::new(),
            last: beginning(),
        }
    }
}

/// Where the numbers begin: in each daemon somewhere else, or one would be given that a predecessor gave, and that somebody
/// has open whom we have not heard of yet. What closes the one would close the other.
fn beginning() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_micros() & u128::from(u32::MAX)).unwrap_or_default()
}

/// Whose a handle is.
pub(super) fn uid(handle: u64) -> u32 {
    u32::try_from(handle >> 32).unwrap_or(u32::MAX)
}

impl<T> Table<T> {
    /// Adds something that a user opens.
    ///
    /// # Errors
    /// The user has too much open.
    pub(super) fn open(&mut self, uid: u32, what: T) -> Result<u64> {
        if uid != 0 && self.by_uid.get(&uid).is_some_and(|count| *count >= MAX_PER_UID) {
            return Err(Error::TooManyOpen);
        }
        let handle = loop {
            self.last = self.last.wrapping_add(1);
            let handle = u64::from(uid) << 32 | u64::from(self.last);
            if !self.open.contains_key(&handle) {
                break handle;
            }
        };
        self.put(handle, what);
        Ok(handle)
    }

    pub(super) fn close(&mut self, handle: u64) -> Option<T> {
        let closed = self.open.remove(&handle)?;
        if let Entry::Occupied(mut count) = self.by_uid.entry(uid(handle)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(closed)
    }

    /// Has a handle stand for something else. It may be one that a predecessor gave, and is then added.
    pub(super) fn put(&mut self, handle: u64, what: T) {
        if self.open.insert(handle, what).is_none() {
            *self.by_uid.entry(uid(handle)).or_default() += 1;
        }
    }

    pub(super) fn get(&self, handle: u64) -> Option<&T> {
        self.open.get(&handle)
    }

    pub(super) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        self.open.get_mut(&handle)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.open.values_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.open.iter().map(|(handle, what)| (*handle, what))
    }

    #[cfg(test)]
    pub(super) fn wrap(&mut self) {
        self.last = u32::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_but_root_has_so_many_and_closing_gives_room() {
        let mut table = Table::default();
        let handles: Vec<_> = (0..MAX_PER_UID).map(|_| table.open(7, ()).unwrap()).collect();
        assert_eq!(table.open(7, ()), Err(Error::TooManyOpen));
        assert_eq!(uid(table.open(8, ()).unwrap()), 8, "another has room");
        assert!(
            (0..=MAX_PER_UID).all(|_| table.open(0, ()).is_ok()),
            "root has no such bound"
        );
        table.put(handles[0], ());
        assert_eq!(table.close(handles[0]), Some(()));
        assert_eq!(table.close(handles[0]), None);
        assert_eq!(uid(table.open(7, ()).unwrap()), 7);
        assert_eq!(table.open(7, ()), Err(Error::TooManyOpen));
    }

    #[test]
    fn a_predecessors_handle_counts_like_any() {
        let mut table = Table::default();
        table.put(7 << 32 | 5, ());
        assert_eq!(table.by_uid[&7], 1);
        table.close(7 << 32 | 5);
        assert!(table.by_uid.is_empty());
    }
}
