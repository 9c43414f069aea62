//! Every reserve of the process: found by handle and number, measured and trimmed together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{Reserve, Source};
use crate::cuda::CUmemoryPool;
use crate::device::LocalDevice;
use crate::memory::account::Account;
use crate::memory::freeing::has_passed;
use crate::memory::ledger::Entry;
use crate::memory::levels::Unsettled;
use crate::memory::lock::Lock;
use crate::process::Process;

#[derive(Debug, Default)]
pub(crate) struct Reserves {
    list: Lock<Vec<Arc<Reserve>>>,
    /// The pools that devices allocate from, as far as the driver has been asked.
    current: Lock<Vec<(LocalDevice, Arc<Reserve>)>>,
    /// Times that they may have become others.
    changes: AtomicUsize,
}

impl Reserves {
    /// The pool of that handle.
    pub(crate) fn find(&self, handle: CUmemoryPool) -> Option<Arc<Reserve>> {
        let wanted = Source::Pool(handle.0.addr());
        let list = self.list.lock();
        list.iter()
            .find(|pool| pool.source == wanted && !pool.account.lock().is_destroyed)
            .cloned()
    }

    /// Enters a pool.
    pub(crate) fn enter(
        &self,
        handle: CUmemoryPool,
        local: LocalDevice,
        index: usize,
        is_elsewhere: bool,
    ) -> Arc<Reserve> {
        let source = Source::Pool(handle.0.expose_provenance());
        Self::add(&mut self.list.lock(), source, local, index, is_elsewhere)
    }

    /// What graphs have on a device.
    pub(crate) fn of_graphs(&self, local: LocalDevice, index: usize) -> Arc<Reserve> {
        let mut list = self.list.lock();
        let known = list
            .iter()
            .find(|reserve| reserve.source == Source::Graphs && reserve.local == local)
            .cloned();
        known.unwrap_or_else(|| Self::add(&mut list, Source::Graphs, local, index, false))
    }

    fn add(
        list: &mut Vec<Arc<Reserve>>,
        source: Source,
        local: LocalDevice,
        index: usize,
        is_elsewhere: bool,
    ) -> Arc<Reserve> {
        let id = list
            .iter()
            .map(|pool| pool.id)
            .max()
            .map_or(0, |last| last.wrapping_add(1));
        let pool = Arc::new(Reserve {
            source,
            id,
            local,
            is_elsewhere,
            measurements: AtomicU64::new(0),
            trims: AtomicUsize::new(0),
            index: AtomicUsize::new(index),
            account: Lock::new(Account::new(index)),
        });
        list.push(Arc::clone(&pool));
        pool
    }

    /// The pool that a device allocates from. `ask` says which, where nobody has asked since it may have become another.
    pub(crate) fn current(
        &self,
        local: LocalDevice,
        ask: impl FnOnce() -> Option<Arc<Reserve>>,
    ) -> Option<Arc<Reserve>> {
        let known = |current: &[(LocalDevice, Arc<Reserve>)]| {
            let (_, pool) = current.iter().find(|(device, _)| *device == local)?;
            Some(Arc::clone(pool))
        };
        if let Some(pool) = known(&self.current.lock()) {
            return Some(pool);
        }
        let changes = self.changes.load(Acquire);
        let pool = ask()?;
        let mut current = self.current.lock();
        if changes == self.changes.load(Relaxed) && known(&current).is_none() {
            current.push((local, Arc::clone(&pool)));
        }
        Some(pool)
    }

    /// Some device may allocate from another pool from here on.
    pub(crate) fn forget_current(&self) {
        let mut current = self.current.lock();
        self.changes.fetch_add(1, Release);
        current.clear();
    }

    /// Measures whatever has anything charged.
    pub(crate) fn settle_all(&self, process: &Process) {
        self.settle_each(process, |_, account| account.paid != 0);
    }

    /// Measures what may have given something back now that a stream was synchronised: the driver does it then.
    pub(crate) fn settle_freed(&self, process: &Process) {
        self.settle_each(process, |reserve, account| {
            account.paid != 0 && (reserve.source == Source::Graphs || account.may_have_shrunk())
        });
    }

    fn settle_each(&self, process: &Process, is_wanted: impl Fn(&Reserve, &mut Account) -> bool) {
        let mut number = 0;
        loop {
            // None is kept locked meanwhile; one that is missed since another went is measured the next time.
            let Some(pool) = self.list.lock().get(number).cloned() else {
                return;
            };
            number += 1;
            let (is_wanted, is_over) = {
                let mut account = pool.account.lock();
                (is_wanted(&pool, &mut account), account.is_over())
            };
            if is_over {
                self.end_if_over(process, &pool);
            } else if is_wanted {
                // A pool that is over the limit stays so until its memory is freed.
                let _ = pool.settle(process, 0);
            }
        }
    }

    /// Has every pool give back what it reserves beyond what is allocated; whether any had such.
    pub(crate) fn trim(&self, process: &Process) -> bool {
        let all: Vec<_> = self.list.lock().iter().cloned().collect();
        let mut any = false;
        for reserve in all.iter().filter(|reserve| reserve.account.lock().is_over()) {
            self.end(process, reserve);
            any = true;
        }
        for reserve in all.iter().filter(|reserve| reserve.has_spare()) {
            reserve.trim(process, 0);
            any = true;
        }
        any
    }

    /// An allocation of a pool is gone, or will be when that stream has come so far.
    pub(crate) fn freed(&self, process: &Process, entry: &Entry, stream: Option<usize>) {
        let over = {
            let list = self.list.lock();
            let Some(pool) = list.iter().find(|pool| pool.id == entry.owner) else {
                return;
            };
            let mut account = pool.account.lock();
            account.end(entry.size, stream);
            account.is_over().then(|| Arc::clone(pool))
        };
        over.inspect(|pool| self.end_if_over(process, pool));
    }

    /// Ends a destroyed pool of which nothing is allocated, if what was is freed; else whoever waits for a stream does.
    pub(crate) fn end_if_over(&self, process: &Process, pool: &Arc<Reserve>) {
        let waits_for = {
            let account = pool.account.lock();
            account.is_over().then(|| account.waits_for())
        };
        let has_all = |streams: Vec<usize>| streams.iter().all(|stream| has_passed(process, *stream));
        if waits_for.is_some_and(has_all) {
            self.end(process, pool);
        }
    }

    /// That stream has come to where it frees what it was to.
    pub(crate) fn passed(&self, stream: usize) {
        for pool in self.list.lock().iter() {
            pool.account.lock().passed(stream);
        }
    }

    /// A destroyed pool of which nothing is allocated any more.
    pub(crate) fn end(&self, process: &Process, pool: &Arc<Reserve>) {
        self.list.lock().retain(|other| !Arc::ptr_eq(other, pool));
        self.forget_current();
        let _unsettled = Unsettled::on(process.usage(), pool.index());
        let mut account = pool.account.lock();
        let bytes = std::mem::take(&mut account.paid);
        process
            .memory
            .levels
            .uncharge(process.usage(), account.index, bytes);
        pool.add_kind(process, account.index, bytes.wrapping_neg());
    }

    pub(crate) fn renumber(&self, process: &Process) {
        for pool in self.list.lock().iter() {
            let mut account = pool.account.lock();
            let index = process.devices.index(pool.local);
            if index != account.index {
                let (usage, control) = (process.usage(), process.control());
                process
                    .memory
                    .levels
                    .transfer_bytes(usage, control, account.index, index, account.paid);
                pool.add_kind(process, account.index, account.paid.wrapping_neg());
                pool.add_kind(process, index, account.paid);
                account.index = index;
                pool.index.store(index, Relaxed);
            }
        }
    }
}
