//! Who holds which physical memory: handles, mappings, multicast objects, sparse arrays. Freed with the last hold.
//!
//! Pure: knows neither the driver nor what is charged.

use std::collections::BTreeMap;

use gcgroup_abi::Kind;
use hashbrown::HashMap;

use super::ledger::Entry;

/// One piece of physical memory, or a multicast object.
#[derive(Debug)]
struct Object {
    entry: Entry,
    /// The handle it was last had by.
    handle: u64,
    handles: u32,
    /// Mappings and bindings.
    holds: u32,
    /// Whether it has been had by several handles at once.
    has_others: bool,
}

/// What memory is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Binder {
    /// A multicast object, by its number here.
    Multicast(u32),
    /// A sparse array or mipmapped array, by its handle.
    Array(u64),
}

/// Where in it: of one level and layer, or for one device, a region of up to three dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) group: [u32; 3],
    pub(crate) start: [u64; 3],
    pub(crate) extent: [u64; 3],
}

/// One binding, and what is shown of it.
#[derive(Debug)]
pub(crate) struct Binding {
    parts: Vec<Region>,
    object: u32,
    shown: Option<Entry>,
}

/// Mappings that were taken out: where, how long, of what.
pub(crate) type Mapped = Vec<(u64, u64, u32)>;

/// A hold that was dropped: whose, and the memory if it was the last.
pub(crate) type Released = (u32, Option<Entry>);

#[derive(Debug, Default)]
pub(crate) struct Physical {
    objects: HashMap<u32, Object>,
    next: u32,
    handles: HashMap<u64, u32>,
    /// By address: length and object.
    mappings: BTreeMap<u64, (u64, u32)>,
    bindings: HashMap<Binder, Vec<Binding>>,
    /// Bindings that end when a stream has come so far.
    waiting: Vec<(usize, Binding)>,
}

/// What is gone, and what is not shown any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) freed: Vec<Entry>,
    pub(crate) hidden: Vec<Entry>,
}

impl Region {
    fn end(&self, axis: usize) -> u64 {
        self.start[axis].saturating_add(self.extent[axis])
    }

    /// What is left of it without `other`: nothing, or up to six parts.
    fn without(self, other: &Self) -> Vec<Self> {
        let apart = |axis| self.end(axis) <= other.start[axis] || other.end(axis) <= self.start[axis];
        if self.group != other.group || (0..3).any(apart) {
            return vec![self];
        }
        let (mut rest, mut left) = (self, Vec::new());
        for axis in 0..3 {
            // What lies before it along the axis, and what after.
            let (from, to) = (
                rest.start[axis].max(other.start[axis]),
                rest.end(axis).min(other.end(axis)),
            );
            for (start, end) in [(rest.start[axis], from), (to, rest.end(axis))] {
                if start < end {
                    let mut part = rest;
                    (part.start[axis], part.extent[axis]) = (start, end - start);
                    left.push(part);
                }
            }
            (rest.start[axis], rest.extent[axis]) = (from, to - from);
        }
        left
    }
}

impl Binding {
    /// Takes a region off; whether nothing is left.
    fn cut(&mut self, region: &Region) -> bool {
        let parts = std::mem::take(&mut self.parts);
        self.parts = parts.into_iter().flat_map(|part| part.without(region)).collect();
        self.parts.is_empty()
    }
}

impl Physical {
    /// Enters memory that was created; returns what had the handle before, if only that held it: the driver gave the
    /// number out anew, so it is gone.
    pub(crate) fn add(&mut self, handle: u64, entry: Entry) -> Gone {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let object = Object {
            entry,
            handle,
            handles: 1,
            holds: 0,
            has_others: false,
        };
        self.objects.insert(number, object);
        let mut gone = Gone::default();
        if let Some(before) = self.handles.insert(handle, number) {
            if let Some(object) = self.objects.get_mut(&before) {
                object.handles = 0;
            }
            self.end(before, &mut gone);
        }
        gone
    }

    /// One more hold by a handle that is known; whether it is.
    pub(crate) fn hold(&mut self, handle: u64) -> bool {
        let object = self
            .handles
            .get(&handle)
            .and_then(|number| self.objects.get_mut(number));
        object.map(|object| object.handles += 1).is_some()
    }

    /// The object that a handle stands for.
    pub(crate) fn of_handle(&self, handle: u64) -> Option<u32> {
        self.handles.get(&handle).copied()
    }

    /// The object that is mapped at an address.
    pub(crate) fn at(&self, address: u64) -> Option<u32> {
        let (start, (length, number)) = self.mappings.range(..=address).next_back()?;
        (address - start < *length).then_some(*number)
    }

    pub(crate) fn entry(&self, number: u32) -> Option<&Entry> {
        Some(&self.objects.get(&number)?.entry)
    }

    /// Enters a mapping. How large imported memory is shows only here: by how much that is more than was known.
    pub(crate) fn map(&mut self, address: u64, length: u64, handle: u64) -> Option<Entry> {
        let number = self.of_handle(handle)?;
        let object = self.objects.get_mut(&number)?;
        object.holds += 1;
        self.mappings.insert(address, (length, number));
        if object.entry.kind() != Kind::Ipc || object.entry.size >= length {
            return None;
        }
        let mut more = object.entry;
        more.size = length - object.entry.size;
        object.entry.size = length;
        Some(more)
    }

    /// One more hold on what is mapped at `address`, by that handle.
    pub(crate) fn retain(&mut self, address: u64, handle: u64) {
        let Some(number) = self.at(address) else { return };
        if let Some(object) = self.objects.get_mut(&number) {
            object.has_others |= object.handles > 0 && object.handle != handle;
            object.handle = handle;
            object.handles += 1;
            self.handles.insert(handle, number);
        }
    }

    /// Drops one hold of the handle.
    pub(crate) fn release(&mut self, handle: u64, gone: &mut Gone) -> Option<Released> {
        let number = *self.handles.get(&handle)?;
        let object = self.objects.get_mut(&number)?;
        object.handles = object.handles.saturating_sub(1);
        if object.handles == 0 {
            // The driver may give the number to another now, while mappings keep the memory.
            if object.has_others {
                self.handles.retain(|_, other| *other != number);
            } else {
                self.handles.remove(&object.handle);
            }
        }
        let before = gone.freed.len();
        self.end(number, gone);
        Some((number, gone.freed.get(before).copied()))
    }

    /// Takes a release back.
    pub(crate) fn undo(&mut self, handle: u64, (number, freed): Released) {
        if let Some(entry) = freed {
            let object = Object {
                entry,
                handle,
                handles: 0,
                holds: 0,
                has_others: false,
            };
            self.objects.insert(number, object);
        }
        if let Some(object) = self.objects.get_mut(&number) {
            object.handles += 1;
            self.handles.insert(handle, number);
        }
    }

    /// Takes out every mapping that begins within a range; what they mapped is still held.
    pub(crate) fn take_mappings(&mut self, address: u64, length: u64) -> Mapped {
        let range = address..address.saturating_add(length);
        let taken: Mapped = self
            .mappings
            .range(range)
            .map(|(start, (length, number))| (*start, *length, *number))
            .collect();
        for (start, ..) in &taken {
            self.mappings.remove(start);
        }
        taken
    }

    /// Takes that back.
    pub(crate) fn put_back(&mut self, taken: &Mapped) {
        for (start, length, number) in taken {
            self.mappings.insert(*start, (*length, *number));
        }
    }

    /// They are unmapped.
    pub(crate) fn unmapped(&mut self, taken: &Mapped, gone: &mut Gone) {
        for (.., number) in taken {
            self.let_go(*number, gone);
        }
    }

    /// Binds memory to something, in place of what was bound there.
    pub(crate) fn bind(
        &mut self,
        to: Binder,
        region: Region,
        object: u32,
        shown: Option<Entry>,
        gone: &mut Gone,
    ) {
        // First, for it may be the same memory.
        if let Some(object) = self.objects.get_mut(&object) {
            object.holds += 1;
        }
        self.unbind(to, &region, gone);
        let binding = Binding {
            parts: vec![region],
            object,
            shown,
        };
        self.bindings.entry(to).or_default().push(binding);
    }

    /// Ends what is bound in a region.
    pub(crate) fn unbind(&mut self, from: Binder, region: &Region, gone: &mut Gone) {
        for binding in self.cut(from, region) {
            self.end_binding(binding, gone);
        }
    }

    /// The same, once that stream has come so far.
    pub(crate) fn unbind_after(&mut self, stream: usize, from: Binder, region: &Region) {
        let ending = self.cut(from, region);
        self.waiting
            .extend(ending.into_iter().map(|binding| (stream, binding)));
    }

    /// That stream has come so far.
    pub(crate) fn passed(&mut self, stream: usize, gone: &mut Gone) {
        let is_over = |waiting: &mut (usize, Binding)| stream == waiting.0;
        for (_, binding) in self.waiting.extract_if(.., is_over).collect::<Vec<_>>() {
            self.end_binding(binding, gone);
        }
    }

    /// The streams that bindings wait for.
    pub(crate) fn waits_for(&self) -> Vec<usize> {
        let mut streams: Vec<_> = self.waiting.iter().map(|(stream, _)| *stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// What memory was bound to is gone.
    pub(crate) fn unbind_all(&mut self, from: Binder, gone: &mut Gone) {
        for binding in self.bindings.remove(&from).unwrap_or_default() {
            self.end_binding(binding, gone);
        }
    }

    /// Takes a region off what is bound; the bindings of which nothing is left.
    fn cut(&mut self, from: Binder, region: &Region) -> Vec<Binding> {
        let Some(all) = self.bindings.get_mut(&from) else {
            return Vec::new();
        };
        let taken = all.extract_if(.., |binding| binding.cut(region)).collect();
        if all.is_empty() {
            self.bindings.remove(&from);
        }
        taken
    }

    fn end_binding(&mut self, binding: Binding, gone: &mut Gone) {
        gone.hidden.extend(binding.shown);
        self.let_go(binding.object, gone);
    }

    fn let_go(&mut self, number: u32, gone: &mut Gone) {
        if let Some(object) = self.objects.get_mut(&number) {
            object.holds = object.holds.saturating_sub(1);
        }
        self.end(number, gone);
    }

    fn end(&mut self, number: u32, gone: &mut Gone) {
        let is_over = |object: &Object| object.handles == 0 && object.holds == 0;
        if self.objects.get(&number).is_some_and(is_over)
            && let Some(object) = self.objects.remove(&number)
        {
            gone.freed.push(object.entry);
            self.unbind_all(Binder::Multicast(number), gone);
        }
    }

    /// Shows every entry, which may be changed.
    pub(crate) fn each(&mut self, mut change: impl FnMut(&mut Entry)) {
        let objects = self.objects.values_mut().map(|object| &mut object.entry);
        objects.for_each(&mut change);
        let bound = self.bindings.values_mut().flatten();
        let waiting = self.waiting.iter_mut().map(|(_, binding)| binding);
        bound
            .chain(waiting)
            .filter_map(|binding| binding.shown.as_mut())
            .for_each(&mut change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::LocalDevice;

    fn of(kind: Kind, size: u64) -> Entry {
        Entry::new(kind, size, LocalDevice::of(0).unwrap(), 0, 0)
    }

    fn entry(size: u64) -> Entry {
        of(Kind::Vmm, size)
    }

    fn freed(physical: &mut Physical, handle: u64) -> Option<Entry> {
        physical.release(handle, &mut Gone::default())?.1
    }

    fn unmap(physical: &mut Physical, address: u64, length: u64) -> Vec<Entry> {
        let mut gone = Gone::default();
        let taken = physical.take_mappings(address, length);
        physical.unmapped(&taken, &mut gone);
        gone.freed
    }

    fn is_empty(physical: &Physical) -> bool {
        physical.objects.is_empty()
            && physical.handles.is_empty()
            && physical.mappings.is_empty()
            && physical.bindings.is_empty()
            && physical.waiting.is_empty()
    }

    fn region(start: u64, extent: u64) -> Region {
        Region {
            group: [0; 3],
            start: [start, 0, 0],
            extent: [extent, 1, 1],
        }
    }

    #[test]
    fn a_region_is_cut_into_what_is_left_of_it() {
        let cube = |start: [u64; 3], extent: [u64; 3]| Region {
            group: [0; 3],
            start,
            extent,
        };
        let volume =
            |parts: &[Region]| -> u64 { parts.iter().map(|part| part.extent.iter().product::<u64>()).sum() };
        let whole = cube([10; 3], [10; 3]);
        assert_eq!(whole.without(&cube([0; 3], [30; 3])), []);
        assert_eq!(whole.without(&cube([20, 10, 10], [1; 3])), [whole], "beside it");
        let mut other = cube([0; 3], [30; 3]);
        other.group = [1, 0, 0];
        assert_eq!(whole.without(&other), [whole], "another level");
        let holed = whole.without(&cube([12; 3], [5; 3]));
        assert_eq!((holed.len(), volume(&holed)), (6, 1000 - 125));
        let corner = whole.without(&cube([15; 3], [30; 3]));
        assert_eq!((corner.len(), volume(&corner)), (3, 1000 - 125));
        for (at, part) in holed.iter().enumerate() {
            for other in &holed[at + 1..] {
                assert_eq!(part.without(other), [*part], "no two have anything in common");
            }
        }
    }

    #[test]
    fn memory_lives_as_long_as_a_handle_or_a_mapping_holds_it() {
        let mut physical = Physical::default();
        physical.add(7, entry(100));
        physical.map(0x1000, 0x100, 7);
        physical.map(0x2000, 0x100, 7);
        assert_eq!(freed(&mut physical, 7), None);
        physical.add(7, entry(200));
        assert_eq!(
            freed(&mut physical, 7),
            Some(entry(200)),
            "the number was another's by then"
        );
        assert_eq!(unmap(&mut physical, 0x1000, 0x100), []);
        assert_eq!(unmap(&mut physical, 0x2000, 0x100), [entry(100)]);
        assert!(is_empty(&physical));
    }

    #[test]
    fn a_retained_handle_is_one_more_hold() {
        let mut physical = Physical::default();
        physical.add(7, entry(100));
        physical.map(0x1000, 0x100, 7);
        physical.retain(0x1080, 9);
        physical.retain(0x1100, 11);
        assert_eq!(freed(&mut physical, 11), None, "nothing is mapped there");
        assert_eq!(unmap(&mut physical, 0x1000, 0x100), []);
        assert_eq!(freed(&mut physical, 9), None);
        assert_eq!(freed(&mut physical, 7), Some(entry(100)));
        assert!(is_empty(&physical));
    }

    #[test]
    fn what_is_retained_after_its_last_handle_is_had_by_the_new_one() {
        let mut physical = Physical::default();
        physical.add(7, entry(100));
        physical.map(0x1000, 0x100, 7);
        assert_eq!(freed(&mut physical, 7), None);
        physical.retain(0x1000, 8);
        assert_eq!(unmap(&mut physical, 0x1000, 0x100), []);
        assert_eq!(freed(&mut physical, 8), Some(entry(100)));
        assert!(is_empty(&physical));
    }

    #[test]
    fn a_call_that_the_driver_refused_changed_nothing() {
        let mut physical = Physical::default();
        physical.add(7, entry(100));
        let released = physical.release(7, &mut Gone::default()).unwrap();
        physical.undo(7, released);
        assert!(physical.hold(7));
        let released = physical.release(7, &mut Gone::default()).unwrap();
        assert_eq!(released.1, None);
        physical.undo(7, released);
        physical.map(0x1000, 0x100, 7);
        let taken = physical.take_mappings(0x1000, 0x100);
        assert_eq!(physical.at(0x1000), None);
        physical.put_back(&taken);
        assert_eq!(unmap(&mut physical, 0x1000, 0x100), []);
        assert_eq!(freed(&mut physical, 7), None);
        assert_eq!(freed(&mut physical, 7), Some(entry(100)));
        assert!(!physical.hold(7) && is_empty(&physical));
    }

    #[test]
    fn a_handle_that_is_given_out_anew_ends_what_had_it() {
        let mut physical = Physical::default();
        assert_eq!(physical.add(7, entry(100)), Gone::default());
        assert_eq!(physical.add(7, entry(200)).freed, [entry(100)]);
        assert_eq!(freed(&mut physical, 7), Some(entry(200)));
    }

    #[test]
    fn one_unmapping_may_end_several_mappings() {
        let mut physical = Physical::default();
        physical.add(1, entry(10));
        physical.add(2, entry(20));
        physical.map(0x1000, 0x1000, 1);
        physical.map(0x2000, 0x1000, 2);
        assert_eq!(freed(&mut physical, 1), None);
        assert_eq!(unmap(&mut physical, 0x1000, 0x2000), [entry(10)]);
        assert_eq!(freed(&mut physical, 2), Some(entry(20)));
    }

    #[test]
    fn imported_memory_is_as_large_as_its_largest_mapping() {
        let mut physical = Physical::default();
        physical.add(7, of(Kind::Ipc, 0));
        assert_eq!(physical.map(0x1000, 0x100, 7), Some(of(Kind::Ipc, 0x100)));
        assert_eq!(physical.map(0x2000, 0x100, 7), None);
        assert_eq!(physical.map(0x3000, 0x180, 7), Some(of(Kind::Ipc, 0x80)));
        assert_eq!(unmap(&mut physical, 0x1000, 0x3000), []);
        assert_eq!(freed(&mut physical, 7), Some(of(Kind::Ipc, 0x180)));
    }

    #[test]
    fn what_a_multicast_object_binds_is_held_until_that_is_gone() {
        let mut physical = Physical::default();
        physical.add(1, of(Kind::Multicast, 0));
        physical.add(2, entry(100));
        let (multicast, memory) = (physical.of_handle(1).unwrap(), physical.of_handle(2).unwrap());
        let mut gone = Gone::default();
        let shown = of(Kind::Multicast, 100);
        physical.bind(
            Binder::Multicast(multicast),
            region(0, 100),
            memory,
            Some(shown),
            &mut gone,
        );
        assert_eq!(freed(&mut physical, 2), None);
        physical.map(0x1000, 0x100, 1);
        assert_eq!(freed(&mut physical, 1), None, "mapped still");
        let taken = physical.take_mappings(0x1000, 0x100);
        physical.unmapped(&taken, &mut gone);
        assert_eq!(gone.freed, [of(Kind::Multicast, 0), entry(100)]);
        assert_eq!(gone.hidden, [shown]);
        assert!(is_empty(&physical));
    }

    #[test]
    fn tiles_of_a_sparse_array_hold_their_memory_until_a_stream_has_unmapped_them() {
        let mut physical = Physical::default();
        let mut gone = Gone::default();
        physical.add(1, entry(10));
        physical.add(2, entry(20));
        let array = Binder::Array(77);
        for (handle, start) in [(1, 0), (2, 64)] {
            let memory = physical.of_handle(handle).unwrap();
            physical.bind(array, region(start, 64), memory, None, &mut gone);
            assert_eq!(freed(&mut physical, handle), None);
        }
        physical.unbind_after(5, array, &region(0, 32));
        physical.passed(5, &mut gone);
        assert_eq!(gone, Gone::default(), "half of it is there still");
        physical.unbind_after(5, array, &region(0, 32));
        physical.unbind_after(5, array, &region(32, 32));
        physical.passed(6, &mut gone);
        assert_eq!(gone, Gone::default());
        physical.passed(5, &mut gone);
        assert_eq!(gone.freed, [entry(10)]);
        physical.add(3, entry(30));
        let memory = physical.of_handle(3).unwrap();
        physical.bind(array, region(64, 64), memory, None, &mut gone);
        assert_eq!(gone.freed, [entry(10), entry(20)], "another in its place");
        physical.unbind_all(array, &mut gone);
        assert_eq!(freed(&mut physical, 3), Some(entry(30)));
        assert!(is_empty(&physical));
    }
}
