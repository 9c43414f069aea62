//! Memory that the driver reserves in pieces of its own choosing: pools, and what graphs allocate. Charged by what is
//! reserved, not by what is allocated from it.
//!
//! The driver alone knows by how much it grows, so the growth is foretold and charged before the call, and what it was
//! is measured after and settled. Over the limit, every reserve is trimmed first; what then does not fit is refused.
//! Nothing here waits for a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use gcgroup_abi::Kind;

use super::account::{Account, Over};
use super::freeing::has_passed;
use super::ledger::Entry;
use super::levels::{Full, Unsettled};
use super::lock::Lock;
use crate::cuda::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CUmemoryPool,
};
use crate::device::LocalDevice;
use crate::driver;
use crate::process::Process;

/// Whom the driver keeps it for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A pool, by its handle.
    Pool(usize),
    /// All graphs of the process on the device.
    Graphs,
}

#[derive(Debug)]
pub(crate) struct Reserve {
    source: Source,
    id: u32,
    pub(crate) local: LocalDevice,
    /// Memory of another process, which is charged there, or of the host.
    pub(crate) is_elsewhere: bool,
    measurements: AtomicU64,
    /// Times it was trimmed: what had room before may have none.
    trims: AtomicUsize,
    /// The slot that it is charged in, for who does not hold the account.
    index: AtomicUsize,
    pub(super) account: Lock<Account>,
}

#[derive(Debug, Default)]
pub(crate) struct Reserves {
    list: Lock<Vec<Arc<Reserve>>>,
    /// The pools that devices allocate from, as far as the driver has been asked.
    current: Lock<Vec<(LocalDevice, Arc<Reserve>)>>,
    /// Times that they may have become others.
    changes: AtomicUsize,
}

impl Reserve {
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    fn kind(&self) -> Kind {
        match self.source {
            Source::Pool(_) => Kind::Pool,
            Source::Graphs => Kind::Graph,
        }
    }

    /// What the driver says that is reserved.
    pub(crate) fn reserved(&self) -> Option<u64> {
        let mut bytes = 0;
        match self.source {
            Source::Pool(handle) => {
                driver::cuMemPoolGetAttribute(pool(handle), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &mut bytes)
            }
            Source::Graphs => driver::cuDeviceGetGraphMemAttribute(
                self.local.device(),
                CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                &mut bytes,
            ),
        }
        .ok()?;
        Some(bytes)
    }

    /// Has the driver give back what is not used, but for `keep` bytes of a pool.
    pub(crate) fn trim(&self, process: &Process, keep: u64) {
        let _unsettled = Unsettled::on(process.usage(), self.index());
        let _ = match self.source {
            Source::Pool(handle) => driver::cuMemPoolTrimTo(pool(handle), usize::try_from(keep).unwrap_or(0)),
            Source::Graphs => driver::cuDeviceGraphMemTrim(self.local.device()),
        };
        self.trimmed(process);
    }

    /// It was trimmed.
    pub(crate) fn trimmed(&self, process: &Process) {
        self.trims.fetch_add(1, Relaxed);
        // If it is over the limit still, it was before.
        let _ = self.settle(process, 0);
    }

    pub(crate) fn trims(&self) -> usize {
        self.trims.load(Relaxed)
    }

    /// What the driver says that graphs use now.
    pub(crate) fn used(&self) -> Option<u64> {
        let (device, mut used) = (self.local.device(), 0);
        driver::cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &mut used).ok()?;
        Some(used)
    }

    /// Whether trimming may give anything back.
    fn has_spare(&self) -> bool {
        match self.source {
            Source::Pool(_) => self.account.lock().has_spare(),
            Source::Graphs => self
                .used()
                .is_some_and(|used| used < self.account.lock().reserved()),
        }
    }

    pub(crate) fn index(&self) -> usize {
        self.index.load(Relaxed)
    }

    /// Charges in advance. Where more must be granted first, that is waited for.
    pub(crate) fn hold(&self, process: &Process, bytes: u64) -> Result<(), Full> {
        match self.try_hold(process, bytes) {
            // With no lock held: the helper takes it too.
            Err(Full::Group(index)) => process.charge_granted(index, bytes, || self.try_hold(process, bytes)),
            held => held,
        }
    }

    fn try_hold(&self, process: &Process, bytes: u64) -> Result<(), Full> {
        let mut account = self.account.lock();
        let (usage, control) = (process.usage(), process.control());
        // What it comes to is a peak, not what it might have.
        process
            .memory
            .levels
            .try_reserve(usage, control, account.index, bytes)?;
        account.hold(bytes);
        self.add_kind(process, account.index, bytes);
        Ok(())
    }

    /// Brings the charge in line with what is reserved, after a call that held `held`.
    ///
    /// A measurement counts only if none that was begun later is settled already: so the last to settle was begun after
    /// every call that was over by then. No lock is held while the driver is asked.
    pub(crate) fn settle(&self, process: &Process, held: u64) -> Result<(), Over> {
        if self.is_elsewhere {
            return Ok(());
        }
        let _unsettled = Unsettled::on(process.usage(), self.index());
        self.settle_within(process, held)
    }

    /// The same within a call that is marked as unsettled.
    pub(crate) fn settle_within(&self, process: &Process, held: u64) -> Result<(), Over> {
        let settled = self.settle_by_ledger(process, held);
        if settled.is_err() && process.cover(self.index()) {
            return Ok(());
        }
        settled
    }

    fn settle_by_ledger(&self, process: &Process, held: u64) -> Result<(), Over> {
        loop {
            let number = self.measurements.fetch_add(1, Relaxed) + 1;
            let reserved = self.reserved();
            let mut account = self.account.lock();
            let reserved = match reserved {
                Some(reserved) if !account.is_destroyed => reserved,
                // Nobody can say any more: what was charged stays until all is freed.
                _ => account.reserved(),
            };
            if number < account.settled {
                continue;
            }
            account.settled = number;
            let levels = &process.memory.levels;
            let (usage, control) = (process.usage(), process.control());
            let (index, before) = (account.index, account.paid);
            if held == 0 && account.is_as_measured(reserved) {
                return Ok(());
            }
            let settled = account.settle(
                held,
                reserved,
                |bytes| levels.try_charge(usage, control, index, bytes).is_ok(),
                |bytes| levels.charge(usage, control, index, bytes),
                |bytes| levels.uncharge(usage, index, bytes),
            );
            self.add_kind(process, index, account.paid.wrapping_sub(before));
            levels.raise_to_current(usage, control, index);
            return settled;
        }
    }

    fn add_kind(&self, process: &Process, index: usize, bytes: u64) {
        let device = process.usage().devices.get(index);
        if let Some(kind) = device.and_then(|device| device.kinds.get(self.kind() as usize)) {
            kind.fetch_add(bytes, Relaxed);
        }
    }
}

fn pool(handle: usize) -> CUmemoryPool {
    CUmemoryPool(std::ptr::with_exposed_provenance_mut(handle))
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
