//! Memory pools: charged by what a pool reserves, not by what is allocated from it.
//!
//! The driver alone knows by how much a pool grows, so the growth is foretold and charged before the call, and what it
//! was is measured after (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`) and settled. A pool over the limit is trimmed first;
//! what then does not fit is refused. Nothing here waits for a stream.
//!
//! Where a pool grows by more than was foretold and that does not fit, the allocation is given back and refused. The
//! reservation may outlast it until its stream has come so far; until then it is charged, limit or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::Kind;
use parking_lot::Mutex;

use super::ledger::Entry;
use super::levels::{self, Full};
use crate::cuda::{
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_STREAM_CAPTURE_STATUS_NONE, CUdeviceptr, CUerror,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};
use crate::device::LocalDevice;
use crate::driver;
use crate::interpose::Next;
use crate::place::{given, written};
use crate::process::{self, Process};

/// What pools grow by at least: the size of a page of device memory.
const LEAST_GROWTH: u64 = 2 << 20;
/// What they grow by at most for a small allocation; more is something else than a step.
const MOST_GROWTH: u64 = 256 << 20;

#[derive(Debug)]
struct Account {
    /// Bytes charged for the pool, and the part of them that calls under way hold in advance.
    paid: u64,
    held: u64,
    /// The last measurement that was settled; an older one is void.
    settled: u64,
    /// What is allocated from the pool now.
    live_bytes: u64,
    live: u64,
    /// The pool's handle is gone; it lives until nothing is allocated from it.
    is_destroyed: bool,
    /// What it grows by, as far as seen.
    growth: u64,
    /// The slot that it is charged in.
    index: usize,
}

#[derive(Debug)]
struct Pool {
    handle: usize,
    id: u32,
    local: LocalDevice,
    /// Memory of another process: charged there.
    is_imported: bool,
    measurements: AtomicU64,
    account: Mutex<Account>,
}

#[derive(Debug, Default)]
pub(crate) struct Pools {
    list: Mutex<Vec<Arc<Pool>>>,
}

/// The reservation is larger than the limit allows.
#[derive(Debug, PartialEq, Eq)]
struct Over;

impl Account {
    /// Bytes that growing for an allocation of that size takes.
    fn foretold(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.growth).unwrap_or(u64::MAX)
    }

    /// Ends a call that held `held`, with `reserved` measured after it: charges what is missing, gives back what is
    /// too much. What does not fit is charged all the same, since it is there.
    fn settle(
        &mut self,
        held: u64,
        reserved: u64,
        try_charge: impl FnOnce(u64) -> bool,
        charge: impl FnOnce(u64),
        uncharge: impl FnOnce(u64),
    ) -> Result<(), Over> {
        self.held -= held;
        if reserved <= self.paid {
            // What others hold in advance they may still need.
            let keep = self.paid.min(reserved.saturating_add(self.held));
            uncharge(self.paid - keep);
            self.paid = keep;
            return Ok(());
        }
        let missing = reserved - self.paid;
        self.paid = reserved;
        if try_charge(missing) {
            return Ok(());
        }
        charge(missing);
        Err(Over)
    }
}

impl Pool {
    fn handle(&self) -> CUmemoryPool {
        CUmemoryPool(std::ptr::with_exposed_provenance_mut(self.handle))
    }

    fn reserved(&self) -> Option<u64> {
        let mut bytes = 0;
        driver::cuMemPoolGetAttribute(self.handle(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &mut bytes)
            .ok()?;
        Some(bytes)
    }

    fn trim(&self, process: &Process) {
        let _ = driver::cuMemPoolTrimTo(self.handle(), 0);
        // If it is over the limit still, it was before.
        let _ = self.settle(process, 0);
    }

    fn index(&self) -> usize {
        self.account.lock().index
    }

    /// Charges in advance.
    fn hold(&self, process: &Process, bytes: u64) -> Result<(), Full> {
        let mut account = self.account.lock();
        let (usage, control) = (process.usage(), process.control());
        process
            .memory
            .levels
            .try_charge(usage, control, account.index, bytes)?;
        account.paid += bytes;
        account.held += bytes;
        add_kind(process, account.index, bytes);
        Ok(())
    }

    /// Brings the charge in line with what is reserved, after a call that held `held`.
    ///
    /// A measurement counts only if none that was begun later is settled already: so the last to settle was begun after
    /// every call that was over by then. No lock is held while the driver is asked.
    fn settle(&self, process: &Process, held: u64) -> Result<(), Over> {
        loop {
            let number = self.measurements.fetch_add(1, Relaxed) + 1;
            let reserved = self.reserved();
            let mut account = self.account.lock();
            let reserved = match reserved {
                Some(reserved) if !account.is_destroyed => reserved,
                // Nobody can say any more: what was charged stays until all is freed.
                _ => account.paid - account.held,
            };
            if number < account.settled {
                continue;
            }
            account.settled = number;
            let levels = &process.memory.levels;
            let (usage, control) = (process.usage(), process.control());
            let (index, before) = (account.index, account.paid);
            let settled = account.settle(
                held,
                reserved,
                |bytes| levels.try_charge(usage, control, index, bytes).is_ok(),
                |bytes| levels.charge(usage, control, index, bytes),
                |bytes| levels.uncharge(usage, index, bytes),
            );
            add_kind(process, index, account.paid.wrapping_sub(before));
            return settled;
        }
    }
}

fn add_kind(process: &Process, index: usize, bytes: u64) {
    if let Some(kind) = process
        .usage()
        .devices
        .get(index)
        .and_then(|device| device.kinds.get(Kind::Pool as usize))
    {
        kind.fetch_add(bytes, Relaxed);
    }
}

impl Pools {
    fn find(&self, handle: CUmemoryPool) -> Option<Arc<Pool>> {
        let number = handle.0.addr();
        let list = self.list.lock();
        list.iter()
            .find(|pool| pool.handle == number && !pool.account.lock().is_destroyed)
            .cloned()
    }

    fn enter(&self, handle: CUmemoryPool, local: LocalDevice, index: usize, is_imported: bool) -> Arc<Pool> {
        let mut list = self.list.lock();
        let id = list
            .iter()
            .map(|pool| pool.id)
            .max()
            .map_or(0, |last| last.wrapping_add(1));
        let account = Account {
            paid: 0,
            held: 0,
            settled: 0,
            live_bytes: 0,
            live: 0,
            is_destroyed: false,
            growth: LEAST_GROWTH,
            index,
        };
        let pool = Arc::new(Pool {
            handle: handle.0.expose_provenance(),
            id,
            local,
            is_imported,
            measurements: AtomicU64::new(0),
            account: Mutex::new(account),
        });
        list.push(Arc::clone(&pool));
        pool
    }

    /// Measures every pool that has anything charged: the driver gives memory back when streams are synchronised.
    pub(crate) fn settle_all(&self, process: &Process) {
        // Uncontended and empty in a program without pools.
        let pools: Vec<_> = self
            .list
            .lock()
            .iter()
            .filter(|pool| pool.account.lock().paid != 0)
            .cloned()
            .collect();
        for pool in pools {
            // A pool that is over stays so until its memory is freed.
            let _ = pool.settle(process, 0);
        }
    }

    /// Has every pool give back what it reserves beyond what is allocated; whether any had such.
    pub(crate) fn trim(&self, process: &Process) -> bool {
        let spare: Vec<_> = self
            .list
            .lock()
            .iter()
            .filter(|pool| has_room(pool, 1))
            .cloned()
            .collect();
        for pool in &spare {
            pool.trim(process);
        }
        !spare.is_empty()
    }

    /// An allocation of a pool is gone.
    pub(crate) fn freed(&self, process: &Process, entry: &Entry) {
        let pool = self
            .list
            .lock()
            .iter()
            .find(|pool| pool.id == entry.owner)
            .cloned();
        let Some(pool) = pool else { return };
        let is_over = {
            let mut account = pool.account.lock();
            account.live = account.live.saturating_sub(1);
            account.live_bytes = account.live_bytes.saturating_sub(entry.size);
            account.is_destroyed && account.live == 0
        };
        if is_over {
            self.end(process, &pool);
        }
    }

    /// A destroyed pool of which nothing is allocated any more.
    fn end(&self, process: &Process, pool: &Arc<Pool>) {
        self.list.lock().retain(|other| !Arc::ptr_eq(other, pool));
        let mut account = pool.account.lock();
        let bytes = std::mem::take(&mut account.paid);
        process
            .memory
            .levels
            .uncharge(process.usage(), account.index, bytes);
        add_kind(process, account.index, bytes.wrapping_neg());
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
                add_kind(process, account.index, account.paid.wrapping_neg());
                add_kind(process, index, account.paid);
                account.index = index;
            }
        }
    }
}

/// The pool that allocations of the current device come from.
fn current_pool(process: &Process) -> Option<Arc<Pool>> {
    let local = process.place()?.local;
    let mut handle = CUmemoryPool::NULL;
    driver::cuDeviceGetMemPool(&mut handle, local.device()).ok()?;
    let pools = &process.memory.pools;
    pools
        .find(handle)
        .or_else(|| Some(pools.enter(handle, local, process.devices.index(local), false)))
}

/// The pool of that handle: one that was created, or some device's default.
fn pool_of(process: &Process, handle: CUmemoryPool) -> Option<Arc<Pool>> {
    if let Some(pool) = process.memory.pools.find(handle) {
        return Some(pool);
    }
    let mut count = 0;
    driver::cuDeviceGetCount(&mut count).ok()?;
    let local = (0..count).filter_map(LocalDevice::of).find(|local| {
        let mut default = CUmemoryPool::NULL;
        driver::cuDeviceGetDefaultMemPool(&mut default, local.device()).is_ok() && default == handle
    })?;
    let index = process.devices.learn(process.control(), local);
    Some(process.memory.pools.enter(handle, local, index, false))
}

fn is_capturing(stream: CUstream) -> bool {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    driver::cuStreamIsCapturing(stream, &mut status).is_ok() && status != CU_STREAM_CAPTURE_STATUS_NONE
}

/// `cuMemAllocAsync`, from the device's current pool.
pub(crate) fn alloc(address: *mut CUdeviceptr, bytes: usize, stream: CUstream, next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    match current_pool(process) {
        Some(pool) if !is_capturing(stream) => {
            alloc_from(process, &pool, address, bytes as u64, stream, next)
        }
        _ => next(),
    }
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) fn alloc_from_pool(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
    next: Next<'_>,
) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    match pool_of(process, pool) {
        Some(pool) if !pool.is_imported && !is_capturing(stream) => {
            alloc_from(process, &pool, address, bytes as u64, stream, next)
        }
        _ => next(),
    }
}

fn alloc_from(
    process: &Process,
    pool: &Arc<Pool>,
    address: *mut CUdeviceptr,
    bytes: u64,
    stream: CUstream,
    next: Next<'_>,
) -> CUresult {
    let foretold = pool.account.lock().foretold(bytes);
    let mut held = foretold;
    if let Err(full) = pool.hold(process, held) {
        held = 0;
        full.count_hit(process.usage());
        // What the pool has to spare may do, and then it does not grow at all.
        if !has_room(pool, bytes) {
            process.memory.pools.trim(process);
            if let Err(full) = pool.hold(process, foretold) {
                full.count_refusal(process.usage());
                process.count_failure(pool.index());
                return Err(CUerror::OUT_OF_MEMORY);
            }
            held = foretold;
        }
    }
    let before = pool.account.lock().paid - held;
    let result = next();
    if result.is_err() {
        let _ = pool.settle(process, held);
        process.count_failure(pool.index());
        return result;
    }
    let Some(address) = written(address) else {
        return pool.settle(process, held).or(Ok(()));
    };
    if pool.settle(process, held).is_err() {
        return give_back(process, pool, address, stream, before);
    }
    {
        let mut account = pool.account.lock();
        account.live += 1;
        account.live_bytes += bytes;
        let grown = account.paid.saturating_sub(account.held).saturating_sub(before);
        learn(&mut account, bytes, grown);
    }
    let entry = Entry::new(Kind::Pool, bytes, pool.local, pool.index(), pool.id);
    process.remember(&process.memory.blocks, address.0, entry);
    Ok(())
}

/// Whether the pool reserves enough that is not allocated. It may be in pieces, or waiting for a stream: then the pool
/// grows all the same.
fn has_room(pool: &Pool, bytes: u64) -> bool {
    let account = pool.account.lock();
    !account.is_destroyed && (account.paid - account.held).saturating_sub(account.live_bytes) >= bytes
}

/// A pool that grew by more than was foretold grows in larger steps: the least that explain what was seen.
fn learn(account: &mut Account, bytes: u64, grown: u64) {
    while account.foretold(bytes) < grown && account.growth < MOST_GROWTH {
        account.growth *= 2;
    }
}

/// The pool grew over the limit: undoes the allocation.
fn give_back(process: &Process, pool: &Pool, address: CUdeviceptr, stream: CUstream, keep: u64) -> CUresult {
    driver::cuMemFreeAsync(address, stream)?;
    let keep = usize::try_from(keep).unwrap_or(0);
    let _ = driver::cuMemPoolTrimTo(pool.handle(), keep);
    let _ = pool.settle(process, 0);
    levels::count(process.usage(), pool.index(), |device| &device.nr_oom);
    process.count_failure(pool.index());
    Err(CUerror::OUT_OF_MEMORY)
}

/// `cuMemFreeAsync`: the pool keeps what it reserves. Also frees linear memory, which is then gone.
pub(crate) fn free(address: CUdeviceptr, next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    process.free(&process.memory.blocks, address.0, next).0
}

/// `cuMemPoolCreate`. Pools of host memory are not a device's.
pub(crate) fn create(made: *mut CUmemoryPool, wanted: *const CUmemPoolProps, next: Next<'_>) -> CUresult {
    next()?;
    let (Some(process), Some(made)) = (process::get(), written(made)) else {
        return Ok(());
    };
    if let Some(local) = given(wanted).and_then(|wanted| LocalDevice::of(wanted.location.device()?)) {
        let index = process.devices.learn(process.control(), local);
        process.memory.pools.enter(made, local, index, false);
    }
    Ok(())
}

/// `cuMemPoolImportFromShareableHandle`: charged to whoever created it.
pub(crate) fn import(made: *mut CUmemoryPool, next: Next<'_>) -> CUresult {
    next()?;
    let (Some(process), Some(made)) = (process::get(), written(made)) else {
        return Ok(());
    };
    if let Some(place) = process.place() {
        process.memory.pools.enter(made, place.local, place.index, true);
    }
    Ok(())
}

/// `cuMemPoolDestroy`: the pool goes when nothing is allocated from it any more.
pub(crate) fn destroy(handle: CUmemoryPool, next: Next<'_>) -> CUresult {
    let found = process::get().and_then(|process| Some((process, process.memory.pools.find(handle)?)));
    let Some((process, pool)) = found else {
        return next();
    };
    // Before the driver, which may give the handle to another pool at once.
    pool.account.lock().is_destroyed = true;
    let result = next();
    let is_over = {
        let mut account = pool.account.lock();
        account.is_destroyed = result.is_ok();
        account.is_destroyed && account.live == 0
    };
    if is_over {
        process.memory.pools.end(process, &pool);
    }
    result
}

/// `cuMemPoolTrimTo`, `cuMemPoolSetAttribute`: the reservation may be another after.
pub(crate) fn change(handle: CUmemoryPool, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(process) = process::get()
        && let Some(pool) = process.memory.pools.find(handle)
    {
        let _ = pool.settle(process, 0);
    }
    Ok(())
}

/// Calls that wait for streams: pools give memory back there.
pub(crate) fn synchronize(next: Next<'_>) -> CUresult {
    next()?;
    if let Some(process) = process::get() {
        process.memory.pools.settle_all(process);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn account(paid: u64, held: u64) -> Account {
        Account {
            paid,
            held,
            settled: 0,
            live_bytes: 0,
            live: 0,
            is_destroyed: false,
            growth: LEAST_GROWTH,
            index: 0,
        }
    }

    /// Settles against a ledger with room for `room` more bytes; returns what was charged (less what was given back).
    fn settle(account: &mut Account, held: u64, reserved: u64, room: i64) -> (Result<(), Over>, i64) {
        let charged = Cell::new(0_i64);
        let add = |bytes: u64| charged.set(charged.get() + i64::try_from(bytes).unwrap());
        let result = account.settle(
            held,
            reserved,
            |bytes| {
                let fits = i64::try_from(bytes).unwrap() <= room;
                if fits {
                    add(bytes);
                }
                fits
            },
            add,
            |bytes| charged.set(charged.get() - i64::try_from(bytes).unwrap()),
        );
        (result, charged.get())
    }

    #[test]
    fn a_call_pays_for_the_growth_that_was_measured() {
        let mut one = account(100 + 32, 32);
        assert_eq!(settle(&mut one, 32, 120, 0), (Ok(()), -12));
        assert_eq!((one.paid, one.held), (120, 0));
        assert_eq!(settle(&mut one, 0, 40, 0), (Ok(()), -80), "trimmed");
        assert_eq!(settle(&mut one, 0, 50, 10), (Ok(()), 10));
    }

    #[test]
    fn growth_that_does_not_fit_is_said_and_charged() {
        let mut one = account(100 + 32, 32);
        assert_eq!(settle(&mut one, 32, 164, 31), (Err(Over), 32));
        assert_eq!((one.paid, one.held), (164, 0));
    }

    #[test]
    fn calls_under_way_keep_what_they_hold() {
        let mut both = account(100 + 32 + 32, 64);
        assert_eq!(
            settle(&mut both, 32, 164, 0),
            (Ok(()), 0),
            "the other's growth was measured too"
        );
        assert_eq!((both.paid, both.held), (164, 32));
        assert_eq!(settle(&mut both, 32, 164, 0), (Ok(()), 0));
        let mut both = account(100 + 32 + 32, 64);
        assert_eq!(settle(&mut both, 32, 100, 0), (Ok(()), -32));
        assert_eq!((both.paid, both.held), (132, 32));
    }

    #[test]
    fn growth_is_foretold_in_steps_that_are_learnt() {
        let mut one = account(0, 0);
        assert_eq!(one.foretold(1), 2 << 20);
        assert_eq!(one.foretold((2 << 20) + 1), 4 << 20);
        learn(&mut one, 40 << 20, 64 << 20);
        assert_eq!(one.foretold(1), 32 << 20, "the least step that takes 40 to 64");
        learn(&mut one, 1, 0);
        assert_eq!(one.foretold(33 << 20), 64 << 20);
        learn(&mut one, 1, u64::MAX);
        assert_eq!(one.foretold(1), MOST_GROWTH);
        assert_eq!(one.foretold(u64::MAX), u64::MAX);
    }
}
