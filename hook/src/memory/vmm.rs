//! Physical memory by handle (`cuMemCreate`): charged once, freed when its last handle and its last mapping are gone.
//!
//! The device is the one in the properties, not the current context's, which there may be none of. Knows which
//! addresses map which memory; address reservations cost nothing.

use std::collections::BTreeMap;

use gcgroup_abi::Kind;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::ledger::Entry;
use crate::cuda::{CUdeviceptr, CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult};
use crate::device::LocalDevice;
use crate::driver;
use crate::interpose::Next;
use crate::place::{given, written};
use crate::process::{self, Process};

/// One piece of physical memory.
#[derive(Debug)]
struct Object {
    entry: Entry,
    handles: u32,
    mappings: u32,
}

#[derive(Debug, Default)]
struct Inner {
    objects: HashMap<u32, Object>,
    next: u32,
    handles: HashMap<u64, u32>,
    /// By address: length and object.
    mappings: BTreeMap<u64, (u64, u32)>,
}

#[derive(Debug, Default)]
pub(crate) struct Physical(Mutex<Inner>);

impl Inner {
    /// Enters memory that was created; returns what had the handle before, if only that held it: the driver gave the
    /// number out anew, so it is gone.
    fn add(&mut self, handle: u64, entry: Entry) -> Option<Entry> {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.objects.insert(
            number,
            Object {
                entry,
                handles: 1,
                mappings: 0,
            },
        );
        let before = self.handles.insert(handle, number)?;
        self.objects.get_mut(&before)?.handles = 0;
        self.end(before)
    }

    /// One more hold by a handle that is known; whether it is.
    fn hold(&mut self, handle: u64) -> bool {
        let object = self
            .handles
            .get(&handle)
            .and_then(|number| self.objects.get_mut(number));
        object.map(|object| object.handles += 1).is_some()
    }

    fn map(&mut self, address: u64, length: u64, handle: u64) {
        let Some(number) = self.handles.get(&handle) else {
            return;
        };
        if let Some(object) = self.objects.get_mut(number) {
            object.mappings += 1;
            self.mappings.insert(address, (length, *number));
        }
    }

    /// One more hold on what is mapped at `address`, by that handle.
    fn retain(&mut self, address: u64, handle: u64) {
        let Some((start, (length, number))) = self.mappings.range(..=address).next_back() else {
            return;
        };
        if address - start >= *length {
            return;
        }
        if let Some(object) = self.objects.get_mut(number) {
            object.handles += 1;
            self.handles.insert(handle, *number);
        }
    }

    /// Drops one hold of the handle; which object's, and the memory if that was the last of it.
    fn release(&mut self, handle: u64) -> Option<(u32, Option<Entry>)> {
        let number = *self.handles.get(&handle)?;
        let object = self.objects.get_mut(&number)?;
        object.handles = object.handles.saturating_sub(1);
        if object.handles == 0 {
            // The driver may give the number to another now, while mappings keep the memory.
            self.handles.retain(|_, other| *other != number);
        }
        Some((number, self.end(number)))
    }

    /// Takes a release back.
    fn undo(&mut self, handle: u64, (number, freed): (u32, Option<Entry>)) {
        if let Some(entry) = freed {
            self.objects.insert(
                number,
                Object {
                    entry,
                    handles: 0,
                    mappings: 0,
                },
            );
        }
        if let Some(object) = self.objects.get_mut(&number) {
            object.handles += 1;
            self.handles.insert(handle, number);
        }
    }

    /// Drops every mapping within a range; the memory that this was the last of.
    fn unmap(&mut self, address: u64, length: u64) -> Vec<Entry> {
        let end = address.saturating_add(length);
        let gone: Vec<u64> = self
            .mappings
            .range(address..end)
            .map(|(start, _)| *start)
            .collect();
        let mut freed = Vec::new();
        for start in gone {
            let Some((_, number)) = self.mappings.remove(&start) else {
                continue;
            };
            if let Some(object) = self.objects.get_mut(&number) {
                object.mappings = object.mappings.saturating_sub(1);
            }
            freed.extend(self.end(number));
        }
        freed
    }

    fn end(&mut self, number: u32) -> Option<Entry> {
        let object = self.objects.get(&number)?;
        let is_over = object.handles == 0 && object.mappings == 0;
        is_over
            .then(|| self.objects.remove(&number).map(|object| object.entry))
            .flatten()
    }
}

impl Physical {
    /// Enters what was just created or imported. The device may have been renumbered since it was charged.
    fn add(&self, process: &Process, handle: CUmemGenericAllocationHandle, mut entry: Entry) {
        process.memory.levels.enter(process.usage(), &entry);
        let displaced = {
            let mut inner = self.0.lock();
            process.follow(&mut entry);
            inner.add(handle.0, entry)
        };
        displaced.iter().for_each(|entry| process.discharge(entry));
    }

    pub(crate) fn renumber(&self, process: &Process) {
        for object in self.0.lock().objects.values_mut() {
            process.follow(&mut object.entry);
        }
    }
}

/// `cuMemCreate`.
pub(crate) fn create(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    next: Next<'_>,
) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    let wanted = given(properties).and_then(|wanted| LocalDevice::of(wanted.location.device()?));
    let Some(local) = wanted else { return next() };
    let index = process.devices.learn(process.control(), local);
    let charge = process.try_charge(index, bytes as u64)?;
    next().inspect_err(|_| process.count_failure(index))?;
    if let Some(handle) = written(handle) {
        charge.keep();
        process.memory.physical.add(
            process,
            handle,
            Entry::new(Kind::Vmm, bytes as u64, local, index, 0),
        );
    }
    Ok(())
}

/// `cuMemImportFromShareableHandle`: charged to whoever created it.
pub(crate) fn import(handle: *mut CUmemGenericAllocationHandle, next: Next<'_>) -> CUresult {
    next()?;
    let (Some(process), Some(handle)) = (process::get(), written(handle)) else {
        return Ok(());
    };
    if process.memory.physical.0.lock().hold(handle.0) {
        return Ok(());
    }
    let mut properties = CUmemAllocationProp::NONE;
    if driver::cuMemGetAllocationPropertiesFromHandle(&mut properties, handle).is_err() {
        return Ok(());
    }
    if let Some(local) = properties.location.device().and_then(LocalDevice::of) {
        let index = process.devices.learn(process.control(), local);
        // How large it is shows only when it is mapped, so it counts as imported but not by its bytes.
        process
            .memory
            .physical
            .add(process, handle, Entry::new(Kind::Ipc, 0, local, index, 0));
    }
    Ok(())
}

/// `cuMemRelease`.
pub(crate) fn release(handle: CUmemGenericAllocationHandle, next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    // Before the driver, which may give the number to another thread's memory at once.
    let Some(released) = process.memory.physical.0.lock().release(handle.0) else {
        return next();
    };
    let result = next();
    match result {
        Ok(()) => released.1.iter().for_each(|entry| process.discharge(entry)),
        Err(_) => process.memory.physical.0.lock().undo(handle.0, released),
    }
    result
}

/// `cuMemMap`.
pub(crate) fn map(
    address: CUdeviceptr,
    bytes: usize,
    handle: CUmemGenericAllocationHandle,
    next: Next<'_>,
) -> CUresult {
    next()?;
    if let Some(process) = process::get() {
        process
            .memory
            .physical
            .0
            .lock()
            .map(address.0, bytes as u64, handle.0);
    }
    Ok(())
}

/// `cuMemUnmap`.
pub(crate) fn unmap(address: CUdeviceptr, bytes: usize, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(process) = process::get() {
        let freed = process.memory.physical.0.lock().unmap(address.0, bytes as u64);
        freed.iter().for_each(|entry| process.discharge(entry));
    }
    Ok(())
}

/// `cuMemRetainAllocationHandle`.
pub(crate) fn retain(handle: *mut CUmemGenericAllocationHandle, address: u64, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(process), Some(handle)) = (process::get(), written(handle)) {
        process.memory.physical.0.lock().retain(address, handle.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(size: u64) -> Entry {
        Entry::new(Kind::Vmm, size, LocalDevice::of(0).unwrap(), 0, 0)
    }

    fn freed(inner: &mut Inner, handle: u64) -> Option<Entry> {
        inner.release(handle)?.1
    }

    #[test]
    fn memory_lives_as_long_as_a_handle_or_a_mapping_holds_it() {
        let mut inner = Inner::default();
        inner.add(7, entry(100));
        inner.map(0x1000, 0x100, 7);
        inner.map(0x2000, 0x100, 7);
        assert_eq!(freed(&mut inner, 7), None);
        inner.add(7, entry(200));
        assert_eq!(
            freed(&mut inner, 7),
            Some(entry(200)),
            "the number was another's by then"
        );
        assert_eq!(inner.unmap(0x1000, 0x100), []);
        assert_eq!(inner.unmap(0x2000, 0x100), [entry(100)]);
        assert!(inner.objects.is_empty() && inner.handles.is_empty() && inner.mappings.is_empty());
    }

    #[test]
    fn a_retained_handle_is_one_more_hold() {
        let mut inner = Inner::default();
        inner.add(7, entry(100));
        inner.map(0x1000, 0x100, 7);
        inner.retain(0x1080, 9);
        inner.retain(0x1100, 11);
        assert_eq!(inner.release(11), None, "nothing is mapped there");
        assert_eq!(inner.unmap(0x1000, 0x100), []);
        assert_eq!(freed(&mut inner, 9), None);
        assert_eq!(freed(&mut inner, 7), Some(entry(100)));
    }

    #[test]
    fn a_release_that_the_driver_refused_changed_nothing() {
        let mut inner = Inner::default();
        inner.add(7, entry(100));
        let released = inner.release(7).unwrap();
        inner.undo(7, released);
        assert!(inner.hold(7));
        let released = inner.release(7).unwrap();
        assert_eq!(released.1, None);
        inner.undo(7, released);
        assert_eq!(freed(&mut inner, 7), None);
        assert_eq!(freed(&mut inner, 7), Some(entry(100)));
        assert!(!inner.hold(7));
    }

    #[test]
    fn a_handle_that_is_given_out_anew_ends_what_had_it() {
        let mut inner = Inner::default();
        assert_eq!(inner.add(7, entry(100)), None);
        assert_eq!(inner.add(7, entry(200)), Some(entry(100)));
        assert_eq!(freed(&mut inner, 7), Some(entry(200)));
    }

    #[test]
    fn one_unmapping_may_end_several_mappings() {
        let mut inner = Inner::default();
        inner.add(1, entry(10));
        inner.add(2, entry(20));
        inner.map(0x1000, 0x1000, 1);
        inner.map(0x2000, 0x1000, 2);
        assert_eq!(freed(&mut inner, 1), None);
        assert_eq!(inner.unmap(0x1000, 0x2000), [entry(10)]);
        assert_eq!(freed(&mut inner, 2), Some(entry(20)));
    }
}
