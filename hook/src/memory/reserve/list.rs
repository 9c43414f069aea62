//! All reserves of the process: lookup by handle and number, and operations on all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use parking_lot::Mutex;

use super::{Backing, Reserve, Source};
use crate::driver::cuda::{CUerror, CUmemoryPool};
use crate::memory::Memory;
use crate::memory::account::Account;
use crate::memory::ledger::Entry;
use crate::memory::page_counter::Unsettled;
use crate::memory::stream::{Reached, Stream};
use crate::shared::device::LocalDevice;

#[derive(Debug, Default)]
pub(crate) struct Reserves {
    list: Mutex<Vec<Arc<Reserve>>>,
    /// Current pools of devices, as far as the driver has been asked.
    current: Mutex<Vec<(LocalDevice, Arc<Reserve>)>>,
    /// Number of events after which a device's current pool may be another: a pool was added, or a current
    /// pool may have changed.
    changes: AtomicUsize,
    /// Destroyed pools without live allocations, which wait for streams.
    over: Mutex<Vec<Arc<Reserve>>>,
    /// Length of `over`, readable without the lock.
    nr_over: AtomicUsize,
}

impl Reserves {
    /// Returns whether the process has used pools, or graphs with memory.
    pub(crate) fn is_any(&self) -> bool {
        self.changes.load(Relaxed) != 0
    }

    /// Returns the pool of a handle.
    pub(crate) fn find(&self, handle: CUmemoryPool) -> Option<Arc<Reserve>> {
        let wanted = Source::Pool(handle.0.addr());
        let list = self.list.lock();
        list.iter()
            .find(|pool| pool.source == wanted && !pool.account.lock().is_leaving())
            .cloned()
    }

    /// Inserts a pool.
    pub(crate) fn enter(
        &self,
        handle: CUmemoryPool,
        local: LocalDevice,
        index: usize,
        backing: Backing,
    ) -> Arc<Reserve> {
        let source = Source::Pool(handle.0.expose_provenance());
        let mut list = self.list.lock();
        self.add(&mut list, source, local, index, backing)
    }

    /// Returns the reserve of graphs on a device.
    pub(crate) fn of_graphs(&self, local: LocalDevice, index: usize) -> Arc<Reserve> {
        let mut list = self.list.lock();
        let known = list
            .iter()
            .find(|reserve| reserve.source == Source::Graphs && reserve.local == local)
            .cloned();
        known.unwrap_or_else(|| self.add(&mut list, Source::Graphs, local, index, Backing::Device))
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a reserve")]
    fn add(
        &self,
        list: &mut Vec<Arc<Reserve>>,
        source: Source,
        local: LocalDevice,
        index: usize,
        backing: Backing,
    ) -> Arc<Reserve> {
        self.changes.fetch_add(1, Release);
        let id = list
            .iter()
            .map(|pool| pool.id)
            .max()
            .map_or(0, |last| last.wrapping_add(1));
        let pool = Arc::new(Reserve {
            source,
            id,
            local,
            backing,
            is_shared: AtomicBool::new(false),
            index: AtomicUsize::new(index),
            account: Mutex::new(Account::new()),
        });
        list.push(Arc::clone(&pool));
        pool
    }

    /// Returns the current pool of a device; `ask` queries the driver where the answer is not cached.
    pub(crate) fn current(
        &self,
        local: LocalDevice,
        ask: impl FnOnce() -> Result<Arc<Reserve>, CUerror>,
    ) -> Result<Arc<Reserve>, CUerror> {
        let known = |current: &[(LocalDevice, Arc<Reserve>)]| {
            let (_, pool) = current.iter().find(|(device, _)| *device == local)?;
            Some(Arc::clone(pool))
        };
        if let Some(pool) = known(&self.current.lock()) {
            return Ok(pool);
        }
        let changes = self.changes.load(Acquire);
        let pool = ask()?;
        let mut current = self.current.lock();
        if changes == self.changes.load(Relaxed) && known(&current).is_none() {
            current.push((local, Arc::clone(&pool)));
        }
        Ok(pool)
    }

    /// Drops the cached current pools: one may have changed.
    pub(crate) fn forget_current(&self) {
        let mut current = self.current.lock();
        self.changes.fetch_add(1, Release);
        current.clear();
    }

    /// Settles after the program waited for `stream`, in a call that began after the free with number `last`,
    /// or for an unknown set of streams (`None`): measures the reserves that may have shrunk.
    pub(crate) fn synchronized(&self, memory: &Memory, stream: Option<usize>, last: u64) {
        if self.changes.load(Acquire) == 0 {
            return;
        }
        let stream = stream.map(|stream| Stream::of(memory.program, stream));
        let streams = stream.as_slice();
        let reached = Reached { streams, last };
        self.each(
            |pool| !pool.passed(reached),
            |pool| pool.synchronized(memory, reached),
        );
        self.settle_over(memory);
        memory.release_excess();
    }

    /// Calls `act` without the lock for each reserve that `is_meant`, the last first: `act` may remove it.
    fn each(&self, is_meant: impl Fn(&Reserve) -> bool, act: impl Fn(&Arc<Reserve>)) {
        let mut before = usize::MAX;
        loop {
            let found = {
                let list = self.list.lock();
                let mut rest = list.iter().enumerate().rev().filter(|(at, _)| *at < before);
                rest.find(|(_, pool)| is_meant(pool))
                    .map(|(at, pool)| (at, Arc::clone(pool)))
            };
            let Some((at, pool)) = found else {
                return;
            };
            act(&pool);
            before = at;
        }
    }

    /// Measures every reserve with a charge.
    pub(crate) fn settle_all(&self, memory: &Memory) {
        let is_meant = |pool: &Reserve| {
            let account = pool.account.lock();
            account.paid() != 0 && !account.is_leaving()
        };
        self.each(is_meant, |pool| {
            // A pool that exceeds the limit stays so until its memory is freed.
            let _ = pool.settle(memory, None);
        });
        self.settle_over(memory);
    }

    /// Returns the streams that freed blocks wait for, those of each reserve.
    pub(crate) fn waits_for(&self) -> Vec<Stream> {
        let streams = |pool: &Arc<Reserve>| pool.account.lock().waits_for();
        self.list.lock().iter().flat_map(streams).collect()
    }

    /// Settles the frees that streams have reached, in the reserves that wait for them.
    pub(crate) fn passed(&self, memory: &Memory, reached: Reached<'_>) {
        let is_meant = |pool: &Reserve| {
            let waits_for = pool.account.lock().waits_for();
            waits_for.iter().any(|stream| reached.streams.contains(stream))
        };
        self.each(is_meant, |pool| pool.synchronized(memory, reached));
    }

    /// Has every pool release what it reserves beyond its allocations; returns whether any could.
    pub(crate) fn trim(&self, memory: &Memory) -> bool {
        let mut any = self.settle_over(memory);
        for reserve in self.all().iter().filter(|reserve| reserve.has_spare()) {
            reserve.trim(memory);
            any = true;
        }
        any
    }

    /// Returns whether a limit is exceeded on a device with reserves.
    pub(crate) fn exceed(&self, memory: &Memory) -> bool {
        let has_room = |index| memory.reserve(index, 0).is_ok();
        self.list.lock().iter().any(|pool| !has_room(pool.index()))
    }

    fn all(&self) -> Vec<Arc<Reserve>> {
        self.list.lock().clone()
    }

    /// Returns whether freed blocks wait for a stream among `streams` that the calling thread may wait for.
    pub(crate) fn is_waiting(&self, memory: &Memory, streams: impl Fn(&Account) -> Vec<Stream>) -> bool {
        self.all().iter().any(|pool| {
            let streams = streams(&pool.account.lock());
            streams.iter().any(|stream| stream.may_pass(memory.program))
        })
    }

    /// Has what waits for a stream wait for another one; returns whether anything does.
    pub(crate) fn replace(&self, stream: Stream, by: Stream) -> bool {
        let mut any = false;
        for pool in self.all() {
            any |= pool.account.lock().replace(stream, by);
        }
        any
    }

    /// Notes that an allocation has waited in vain for what waits now.
    pub(crate) fn give_up_waiting(&self) {
        self.all()
            .iter()
            .for_each(|pool| pool.account.lock().give_up_waiting());
    }

    /// Ends an allocation of a pool, at once or when `stream` reaches the free.
    #[inline(never)]
    pub(crate) fn freed(&self, memory: &Memory, entry: &Entry, stream: Option<usize>) {
        let order = stream.map(|stream| memory.ordered(Stream::of(memory.program, stream)));
        let over = {
            let list = self.list.lock();
            let Some(pool) = list.iter().find(|pool| pool.id == entry.owner) else {
                return;
            };
            let is_over = pool.account.lock().end(entry.size, order);
            is_over.then(|| Arc::clone(pool))
        };
        if let Some(pool) = over {
            self.end_if_over(memory, &pool);
        }
    }

    /// Removes a destroyed pool without live allocations if its streams have reached their frees; otherwise a
    /// later wait for a stream or the helper does.
    pub(crate) fn end_if_over(&self, memory: &Memory, pool: &Arc<Reserve>) {
        let waits_for = {
            let account = pool.account.lock();
            account.is_over().then(|| account.waits_for())
        };
        let Some(streams) = waits_for else {
            return;
        };
        if streams.iter().all(|stream| stream.has_passed(memory.program)) {
            return self.end(memory, pool);
        }
        let mut over = self.over.lock();
        if !over.iter().any(|other| Arc::ptr_eq(other, pool)) {
            over.push(Arc::clone(pool));
            self.nr_over.store(over.len(), Relaxed);
            drop(over);
            memory.session.line.wake();
        }
    }

    /// Returns whether any pool remains only for the streams that it waits for.
    pub(crate) fn is_any_over(&self) -> bool {
        self.nr_over.load(Relaxed) != 0
    }

    /// Removes such pools whose streams have reached their frees; returns whether there were any.
    pub(crate) fn settle_over(&self, memory: &Memory) -> bool {
        if !self.is_any_over() {
            return false;
        }
        let over = self.over.lock().clone();
        // Without a lock.
        over.iter().for_each(|pool| self.end_if_over(memory, pool));
        self.nr_over.load(Relaxed) < over.len()
    }

    /// Removes a destroyed pool and uncharges what is left of it.
    pub(crate) fn end(&self, memory: &Memory, pool: &Arc<Reserve>) {
        let is_other = |other: &Arc<Reserve>| !Arc::ptr_eq(other, pool);
        self.list.lock().retain(is_other);
        let mut over = self.over.lock();
        over.retain(is_other);
        self.nr_over.store(over.len(), Relaxed);
        drop(over);
        self.forget_current();
        let _unsettled = Unsettled::on(memory.usage(), pool.index());
        let mut account = pool.account.lock();
        let bytes = account.give_up();
        pool.add_kind(memory, pool.index(), bytes.wrapping_neg());
        drop(account);
        if pool.is_shared.swap(false, Relaxed) {
            memory.keep_shared(pool.local, pool.index(), bytes);
            memory.unshare();
        } else {
            memory.page_counter.uncharge(pool.index(), bytes);
        }
        memory.return_unused(pool.index());
    }

    pub(crate) fn renumber(&self, memory: &Memory) {
        for pool in self.list.lock().iter() {
            let account = pool.account.lock();
            let index = memory.session.devices.index(pool.local);
            if index != pool.index() {
                memory
                    .page_counter
                    .transfer_bytes(pool.index(), index, account.paid());
                pool.add_kind(memory, pool.index(), account.paid().wrapping_neg());
                pool.add_kind(memory, index, account.paid());
                pool.index.store(index, Relaxed);
            }
        }
    }
}
