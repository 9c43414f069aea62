//! Objects by handle and by mapped address: 16 bytes each.

use std::ops::Range;

use hashbrown::hash_map::Entry;

use super::{MappedRange, Number};
use crate::memory::key::Table;

/// Smallest page of a mapping, bytes.
pub(super) const PAGE: u64 = 4096;

/// Objects by handle.
#[derive(Debug, Default)]
pub(super) struct Handles(Table<Number>);

impl Handles {
    #[inline(always)]
    pub(crate) fn get(&self, handle: u64) -> Option<Number> {
        self.0.get(&handle).copied()
    }

    /// Inserts a handle; returns the object that had it before.
    #[inline(always)]
    pub(crate) fn insert(&mut self, handle: u64, number: Number) -> Option<Number> {
        self.0.insert(handle, number)
    }

    /// Removes a handle if `is_over` returns true for its object.
    #[inline(always)]
    pub(crate) fn remove_if(&mut self, handle: u64, is_over: impl FnOnce(Number) -> bool) {
        if let Entry::Occupied(named) = self.0.entry(handle)
            && is_over(*named.get())
        {
            named.remove();
        }
    }

    /// Removes every handle of an object.
    pub(crate) fn remove_all(&mut self, number: Number) {
        self.0.retain(|_, named| *named != number);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Objects by mapped address, with the number of pages.
#[derive(Debug, Default)]
pub(super) struct Mappings(Table<(Number, u32)>);

fn mapped(address: u64, (number, pages): (Number, u32)) -> MappedRange {
    (address, u64::from(pages) * PAGE, number)
}

impl Mappings {
    /// Inserts a mapping; returns the object that was mapped there before.
    #[inline(always)]
    pub(crate) fn insert(&mut self, (address, length, number): MappedRange) -> Option<Number> {
        let pages = u32::try_from(length.div_ceil(PAGE)).unwrap_or(u32::MAX);
        Some(self.0.insert(address, (number, pages))?.0)
    }

    /// Returns the object whose mapping begins at an address.
    pub(crate) fn beginning_at(&self, address: u64) -> Option<Number> {
        Some(self.0.get(&address)?.0)
    }

    /// Returns the object mapped at an address, by searching all mappings.
    pub(crate) fn around(&self, address: u64) -> Option<Number> {
        let mut all = self.0.iter().map(|(from, mapping)| mapped(*from, *mapping));
        let found = all.find(|(from, length, _)| address.wrapping_sub(*from) < *length);
        Some(found?.2)
    }

    /// Removes the mapping that begins at an address.
    #[inline(always)]
    pub(crate) fn take_one(&mut self, address: u64) -> Option<MappedRange> {
        Some(mapped(address, self.0.remove(&address)?))
    }

    /// Removes every mapping that begins within a range and passes it to `show`.
    pub(crate) fn take_within(&mut self, range: Range<u64>, mut show: impl FnMut(MappedRange)) {
        let taken = self.0.extract_if(|address, _| range.contains(address));
        taken.for_each(|(address, mapping)| show(mapped(address, mapping)));
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

const _: () = assert!(size_of::<(u64, Number)>() == 16 && size_of::<(u64, (Number, u32))>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(mappings: &mut Mappings, address: u64, length: u64, number: u32) -> Option<Number> {
        mappings.insert((address, length, Number(number)))
    }

    #[test]
    fn mapping_is_found_from_its_first_to_its_last_byte() {
        let mut mappings = Mappings::default();
        assert_eq!(insert(&mut mappings, 0x7f00_0020_0000, 0x20_0000, 1), None);
        assert_eq!(insert(&mut mappings, 0x7f00_0040_0000, 1, 2), None);
        let begins = |address| mappings.beginning_at(address);
        assert_eq!(begins(0x7f00_0020_0000), Some(Number(1)));
        assert_eq!(begins(0x7f00_0020_1000), None);
        assert_eq!(mappings.around(0x7f00_0020_0000), Some(Number(1)));
        assert_eq!(mappings.around(0x7f00_003f_ffff), Some(Number(1)));
        assert_eq!(mappings.around(0x7f00_0040_0fff), Some(Number(2)));
        assert_eq!(mappings.around(0x7f00_0040_1000), None);
        assert_eq!(mappings.around(0x7f00_001f_ffff), None);
        assert_eq!(insert(&mut mappings, 0x7f00_0040_0000, 1, 3), Some(Number(2)));
    }

    #[test]
    fn take_within_removes_mappings_that_begin_in_range() {
        let mut mappings = Mappings::default();
        let at = |page: u64| 0x10_0000 + page * PAGE;
        for (number, page) in [(1, 0), (2, 2), (3, 3), (4, 9), (5, 20), (6, 21)] {
            insert(&mut mappings, at(page), PAGE, number);
        }
        let mut taken = Vec::new();
        mappings.take_within(at(1)..at(20), |(.., number)| taken.push(number.0));
        taken.sort_unstable();
        assert_eq!(taken, [2, 3, 4]);
        assert_eq!(mappings.take_one(at(20)), Some((at(20), PAGE, Number(5))));
        assert_eq!(mappings.take_one(at(20)), None);
        taken.clear();
        mappings.take_within(0..u64::MAX, |(.., number)| taken.push(number.0));
        taken.sort_unstable();
        assert_eq!(taken, [1, 6]);
        assert!(mappings.is_empty());
    }
}
