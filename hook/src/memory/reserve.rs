//! Memory that the driver reserves in pieces of its own choosing: pools, and what graphs allocate. Charged by what is
//! reserved, not by what is allocated from it.
//!
//! The driver alone knows by how much it grows, so the growth is foretold and charged before the call, and what it was
//! is measured after and settled. Over the limit, every reserve is trimmed first; what then does not fit is refused.
//! Nothing here waits for a stream.

pub(crate) mod kept;
mod list;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use gcgroup_abi::Kind;

use super::account::{self, Account, Over};
use super::levels::{Full, Unsettled};
use super::lock::Lock;
use crate::cuda::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CUmemoryPool,
};
use crate::device::LocalDevice;
use crate::driver;
use crate::process::Process;
pub(crate) use list::Reserves;

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
    /// Times it was trimmed: what had room before may have none.
    trims: AtomicUsize,
    /// The slot that it is charged in, for who does not hold the account.
    index: AtomicUsize,
    /// For whom waiting for a stream may change anything ([`Account::matters_to`]), for who does not hold the account.
    /// Written by who does.
    matters_to: AtomicUsize,
    pub(super) account: Lock<Account>,
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

    /// Ends an allocation, at once or when that stream has come so far; whether the pool is over by it. Address zero: nobody
    /// knows where it was.
    #[inline]
    pub(crate) fn end(&self, address: u64, bytes: u64, stream: Option<usize>) -> bool {
        self.touch(|account| {
            account.end(address, bytes, stream);
            account.is_over()
        })
    }

    /// The pool grew where it was thought not to need to, and the allocation was undone.
    pub(crate) fn mistaken(&self, bytes: u64, stream: usize) {
        self.touch(|account| account.mistaken(bytes, stream));
    }

    /// What the driver keeps of it may be less from its next occasion on.
    pub(crate) fn may_keep_less(&self) {
        self.touch(Account::may_keep_less);
    }

    /// It is destroyed, or is not after all.
    pub(crate) fn set_destroyed(&self, is_destroyed: bool) {
        self.touch(|account| account.is_destroyed = is_destroyed);
    }

    #[inline]
    fn touch<T>(&self, change: impl FnOnce(&mut Account) -> T) -> T {
        let mut account = self.account.lock();
        let result = change(&mut account);
        self.matters_to.store(account.matters_to(), Relaxed);
        result
    }

    /// Whether waiting for that stream, or for who knows which, may change anything.
    #[inline]
    fn is_touched(&self, stream: Option<usize>) -> bool {
        match self.matters_to.load(Relaxed) {
            account::NOBODY => self.source == Source::Graphs,
            account::ANYBODY => true,
            one => stream.is_none_or(|stream| stream == one),
        }
    }

    /// That stream has come to where it frees what it was to.
    fn passed(&self, account: &mut Account, stream: Option<usize>) {
        stream.inspect(|stream| account.passed(*stream));
        self.matters_to.store(account.matters_to(), Relaxed);
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
        self.settle_after(process, held, After::Any)
    }

    /// The same within a call that is marked as unsettled.
    pub(crate) fn settle_within(&self, process: &Process, held: u64) -> Result<(), Over> {
        self.settle_after(process, held, After::Marked)
    }

    fn settle_after(&self, process: &Process, held: u64, after: After) -> Result<(), Over> {
        if self.is_elsewhere {
            return Ok(());
        }
        let settled = self.settle_by_ledger(process, held, after);
        if settled.is_err() && process.cover(self.index()) {
            return Ok(());
        }
        settled
    }

    fn settle_by_ledger(&self, process: &Process, held: u64, after: After) -> Result<(), Over> {
        loop {
            let has_waited = matches!(after, After::Waiting(_));
            let number = self.account.lock().measure(has_waited);
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
                self.passed(&mut account, after.passed());
                return Ok(());
            }
            // Before anything is uncharged.
            let is_marked = matches!(after, After::Marked);
            let _unsettled = (!is_marked).then(|| Unsettled::on(usage, index));
            let settled = account.settle(
                held,
                reserved,
                |bytes| levels.try_charge(usage, control, index, bytes).is_ok(),
                |bytes| levels.charge(usage, control, index, bytes),
                |bytes| levels.uncharge(usage, index, bytes),
            );
            self.add_kind(process, index, account.paid.wrapping_sub(before));
            levels.raise_to_current(usage, control, index);
            self.passed(&mut account, after.passed());
            return settled;
        }
    }

    /// The program has waited for that stream, or for who knows which: the driver gives memory back then. Whether that is
    /// seen to already: it is not where the driver must be asked.
    #[inline]
    fn synchronized_at_once(&self, stream: Option<usize>) -> bool {
        let mut account = self.account.lock();
        let is_wanted = account.paid != 0 && (account.may_have_shrunk() || self.source == Source::Graphs);
        let is_done = !is_wanted && !account.is_over();
        if is_done {
            self.passed(&mut account, stream);
        }
        is_done
    }

    /// The same, where it is not.
    fn synchronized(self: &Arc<Self>, process: &Process, stream: Option<usize>) {
        let is_over = self.account.lock().is_over();
        if is_over {
            process.memory.reserves.end_if_over(process, self);
            return self.passed(&mut self.account.lock(), stream);
        }
        // Measured first: what the driver has just given back is not to spare. A pool that is over the limit stays so until
        // its memory is freed.
        let _ = self.settle_after(process, 0, After::Waiting(stream));
    }

    fn add_kind(&self, process: &Process, index: usize, bytes: u64) {
        let device = process.usage().devices.get(index);
        if let Some(kind) = device.and_then(|device| device.kinds.get(self.kind() as usize)) {
            kind.fetch_add(bytes, Relaxed);
        }
    }
}

/// After what a reserve is measured.
#[derive(Debug, Clone, Copy)]
enum After {
    /// Within a call that is marked as unsettled.
    Marked,
    /// The program has waited for that stream, or for who knows which.
    Waiting(Option<usize>),
    Any,
}

impl After {
    /// The stream that has come to where it frees what it was to.
    fn passed(self) -> Option<usize> {
        match self {
            Self::Waiting(stream) => stream,
            Self::Marked | Self::Any => None,
        }
    }
}

fn pool(handle: usize) -> CUmemoryPool {
    CUmemoryPool(std::ptr::with_exposed_provenance_mut(handle))
}
