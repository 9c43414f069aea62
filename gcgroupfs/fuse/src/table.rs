//! Open handles, counted by user. A handle consists of the opener's uid and a number that is unique among the
//! user's open handles. Its weight is the number of pages kept for it, at least one.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use gcgroupfs_model::error::{Error, Result};

/// Most pages of a user other than root in one table.
const MAX_PER_UID: usize = 16 << 10;

/// Most pages of all users but root in one table. The last quarter is reserved for users with at most
/// [`FEW`].
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
    /// Pages by user.
    by_uid: HashMap<u32, usize>,
    /// Pages of all users but root.
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

/// Returns the start of the numbers, different in each daemon: otherwise one could be given that a previous
/// daemon gave and that is still open. Closing one would close the other.
fn beginning() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_micros() & u128::from(u32::MAX)).unwrap_or_default()
}

/// Returns the uid in a handle.
pub(super) fn uid(handle: u64) -> u32 {
    u32::try_from(handle >> 32).unwrap_or(u32::MAX)
}

impl<T> Table<T> {
    /// Adds an open object of a user and returns its handle.
    ///
    /// # Errors
    /// `EMFILE` if the user has too much open.
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

    /// Replaces the object of a handle. An unknown handle, given by a previous daemon, is added.
    pub(super) fn put(&mut self, handle: u64, weight: usize, what: T) {
        let old = self.open.insert(handle, Open { what, weight });
        self.count(uid(handle), old.map_or(0, |old| old.weight), weight);
    }

    /// Sets the weight of a handle in pages.
    ///
    /// # Errors
    /// `EMFILE` if the user has too much open.
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
    fn users_but_not_root_have_a_bound_on_open_handles() {
        let mut table = Table::default();
        let handles: Vec<_> = (0..MAX_PER_UID).map(|_| table.open(7, 1, ()).unwrap()).collect();
        assert_eq!(table.open(7, 1, ()), Err(Error::TooManyOpen));
        assert_eq!(uid(table.open(8, 1, ()).unwrap()), 8, "another user has room");
        assert!(
            (0..=MAX_PER_UID).all(|_| table.open(0, 1, ()).is_ok()),
            "root is not bounded"
        );
        table.put(handles[0], 1, ());
        assert_eq!(table.close(handles[0]), Some(()));
        assert_eq!(table.close(handles[0]), None);
        assert_eq!(uid(table.open(7, 1, ()).unwrap()), 7);
        assert_eq!(table.open(7, 1, ()), Err(Error::TooManyOpen));
    }

    #[test]
    fn all_users_share_a_bound_with_a_quarter_reserved() {
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
    fn weight_counts_towards_bound() {
        let mut table = Table::default();
        let heavy = table.open(7, MAX_PER_UID - 2, ()).unwrap();
        let light = table.open(7, 1, ()).unwrap();
        assert_eq!(table.weigh(light, 3), Err(Error::TooManyOpen));
        assert_eq!(table.by_uid[&7], MAX_PER_UID - 1, "unchanged");
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
    fn inherited_handle_counts_like_others() {
        let mut table = Table::default();
        table.put(7 << 32 | 5, 1, ());
        assert_eq!(table.by_uid[&7], 1);
        table.close(7 << 32 | 5);
        assert!(table.by_uid.is_empty());
    }
}
