//! Allocator of address ranges: best fit.

use std::collections::{BTreeMap, BTreeSet};

/// A range of addresses, partly allocated.
#[derive(Debug, Default)]
pub struct Ranges {
    /// Start and length of every hole; adjacent holes are merged.
    holes: BTreeMap<u64, u64>,
    /// Length and start of every hole.
    by_length: BTreeSet<(u64, u64)>,
}

impl Ranges {
    /// Creates a range that is wholly free.
    pub fn new(start: u64, length: u64) -> Self {
        let mut ranges = Ranges::default();
        if length > 0 {
            ranges.insert(start, length);
        }
        ranges
    }

    /// Allocates `length` addresses starting at a multiple of `align`, a power of two.
    pub fn take(&mut self, length: u64, align: u64) -> Option<u64> {
        let fits = |&&(hole, start): &&(u64, u64)| {
            start
                .checked_next_multiple_of(align)
                .is_some_and(|at| at - start <= hole && hole - (at - start) >= length)
        };
        let &(hole, start) = self.by_length.range((length, 0)..).find(fits)?;
        let at = start.next_multiple_of(align);
        self.cut(start, hole, at, length);
        Some(at)
    }

    /// Allocates exactly these addresses, if they are free.
    pub fn take_at(&mut self, at: u64, length: u64) -> bool {
        let Some((&start, &hole)) = self.holes.range(..=at).next_back() else {
            return false;
        };
        let end = at.checked_add(length);
        if end.is_none_or(|end| end > start + hole) {
            return false;
        }
        self.cut(start, hole, at, length);
        true
    }

    /// Frees addresses.
    pub fn give(&mut self, at: u64, length: u64) {
        let (mut start, mut end) = (at, at + length);
        if let Some((&before, &hole)) = self.holes.range(..at).next_back()
            && before + hole == at
        {
            self.remove(before, hole);
            start = before;
        }
        if let Some(&hole) = self.holes.get(&end) {
            self.remove(end, hole);
            end += hole;
        }
        self.insert(start, end - start);
    }

    fn cut(&mut self, start: u64, hole: u64, at: u64, length: u64) {
        self.remove(start, hole);
        if at > start {
            self.insert(start, at - start);
        }
        if start + hole > at + length {
            self.insert(at + length, start + hole - (at + length));
        }
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.holes.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.holes.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_merge_into_one() {
        let mut ranges = Ranges::new(1024, 4096);
        let parts: Vec<u64> = (0..4).map(|_| ranges.take(1024, 512).unwrap()).collect();
        assert_eq!(ranges.take(1, 1), None);
        for index in [1, 3, 0, 2] {
            ranges.give(parts[index], 1024);
        }
        assert_eq!(ranges.take(4096, 1024), Some(1024));
    }

    #[test]
    fn alignment_leaves_the_rest_free() {
        let mut ranges = Ranges::new(100, 10_000);
        assert_eq!(ranges.take(1000, 4096), Some(4096));
        assert_eq!(ranges.take(3996, 1), Some(100));
        assert!(!ranges.take_at(4096, 1));
        assert!(ranges.take_at(5096, 5004));
        assert_eq!(ranges.take(1, 1), None);
    }
}
