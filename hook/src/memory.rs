//! Accounting of device memory: every allocation is charged before the driver is called, recorded in a
//! ledger, and uncharged when it is freed.
//!
//! A charge counts for (process, device) and for the process, and must fit into what the groups above have
//! granted. A charge beyond a limit fails with `CUDA_ERROR_OUT_OF_MEMORY` without calling the driver.
//! `page_counter` counts, `grant` asks the daemon for larger grants, `ledger` records live allocations;
//! `reserve` is memory of pools and graphs. The handlers are in `calls`.
//!
#![doc = include_str!("memory/accounting.md")]

use std::sync::atomic::{AtomicBool, AtomicU64};

use gcgroup_abi::{Control, Kind, OTHER_DEVICE, Usage};

use crate::driver::cuda::CUresult;
use crate::driver::interpose::Next;
use crate::program::Program;
use crate::shared::device::LocalDevice;
use crate::shared::session::Session;

pub(crate) mod account;
pub mod array;
mod charge;
pub(crate) mod context;
pub(crate) mod freeing;
pub(crate) mod grant;
pub mod graph;
pub mod ledger;
mod opened;
pub mod page_counter;
mod pages;
pub(crate) mod physical;
mod pitch;
mod pressure;
pub(crate) mod reserve;
pub(crate) mod room;
mod sharing;
pub(crate) mod stream;
pub mod vmm;

use context::Contexts;
use freeing::Freeing;
use grant::Grants;
use graph::Graphs;
use ledger::{Entry, Ledger};
use opened::Opened;
use page_counter::{PageCounter, Unsettled};
use pages::Pages;
use pitch::Pitch;
use reserve::Reserves;
use vmm::Vmm;

/// All charges and ledgers of the process.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) session: &'static Session,
    pub(crate) program: &'static Program,
    pub(crate) page_counter: PageCounter,
    /// Keyed by device address: linear, pitched, managed and imported memory, and allocations from pools.
    pub(crate) blocks: Ledger,
    pages: Pages,
    /// Keyed by host address.
    pub(crate) host: Ledger,
    /// Keyed by the handle of the array or mipmapped array.
    pub(crate) arrays: Ledger,
    pub(crate) pitch: Pitch,
    pub(crate) reserves: Reserves,
    /// Keyed by the handle of external memory.
    pub(crate) external: Ledger,
    pub(crate) freeing: Freeing,
    /// Number of calls in the order of a stream that anything has waited for.
    nr_ordered: AtomicU64,
    pub(crate) opened: Opened,
    pub(crate) physical: Vmm,
    pub(crate) graphs: Graphs,
    /// Set while a request for room on the device is unanswered; no thread waits for another one meanwhile.
    is_pressed_in_vain: AtomicBool,
    pub(crate) grants: Grants,
    pub(crate) contexts: Contexts,
}

impl Memory {
    pub(crate) fn new(program: &'static Program) -> Self {
        Self {
            session: program.session,
            program,
            page_counter: PageCounter::new(program.session),
            blocks: Ledger::default(),
            pages: Pages::default(),
            host: Ledger::default(),
            arrays: Ledger::default(),
            pitch: Pitch::default(),
            reserves: Reserves::default(),
            external: Ledger::default(),
            freeing: Freeing::default(),
            nr_ordered: AtomicU64::new(0),
            opened: Opened::default(),
            physical: Vmm::default(),
            graphs: Graphs::default(),
            is_pressed_in_vain: AtomicBool::new(false),
            grants: Grants::new(),
            contexts: Contexts::new(),
        }
    }

    #[inline]
    pub(crate) fn usage(&self) -> &Usage {
        self.session.usage()
    }

    #[inline]
    pub(crate) fn control(&self) -> &Control {
        self.session.control()
    }

    /// Uncharges what a destroyed context owned. Freed memory is a reason for the daemon to measure.
    pub(crate) fn context_gone(&self, context: u32) {
        for ledger in [&self.blocks, &self.host, &self.arrays, &self.external] {
            let owned = |entry: &Entry| entry.owner == context && entry.kind() != Kind::Pool;
            for (key, entry) in ledger.take_all(owned) {
                self.discharge(key, &entry);
            }
        }
        self.freeing.context_gone(self, context);
        for entry in self.opened.context_gone(context) {
            self.discharge(0, &entry);
        }
        self.leave_kept_pages(context);
        self.synchronized(None, 0);
    }

    /// Settles frees after the program waited for `stream`, in a call that began after the free with number
    /// `last`, or for an unknown set of streams (`None`): the driver may have returned memory to the device
    /// by then.
    pub(crate) fn synchronized(&self, stream: Option<usize>, last: u64) {
        self.reserves.synchronized(self, stream, last);
        if self.freeing.is_any() || self.physical.is_sparse() {
            self.settle_passed();
        }
    }

    /// Settles frees after the program waited for its whole current context, in a call that began after the
    /// free with number `last`.
    pub(crate) fn context_synchronized(&self, last: u64) {
        self.freeing.context_passed(self, last);
        self.synchronized(None, last);
    }

    /// Allows waits for answers again after a daemon connected.
    pub(crate) fn begin_again(&self) {
        self.grants.begin_again();
        self.contexts.begin_again();
    }

    /// Brackets a call that may destroy a context on a device: the device has freed it before it is
    /// uncharged.
    pub(crate) fn destroying(&self, local: LocalDevice) -> Unsettled<'_> {
        Unsettled::on(self.usage(), self.session.devices.index(local))
    }

    /// Brackets a change of device numbers: until it ends, charges may be in the slots of other devices.
    /// Counted in the slot `OTHER_DEVICE`, which the daemon adds to each device that it measures.
    pub(crate) fn renumbering(&self) -> Unsettled<'_> {
        Unsettled::on(self.usage(), OTHER_DEVICE)
    }

    /// Moves every charge to the current slot of its device.
    pub(crate) fn renumber(&self) {
        for ledger in [&self.blocks, &self.host, &self.arrays, &self.external] {
            ledger.each(|entry| self.follow(entry));
        }
        self.reserves.renumber(self);
        self.freeing.renumber(self);
        self.opened.renumber(self);
        self.renumber_pages();
        self.physical.renumber(self);
        self.renumber_contexts();
    }
}

/// A size in bytes larger than any device, small enough that sums of a few do not overflow.
pub(crate) const ABSURD: u64 = 1 << 56;

impl Memory {
    /// Counts an allocation.
    #[inline]
    pub(crate) fn count_in(&self, entry: &Entry) {
        let own = self.program.slots.counts(self.usage(), entry.index());
        self.page_counter.enter(own, entry);
    }

    /// Counts a free.
    #[inline]
    pub(crate) fn count_out(&self, entry: &Entry) {
        let own = self.program.slots.counts(self.usage(), entry.index());
        self.page_counter.leave(own, entry);
    }

    /// Records an allocation that is charged already or needs no charge.
    #[inline]
    pub(crate) fn remember(&self, ledger: &Ledger, key: u64, mut entry: Entry) {
        self.count_in(&entry);
        let displaced = ledger.insert(key, || {
            self.follow(&mut entry);
            entry
        });
        // The driver has reused the address, so the old entry is gone: freed with its context or by a call
        // without a handler.
        if let Some(gone) = displaced {
            self.discharge(key, &gone);
        }
    }

    /// Moves an entry's charge to the current slot of its device if that has changed.
    #[inline]
    pub(crate) fn follow(&self, entry: &mut Entry) {
        let index = self.session.devices.index(entry.local);
        if index != entry.index() {
            self.follow_to(entry, index);
        }
    }

    #[cold]
    #[inline(never)]
    fn follow_to(&self, entry: &mut Entry, index: usize) {
        self.page_counter.transfer(entry, index);
        entry.set_index(index);
    }

    /// Counts the free of an entry and uncharges it. For memory in shared pages, `key` is its address.
    #[inline(never)]
    pub(crate) fn discharge(&self, key: u64, entry: &Entry) {
        self.discharge_on(key, entry, None);
    }

    /// Counts the free of an entry and uncharges it; memory of a pool waits for `stream`.
    #[inline(always)]
    pub(crate) fn discharge_on(&self, key: u64, entry: &Entry, stream: Option<usize>) {
        let index = entry.index();
        let own = self.program.slots.counts(self.usage(), index);
        let pages = self.leave_pages(key, entry);
        self.page_counter.leave(own, entry);
        if entry.is_shared() {
            self.discharge_shared(entry, pages);
        } else if entry.is_charged() {
            self.uncharge(index, entry.charged() + pages);
        }
        if entry.is(Kind::Pool) {
            self.reserves.freed(self, entry, stream);
        }
    }

    /// Runs a freeing call and uncharges what it freed. If the call fails, the entry stays charged.
    ///
    /// The entry is removed before the call, since another thread may get the address as soon as the driver
    /// has it.
    #[inline]
    pub(crate) fn free(&self, ledger: &Ledger, key: u64, next: Next<'_>) -> Freed {
        self.free_on(ledger, key, None, next)
    }

    /// Runs a call that frees when `stream` reaches it, as [`free`](Self::free) otherwise.
    #[inline(never)]
    pub(crate) fn free_on(&self, ledger: &Ledger, key: u64, stream: Option<usize>, next: Next<'_>) -> Freed {
        let Some(entry) = ledger.remove(key) else {
            return Freed {
                result: next(),
                is_pools: false,
            };
        };
        let _freeing = entry.is_shared().then(|| self.freeing_shared());
        let result = next();
        if result.is_err() {
            self.put_back(ledger, key, entry);
        } else if let Some(stream) = stream.filter(|_| entry.is_charged()) {
            self.freeing.add(self, stream, (key, entry));
        } else {
            self.discharge_on(key, &entry, stream);
        }
        Freed {
            result,
            is_pools: entry.is(Kind::Pool),
        }
    }

    /// Ends the sharing of an entry, and keeps its charge: other processes may still hold the memory.
    #[cold]
    #[inline(never)]
    fn discharge_shared(&self, entry: &Entry, pages: u64) {
        if entry.is_charged() {
            self.keep_shared(entry.local, entry.index(), entry.charged() + pages);
        } else if entry.size == 0 {
            self.count_unsized(entry, 1_u64.wrapping_neg());
        }
        self.unshare();
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
pub(crate) struct Freed {
    pub(crate) result: CUresult,
    /// True if the entry was known and belonged to a pool.
    pub(crate) is_pools: bool,
}

#[cfg(test)]
impl Memory {
    /// Returns the memory engine of a process without a daemon, a helper or a driver; `limit` is the limit
    /// for all devices together, bytes.
    pub(crate) fn of_test(limit: u64) -> &'static Self {
        Box::leak(Box::new(Self::new(Program::of_test(limit))))
    }

    /// Adopts `control` as the answer of a daemon.
    pub(crate) fn adopt(&self, control: &std::os::fd::OwnedFd) {
        self.program.adopt(control);
        self.begin_again();
        self.renumber();
    }
}
