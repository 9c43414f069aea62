//! Who holds which physical memory: handles, mappings, multicast objects, sparse arrays. Freed with the last hold.
//!
//! Pure: knows neither the driver nor what is charged. About 60 bytes for what has one handle and one mapping.
//!
//! Cut into shards by the handle, and mappings by the address, so that threads seldom meet. An object is in the shard of its
//! first handle, and a mapping knows its number. What concerns several shards is rare, and done with the locks of all
//! ([`All`]).

mod all;
mod bound;
mod names;
mod objects;
#[cfg(test)]
mod tests;

use super::few::Few;
use super::ledger::Entry;
use super::lock::{Guard, Lock};
pub(crate) use all::All;
use bound::Bindings;
pub(crate) use bound::{Binder, Region};
use names::{Handles, Mappings};
use objects::{Object, Objects};

/// More would leave more room unused: what there is would be cut less evenly.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 4;

/// An object: in which shard, and where there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Number(u32);

impl Number {
    fn of(shard: usize, place: u32) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "there are few shards")]
        Self(place.saturating_mul(1 << SHARD_BITS) | shard as u32)
    }

    fn shard(self) -> usize {
        self.0 as usize % SHARDS
    }

    fn place(self) -> u32 {
        self.0 >> SHARD_BITS
    }
}

/// Where and of which object a mapping was that was taken out: address, bytes, number.
pub(crate) type Place = (u64, u64, Number);

/// Mappings that were taken out.
pub(crate) type Mapped = Few<Place>;

/// A hold that was dropped: whose, and the memory if it was the last.
pub(crate) type Released = (Number, Option<Entry>);

/// It concerns several shards, and nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rare;

/// One shard of the handles, with the objects that they stand for or stood for.
#[derive(Debug, Default)]
struct Held {
    handles: Handles,
    objects: Objects,
}

/// It has cache lines of its own, and what was entered last is in them.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Aligned<T>(Lock<T>);

const _: () = assert!(size_of::<Aligned<Held>>() == 128 && size_of::<Aligned<Mappings>>() == 128);

#[derive(Debug, Default)]
pub(crate) struct Physical {
    held: [Aligned<Held>; SHARDS],
    mapped: [Aligned<Mappings>; SHARDS],
    bindings: Lock<Bindings>,
}

/// What is gone, and what is not shown any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) freed: Few<Entry>,
    pub(crate) hidden: Few<Entry>,
}

/// By the bits that the tables do not use, which neighbours share.
#[inline(always)]
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

impl Physical {
    #[inline(always)]
    fn held(&self, shard: usize) -> Guard<'_, Held> {
        let [first, ..] = &self.held;
        self.held.get(shard).unwrap_or(first).0.lock()
    }

    #[inline(always)]
    fn mapped(&self, hash: u64) -> Guard<'_, Mappings> {
        let [first, ..] = &self.mapped;
        self.mapped.get(shard_of(hash)).unwrap_or(first).0.lock()
    }

    /// With the locks of all shards: nobody else does anything meanwhile.
    pub(crate) fn all(&self) -> All<'_> {
        All {
            held: self.held.each_ref().map(|shard| shard.0.lock()),
            bindings: self.bindings.lock(),
            mapped: &self.mapped,
        }
    }

    /// Enters memory that was created, which `entry` tells under the lock; what had the handle before. The driver gave the
    /// number out anew, so its holds by handles are gone: see [`All::displaced`].
    #[inline]
    pub(crate) fn add(&self, handle: u64, entry: impl FnOnce() -> Entry) -> Option<Number> {
        let hash = names::hash(handle);
        let shard = shard_of(hash);
        let mut held = self.held(shard);
        let number = Number::of(shard, held.objects.insert(entry()));
        held.handles.insert(hash, handle, number)
    }

    /// Holds what is about to be mapped, if that is known: its number, and whether it was imported.
    #[inline]
    pub(crate) fn hold(&self, handle: u64) -> Result<Option<(Number, bool)>, Rare> {
        let hash = names::hash(handle);
        let shard = shard_of(hash);
        let mut held = self.held(shard);
        let Some(number) = held.handles.get(hash, handle) else {
            return Ok(None);
        };
        if number.shard() != shard {
            return Err(Rare);
        }
        let object = held.objects.get_mut(number.place());
        Ok(object.map(|object| (number, object.hold())))
    }

    /// How large imported memory is shows only where it is mapped: by how much that is more than was known.
    pub(crate) fn grow(&self, number: Number, length: u64) -> Option<Entry> {
        let mut held = self.held(number.shard());
        held.objects.get_mut(number.place())?.grow(length)
    }

    /// Enters a mapping of what is held for it. What was mapped there before, which nobody has let go: the driver maps nothing
    /// over something, so it is gone.
    #[inline]
    pub(crate) fn map(&self, address: u64, length: u64, number: Number) -> Option<Number> {
        let hash = names::hash_of_address(address);
        self.mapped(hash).insert(hash, (address, length, number))
    }

    /// Takes out every mapping that begins within a range; what they mapped is still held.
    #[inline]
    pub(crate) fn take_mappings(&self, address: u64, length: u64) -> Mapped {
        let mut taken = Mapped::default();
        let end = address.saturating_add(length);
        let mut next = address;
        while next < end {
            let hash = names::hash_of_address(next);
            // They follow one another, or else all are looked at.
            let Some(place) = self.mapped(hash).take_one(hash, next) else {
                self.take_scattered(next, end, &mut taken);
                break;
            };
            next = next.saturating_add(place.1.max(names::PAGE));
            taken.push(place);
        }
        taken
    }

    #[cold]
    #[inline(never)]
    fn take_scattered(&self, from: u64, end: u64, taken: &mut Mapped) {
        for shard in &self.mapped {
            shard.0.lock().take_within(from..end, |place| taken.push(place));
        }
    }

    /// Takes that back.
    pub(crate) fn put_back(&self, taken: &Mapped) {
        taken.for_each(|(address, length, number)| {
            self.map(*address, *length, *number);
        });
    }

    /// Lets go of what was mapped; the memory if that was the last hold.
    #[inline]
    pub(crate) fn let_go(&self, number: Number) -> Result<Option<Entry>, Rare> {
        let mut held = self.held(number.shard());
        let Some(object) = held.objects.get_mut(number.place()) else {
            return Ok(None);
        };
        if object.is_multicast() {
            return Err(Rare);
        }
        object.let_go();
        if !object.is_over() {
            return Ok(None);
        }
        Ok(held.objects.remove(number.place()))
    }

    /// Drops one hold of the handle, if it is known.
    #[inline]
    pub(crate) fn release(&self, handle: u64) -> Result<Option<Released>, Rare> {
        let hash = names::hash(handle);
        let shard = shard_of(hash);
        let mut held = self.held(shard);
        let Held { handles, objects } = &mut *held;
        let mut released = Ok(None);
        handles.remove_if(hash, handle, |number| {
            let is_here = number.shard() == shard;
            let object = objects.get_mut(number.place()).filter(|_| is_here);
            let Some(object) = object.filter(|object| object.is_simple()) else {
                released = Err(Rare);
                return false;
            };
            object.drop_handle();
            let is_last = object.handles() == 0;
            let freed = if object.is_over() {
                objects.remove(number.place())
            } else {
                None
            };
            released = Ok(Some((number, freed)));
            // The driver may give the number to another now, while mappings keep the memory.
            is_last
        });
        released
    }
}
