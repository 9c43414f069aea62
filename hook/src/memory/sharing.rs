//! Memory shared with other processes (CUDA IPC): how much of it there is, for the daemon, which refuses to
//! suspend a process that has any where the driver cannot move it.
//!
//! Counted are linear memory and physical memory that was exported or opened, and pools, from the call that
//! shares them until they are freed or closed here. What the other processes do is not known: the charge of
//! exported memory outlasts its free ([`Memory::keep_shared`]).

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{Kind, OTHER_DEVICE};

use super::Memory;
use super::ledger::Entry;
use super::page_counter::Unsettled;
use crate::driver;
use crate::driver::cuda::{CUdeviceptr, CUmemGenericAllocationHandle, CUmemoryPool};

impl Memory {
    /// Counts memory as shared until it is discharged.
    pub(crate) fn share(&self, entry: &mut Entry) {
        if entry.share() {
            self.usage().nr_shared.fetch_add(1, Relaxed);
        }
    }

    /// Counts the memory at an address as shared; its handle is that of the whole block.
    pub(crate) fn share_block(&self, address: CUdeviceptr) {
        let (mut base, mut bytes) = (CUdeviceptr(0), 0);
        if driver::cuMemGetAddressRange_v2(&mut base, &mut bytes, address).is_ok() {
            self.blocks.change(base.0, |entry| self.share(entry));
        }
        self.physical(|physical, _| {
            if let Some(number) = physical.at(address.0) {
                physical.change(number, |entry| self.share(entry));
            }
        });
    }

    /// Counts the physical memory of a handle as shared.
    pub(crate) fn share_handle(&self, handle: CUmemGenericAllocationHandle) {
        self.physical(|physical, _| {
            if let Some(number) = physical.of_handle(handle.0) {
                physical.change(number, |entry| self.share(entry));
            }
        });
    }

    /// Counts a pool as shared until it is destroyed and all of its memory is freed.
    pub(crate) fn share_pool(&self, pool: CUmemoryPool) {
        if let Some(pool) = self.reserves.find(pool)
            && !pool.is_shared.swap(true, Relaxed)
        {
            self.usage().nr_shared.fetch_add(1, Relaxed);
        }
    }

    /// Adds to the number of imports of unknown size on the device of an entry.
    pub(crate) fn count_unsized(&self, entry: &Entry, number: u64) {
        if let Some(device) = self
            .usage()
            .devices
            .get(entry.index())
            .filter(|_| entry.is(Kind::Ipc))
        {
            device.nr_unsized.fetch_add(number, Relaxed);
        }
    }

    /// Marks a call that may free shared memory, until its charge is kept: between, the driver has freed it
    /// and others may hold it.
    pub(crate) fn freeing_shared(&self) -> Option<Unsettled<'_>> {
        let shares = self.usage().nr_shared.load(Relaxed) != 0;
        shares.then(|| Unsettled::on(self.usage(), OTHER_DEVICE))
    }

    /// Counts memory or a pool as no longer shared.
    #[cold]
    #[inline(never)]
    pub(super) fn unshare(&self) {
        self.usage().nr_shared.fetch_sub(1, Relaxed);
    }
}
