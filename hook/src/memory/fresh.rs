//! Hash table with a few slots for the latest rows, so that a row that is removed soon never enters the
//! table. Most frequent allocations are freed soon, and a table of very many blocks is in no cache.

use hashbrown::HashTable;

/// A row with its key. The default row has the key [`FREE`].
pub(super) trait Row: Copy + Default {
    fn key(&self) -> u64;

    /// Returns the hash of a key for the table.
    fn hash(key: u64) -> u64;
}

/// Key of a free slot. A row that has this key is kept in the table only.
const FREE: u64 = 0;

/// Rows with distinct keys.
#[derive(Debug)]
pub(super) struct Fresh<R, const N: usize> {
    /// The latest rows, in no order.
    last: [R; N],
    /// Index of the slot that was last moved to the table.
    turn: usize,
    table: HashTable<R>,
}

impl<R: Row, const N: usize> Default for Fresh<R, N> {
    fn default() -> Self {
        Self {
            last: [R::default(); N],
            turn: 0,
            table: HashTable::new(),
        }
    }
}

impl<R: Row, const N: usize> Fresh<R, N> {
    /// Returns the slot of a key (or of [`FREE`]), `N` if there is none. Looks at all slots, which is faster
    /// than stopping early.
    #[inline(always)]
    fn position(&self, key: u64) -> usize {
        let mut found = N;
        for (position, row) in self.last.iter().enumerate() {
            if row.key() == key {
                found = position;
            }
        }
        found
    }

    /// Returns the row of a key if it is in a slot.
    #[inline(always)]
    fn known(&mut self, key: u64) -> Option<&mut R> {
        let position = self.position(key);
        self.last.get_mut(position).filter(|_| key != FREE)
    }

    /// Returns the row of a key; `hash` is the key's.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, key: u64) -> Option<&R> {
        let known = self.last.get(self.position(key)).filter(|_| key != FREE);
        known.or_else(|| self.table.find(hash, |row| row.key() == key))
    }

    /// Inserts a row and returns the row that had its key before; `hash` is the key's.
    #[inline(always)]
    pub(super) fn insert(&mut self, hash: u64, row: R) -> Option<R> {
        let key = row.key();
        let (position, free) = (self.position(key), self.position(FREE));
        let there = match self.last.get_mut(position) {
            Some(there) if key != FREE => Some(there),
            _ => self.table.find_mut(hash, |row| row.key() == key),
        };
        if let Some(there) = there {
            return Some(std::mem::replace(there, row));
        }
        match self.last.get_mut(free) {
            Some(free) if key != FREE => *free = row,
            _ => self.settle(row),
        }
        None
    }

    /// Puts a row into the next slot and that slot's row into the table; neither key is present.
    #[inline(never)]
    fn settle(&mut self, row: R) {
        self.turn = (self.turn + 1) % N;
        let turn = self.last.get_mut(self.turn).filter(|_| row.key() != FREE);
        let older = turn.map_or(row, |turn| std::mem::replace(turn, row));
        self.table
            .insert_unique(R::hash(older.key()), older, |row| R::hash(row.key()));
    }

    /// Removes the row of a key; `hash` is the key's.
    #[inline(always)]
    pub(super) fn remove(&mut self, hash: u64, key: u64) -> Option<R> {
        self.remove_if(hash, key, |_| true)
    }

    /// Removes the row of a key if `is_wanted` says so.
    #[inline(always)]
    pub(super) fn remove_if(&mut self, hash: u64, key: u64, is_wanted: impl FnOnce(&R) -> bool) -> Option<R> {
        if let Some(known) = self.known(key) {
            return is_wanted(known).then(|| std::mem::take(known));
        }
        let found = self.table.find_entry(hash, |row| row.key() == key).ok()?;
        is_wanted(found.get()).then(|| found.remove().0)
    }

    /// Removes every row that `is_wanted` and passes it to `show`.
    pub(super) fn take_all(&mut self, is_wanted: impl Fn(&R) -> bool, mut show: impl FnMut(R)) {
        let last = self.last.iter_mut();
        last.filter(|row| row.key() != FREE && is_wanted(row))
            .for_each(|row| show(std::mem::take(row)));
        self.table.extract_if(|row| is_wanted(row)).for_each(show);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &R> {
        let last = self.last.iter().filter(|row| row.key() != FREE);
        last.chain(self.table.iter())
    }

    /// Calls `change` with every row; the key must not be changed.
    pub(super) fn each(&mut self, change: impl FnMut(&mut R)) {
        let last = self.last.iter_mut().filter(|row| row.key() != FREE);
        last.chain(self.table.iter_mut()).for_each(change);
    }
}

#[cfg(test)]
impl<R: Row, const N: usize> Fresh<R, N> {
    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns the bytes that the table has allocated.
    pub(super) fn allocation_size(&self) -> usize {
        self.table.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    impl Row for (u64, u64) {
        fn key(&self) -> u64 {
            self.0
        }

        /// Many collisions of hash and tag.
        fn hash(key: u64) -> u64 {
            ((key % 7) << 57) | (key % 5)
        }
    }

    #[test]
    fn random_operations_agree_with_a_map() {
        let mut fresh = Fresh::<(u64, u64), 3>::default();
        let mut model = HashMap::new();
        let mut random = 1_u64;
        let rounds = if cfg!(miri) { 500 } else { 50_000 };
        for _ in 0..rounds {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Zero occurs too.
            let key = random % 40;
            let hash = <(u64, u64)>::hash(key);
            match random >> 60 {
                0..7 => {
                    let before = fresh.insert(hash, (key, random));
                    assert_eq!(before.map(|row| row.1), model.insert(key, random));
                }
                7..12 => {
                    let removed = fresh.remove(hash, key);
                    assert_eq!(removed.map(|row| row.1), model.remove(&key));
                }
                12..15 => {
                    let found = fresh.find(hash, key);
                    assert_eq!(found.map(|row| row.1), model.get(&key).copied());
                }
                _ => {
                    let is_wanted = |value: u64| value % 16 == 3;
                    let mut taken = Vec::new();
                    fresh.take_all(|row| is_wanted(row.1), |row| taken.push(row));
                    let mut expected: Vec<_> = model.extract_if(|_, value| is_wanted(*value)).collect();
                    taken.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(taken, expected);
                    fresh.each(|row| row.1 += 1);
                    model.values_mut().for_each(|value| *value += 1);
                }
            }
            assert_eq!(fresh.len(), model.len());
        }
    }

    #[test]
    fn row_removed_soon_never_enters_the_table() {
        let mut fresh = Fresh::<(u64, u64), 3>::default();
        let hash = <(u64, u64)>::hash;
        for key in 1..=100 {
            fresh.insert(hash(key), (key, 0));
        }
        assert_eq!(fresh.table.len(), 97);
        for key in 101..200 {
            fresh.insert(hash(key), (key, 0));
            assert!(fresh.remove(hash(key), key).is_some());
        }
        assert_eq!(
            fresh.table.len(),
            98,
            "one row moved to make room for all of them"
        );
    }
}
