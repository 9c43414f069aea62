//! Physical memory by handle (`cuMemCreate`): charged once, uncharged when its last holder is gone.
//!
//! The device is the one in the properties; a current context is not needed. Address reservations cost
//! nothing. `physical` records the holders.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use super::Memory;
use super::ledger::Entry;
use super::physical::{Gone, Physical, Released};
use super::stream::Stream;
use crate::driver::cuda::CUmemGenericAllocationHandle;
use crate::shared::device::LocalDevice;

/// The physical memory of the process. Its lock is never held while the driver is called.
#[derive(Debug, Default)]
pub(crate) struct Vmm {
    pub(crate) objects: Mutex<Physical>,
    /// Set once tiles of a sparse array were mapped; if not, arrays and streams need not be looked up.
    is_sparse: AtomicBool,
}

impl Memory {
    /// Runs `body` with the lock, and uncharges what it has freed.
    pub(crate) fn physical<T>(&self, body: impl FnOnce(&mut Physical, &mut Gone) -> T) -> T {
        let mut gone = Gone::default();
        let mut objects = self.physical.objects.lock();
        let result = body(&mut objects, &mut gone);
        // With the lock: another thread must not find it neither held nor uncharged.
        self.bury(&gone);
        drop(objects);
        result
    }

    pub(crate) fn bury(&self, gone: &Gone) {
        gone.freed.iter().for_each(|entry| self.discharge(0, entry));
        gone.hidden.iter().for_each(|entry| self.page_counter.hide(entry));
    }

    /// Inserts memory that was just created or imported. Its device may have been renumbered since it was
    /// charged.
    pub(crate) fn add_physical(&self, handle: CUmemGenericAllocationHandle, mut entry: Entry) {
        self.count_in(&entry);
        self.physical(|physical, gone| {
            self.follow(&mut entry);
            physical.add(handle.0, entry, gone);
        });
    }

    /// Undoes a release. The device may have been renumbered since.
    #[cold]
    #[inline(never)]
    pub(crate) fn undo_release(&self, handle: CUmemGenericAllocationHandle, mut released: Released) {
        self.physical(|physical, _| {
            if let (_, Some(freed)) = &mut released {
                self.follow(freed);
            }
            physical.undo(handle.0, released);
        });
    }

    /// Returns the device on which memory outside devices is shown: the current one, or the first.
    pub(crate) fn somewhere(&self) -> Option<(LocalDevice, usize)> {
        if let Some(target) = self.program.target() {
            return Some((target.local, target.index));
        }
        let first = LocalDevice::of(0)?;
        Some((first, self.session.devices.learn(self.control(), first)))
    }
}

impl Vmm {
    pub(crate) fn is_sparse(&self) -> bool {
        self.is_sparse.load(Relaxed)
    }

    pub(crate) fn begin_sparse(&self) {
        self.is_sparse.store(true, Relaxed);
    }

    /// Returns the streams that bindings wait for, one for each binding.
    pub(super) fn waits_for(&self) -> Vec<Stream> {
        match self.is_sparse() {
            true => self.objects.lock().waits_for(),
            false => Vec::new(),
        }
    }

    /// Has what waits for a stream wait for another one; returns whether anything does.
    pub(crate) fn replace(&self, stream: Stream, by: Stream) -> bool {
        self.is_sparse() && self.objects.lock().replace(stream, by)
    }

    pub(crate) fn renumber(&self, memory: &Memory) {
        self.objects.lock().each(|entry| memory.follow(entry));
    }
}
