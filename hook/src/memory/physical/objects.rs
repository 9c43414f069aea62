//! Table of physical memory and multicast objects by slot: 24 bytes each.

use gcgroup_abi::Kind;

use crate::memory::ledger::Entry;

#[derive(Debug)]
pub(super) struct Object {
    entry: Entry,
    /// Number of holds by handles, with the flag [`OTHERS`].
    handles: u32,
    /// Number of mappings and bindings. In a free slot: the next free slot.
    holds: u32,
}

const _: () = assert!(size_of::<Object>() == 24);

/// Flag in `handles`: several handles have referred to it at once.
const OTHERS: u32 = 1 << 31;
/// Value of `handles` in a free slot.
const FREE: u32 = u32::MAX;
/// Number of no slot.
const NONE: u32 = u32::MAX;

impl Object {
    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    pub(crate) fn set_entry(&mut self, entry: Entry) {
        self.entry = entry;
    }

    pub(crate) fn handles(&self) -> u32 {
        self.handles & !OTHERS
    }

    /// Adds a hold by a handle; `is_other` if another handle holds it too.
    pub(crate) fn take_handle(&mut self, is_other: bool) {
        // The count saturates.
        if self.handles() < OTHERS - 2 {
            self.handles += 1;
        }
        if is_other {
            self.handles |= OTHERS;
        }
    }

    /// Drops a hold by a handle.
    pub(crate) fn drop_handle(&mut self) {
        self.handles -= u32::from(self.handles() != 0);
    }

    /// Drops all holds by handles, which refer to another object now.
    pub(crate) fn drop_handles(&mut self) {
        self.handles &= OTHERS;
    }

    pub(crate) fn has_others(&self) -> bool {
        self.handles & OTHERS != 0
    }

    /// Adds a hold by a mapping or binding; returns whether the memory was imported.
    pub(crate) fn hold(&mut self) -> bool {
        self.holds = self.holds.saturating_add(1);
        self.entry.is(Kind::Ipc)
    }

    /// Enlarges the entry to `length` bytes; returns an entry with the bytes added, `None` if it was as large
    /// already.
    pub(crate) fn grow(&mut self, length: u64) -> Option<Entry> {
        let mut entry = self.entry();
        let missing = length.checked_sub(entry.size).filter(|missing| *missing != 0)?;
        entry.size = length;
        self.set_entry(entry);
        entry.size = missing;
        Some(entry)
    }

    pub(crate) fn is_multicast(&self) -> bool {
        self.entry.is(Kind::Multicast)
    }

    /// Returns whether it has a single handle and holds nothing itself.
    pub(crate) fn is_simple(&self) -> bool {
        !self.has_others() && !self.is_multicast()
    }

    pub(crate) fn let_go(&mut self) {
        self.holds = self.holds.saturating_sub(1);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.handles() == 0 && self.holds == 0
    }
}

/// Objects in pieces of 128, so that growing copies nothing and wastes little.
const PIECE: usize = 128;

#[derive(Debug)]
pub(super) struct Objects {
    pieces: Vec<Vec<Object>>,
    /// The first free slot.
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
    fn slot(&mut self, number: u32) -> Option<&mut Object> {
        let number = number as usize;
        self.pieces.get_mut(number / PIECE)?.get_mut(number % PIECE)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Object> {
        self.slot(number).filter(|object| object.handles != FREE)
    }

    /// Inserts an object held by one handle; returns its slot.
    pub(crate) fn insert(&mut self, entry: Entry) -> u32 {
        let object = Object {
            entry,
            handles: 1,
            holds: 0,
        };
        let number = self.free;
        if let Some(slot) = self.slot(number) {
            let next = std::mem::replace(slot, object).holds;
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

    pub(crate) fn remove(&mut self, number: u32) -> Option<Entry> {
        let free = self.free;
        let object = self.get_mut(number)?;
        (object.handles, object.holds) = (FREE, free);
        let entry = object.entry();
        self.free = number;
        Some(entry)
    }

    /// Calls `change` with every entry.
    pub(crate) fn each(&mut self, mut change: impl FnMut(&mut Entry)) {
        let all = self.pieces.iter_mut().flatten();
        for object in all.filter(|object| object.handles != FREE) {
            change(&mut object.entry);
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let mut all = self.pieces.iter().flatten();
        all.all(|object| object.handles == FREE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::device::LocalDevice;
    use gcgroup_abi::Kind;

    fn entry(size: u64) -> Entry {
        Entry::new(Kind::Vmm, size, LocalDevice::of(0).unwrap(), 0, 0)
    }

    #[test]
    fn freed_slots_are_reused_and_others_unchanged() {
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
    fn object_is_over_without_handles_and_mappings() {
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
