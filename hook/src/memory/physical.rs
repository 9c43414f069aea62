//! Who holds which physical memory: handles, mappings, multicast objects, sparse arrays. Freed with the last hold.
//!
//! Pure: knows neither the driver nor what is charged. About 60 bytes for what has one handle and one mapping.

mod bound;
mod names;
mod objects;
#[cfg(test)]
mod tests;

use gcgroup_abi::Kind;

use super::few::Few;
use super::ledger::Entry;
pub(crate) use bound::{Binder, Region};
use bound::{Binding, Bindings};
use names::{Handles, Mappings, Place};
use objects::Objects;

/// Mappings that were taken out: where, how long, of what.
pub(crate) type Mapped = Few<Place>;

/// A hold that was dropped: whose, and the memory if it was the last.
pub(crate) type Released = (u32, Option<Entry>);

#[derive(Debug, Default)]
pub(crate) struct Physical {
    objects: Objects,
    handles: Handles,
    mappings: Mappings,
    bindings: Bindings,
}

/// What is gone, and what is not shown any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) freed: Few<Entry>,
    pub(crate) hidden: Few<Entry>,
}

impl Gone {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.freed.is_empty() && self.hidden.is_empty()
    }
}

impl Physical {
    /// Enters memory that was created; returns what had the handle before, if only that held it: the driver gave the
    /// number out anew, so it is gone.
    pub(crate) fn add(&mut self, handle: u64, entry: Entry) -> Gone {
        let number = self.objects.insert(entry);
        let mut gone = Gone::default();
        if let Some(before) = self.handles.insert(handle, number) {
            if let Some(object) = self.objects.get_mut(before) {
                object.drop_handles();
            }
            self.end(before, &mut gone);
        }
        gone
    }

    /// One more hold by a handle that is known; whether it is.
    pub(crate) fn hold(&mut self, handle: u64) -> bool {
        let object = self
            .handles
            .get(handle)
            .and_then(|number| self.objects.get_mut(number));
        object.map(|object| object.take_handle(false)).is_some()
    }

    /// The object that a handle stands for.
    pub(crate) fn of_handle(&self, handle: u64) -> Option<u32> {
        self.handles.get(handle)
    }

    /// The object that is mapped at an address.
    pub(crate) fn at(&self, address: u64) -> Option<u32> {
        self.mappings.at(address)
    }

    pub(crate) fn entry(&self, number: u32) -> Option<Entry> {
        Some(self.objects.get(number)?.entry())
    }

    /// Enters a mapping. How large imported memory is shows only here: by how much that is more than was known.
    pub(crate) fn map(&mut self, address: u64, length: u64, handle: u64, gone: &mut Gone) -> Option<Entry> {
        let number = self.of_handle(handle)?;
        let object = self.objects.get_mut(number)?;
        object.hold();
        let mut more = None;
        let mut entry = object.entry();
        if entry.is(Kind::Ipc) && entry.size < length {
            let mut missing = entry;
            missing.size = length - entry.size;
            entry.size = length;
            object.set_entry(entry);
            more = Some(missing);
        }
        // The driver maps nothing over something, so what was there is gone.
        if let Some(before) = self.mappings.insert((address, length, number)) {
            self.let_go(before, gone);
        }
        more
    }

    /// One more hold on what is mapped at `address`, by that handle.
    pub(crate) fn retain(&mut self, address: u64, handle: u64) {
        let Some(number) = self.at(address) else { return };
        let is_new = self.handles.get(handle) != Some(number);
        if let Some(object) = self.objects.get_mut(number) {
            object.take_handle(is_new && object.handles() > 0);
            self.handles.insert(handle, number);
        }
    }

    /// Drops one hold of the handle.
    pub(crate) fn release(&mut self, handle: u64, gone: &mut Gone) -> Option<Released> {
        let known = self.handles.known(handle)?;
        let number = known.number();
        let object = self.objects.get_mut(number)?;
        object.drop_handle();
        if object.handles() != 0 {
            return Some((number, None));
        }
        let has_others = object.has_others();
        let is_over = object.is_over();
        // The driver may give the number to another now, while mappings keep the memory.
        known.remove();
        if has_others {
            self.handles.remove_all(number);
        }
        let freed = is_over.then(|| self.end(number, gone)).flatten();
        Some((number, freed))
    }

    /// Takes a release back.
    pub(crate) fn undo(&mut self, handle: u64, (number, freed): Released) {
        let number = match freed {
            Some(entry) => self.objects.insert(entry),
            None => {
                if let Some(object) = self.objects.get_mut(number) {
                    object.take_handle(false);
                }
                number
            }
        };
        self.handles.insert(handle, number);
    }

    /// Takes out every mapping that begins within a range; what they mapped is still held.
    pub(crate) fn take_mappings(&mut self, address: u64, length: u64) -> Mapped {
        let mut taken = Mapped::default();
        self.mappings.take(address, length, |place| taken.push(place));
        taken
    }

    /// Takes that back.
    pub(crate) fn put_back(&mut self, taken: &Mapped) {
        taken.for_each(|place| {
            self.mappings.insert(*place);
        });
    }

    /// They are unmapped.
    pub(crate) fn unmapped(&mut self, taken: &Mapped, gone: &mut Gone) {
        taken.for_each(|(.., number)| self.let_go(*number, gone));
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
        if let Some(object) = self.objects.get_mut(object) {
            object.hold();
        }
        self.unbind(to, &region, gone);
        self.bindings.add(to, region, object, shown);
    }

    /// Ends what is bound in a region.
    pub(crate) fn unbind(&mut self, from: Binder, region: &Region, gone: &mut Gone) {
        let ended = self.bindings.cut(from, region);
        self.end_bindings(ended, gone);
    }

    /// The same, once that stream has come so far.
    pub(crate) fn unbind_after(&mut self, stream: usize, from: Binder, region: &Region) {
        self.bindings.cut_after(stream, from, region);
    }

    /// That stream has come so far.
    pub(crate) fn passed(&mut self, stream: usize, gone: &mut Gone) {
        let ended = self.bindings.passed(stream);
        self.end_bindings(ended, gone);
    }

    /// The streams that bindings wait for.
    pub(crate) fn waits_for(&self) -> Vec<usize> {
        self.bindings.waits_for()
    }

    /// What memory was bound to is gone.
    pub(crate) fn unbind_all(&mut self, from: Binder, gone: &mut Gone) {
        let ended = self.bindings.remove(from);
        self.end_bindings(ended, gone);
    }

    fn end_bindings(&mut self, ended: Vec<Binding>, gone: &mut Gone) {
        for binding in ended {
            binding
                .shown
                .into_iter()
                .for_each(|shown| gone.hidden.push(shown));
            self.let_go(binding.object, gone);
        }
    }

    fn let_go(&mut self, number: u32, gone: &mut Gone) {
        let Some(object) = self.objects.get_mut(number) else {
            return;
        };
        object.let_go();
        if object.is_over() {
            self.end(number, gone);
        }
    }

    /// What it was, if nothing holds it.
    fn end(&mut self, number: u32, gone: &mut Gone) -> Option<Entry> {
        self.objects.get(number).filter(|object| object.is_over())?;
        let entry = self.objects.remove(number)?;
        gone.freed.push(entry);
        if entry.kind() == Kind::Multicast {
            self.unbind_all(Binder::Multicast(number), gone);
        }
        Some(entry)
    }

    /// Shows every entry, which may be changed.
    pub(crate) fn each(&mut self, mut change: impl FnMut(&mut Entry)) {
        self.objects.each(&mut change);
        self.bindings.shown().for_each(&mut change);
    }
}
