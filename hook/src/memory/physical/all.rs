//! Operations that concern several shards or are rare: they lock all shards.

use gcgroup_abi::Kind;
use parking_lot::MutexGuard;

use super::bound::{Binding, Bindings};
use super::names::Mappings;
use super::{Aligned, Binder, Gone, Held, Number, Object, Region, Released, SHARDS, shard_of};
use crate::memory::ledger::Entry;
use crate::memory::stream::Stream;

/// Guard of all shards. Mappings are locked one shard at a time, after these.
pub(crate) struct All<'a> {
    pub(super) held: [MutexGuard<'a, Held>; SHARDS],
    pub(super) bindings: MutexGuard<'a, Bindings>,
    pub(super) mapped: &'a [Aligned<Mappings>; SHARDS],
}

impl All<'_> {
    fn shard(&mut self, shard: usize) -> &mut Held {
        let [first, others @ ..] = &mut self.held;
        match shard.checked_sub(1).and_then(|other| others.get_mut(other)) {
            Some(other) => other,
            None => first,
        }
    }

    fn object(&mut self, number: Number) -> Option<&mut Object> {
        self.shard(number.shard()).objects.get_mut(number.slot())
    }

    /// Inserts a handle; returns the object that had it before.
    fn name(&mut self, handle: u64, number: Number) -> Option<Number> {
        self.shard(shard_of(handle)).handles.insert(handle, number)
    }

    /// Returns the object that a handle refers to.
    pub(crate) fn of_handle(&mut self, handle: u64) -> Option<Number> {
        self.shard(shard_of(handle)).handles.get(handle)
    }

    /// Returns the object mapped at an address. Fast if a mapping begins there; otherwise all mappings are
    /// searched.
    pub(crate) fn at(&self, address: u64) -> Option<Number> {
        let begins = self.mapped.get(shard_of(address));
        let begins = begins.and_then(|shard| shard.0.lock().beginning_at(address));
        begins.or_else(|| {
            self.mapped
                .iter()
                .find_map(|shard| shard.0.lock().around(address))
        })
    }

    pub(crate) fn entry(&mut self, number: Number) -> Option<Entry> {
        Some(self.object(number)?.entry())
    }

    /// Calls `change` with the entry of an object. Must not change its size.
    pub(crate) fn change(&mut self, number: Number, change: impl FnOnce(&mut Entry)) {
        if let Some(object) = self.object(number) {
            let mut entry = object.entry();
            change(&mut entry);
            object.set_entry(entry);
        }
    }

    /// Drops an object's holds by handles after its handle was reused by the driver.
    pub(crate) fn displaced(&mut self, number: Number, gone: &mut Gone) {
        if let Some(object) = self.object(number) {
            object.drop_handles();
        }
        self.end(number, gone);
    }

    /// Adds a hold by a known handle; returns whether the handle is known.
    pub(crate) fn hold_handle(&mut self, handle: u64) -> bool {
        let object = self.of_handle(handle).and_then(|number| self.object(number));
        object.map(|object| object.take_handle(false)).is_some()
    }

    /// Adds a hold for a mapping, as [`super::Physical::hold`].
    pub(crate) fn hold(&mut self, handle: u64) -> Option<(Number, bool)> {
        let number = self.of_handle(handle)?;
        Some((number, self.object(number)?.hold()))
    }

    /// Adds a hold by `handle` on what is mapped at `address`.
    pub(crate) fn retain(&mut self, address: u64, handle: u64) {
        let Some(number) = self.at(address) else { return };
        let is_new = self.of_handle(handle) != Some(number);
        if let Some(object) = self.object(number) {
            object.take_handle(is_new && object.handles() > 0);
            self.name(handle, number);
        }
    }

    /// Drops one hold by a handle, if it is known.
    pub(crate) fn release(&mut self, handle: u64, gone: &mut Gone) -> Option<Released> {
        let number = self.of_handle(handle)?;
        let object = self.object(number)?;
        object.drop_handle();
        if object.handles() != 0 {
            return Some((number, None));
        }
        let has_others = object.has_others();
        self.shard(shard_of(handle)).handles.remove_if(handle, |_| true);
        if has_others {
            self.held
                .iter_mut()
                .for_each(|held| held.handles.remove_all(number));
        }
        Some((number, self.end(number, gone)))
    }

    /// Undoes a release.
    pub(crate) fn undo(&mut self, handle: u64, (number, freed): Released) {
        let number = match freed {
            Some(entry) => {
                let shard = shard_of(handle);
                Number::of(shard, self.shard(shard).objects.insert(entry))
            }
            None => {
                if let Some(object) = self.object(number) {
                    object.take_handle(false);
                }
                number
            }
        };
        self.name(handle, number);
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
        if let Some(object) = self.object(object) {
            object.hold();
        }
        self.unbind(to, &region, gone);
        self.bindings.add(to, region, object, shown);
    }

    /// Ends the bindings in a region.
    pub(crate) fn unbind(&mut self, from: Binder, region: &Region, gone: &mut Gone) {
        let ended = self.bindings.cut(from, region);
        self.end_bindings(ended, gone);
    }

    /// Ends the bindings in a region when `stream` reaches the call.
    pub(crate) fn unbind_after(&mut self, stream: Stream, from: Binder, region: &Region) {
        self.bindings.cut_after(stream, from, region);
    }

    /// Ends the bindings that waited for a stream.
    pub(crate) fn passed(&mut self, stream: Stream, gone: &mut Gone) {
        let ended = self.bindings.passed(stream);
        self.end_bindings(ended, gone);
    }

    /// Returns the streams that bindings wait for.
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
            binding
                .shown
                .into_iter()
                .for_each(|shown| gone.hidden.push(shown));
            self.let_go(binding.object, gone);
        }
    }

    /// Drops a hold by a mapping or binding.
    pub(crate) fn let_go(&mut self, number: Number, gone: &mut Gone) {
        if let Some(object) = self.object(number) {
            object.let_go();
            self.end(number, gone);
        }
    }

    /// Removes an object without holders; returns its entry.
    fn end(&mut self, number: Number, gone: &mut Gone) -> Option<Entry> {
        let object = self.object(number)?;
        if !object.is_over() {
            return None;
        }
        let entry = self.shard(number.shard()).objects.remove(number.slot())?;
        gone.freed.push(entry);
        if entry.kind() == Kind::Multicast {
            self.unbind_all(Binder::Multicast(number), gone);
        }
        Some(entry)
    }

    /// Calls `change` with every entry.
    pub(crate) fn each(&mut self, mut change: impl FnMut(&mut Entry)) {
        self.held
            .iter_mut()
            .for_each(|held| held.objects.each(&mut change));
        self.bindings.shown().for_each(&mut change);
    }
}
