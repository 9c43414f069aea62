//! Holders of physical memory: handles, mappings, multicast objects, sparse arrays. Memory is freed when its
//! last holder goes.
//!
//! Independent of the driver, of charges and of locks: the caller has one for all of it, since the driver
//! takes microseconds for each of these calls.

mod bound;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use gcgroup_abi::Kind;
use hashbrown::HashMap;

use super::ledger::Entry;
use super::stream::{Order, Reached, Stream};
pub(crate) use bound::{Binder, Region};
use bound::{Binding, Bindings};

/// Number of an object, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Number(u64);

/// A mapping that was removed: address, bytes, number of the object.
pub(crate) type MappedRange = (u64, u64, Number);

/// A released handle: the object's number, and the object's entry if it has been freed.
pub(crate) type Released = (Number, Option<Entry>);

/// Physical memory, or a multicast object.
#[derive(Debug)]
struct Object {
    entry: Entry,
    /// Number of holds by handles.
    handles: u32,
    /// Whether several handles have referred to it at once.
    has_others: bool,
    /// Number of mappings and bindings.
    holds: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Physical {
    objects: HashMap<Number, Object>,
    next: u64,
    handles: HashMap<u64, Number>,
    /// Bytes and object of each mapping, by its address.
    mapped: BTreeMap<u64, (u64, Number)>,
    bindings: Bindings,
}

/// Entries that an operation has freed, and entries no longer to be shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) freed: Vec<Entry>,
    pub(crate) hidden: Vec<Entry>,
}

impl Physical {
    fn insert(&mut self, entry: Entry) -> Number {
        let number = Number(self.next);
        self.next += 1;
        let object = Object {
            entry,
            handles: 1,
            has_others: false,
            holds: 0,
        };
        self.objects.insert(number, object);
        number
    }

    /// Inserts memory that was created. If an object had the handle before, the driver has reused it, so the
    /// holds of that object by handles are gone.
    pub(crate) fn add(&mut self, handle: u64, entry: Entry, gone: &mut Gone) {
        let number = self.insert(entry);
        let Some(before) = self.handles.insert(handle, number) else {
            return;
        };
        if let Some(object) = self.objects.get_mut(&before) {
            object.handles = 0;
        }
        self.end(before, gone);
    }

    /// Returns the object that a handle refers to.
    pub(crate) fn of_handle(&self, handle: u64) -> Option<Number> {
        self.handles.get(&handle).copied()
    }

    /// Returns the object mapped at an address.
    pub(crate) fn at(&self, address: u64) -> Option<Number> {
        let (from, (length, number)) = self.mapped.range(..=address).next_back()?;
        (address - from < *length).then_some(*number)
    }

    pub(crate) fn entry(&self, number: Number) -> Option<Entry> {
        Some(self.objects.get(&number)?.entry)
    }

    /// Calls `change` with the entry of an object. Must not change its size.
    pub(crate) fn change(&mut self, number: Number, change: impl FnOnce(&mut Entry)) {
        if let Some(object) = self.objects.get_mut(&number) {
            change(&mut object.entry);
        }
    }

    /// Adds a hold by a known handle; returns whether the handle is known.
    pub(crate) fn hold_handle(&mut self, handle: u64) -> bool {
        let number = self.of_handle(handle);
        let object = number.and_then(|number| self.objects.get_mut(&number));
        object
            .map(|object| object.handles = object.handles.saturating_add(1))
            .is_some()
    }

    /// Adds a hold for a mapping that is about to be made; returns the number, and whether the memory was
    /// imported. `None`: unknown handle.
    pub(crate) fn hold(&mut self, handle: u64) -> Option<(Number, bool)> {
        let number = self.of_handle(handle)?;
        let object = self.objects.get_mut(&number)?;
        object.holds = object.holds.saturating_add(1);
        Some((number, object.entry.is(Kind::Ipc)))
    }

    /// Enlarges imported memory, whose size is known only from its mappings; returns an entry with the bytes
    /// by which it grew.
    pub(crate) fn grow(&mut self, number: Number, length: u64) -> Option<Entry> {
        let entry = &mut self.objects.get_mut(&number)?.entry;
        let missing = length.checked_sub(entry.size).filter(|missing| *missing != 0)?;
        entry.size = length;
        let mut more = *entry;
        more.size = missing;
        Some(more)
    }

    /// Inserts a mapping of memory already held for it. The driver maps nothing over an existing mapping, so
    /// one that was recorded there is gone.
    pub(crate) fn map(&mut self, (address, length, number): MappedRange, gone: &mut Gone) {
        if let Some((_, before)) = self.mapped.insert(address, (length, number)) {
            self.let_go(before, gone);
        }
    }

    /// Removes every mapping that begins within a range; the memory is still held for them.
    pub(crate) fn take_mappings(&mut self, address: u64, length: u64) -> Vec<MappedRange> {
        let range = address..address.saturating_add(length);
        let taken = self.mapped.extract_if(range, |_, _| true);
        taken
            .map(|(address, (length, number))| (address, length, number))
            .collect()
    }

    /// Adds a hold by `handle` on what is mapped at `address`.
    pub(crate) fn retain(&mut self, address: u64, handle: u64) {
        let Some(number) = self.at(address) else { return };
        let is_new = self.of_handle(handle) != Some(number);
        if let Some(object) = self.objects.get_mut(&number) {
            object.has_others |= is_new && object.handles > 0;
            object.handles = object.handles.saturating_add(1);
            self.handles.insert(handle, number);
        }
    }

    /// Drops one hold by a handle, if it is known.
    pub(crate) fn release(&mut self, handle: u64, gone: &mut Gone) -> Option<Released> {
        let number = self.of_handle(handle)?;
        let object = self.objects.get_mut(&number)?;
        object.handles = object.handles.saturating_sub(1);
        if object.handles != 0 {
            return Some((number, None));
        }
        // The driver may reuse the handles now, while mappings still hold the memory.
        if object.has_others {
            self.handles.retain(|_, named| *named != number);
        } else {
            self.handles.remove(&handle);
        }
        Some((number, self.end(number, gone)))
    }

    /// Undoes a release.
    pub(crate) fn undo(&mut self, handle: u64, (number, freed): Released) {
        let number = match freed {
            Some(entry) => self.insert(entry),
            None => {
                if let Some(object) = self.objects.get_mut(&number) {
                    object.handles = object.handles.saturating_add(1);
                }
                number
            }
        };
        self.handles.insert(handle, number);
    }

    /// Binds memory to a region, replacing what was bound there.
    #[expect(
        clippy::too_many_arguments,
        reason = "one binding, as the driver describes it"
    )]
    pub(crate) fn bind(
        &mut self,
        to: Binder,
        region: Region,
        object: Number,
        shown: Option<Entry>,
        gone: &mut Gone,
    ) {
        // Before unbinding, which may concern the same memory.
        if let Some(object) = self.objects.get_mut(&object) {
            object.holds = object.holds.saturating_add(1);
        }
        self.unbind(to, &region, gone);
        self.bindings.add(to, region, object, shown);
    }

    /// Ends the bindings in a region.
    pub(crate) fn unbind(&mut self, from: Binder, region: &Region, gone: &mut Gone) {
        let ended = self.bindings.cut(from, region);
        self.end_bindings(ended, gone);
    }

    /// Ends the bindings in a region when a stream reaches the call.
    pub(crate) fn unbind_after(&mut self, order: Order, from: Binder, region: &Region) {
        self.bindings.cut_after(order, from, region);
    }

    /// Ends the bindings that waited for what streams have reached.
    pub(crate) fn passed(&mut self, reached: Reached<'_>, gone: &mut Gone) {
        let ended = self.bindings.passed(reached);
        self.end_bindings(ended, gone);
    }

    /// Returns the streams that bindings wait for, one for each binding.
    pub(crate) fn waits_for(&self) -> Vec<Stream> {
        self.bindings.waits_for()
    }

    /// Has bindings that wait for a stream wait for another one; returns whether there are any.
    pub(crate) fn replace(&mut self, stream: Stream, by: Stream) -> bool {
        self.bindings.replace(stream, by)
    }

    /// Ends all bindings of a binder that is gone.
    pub(crate) fn unbind_all(&mut self, from: Binder, gone: &mut Gone) {
        let ended = self.bindings.remove(from);
        self.end_bindings(ended, gone);
    }

    fn end_bindings(&mut self, ended: Vec<Binding>, gone: &mut Gone) {
        for binding in ended {
            gone.hidden.extend(binding.shown);
            self.let_go(binding.object, gone);
        }
    }

    /// Drops a hold by a mapping or binding.
    pub(crate) fn let_go(&mut self, number: Number, gone: &mut Gone) {
        if let Some(object) = self.objects.get_mut(&number) {
            object.holds = object.holds.saturating_sub(1);
            self.end(number, gone);
        }
    }

    /// Removes an object without holders; returns its entry.
    fn end(&mut self, number: Number, gone: &mut Gone) -> Option<Entry> {
        let object = self.objects.get(&number)?;
        if object.handles != 0 || object.holds != 0 {
            return None;
        }
        let Object { entry, .. } = self.objects.remove(&number)?;
        gone.freed.push(entry);
        if entry.kind() == Kind::Multicast {
            self.unbind_all(Binder::Multicast(number), gone);
        }
        Some(entry)
    }

    /// Calls `change` with every entry.
    pub(crate) fn each(&mut self, mut change: impl FnMut(&mut Entry)) {
        self.objects
            .values_mut()
            .for_each(|object| change(&mut object.entry));
        self.bindings.shown().for_each(&mut change);
    }
}
