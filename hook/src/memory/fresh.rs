//! A table that keeps what was entered last beside itself: what is taken out soon never gets into it. Programs free soon
//! most of what they allocate often, and a table of very many blocks is in no cache.

use hashbrown::HashTable;
use hashbrown::hash_table::Iter;

/// What a table has, by a key.
pub(super) trait Row: Copy + Default {
    fn key(&self) -> u64;

    /// Where in a table a key is looked for.
    fn hash(key: u64) -> u64;
}

/// No two rows have the same key.
#[derive(Debug)]
pub(super) struct Fresh<R, const N: usize> {
    /// Those entered last, the oldest first, and then places that are free.
    last: [R; N],
    live: usize,
    table: HashTable<R>,
}

impl<R: Row, const N: usize> Default for Fresh<R, N> {
    fn default() -> Self {
        Self {
            last: [R::default(); N],
            live: 0,
            table: HashTable::new(),
        }
    }
}

impl<R: Row, const N: usize> Fresh<R, N> {
    /// Where among the last a key is.
    #[inline(always)]
    fn place(&self, key: u64) -> Option<usize> {
        let last = self.last.iter().take(self.live);
        last.rev()
            .position(|row| row.key() == key)
            .map(|from_end| self.live - 1 - from_end)
    }

    /// `hash` is the key's.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, key: u64) -> Option<&R> {
        match self.place(key) {
            Some(place) => self.last.get(place),
            None => self.table.find(hash, |row| row.key() == key),
        }
    }

    /// Enters a row, whose key has that hash; the one that had the key before.
    #[inline(always)]
    pub(super) fn insert(&mut self, hash: u64, row: R) -> Option<R> {
        let key = row.key();
        let there = match self.place(key) {
            Some(place) => self.last.get_mut(place),
            None => self.table.find_mut(hash, |row| row.key() == key),
        };
        if let Some(there) = there {
            return Some(std::mem::replace(there, row));
        }
        if self.live == N {
            self.settle_oldest();
        }
        if let Some(free) = self.last.get_mut(self.live) {
            *free = row;
            self.live += 1;
        }
        None
    }

    /// Has the oldest of the last go into the table, which does not have its key.
    #[inline(never)]
    fn settle_oldest(&mut self) {
        let Some(oldest) = self.take_last(0) else { return };
        self.table
            .insert_unique(R::hash(oldest.key()), oldest, |row| R::hash(row.key()));
    }

    #[inline(always)]
    fn take_last(&mut self, place: usize) -> Option<R> {
        let taken = *self.last.get(place)?;
        self.live -= 1;
        for place in place..self.live {
            if let [to, from, ..] = self.last.get_mut(place..)? {
                *to = *from;
            }
        }
        Some(taken)
    }

    /// `hash` is the key's.
    #[inline(always)]
    pub(super) fn remove(&mut self, hash: u64, key: u64) -> Option<R> {
        self.remove_if(hash, key, |_| true)
    }

    /// The same if it `is_wanted`.
    #[inline(always)]
    pub(super) fn remove_if(&mut self, hash: u64, key: u64, is_wanted: impl FnOnce(&R) -> bool) -> Option<R> {
        if let Some(place) = self.place(key) {
            return self
                .last
                .get(place)
                .is_some_and(is_wanted)
                .then(|| self.take_last(place))?;
        }
        let found = self.table.find_entry(hash, |row| row.key() == key).ok()?;
        is_wanted(found.get()).then(|| found.remove().0)
    }

    /// Removes all that `is_wanted`, and shows them.
    pub(super) fn take_all(&mut self, is_wanted: impl Fn(&R) -> bool, mut show: impl FnMut(R)) {
        for place in (0..self.live).rev() {
            if self.last.get(place).is_some_and(&is_wanted) {
                self.take_last(place).into_iter().for_each(&mut show);
            }
        }
        self.table.extract_if(|row| is_wanted(row)).for_each(show);
    }

    pub(super) fn iter(&self) -> std::iter::Chain<std::iter::Take<std::slice::Iter<'_, R>>, Iter<'_, R>> {
        self.last.iter().take(self.live).chain(self.table.iter())
    }

    /// Shows every row, of which all but the key may be changed.
    pub(super) fn each(&mut self, change: impl FnMut(&mut R)) {
        let last = self.last.iter_mut().take(self.live);
        last.chain(self.table.iter_mut()).for_each(change);
    }
}

#[cfg(test)]
impl<R: Row, const N: usize> Fresh<R, N> {
    pub(super) fn len(&self) -> usize {
        self.live + self.table.len()
    }

    /// Bytes that the table takes.
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

        /// Many have the same place, and even the same tag.
        fn hash(key: u64) -> u64 {
            ((key % 7) << 57) | (key % 5)
        }
    }

    #[test]
    fn it_agrees_with_a_map_over_random_operations() {
        let mut fresh = Fresh::<(u64, u64), 3>::default();
        let mut model = HashMap::new();
        let mut random = 1_u64;
        for _ in 0..50_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Zero is a key like any other.
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
            assert_eq!(fresh.iter().count(), model.len());
        }
    }

    #[test]
    fn what_goes_soon_never_gets_into_the_table() {
        let mut fresh = Fresh::<(u64, u64), 3>::default();
        let hash = <(u64, u64)>::hash;
        for key in 0..100 {
            fresh.insert(hash(key), (key, 0));
        }
        let size = fresh.table.len();
        for key in 100..200 {
            fresh.insert(hash(key), (key, 0));
            assert!(fresh.remove(hash(key), key).is_some());
        }
        assert!((97..=98).contains(&size));
        assert_eq!(
            fresh.table.len(),
            98,
            "the place of one of the others, and no more"
        );
    }
}
