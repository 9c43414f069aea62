//! Accounting of device memory: every allocation is charged before the driver is called, recorded in a
//! ledger, and uncharged when it is freed.
//!
//! A charge counts for (process, device) and for the process, and must fit into what the groups above have
//! granted. A charge beyond a limit fails with `CUDA_ERROR_OUT_OF_MEMORY` without calling the driver.
//! `levels` counts, `grant` asks the daemon for larger grants, `ledger` records live allocations; the other
//! modules handle one kind of call each.
//!
#![doc = include_str!("accounting.md")]

use std::sync::atomic::AtomicBool;

use gcgroup_abi::{Kind, MAX_DEVICES};

use crate::compute::slot::Bound;
use crate::cuda::CUresult;
use crate::device::LocalDevice;
use crate::interpose::Next;
use crate::process::Process;
use crate::swap;

mod account;
mod address;
pub mod array;
mod charge;
mod few;
pub(crate) mod freeing;
mod fresh;
pub(crate) mod grant;
pub mod graph;
pub mod host;
pub mod ipc;
pub mod ledger;
pub mod levels;
pub mod linear;
mod lock;
mod physical;
pub mod pool;
mod pressure;
mod recent;
pub mod report;
mod reserve;
pub mod sparse;
mod stream;
pub mod vmm;

pub(crate) use address::{Address, Out};
use array::Sizes;
use freeing::Freeing;
use grant::Grants;
use graph::Graphs;
use ipc::Opened;
use ledger::{Entry, Ledger};
use levels::Levels;
use linear::Pitch;
use reserve::Reserves;
use vmm::Vmm;

/// All charges and ledgers of the process.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) levels: Levels,
    /// Keyed by device address: linear, pitched, managed and imported memory, and allocations from pools.
    blocks: Ledger,
    /// Keyed by host address.
    host: Ledger,
    /// Keyed by the handle of the array or mipmapped array.
    pub(crate) arrays: Ledger,
    sizes: Sizes,
    pitch: Pitch,
    pub(crate) reserves: Reserves,
    /// Keyed by the handle of external memory.
    external: Ledger,
    freeing: Freeing,
    opened: Opened,
    physical: Vmm,
    graphs: Graphs,
    /// Set while a request for room on the device is unanswered; no thread waits for another one meanwhile.
    is_pressed_in_vain: AtomicBool,
    pub(crate) grants: Grants,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self {
            levels: Levels::default(),
            blocks: Ledger::new(64),
            host: Ledger::new(32),
            arrays: Ledger::new(32),
            sizes: Sizes::default(),
            pitch: Pitch::default(),
            reserves: Reserves::default(),
            external: Ledger::new(1),
            freeing: Freeing::default(),
            opened: Opened::default(),
            physical: Vmm::default(),
            graphs: Graphs::default(),
            is_pressed_in_vain: AtomicBool::new(false),
            grants: Grants::new(),
        }
    }

    /// Uncharges what a destroyed context owned.
    pub(crate) fn context_gone(&self, process: &Process, context: u32) {
        for ledger in [&self.blocks, &self.host, &self.arrays, &self.external] {
            let owned = |entry: &Entry| entry.owner == context && entry.kind() != Kind::Pool;
            for entry in ledger.take_all(owned) {
                process.discharge(&entry);
            }
        }
        self.freeing.context_gone(process, context);
        for entry in self.opened.context_gone(context) {
            process.discharge(&entry);
        }
        self.synchronized(process, None);
        swap::context_gone(process, context);
        // Freed memory is a reason for the daemon to measure.
        process.ring();
    }

    /// Settles frees after the program waited for `stream`, or for an unknown set of streams (`None`): the
    /// driver may have returned memory to the device by then.
    pub(crate) fn synchronized(&self, process: &Process, stream: Option<usize>) {
        self.reserves.synchronized(process, stream);
        self.freeing.settle(process, stream);
        process.passed_physical(stream);
    }

    /// Settles frees after the program waited for its whole current context.
    pub(crate) fn context_synchronized(&self, process: &Process) {
        self.freeing.context_passed(process);
        self.synchronized(process, None);
    }

    /// Moves every charge to the current slot of its device.
    pub(crate) fn renumber(&self, process: &Process) {
        for ledger in [&self.blocks, &self.host, &self.arrays, &self.external] {
            ledger.each(|entry| process.follow(entry));
        }
        self.reserves.renumber(process);
        self.freeing.renumber(process);
        self.opened.renumber(process);
        self.physical.renumber(process);
    }
}

/// The device of an allocation and the context that owns it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) local: LocalDevice,
    /// The device's slot in the control and usage blocks.
    pub(crate) index: usize,
    pub(crate) context: u32,
}

impl Place {
    #[inline]
    pub(crate) fn of(bound: Bound<'_>) -> Option<Self> {
        Some(Self {
            local: bound.local()?,
            index: bound.index(),
            context: bound.owner(),
        })
    }

    pub(crate) fn packed(self) -> u64 {
        u64::from(self.context) << 32 | (self.index as u64) << 8 | u64::from(self.local.number())
    }

    #[inline]
    pub(crate) fn unpacked(word: u64) -> Self {
        let [local, index, _, _, context @ ..] = word.to_le_bytes();
        Self {
            local: LocalDevice::from_number(local),
            index: index.into(),
            context: u32::from_le_bytes(context),
        }
    }
}

const _: () = assert!(MAX_DEVICES <= 1 << 8);

/// A size in bytes larger than any device, small enough that sums of a few do not overflow.
const ABSURD: u64 = 1 << 56;

impl Process {
    /// Returns where the calling thread allocates; `None` without a current context, which the driver refuses
    /// itself.
    #[inline]
    fn place(&self) -> Option<Place> {
        self.slots.place(self)
    }

    /// Counts an allocation.
    #[inline]
    pub(crate) fn count_in(&self, entry: &Entry) {
        let own = self.slots.counts(self.usage(), entry.index());
        self.memory.levels.enter(self.usage(), own, entry);
    }

    /// Counts a free.
    #[inline]
    pub(crate) fn count_out(&self, entry: &Entry) {
        let own = self.slots.counts(self.usage(), entry.index());
        self.memory.levels.leave(self.usage(), own, entry);
    }

    /// Records an allocation that is charged already or needs no charge.
    #[inline]
    fn remember(&self, ledger: &Ledger, key: u64, mut entry: Entry) {
        self.count_in(&entry);
        let displaced = ledger.insert(key, || {
            self.follow(&mut entry);
            entry
        });
        // The driver has reused the address, so the old entry is gone: freed with its context or by a call
        // without a handler.
        if let Some(gone) = displaced {
            self.discharge(&gone);
        }
    }

    /// Moves an entry's charge to the current slot of its device if that has changed.
    #[inline]
    fn follow(&self, entry: &mut Entry) {
        let index = self.devices.index(entry.local);
        if index != entry.index() {
            self.follow_to(entry, index);
        }
    }

    #[cold]
    #[inline(never)]
    fn follow_to(&self, entry: &mut Entry, index: usize) {
        let levels = &self.memory.levels;
        levels.transfer(self.usage(), self.control(), entry, index);
        entry.set_index(index);
    }

    /// Counts the free of an entry and uncharges it.
    #[inline(never)]
    fn discharge(&self, entry: &Entry) {
        self.discharge_on(entry, 0, None);
    }

    /// Counts the free of an entry and uncharges it; `address` and `stream` tell a pool where it was and
    /// which stream it waits for. Address 0: unknown.
    #[inline(always)]
    fn discharge_on(&self, entry: &Entry, address: u64, stream: Option<usize>) {
        let (levels, usage, index) = (&self.memory.levels, self.usage(), entry.index());
        let own = self.slots.counts(usage, index);
        levels.leave(usage, own, entry);
        if entry.is_charged() {
            levels.uncharge(usage, index, entry.size);
        }
        if entry.is(Kind::Pool) {
            self.memory.reserves.freed(self, entry, address, stream);
        }
    }

    /// Runs a freeing call and uncharges what it freed. If the call fails, the entry stays charged.
    ///
    /// The entry is removed before the call, since another thread may get the address as soon as the driver
    /// has it.
    #[inline]
    fn free(&self, ledger: &Ledger, key: u64, next: Next<'_>) -> Freed {
        self.free_on(ledger, key, None, next)
    }

    /// Runs a call that frees when `stream` reaches it, as [`free`](Self::free) otherwise.
    #[inline(never)]
    fn free_on(&self, ledger: &Ledger, key: u64, stream: Option<usize>, next: Next<'_>) -> Freed {
        let Some(entry) = ledger.remove(key) else {
            return Freed {
                result: next(),
                is_pools: false,
            };
        };
        let result = next();
        if result.is_err() {
            self.put_back(ledger, key, entry);
        } else if let Some(stream) = stream.filter(|_| entry.is_charged()) {
            self.memory.freeing.add(self, stream, entry);
        } else {
            self.discharge_on(&entry, key, stream);
        }
        Freed {
            result,
            is_pools: entry.is(Kind::Pool),
        }
    }

    #[cold]
    #[inline(never)]
    fn put_back(&self, ledger: &Ledger, key: u64, mut entry: Entry) {
        ledger.insert(key, || {
            self.follow(&mut entry);
            entry
        });
    }
}

/// The result of a freeing call.
#[derive(Debug, Clone, Copy)]
struct Freed {
    result: CUresult,
    /// True if the entry was known and belonged to a pool.
    is_pools: bool,
}
