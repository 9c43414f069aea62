//! Holders of physical memory: handles, mappings, multicast objects, sparse arrays. Memory is freed when its
//! last holder goes.
//!
//! Independent of the driver and of charges. An object with one handle and one mapping takes about 80 bytes.
//!
//! Divided into shards, by handle and for mappings by address, so that threads seldom contend. An object is
//! in the shard of its first handle; a mapping refers to it by [`Number`]. Rare operations that concern
//! several shards lock all of them ([`All`]).

mod all;
mod bound;
mod names;
mod objects;
#[cfg(test)]
mod tests;

use super::ledger::Entry;
use parking_lot::{Mutex, MutexGuard};

use super::key;
pub(crate) use all::All;
use bound::Bindings;
pub(crate) use bound::{Binder, Region};
use names::{Handles, Mappings};
use objects::{Object, Objects};

/// Shards. With more, the same content would be divided less evenly and leave more room unused.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 4;

/// Number of an object: its shard and its slot there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Number(u32);

impl Number {
    fn of(shard: usize, slot: u32) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "there are few shards")]
        Self(slot.saturating_mul(1 << SHARD_BITS) | shard as u32)
    }

    fn shard(self) -> usize {
        self.0 as usize % SHARDS
    }

    fn slot(self) -> u32 {
        self.0 >> SHARD_BITS
    }
}

/// A mapping that was removed: address, bytes, number of the object.
pub(crate) type MappedRange = (u64, u64, Number);

/// A released handle: the object's number, and the object's entry if it has been freed.
pub(crate) type Released = (Number, Option<Entry>);

/// The operation concerns several shards, and nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rare;

/// One shard of the handles, with the objects whose first handle is in it.
#[derive(Debug, Default)]
struct Held {
    handles: Handles,
    objects: Objects,
}

/// A shard with cache lines of its own.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Aligned<T>(Mutex<T>);

const _: () = assert!(size_of::<Aligned<Held>>() == 128 && size_of::<Aligned<Mappings>>() == 64);

#[derive(Debug, Default)]
pub(crate) struct Physical {
    held: [Aligned<Held>; SHARDS],
    mapped: [Aligned<Mappings>; SHARDS],
    bindings: Mutex<Bindings>,
}

/// Entries that an operation has freed, and entries no longer to be shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) freed: Vec<Entry>,
    pub(crate) hidden: Vec<Entry>,
}

/// Returns the shard of a handle or an address.
#[inline(always)]
fn shard_of(key: u64) -> usize {
    key::shard(key, SHARDS)
}

impl Physical {
    #[inline(always)]
    fn held(&self, shard: usize) -> MutexGuard<'_, Held> {
        let [first, ..] = &self.held;
        self.held.get(shard).unwrap_or(first).0.lock()
    }

    #[inline(always)]
    fn mapped(&self, address: u64) -> MutexGuard<'_, Mappings> {
        let [first, ..] = &self.mapped;
        self.mapped.get(shard_of(address)).unwrap_or(first).0.lock()
    }

    /// Locks all shards.
    pub(crate) fn all(&self) -> All<'_> {
        All {
            held: self.held.each_ref().map(|shard| shard.0.lock()),
            bindings: self.bindings.lock(),
            mapped: &self.mapped,
        }
    }

    /// Inserts memory that was created; `entry` is called under the lock. Returns the object that had the
    /// handle before: the driver has reused the handle, so its holds by handles are gone; see
    /// [`All::displaced`].
    #[inline]
    pub(crate) fn add(&self, handle: u64, entry: impl FnOnce() -> Entry) -> Option<Number> {
        let shard = shard_of(handle);
        let mut held = self.held(shard);
        let number = Number::of(shard, held.objects.insert(entry()));
        held.handles.insert(handle, number)
    }

    /// Adds a hold for a mapping that is about to be made; returns the number, and whether the memory was
    /// imported. `None`: unknown handle.
    #[inline]
    pub(crate) fn hold(&self, handle: u64) -> Result<Option<(Number, bool)>, Rare> {
        let shard = shard_of(handle);
        let mut held = self.held(shard);
        let Some(number) = held.handles.get(handle) else {
            return Ok(None);
        };
        if number.shard() != shard {
            return Err(Rare);
        }
        let object = held.objects.get_mut(number.slot());
        Ok(object.map(|object| (number, object.hold())))
    }

    /// Enlarges imported memory, whose size is known only from its mappings; returns an entry with the bytes
    /// by which it grew.
    pub(crate) fn grow(&self, number: Number, length: u64) -> Option<Entry> {
        let mut held = self.held(number.shard());
        held.objects.get_mut(number.slot())?.grow(length)
    }

    /// Inserts a mapping of memory already held for it. Returns the object that was recorded there before:
    /// the driver maps nothing over an existing mapping, so that one is gone.
    #[inline]
    pub(crate) fn map(&self, address: u64, length: u64, number: Number) -> Option<Number> {
        self.mapped(address).insert((address, length, number))
    }

    /// Removes every mapping that begins within a range; the memory is still held for them.
    #[inline]
    pub(crate) fn take_mappings(&self, address: u64, length: u64) -> Vec<MappedRange> {
        let mut taken = Vec::new();
        let end = address.saturating_add(length);
        let mut next = address;
        while next < end {
            // Usually they follow one another; otherwise all mappings are searched.
            let Some(range) = self.mapped(next).take_one(next) else {
                self.take_scattered(next, end, &mut taken);
                break;
            };
            next = next.saturating_add(range.1.max(names::PAGE));
            taken.push(range);
        }
        taken
    }

    #[cold]
    #[inline(never)]
    fn take_scattered(&self, from: u64, end: u64, taken: &mut Vec<MappedRange>) {
        for shard in &self.mapped {
            shard.0.lock().take_within(from..end, |range| taken.push(range));
        }
    }

    /// Puts removed mappings back.
    pub(crate) fn put_back(&self, taken: &[MappedRange]) {
        for (address, length, number) in taken {
            self.map(*address, *length, *number);
        }
    }

    /// Drops a hold by a mapping or binding; returns the entry if it was the last hold.
    #[inline]
    pub(crate) fn let_go(&self, number: Number) -> Result<Option<Entry>, Rare> {
        let mut held = self.held(number.shard());
        let Some(object) = held.objects.get_mut(number.slot()) else {
            return Ok(None);
        };
        if object.is_multicast() {
            return Err(Rare);
        }
        object.let_go();
        if !object.is_over() {
            return Ok(None);
        }
        Ok(held.objects.remove(number.slot()))
    }

    /// Drops one hold by a handle, if it is known.
    #[inline]
    pub(crate) fn release(&self, handle: u64) -> Result<Option<Released>, Rare> {
        let shard = shard_of(handle);
        let mut held = self.held(shard);
        let Held { handles, objects } = &mut *held;
        let mut released = Ok(None);
        handles.remove_if(handle, |number| {
            let is_here = number.shard() == shard;
            let object = objects.get_mut(number.slot()).filter(|_| is_here);
            let Some(object) = object.filter(|object| object.is_simple()) else {
                released = Err(Rare);
                return false;
            };
            object.drop_handle();
            let is_last = object.handles() == 0;
            let freed = if object.is_over() {
                objects.remove(number.slot())
            } else {
                None
            };
            released = Ok(Some((number, freed)));
            // The driver may reuse the number now, while mappings still hold the memory.
            is_last
        });
        released
    }
}
