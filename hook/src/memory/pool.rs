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

use super::account::{Account, Over};
use super::ledger::Entry;
use super::levels::{self, Full, Unsettled};
use crate::cuda::{
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_STREAM_CAPTURE_STATUS_NONE, CUdeviceptr, CUerror,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};
use crate::device::LocalDevice;
use crate::driver;
use crate::interpose::{self, Next};
use crate::place::{given, written};
use crate::process::{self, Process};

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
        account.hold(bytes);
        add_kind(process, account.index, bytes);
        Ok(())
    }

    /// Brings the charge in line with what is reserved, after a call that held `held`.
    ///
    /// A measurement counts only if none that was begun later is settled already: so the last to settle was begun after
    /// every call that was over by then. No lock is held while the driver is asked.
    fn settle(&self, process: &Process, held: u64) -> Result<(), Over> {
        let _unsettled = Unsettled::on(process.usage(), self.index());
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
        let pool = Arc::new(Pool {
            handle: handle.0.expose_provenance(),
            id,
            local,
            is_imported,
            measurements: AtomicU64::new(0),
            account: Mutex::new(Account::new(index)),
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
            .filter(|pool| pool.account.lock().has_spare())
            .cloned()
            .collect();
        for pool in &spare {
            pool.trim(process);
        }
        !spare.is_empty()
    }

    /// An allocation of a pool is gone, or will be when that stream has come so far.
    pub(crate) fn freed(&self, process: &Process, entry: &Entry, stream: Option<usize>) {
        let pool = self
            .list
            .lock()
            .iter()
            .find(|pool| pool.id == entry.owner)
            .cloned();
        let Some(pool) = pool else { return };
        let is_over = {
            let mut account = pool.account.lock();
            account.end(entry.size, stream);
            account.is_over()
        };
        if is_over {
            self.end(process, &pool);
        }
    }

    /// That stream has come to where it frees what it was to.
    fn passed(&self, stream: usize) {
        for pool in self.list.lock().iter() {
            pool.account.lock().passed(stream);
        }
    }

    /// A destroyed pool of which nothing is allocated any more.
    fn end(&self, process: &Process, pool: &Arc<Pool>) {
        self.list.lock().retain(|other| !Arc::ptr_eq(other, pool));
        let _unsettled = Unsettled::on(process.usage(), pool.index());
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

/// The pool that allocations on a stream come from: the stream's device's, whichever device is current.
fn current_pool(process: &Process, stream: CUstream) -> Option<Arc<Pool>> {
    let local = match process.contexts.holder(stream) {
        Some(context) => context.local,
        None => process.place()?.local,
    };
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
    match current_pool(process, stream) {
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
    let (may_do, foretold, before) = {
        let mut account = pool.account.lock();
        (
            account.begin(bytes, stream.0.addr()),
            account.foretold(bytes),
            account.reserved(),
        )
    };
    let held = match pool.hold(process, foretold) {
        Ok(()) => foretold,
        Err(full) => {
            full.count_hit(process.usage());
            if may_do {
                0
            } else {
                make_room(process, pool, bytes, foretold, stream)?
            }
        }
    };
    let unsettled = Unsettled::on(process.usage(), pool.index());
    let result = next();
    let settled = pool.settle(process, held);
    drop(unsettled);
    let made = result.ok().and_then(|()| written(address));
    let Some(address) = made else {
        pool.account.lock().end(bytes, None);
        process.count_failure(pool.index());
        return result;
    };
    pool.account.lock().learn(bytes, before);
    if settled.is_err() {
        return give_back(process, pool, address, bytes, stream, before);
    }
    let entry = Entry::new(Kind::Pool, bytes, pool.local, pool.index(), pool.id);
    process.remember(&process.memory.blocks, address.0, entry);
    Ok(())
}

/// Holds what an allocation takes after trimming every pool, or refuses it.
fn make_room(
    process: &Process,
    pool: &Pool,
    bytes: u64,
    foretold: u64,
    stream: CUstream,
) -> Result<u64, CUerror> {
    // It is not counted meanwhile, or what the pool has to spare would seem to be in use.
    pool.account.lock().end(bytes, None);
    process.memory.pools.trim(process);
    let held = pool.hold(process, foretold).map(|()| foretold).or_else(|full| {
        let hoped = pool.account.lock().hoped(bytes).ok_or(full)?;
        pool.hold(process, hoped).map(|()| hoped).map_err(|_| full)
    });
    match held {
        Ok(held) => {
            pool.account.lock().begin(bytes, stream.0.addr());
            Ok(held)
        }
        Err(full) => {
            full.count_refusal(process.usage());
            process.count_failure(pool.index());
            Err(CUerror::OUT_OF_MEMORY)
        }
    }
}

/// The pool grew over the limit: undoes the allocation.
fn give_back(
    process: &Process,
    pool: &Pool,
    address: CUdeviceptr,
    bytes: u64,
    stream: CUstream,
    keep: u64,
) -> CUresult {
    driver::cuMemFreeAsync(address, stream)?;
    pool.account.lock().mistaken(bytes, stream.0.addr());
    let _ = driver::cuMemPoolTrimTo(pool.handle(), usize::try_from(keep).unwrap_or(0));
    let _ = pool.settle(process, 0);
    levels::count(process.usage(), pool.index(), |device| &device.nr_oom);
    process.count_failure(pool.index());
    Err(CUerror::OUT_OF_MEMORY)
}

/// `cuMemFreeAsync`: the pool keeps what it reserves. Also frees linear memory, which is then gone.
pub(crate) fn free(address: CUdeviceptr, stream: CUstream, next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    process
        .free_on(&process.memory.blocks, address.0, Some(stream.0.addr()), next)
        .0
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
        account.is_over()
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

/// `cuStreamSynchronize`: pools give memory back there.
pub(crate) fn synchronize(stream: CUstream, next: Next<'_>) -> CUresult {
    interpose::uncanceled(next)?;
    if let Some(process) = process::get() {
        // First: what the driver has just given back is not to spare.
        process.memory.pools.settle_all(process);
        process.memory.pools.passed(stream.0.addr());
    }
    Ok(())
}

/// Calls that wait for all of a context, or for an event: how far streams have come is not known.
pub(crate) fn synchronize_all(next: Next<'_>) -> CUresult {
    interpose::uncanceled(next)?;
    if let Some(process) = process::get() {
        process.memory.pools.settle_all(process);
    }
    Ok(())
}
