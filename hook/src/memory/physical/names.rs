//! Objects by what the driver calls them: handles, and the addresses where they are mapped. 12 and 16 bytes each.

use hashbrown::HashTable;
use hashbrown::hash_table::{Entry, OccupiedEntry};

/// Mapped in pages of this size at least.
const PAGE: u64 = 4096;

/// A number of 64 bits that needs no more alignment than one of 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Handles are anything from small numbers to pointers; of addresses, pages are counted. Neighbours are kept near each other
/// in the table, for they are likely used one after the other, and what is near is likely in the cache.
fn hash(key: u64) -> u64 {
    let product = u128::from((key >> 14) ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15_u128;
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let region = (product >> 64) as u64 ^ product as u64;
    // Of a region each key has a place of its own. Those that are apart by a page of device memory, or by what the driver is
    // likely to keep of a handle, are the nearest.
    let place = (key >> 9 & 0x1f) + 37 * (key >> 4 & 0x1f) + 1193 * (key & 0xf);
    // The highest seven bits tell keys in one place apart.
    let tag = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
    region.wrapping_add(place) & (u64::MAX >> 7) | tag << 57
}

/// By the page.
fn hash_of_address(address: u64) -> u64 {
    hash(address / PAGE)
}

/// Objects by handle.
#[derive(Debug, Default)]
pub(super) struct Handles(HashTable<(Word, u32)>);

impl Handles {
    pub(super) fn get(&self, handle: u64) -> Option<u32> {
        let word = Word::of(handle);
        let (_, number) = self.0.find(hash(handle), |(other, _)| *other == word)?;
        Some(*number)
    }

    /// What had the handle before.
    pub(super) fn insert(&mut self, handle: u64, number: u32) -> Option<u32> {
        let word = Word::of(handle);
        let rehash = |(word, _): &(Word, u32)| hash(word.number());
        match self.0.entry(hash(handle), |(other, _)| *other == word, rehash) {
            Entry::Occupied(mut there) => Some(std::mem::replace(&mut there.get_mut().1, number)),
            Entry::Vacant(place) => {
                place.insert((word, number));
                None
            }
        }
    }

    /// A handle that is known.
    pub(super) fn known(&mut self, handle: u64) -> Option<Known<'_>> {
        let word = Word::of(handle);
        let there = self.0.find_entry(hash(handle), |(other, _)| *other == word);
        there.ok().map(Known)
    }

    /// Forgets every handle of an object.
    pub(super) fn remove_all(&mut self, number: u32) {
        self.0.retain(|(_, other)| *other != number);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A handle that is known, found once.
pub(super) struct Known<'a>(OccupiedEntry<'a, (Word, u32)>);

impl Known<'_> {
    /// The object that it stands for.
    pub(super) fn number(&self) -> u32 {
        self.0.get().1
    }

    pub(super) fn remove(self) {
        self.0.remove();
    }
}

#[derive(Debug, Clone, Copy)]
struct Mapping {
    address: Word,
    number: u32,
    pages: u32,
}

impl Mapping {
    fn length(&self) -> u64 {
        u64::from(self.pages) * PAGE
    }

    fn has(&self, address: u64) -> bool {
        address.wrapping_sub(self.address.number()) < self.length()
    }
}

/// Where and of which object a mapping was that was taken out: address, bytes, number.
pub(crate) type Place = (u64, u64, u32);

/// Objects by where they are mapped.
#[derive(Debug, Default)]
pub(super) struct Mappings(HashTable<Mapping>);

impl Mappings {
    /// What was mapped there before.
    pub(super) fn insert(&mut self, (address, length, number): Place) -> Option<u32> {
        let mapping = Mapping {
            address: Word::of(address),
            number,
            pages: u32::try_from(length.div_ceil(PAGE)).unwrap_or(u32::MAX),
        };
        let rehash = |mapping: &Mapping| hash_of_address(mapping.address.number());
        match self.0.entry(
            hash_of_address(address),
            |other| other.address == mapping.address,
            rehash,
        ) {
            Entry::Occupied(mut there) => Some(std::mem::replace(there.get_mut(), mapping).number),
            Entry::Vacant(place) => {
                place.insert(mapping);
                None
            }
        }
    }

    /// The object that is mapped at an address. Quick where a mapping begins; else all are looked at.
    pub(super) fn at(&self, address: u64) -> Option<u32> {
        let word = Word::of(address);
        let found = self
            .0
            .find(hash_of_address(address), |other| other.address == word);
        let found = found.or_else(|| self.0.iter().find(|mapping| mapping.has(address)));
        found.map(|mapping| mapping.number)
    }

    /// Takes out the mapping that begins at an address.
    fn take_one(&mut self, address: u64) -> Option<Place> {
        let word = Word::of(address);
        let there = self
            .0
            .find_entry(hash_of_address(address), |other| other.address == word)
            .ok()?;
        let (mapping, _) = there.remove();
        Some((address, mapping.length(), mapping.number))
    }

    /// Takes out every mapping that begins within a range, and shows it.
    pub(super) fn take(&mut self, address: u64, length: u64, mut show: impl FnMut(Place)) {
        let end = address.saturating_add(length);
        let mut next = address;
        while next < end {
            // They follow one another, or else all are looked at.
            let Some(place) = self.take_one(next) else {
                let is_within = |mapping: &mut Mapping| (next..end).contains(&mapping.address.number());
                self.0
                    .extract_if(is_within)
                    .for_each(|mapping| show((mapping.address.number(), mapping.length(), mapping.number)));
                return;
            };
            next = next.saturating_add(place.1.max(PAGE));
            show(place);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

const _: () = assert!(size_of::<(Word, u32)>() == 12 && size_of::<Mapping>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_found_from_its_first_byte_to_its_last() {
        let mut mappings = Mappings::default();
        assert_eq!(mappings.insert((0x7f00_0020_0000, 0x20_0000, 1)), None);
        assert_eq!(mappings.insert((0x7f00_0040_0000, 1, 2)), None);
        assert_eq!(mappings.at(0x7f00_0020_0000), Some(1));
        assert_eq!(mappings.at(0x7f00_003f_ffff), Some(1));
        assert_eq!(mappings.at(0x7f00_0040_0fff), Some(2));
        assert_eq!(mappings.at(0x7f00_0040_1000), None);
        assert_eq!(mappings.at(0x7f00_001f_ffff), None);
        assert_eq!(mappings.insert((0x7f00_0040_0000, 1, 3)), Some(2));
    }

    #[test]
    fn a_range_takes_what_begins_in_it_with_gaps_and_without() {
        let mut mappings = Mappings::default();
        let at = |page: u64| 0x10_0000 + page * PAGE;
        for (number, page) in [(1, 0), (2, 2), (3, 3), (4, 9), (5, 20)] {
            mappings.insert((at(page), PAGE, number));
        }
        let mut taken = Vec::new();
        mappings.take(at(2), 2 * PAGE, |(.., number)| taken.push(number));
        assert_eq!(taken, [2, 3]);
        taken.clear();
        mappings.take(at(0), 20 * PAGE, |(.., number)| taken.push(number));
        taken.sort_unstable();
        assert_eq!(taken, [1, 4]);
        mappings.take(0, u64::MAX, |place| assert_eq!(place, (at(20), PAGE, 5)));
        assert!(mappings.is_empty());
    }

    #[test]
    fn small_numbers_and_large_ones_are_spread() {
        for step in [1_u64, 8, 64, 4096, 2 << 20, 1 << 32] {
            let mut places = [0_u32; 256];
            for number in 0..25_600 {
                places[(hash(number * step) & 0xff) as usize] += 1;
            }
            assert!(
                places.iter().all(|count| (20..400).contains(count)),
                "{step}: {places:?}"
            );
        }
    }
}
