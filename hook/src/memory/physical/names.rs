//! Objects by handle (12 bytes each) and by mapped address (16 bytes each).

use std::ops::Range;

use super::{MappedRange, Number};
use crate::memory::fresh::{Fresh, Row};

/// Smallest page of a mapping, bytes.
pub(super) const PAGE: u64 = 4096;

/// A 64-bit number with the alignment of a 32-bit one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Word([u32; 2]);

impl Word {
    #[expect(clippy::cast_possible_truncation, reason = "in halves")]
    fn of(number: u64) -> Self {
        Self([number as u32, (number >> 32) as u32])
    }

    fn number(self) -> u64 {
        let Self([low, high]) = self;
        u64::from(low) | u64::from(high) << 32
    }
}

/// Handles below this are consecutive numbers, not addresses.
const SMALL: u64 = 1 << 20;

/// Returns the hash of a handle, which may be a small number or a pointer, or of a page number. Neighbours
/// get near places in the table: they are likely used one after the other, and near places are likely in the
/// cache.
#[inline]
pub(super) fn hash(key: u64) -> u64 {
    let neighbours = key >> if key < SMALL { 3 } else { 14 };
    let product = u128::from(neighbours ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15_u128;
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let region = (product >> 64) as u64 ^ product as u64;
    // Each key of a region has a place of its own. Keys that differ by a page of device memory, or by the
    // likely size of a driver's handle object, are nearest.
    let within = (key >> 9 & 0x1f) + 37 * (key >> 4 & 0x1f) + 1193 * (key & 0xf);
    // The highest seven bits tell keys in one place apart.
    let tag = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
    region.wrapping_add(within) & (u64::MAX >> 7) | tag << 57
}

/// Returns the hash of a mapped address, by its page.
#[inline]
pub(super) fn hash_of_address(address: u64) -> u64 {
    hash(address / PAGE)
}

#[derive(Debug, Clone, Copy, Default)]
struct Named {
    handle: Word,
    number: Number,
}

impl Row for Named {
    #[inline(always)]
    fn key(&self) -> u64 {
        self.handle.number()
    }

    fn hash(key: u64) -> u64 {
        hash(key)
    }
}

/// Objects by handle. The caller passes the handle's [`hash`].
#[derive(Debug, Default)]
pub(super) struct Handles(Fresh<Named, 3>);

impl Handles {
    #[inline(always)]
    pub(crate) fn get(&self, hash: u64, handle: u64) -> Option<Number> {
        Some(self.0.find(hash, handle)?.number)
    }

    /// Inserts a handle; returns the object that had it before.
    #[inline(always)]
    pub(crate) fn insert(&mut self, hash: u64, handle: u64, number: Number) -> Option<Number> {
        let handle = Word::of(handle);
        Some(self.0.insert(hash, Named { handle, number })?.number)
    }

    /// Removes a handle if `is_over` returns true for its object.
    #[inline(always)]
    pub(crate) fn remove_if(&mut self, hash: u64, handle: u64, is_over: impl FnOnce(Number) -> bool) {
        self.0.remove_if(hash, handle, |named| is_over(named.number));
    }

    /// Removes every handle of an object.
    pub(crate) fn remove_all(&mut self, number: Number) {
        self.0.take_all(|named| named.number == number, drop);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Mapping {
    address: Word,
    number: Number,
    pages: u32,
}

impl Mapping {
    fn range(&self) -> MappedRange {
        (self.address.number(), u64::from(self.pages) * PAGE, self.number)
    }

    fn has(&self, address: u64) -> bool {
        let (from, length, _) = self.range();
        address.wrapping_sub(from) < length
    }
}

impl Row for Mapping {
    #[inline(always)]
    fn key(&self) -> u64 {
        self.address.number()
    }

    fn hash(key: u64) -> u64 {
        hash_of_address(key)
    }
}

/// Objects by mapped address. The caller passes the address's hash ([`hash_of_address`]).
#[derive(Debug, Default)]
pub(super) struct Mappings(Fresh<Mapping, 3>);

impl Mappings {
    /// Inserts a mapping; returns the object that was mapped there before.
    #[inline(always)]
    pub(crate) fn insert(&mut self, hash: u64, (address, length, number): MappedRange) -> Option<Number> {
        let mapping = Mapping {
            address: Word::of(address),
            number,
            pages: u32::try_from(length.div_ceil(PAGE)).unwrap_or(u32::MAX),
        };
        Some(self.0.insert(hash, mapping)?.number)
    }

    /// Returns the object whose mapping begins at an address.
    pub(crate) fn beginning_at(&self, hash: u64, address: u64) -> Option<Number> {
        Some(self.0.find(hash, address)?.number)
    }

    /// Returns the object mapped at an address, by searching all mappings.
    pub(crate) fn around(&self, address: u64) -> Option<Number> {
        let found = self.0.iter().find(|mapping| mapping.has(address));
        Some(found?.number)
    }

    /// Removes the mapping that begins at an address.
    #[inline(always)]
    pub(crate) fn take_one(&mut self, hash: u64, address: u64) -> Option<MappedRange> {
        Some(self.0.remove(hash, address)?.range())
    }

    /// Removes every mapping that begins within a range and passes it to `show`.
    pub(crate) fn take_within(&mut self, range: Range<u64>, mut show: impl FnMut(MappedRange)) {
        let is_within = |mapping: &Mapping| range.contains(&mapping.key());
        self.0.take_all(is_within, |mapping| show(mapping.range()));
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

const _: () = assert!(size_of::<Named>() == 12 && size_of::<Mapping>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(mappings: &mut Mappings, address: u64, length: u64, number: u32) -> Option<Number> {
        mappings.insert(hash_of_address(address), (address, length, Number(number)))
    }

    #[test]
    fn mapping_is_found_from_its_first_to_its_last_byte() {
        let mut mappings = Mappings::default();
        assert_eq!(insert(&mut mappings, 0x7f00_0020_0000, 0x20_0000, 1), None);
        assert_eq!(insert(&mut mappings, 0x7f00_0040_0000, 1, 2), None);
        let begins = |address| mappings.beginning_at(hash_of_address(address), address);
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
        assert_eq!(
            mappings.take_one(hash_of_address(at(20)), at(20)),
            Some((at(20), PAGE, Number(5)))
        );
        assert_eq!(mappings.take_one(hash_of_address(at(20)), at(20)), None);
        taken.clear();
        mappings.take_within(0..u64::MAX, |(.., number)| taken.push(number.0));
        taken.sort_unstable();
        assert_eq!(taken, [1, 6]);
        assert!(mappings.is_empty());
    }

    #[test]
    fn hash_spreads_small_and_large_keys() {
        for step in [1_u64, 8, 64, 4096, 2 << 20, 1 << 32] {
            let mut counts = [0_u32; 256];
            for number in 0..25_600 {
                counts[(hash(number * step) & 0xff) as usize] += 1;
            }
            assert!(
                counts.iter().all(|count| (20..400).contains(count)),
                "{step}: {counts:?}"
            );
        }
    }

    /// Threads must not contend for one shard because their handles are similar.
    #[test]
    fn keys_of_all_sizes_spread_over_the_shards() {
        for step in [1_u64, 8, 64, 512, 4096, 2 << 20, 1 << 32] {
            let mut shards = [0_u32; super::super::SHARDS];
            for number in 1..=25_600 {
                if let Some(count) = shards.get_mut(super::super::shard_of(hash(number * step))) {
                    *count += 1;
                }
            }
            assert!(
                shards.iter().all(|count| (1000..2600).contains(count)),
                "{step}: {shards:?}"
            );
        }
    }
}
