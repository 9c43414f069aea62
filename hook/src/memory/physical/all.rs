//! What concerns several shards, and what hardly ever happens: with the locks of all.

use gcgroup_abi::Kind;

use super::bound::{Binding, Bindings};
use super::names::{self, Mappings};
use super::{Aligned, Binder, Gone, Held, Number, Object, Region, Released, SHARDS, shard_of};
use crate::memory::ledger::Entry;
use crate::memory::lock::Guard;

/// Every shard is locked while this lives; the mappings are locked one by one, behind these.
pub(crate) struct All<'a> {
    pub(super) held: [Guard<'a, Held>; SHARDS],
    pub(super) bindings: Guard<'a, Bindings>,
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
        self.shard(number.shard()).objects.get_mut(number.place())
    }

    /// What had the handle before.
    fn name(&mut self, handle: u64, number: Number) -> Option<Number> {
        let hash = names::hash(handle);
        self.shard(shard_of(hash)).handles.insert(hash, handle, number)
    }

    /// The object that a handle stands for.
    pub(crate) fn of_handle(&mut self, handle: u64) -> Option<Number> {
        let hash = names::hash(handle);
        self.shard(shard_of(hash)).handles.get(hash, handle)
    }

    /// The object that is mapped at an address. Quick where a mapping begins; else all are looked at.
    pub(crate) fn at(&self, address: u64) -> Option<Number> {
        let hash = names::hash_of_address(address);
        let begins = self.mapped.get(shard_of(hash));
        let begins = begins.and_then(|shard| shard.0.lock().beginning_at(hash, address));
        begins.or_else(|| {
            self.mapped
                .iter()
                .find_map(|shard| shard.0.lock().around(address))
        })
    }

    pub(crate) fn entry(&mut self, number: Number) -> Option<Entry> {
        Some(self.object(number)?.entry())
    }

    /// Its handle stands for something else now: what is gone if only that held it.
    pub(crate) fn displaced(&mut self, number: Number, gone: &mut Gone) {
        if let Some(object) = self.object(number) {
            object.drop_handles();
        }
        self.end(number, gone);
    }

    /// One more hold by a handle that is known; whether it is.
    pub(crate) fn hold_handle(&mut self, handle: u64) -> bool {
        let object = self.of_handle(handle).and_then(|number| self.object(number));
        object.map(|object| object.take_handle(false)).is_some()
    }

    /// As [`super::Physical::hold`].
    pub(crate) fn hold(&mut self, handle: u64) -> Option<(Number, bool)> {
        let number = self.of_handle(handle)?;
        Some((number, self.object(number)?.hold()))
    }

    /// One more hold on what is mapped at `address`, by that handle.
    pub(crate) fn retain(&mut self, address: u64, handle: u64) {
        let Some(number) = self.at(address) else { return };
        let is_new = self.of_handle(handle) != Some(number);
        if let Some(object) = self.object(number) {
            object.take_handle(is_new && object.handles() > 0);
            self.name(handle, number);
        }
    }

    /// Drops one hold of the handle, if it is known.
    pub(crate) fn release(&mut self, handle: u64, gone: &mut Gone) -> Option<Released> {
        let number = self.of_handle(handle)?;
        let object = self.object(number)?;
        object.drop_handle();
        if object.handles() != 0 {
            return Some((number, None));
        }
        let has_others = object.has_others();
        let hash = names::hash(handle);
        self.shard(shard_of(hash))
            .handles
            .remove_if(hash, handle, |_| true);
        if has_others {
            self.held
                .iter_mut()
                .for_each(|held| held.handles.remove_all(number));
        }
        Some((number, self.end(number, gone)))
    }

    /// Takes a release back.
    pub(crate) fn undo(&mut self, handle: u64, (number, freed): Released) {
        let number = match freed {
            Some(entry) => {
                let shard = shard_of(names::hash(handle));
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

    /// Binds memory to something, in place of what was bound there.
    pub(crate) fn bind(
        &mut self,
        to: Binder,
        region: Region,
        object: Number,
        shown: Option<Entry>,
        gone: &mut Gone,
    ) {
        // First, for it may be the same memory.
        if let Some(object) = self.object(object) {
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

    /// Lets go of what was mapped or bound.
    pub(crate) fn let_go(&mut self, number: Number, gone: &mut Gone) {
        if let Some(object) = self.object(number) {
            object.let_go();
            self.end(number, gone);
        }
    }

    /// What it was, if nothing holds it.
    fn end(&mut self, number: Number, gone: &mut Gone) -> Option<Entry> {
        let object = self.object(number)?;
        if !object.is_over() {
            return None;
        }
        let entry = self.shard(number.shard()).objects.remove(number.place())?;
        gone.freed.push(entry);
        if entry.kind() == Kind::Multicast {
            self.unbind_all(Binder::Multicast(number), gone);
        }
        Some(entry)
    }

    /// Shows every entry, which may be changed.
    pub(crate) fn each(&mut self, mut change: impl FnMut(&mut Entry)) {
        self.held
            .iter_mut()
            .for_each(|held| held.objects.each(&mut change));
        self.bindings.shown().for_each(&mut change);
    }
}
