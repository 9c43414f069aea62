//! The pieces of physical memory and the multicast objects that there are, by a number of ours: 20 bytes each.

use gcgroup_abi::Kind;

use crate::memory::ledger::{Entry, Unowned};

#[derive(Debug)]
pub(super) struct Object {
    entry: Unowned,
    /// Holds by handle, and [`OTHERS`].
    handles: u32,
    /// Mappings and bindings. In a place that is free, the next such.
    holds: u32,
}

const _: () = assert!(size_of::<Object>() == 20);

/// In `handles`: it has been had by several handles at once.
const OTHERS: u32 = 1 << 31;
/// In `handles`: the place is free.
const FREE: u32 = u32::MAX;
/// The number that nothing has.
const NONE: u32 = u32::MAX;

impl Object {
    pub(super) fn entry(&self) -> Entry {
        self.entry.entry()
    }

    pub(super) fn set_entry(&mut self, entry: Entry) {
        self.entry = Unowned::of(entry);
    }

    pub(super) fn handles(&self) -> u32 {
        self.handles & !OTHERS
    }

    /// One more hold by a handle; `is_other` if it is also had by another.
    pub(super) fn take_handle(&mut self, is_other: bool) {
        // One that is held that often is held for good.
        if self.handles() < OTHERS - 2 {
            self.handles += 1;
        }
        if is_other {
            self.handles |= OTHERS;
        }
    }

    /// One less.
    pub(super) fn drop_handle(&mut self) {
        self.handles -= u32::from(self.handles() != 0);
    }

    /// Its handles are another's.
    pub(super) fn drop_handles(&mut self) {
        self.handles &= OTHERS;
    }

    pub(super) fn has_others(&self) -> bool {
        self.handles & OTHERS != 0
    }

    /// One more hold by a mapping or a binding; whether it was imported.
    pub(super) fn hold(&mut self) -> bool {
        self.holds = self.holds.saturating_add(1);
        self.entry.is(Kind::Ipc)
    }

    /// It is at least that long: by how much that is more than was known.
    pub(super) fn grow(&mut self, length: u64) -> Option<Entry> {
        let mut entry = self.entry();
        let missing = length.checked_sub(entry.size).filter(|missing| *missing != 0)?;
        entry.size = length;
        self.set_entry(entry);
        entry.size = missing;
        Some(entry)
    }

    pub(super) fn is_multicast(&self) -> bool {
        self.entry.is(Kind::Multicast)
    }

    /// Whether it has but one handle, and holds nothing itself.
    pub(super) fn is_simple(&self) -> bool {
        !self.has_others() && !self.is_multicast()
    }

    pub(super) fn let_go(&mut self) {
        self.holds = self.holds.saturating_sub(1);
    }

    pub(super) fn is_over(&self) -> bool {
        self.handles() == 0 && self.holds == 0
    }
}

/// In pieces, so that growing copies nothing and leaves no room to spare.
const PIECE: usize = 128;

#[derive(Debug)]
pub(super) struct Objects {
    pieces: Vec<Vec<Object>>,
    /// The first free place.
    free: u32,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            pieces: Vec::new(),
            free: NONE,
        }
    }
}

impl Objects {
    fn place(&mut self, number: u32) -> Option<&mut Object> {
        let number = number as usize;
        self.pieces.get_mut(number / PIECE)?.get_mut(number % PIECE)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Object> {
        self.place(number).filter(|object| object.handles != FREE)
    }

    /// Enters something that one handle holds; its number.
    pub(super) fn insert(&mut self, entry: Entry) -> u32 {
        let object = Object {
            entry: Unowned::of(entry),
            handles: 1,
            holds: 0,
        };
        let number = self.free;
        if let Some(place) = self.place(number) {
            let next = std::mem::replace(place, object).holds;
            self.free = next;
            return number;
        }
        if self.pieces.last().is_none_or(|last| last.len() == PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let before = self.pieces.len().saturating_sub(1) * PIECE;
        let last = self.pieces.last_mut();
        let number = last.map_or(0, |last| {
            last.push(object);
            before + last.len() - 1
        });
        u32::try_from(number).unwrap_or(NONE)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Entry> {
        let free = self.free;
        let object = self.get_mut(number)?;
        (object.handles, object.holds) = (FREE, free);
        let entry = object.entry();
        self.free = number;
        Some(entry)
    }

    /// Shows every entry, which may be changed.
    pub(super) fn each(&mut self, mut change: impl FnMut(&mut Entry)) {
        let all = self.pieces.iter_mut().flatten();
        for object in all.filter(|object| object.handles != FREE) {
            let mut entry = object.entry();
            change(&mut entry);
            object.set_entry(entry);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let mut all = self.pieces.iter().flatten();
        all.all(|object| object.handles == FREE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::LocalDevice;
    use gcgroup_abi::Kind;

    fn entry(size: u64) -> Entry {
        Entry::new(Kind::Vmm, size, LocalDevice::of(0).unwrap(), 0, 0)
    }

    #[test]
    fn places_are_given_again_and_what_is_there_stays() {
        let mut objects = Objects::default();
        let numbers: Vec<u32> = (0..3000).map(|size| objects.insert(entry(size))).collect();
        assert_eq!(objects.remove(numbers[5]), Some(entry(5)));
        assert_eq!(objects.remove(numbers[2000]), Some(entry(2000)));
        assert_eq!(objects.remove(numbers[5]), None);
        assert!(objects.get_mut(numbers[5]).is_none());
        assert_eq!(objects.insert(entry(7777)), numbers[2000]);
        assert_eq!(objects.insert(entry(8888)), numbers[5]);
        assert_eq!(objects.insert(entry(9999)), 3000);
        assert_eq!(objects.get_mut(numbers[5]).unwrap().entry(), entry(8888));
        let (mut count, mut sum) = (0, 0);
        objects.each(|entry| {
            count += 1;
            sum += entry.size;
            entry.size += 1;
        });
        assert_eq!(objects.get_mut(numbers[5]).unwrap().entry(), entry(8889));
        assert_eq!(count, 3001);
        assert_eq!(sum, (0..3000).sum::<u64>() - 2005 + 7777 + 8888 + 9999);
        for number in 0..=3000 {
            assert!(objects.remove(number).is_some());
        }
        assert!(objects.is_empty());
    }

    #[test]
    fn it_is_over_when_neither_handle_nor_mapping_holds_it() {
        let mut objects = Objects::default();
        let number = objects.insert(entry(1));
        let object = objects.get_mut(number).unwrap();
        object.take_handle(true);
        object.hold();
        object.drop_handle();
        object.drop_handle();
        object.drop_handle();
        assert!(object.has_others() && object.handles() == 0 && !object.is_over());
        object.let_go();
        assert!(object.is_over());
    }
}
