//! What is open, by handle, and how much of it is each user's. A handle is the opener's uid, and a number that no other open
//! handle of that user has in the table. What is open weighs as many pages as are kept for it, and one at least.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};

/// The most that all that a user who is not root has open in a table may weigh, in pages.
const MAX_PER_UID: usize = 16 << 10;

/// The most that all users but root may have open together. The last quarter is for users with few.
const MAX_OTHERS: usize = 64 << 10;
const FEW: usize = 512;

#[derive(Debug)]
struct Open<T> {
    what: T,
    weight: usize,
}

#[derive(Debug)]
pub(super) struct Table<T> {
    open: HashMap<u64, Open<T>>,
    /// What all that a user has open weighs.
    by_uid: HashMap<u32, usize>,
    /// What all users but root have open together weighs.
    others: usize,
    last: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            by_uid: HashMap::new(),
            others: 0,
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
    pub(super) fn open(&mut self, uid: u32, weight: usize, what: T) -> Result<u64> {
        self.check(uid, weight)?;
        let handle = loop {
            self.last = self.last.wrapping_add(1);
            let handle = u64::from(uid) << 32 | u64::from(self.last);
            if !self.open.contains_key(&handle) {
                break handle;
            }
        };
        self.put(handle, weight, what);
        Ok(handle)
    }

    pub(super) fn close(&mut self, handle: u64) -> Option<T> {
        let Open { what, weight } = self.open.remove(&handle)?;
        self.count(uid(handle), weight, 0);
        Some(what)
    }

    /// Has a handle stand for something else. It may be one that a predecessor gave, and is then added.
    pub(super) fn put(&mut self, handle: u64, weight: usize, what: T) {
        let old = self.open.insert(handle, Open { what, weight });
        self.count(uid(handle), old.map_or(0, |old| old.weight), weight);
    }

    /// Has what is open there weigh so much.
    ///
    /// # Errors
    /// The user has too much open for that.
    pub(super) fn weigh(&mut self, handle: u64, weight: usize) -> Result<()> {
        let Some(old) = self.open.get(&handle).map(|open| open.weight) else {
            return Ok(());
        };
        self.check(uid(handle), weight.saturating_sub(old))?;
        if let Some(open) = self.open.get_mut(&handle) {
            open.weight = weight;
        }
        self.count(uid(handle), old, weight);
        Ok(())
    }

    pub(super) fn get(&self, handle: u64) -> Option<&T> {
        self.open.get(&handle).map(|open| &open.what)
    }

    pub(super) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        self.open.get_mut(&handle).map(|open| &mut open.what)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.open.values_mut().map(|open| &mut open.what)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.open.iter().map(|(handle, open)| (*handle, &open.what))
    }

    fn check(&self, uid: u32, more: usize) -> Result<()> {
        let there = self.by_uid.get(&uid).copied().unwrap_or(0);
        if uid == 0 || more == 0 {
            return Ok(());
        }
        let own = there.saturating_add(more);
        let others = match own <= FEW {
            true => MAX_OTHERS,
            false => MAX_OTHERS - MAX_OTHERS / 4,
        };
        if own > MAX_PER_UID || self.others.saturating_add(more) > others {
            return Err(Error::TooManyOpen);
        }
        Ok(())
    }

    fn count(&mut self, uid: u32, less: usize, more: usize) {
        let there = self.by_uid.entry(uid).or_default();
        *there = there.saturating_add(more).saturating_sub(less);
        if uid != 0 {
            self.others = self.others.saturating_add(more).saturating_sub(less);
        }
        if *there == 0 {
            self.by_uid.remove(&uid);
        }
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
        let handles: Vec<_> = (0..MAX_PER_UID).map(|_| table.open(7, 1, ()).unwrap()).collect();
        assert_eq!(table.open(7, 1, ()), Err(Error::TooManyOpen));
        assert_eq!(uid(table.open(8, 1, ()).unwrap()), 8, "another has room");
        assert!(
            (0..=MAX_PER_UID).all(|_| table.open(0, 1, ()).is_ok()),
            "root has no such bound"
        );
        table.put(handles[0], 1, ());
        assert_eq!(table.close(handles[0]), Some(()));
        assert_eq!(table.close(handles[0]), None);
        assert_eq!(uid(table.open(7, 1, ()).unwrap()), 7);
        assert_eq!(table.open(7, 1, ()), Err(Error::TooManyOpen));
    }

    #[test]
    fn users_together_have_so_many_and_those_with_few_a_quarter() {
        let mut table = Table::default();
        let mut fill = |uid| {
            let opened = std::iter::from_fn(|| table.open(uid, 1, ()).ok());
            opened.count()
        };
        assert_eq!(
            [1, 2, 3, 4].map(&mut fill),
            [MAX_PER_UID, MAX_PER_UID, MAX_PER_UID, FEW]
        );
        let few: usize = (5..1000).map(&mut fill).sum();
        assert_eq!(few + FEW, MAX_OTHERS / 4, "and no more");
        assert!(table.open(0, 1, ()).is_ok());
        assert_eq!(table.others, MAX_OTHERS);
        let all: Vec<u64> = table.open.keys().copied().collect();
        assert!(all.into_iter().all(|handle| table.close(handle).is_some()));
        assert_eq!((table.others, table.by_uid.len()), (0, 0));
    }

    #[test]
    fn what_is_heavy_takes_the_room_of_many() {
        let mut table = Table::default();
        let heavy = table.open(7, MAX_PER_UID - 2, ()).unwrap();
        let light = table.open(7, 1, ()).unwrap();
        assert_eq!(table.weigh(light, 3), Err(Error::TooManyOpen));
        assert_eq!(table.by_uid[&7], MAX_PER_UID - 1, "nothing has changed");
        table.weigh(light, 2).unwrap();
        assert_eq!(table.open(7, 1, ()), Err(Error::TooManyOpen));
        table.weigh(heavy, 1).unwrap();
        table.weigh(light, MAX_PER_UID - 1).unwrap();
        table.close(heavy);
        table.close(light);
        assert!(table.by_uid.is_empty());
        let roots = table.open(0, 2 * MAX_PER_UID, ()).unwrap();
        assert_eq!(table.weigh(roots, 3 * MAX_PER_UID), Ok(()));
    }

    #[test]
    fn a_predecessors_handle_counts_like_any() {
        let mut table = Table::default();
        table.put(7 << 32 | 5, 1, ());
        assert_eq!(table.by_uid[&7], 1);
        table.close(7 << 32 | 5);
        assert!(table.by_uid.is_empty());
    }
}
