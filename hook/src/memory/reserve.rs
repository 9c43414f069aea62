//! Memory that the driver reserves in pieces of its own choosing: pools, and memory of graphs. Charged by
//! what is reserved, not by what is allocated from it.
//!
//! Only the driver knows how much a reserve grows by, so growth is predicted and charged before the call,
//! measured after it, and settled. Every call that may make a reserve grow begins with
//! [`Reserve::charge`].

mod list;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use gcgroup_abi::Kind;
use parking_lot::Mutex;

use super::Memory;
use super::account::{Account, Begun, Over, Want};
use super::page_counter::{self, Full, Unsettled};
use super::stream::Reached;
use crate::driver;
use crate::driver::cuda::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CUerror, CUmemoryPool,
};
use crate::shared::device::LocalDevice;
pub(crate) use list::Reserves;

/// Purpose of reserved memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A pool, by its handle.
    Pool(usize),
    /// All graphs of the process on the device.
    Graphs,
}

/// Where the memory of a reserve is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    Device,
    /// Managed memory: on the device as far as it is used there, wherever its pool prefers it.
    Managed,
    /// On the host, or of another process, which is charged for it.
    Elsewhere,
}

/// A call that is charged in advance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Advance {
    pub(crate) begun: Begun,
    /// Whether the daemon has counted it as beyond `memory.high`.
    is_above_high: bool,
}

#[derive(Debug)]
pub(crate) struct Reserve {
    source: Source,
    id: u32,
    pub(crate) local: LocalDevice,
    pub(crate) backing: Backing,
    /// Whether other processes may have the pool, which is counted then.
    pub(crate) is_shared: AtomicBool,
    /// The device slot in which it is charged; written with the account locked.
    index: AtomicUsize,
    pub(crate) account: Mutex<Account>,
}

impl Reserve {
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    fn kind(&self) -> Kind {
        match self.source {
            Source::Pool(_) if self.backing == Backing::Managed => Kind::Managed,
            Source::Pool(_) => Kind::Pool,
            Source::Graphs => Kind::Graph,
        }
    }

    /// Asks the driver for the reserved size, bytes.
    pub(crate) fn reserved(&self) -> Result<u64, CUerror> {
        let mut bytes = 0;
        match self.source {
            Source::Pool(handle) => driver::cuMemPoolGetAttribute(
                CUmemoryPool::numbered(handle),
                CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                &mut bytes,
            ),
            Source::Graphs => driver::cuDeviceGetGraphMemAttribute(
                self.local.device(),
                CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                &mut bytes,
            ),
        }?;
        Ok(bytes)
    }

    /// Makes the driver release unused memory.
    fn trim(&self, memory: &Memory) {
        let _unsettled = Unsettled::on(memory.usage(), self.index());
        let _ = match self.source {
            Source::Pool(handle) => driver::cuMemPoolTrimTo(CUmemoryPool::numbered(handle), 0),
            Source::Graphs => driver::cuDeviceGraphMemTrim(self.local.device()),
        };
        self.trimmed(memory);
    }

    /// Settles what a trim has released.
    pub(crate) fn trimmed(&self, memory: &Memory) {
        self.account.lock().forget_graph();
        // If it exceeds the limit now, it did so before.
        let _ = self.settle(memory, None);
    }

    /// Asks the driver for the bytes that graphs use now.
    pub(crate) fn used(&self) -> Option<u64> {
        let (device, mut used) = (self.local.device(), 0);
        driver::cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &mut used).ok()?;
        Some(used)
    }

    /// Returns whether trimming may release anything.
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

    /// Charges a call before the driver is called for it, making room if needed. `want` may depend on what
    /// has been released by then. Without growth the charge is 0 bytes, which is refused where a limit is
    /// exceeded.
    ///
    /// # Errors
    /// Out of memory, counted as a refusal; or the driver's error if the reserved size cannot be measured and
    /// a limit is in force.
    pub(crate) fn charge(&self, memory: &Memory, want: impl Fn() -> Want) -> Result<Advance, CUerror> {
        if self.account.lock().is_unknown() {
            self.measure_first(memory)?;
        }
        memory.know_contexts(self.index(), || self.growth(want()));
        let hold = || self.hold(memory, &want);
        let held = hold().or_else(|full| memory.with_room(self.index(), full, hold));
        held.map_err(|full| memory.refused_by(self.index(), self.growth(want()), full))
    }

    fn growth(&self, want: Want) -> u64 {
        self.account.lock().growth(want)
    }

    /// Measures a reserve whose size is unknown.
    #[cold]
    fn measure_first(&self, memory: &Memory) -> Result<(), CUerror> {
        let _ = self.settle(memory, None);
        match self.reserved() {
            Err(error)
                if page_counter::limit_on(memory.usage(), memory.control(), self.index()).is_some() =>
            {
                memory.count_failure(self.index());
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Charges a call if it fits, waiting for a larger grant if that is what is missing.
    fn hold(&self, memory: &Memory, want: impl Fn() -> Want) -> Result<Advance, Full> {
        let try_hold = || loop {
            let want = want();
            let mut account = self.account.lock();
            if account.is_outdated(want) {
                continue;
            }
            let (growth, index) = (account.growth(want), self.index());
            // Peaks are raised after the call, by the actual growth.
            memory.reserve(index, growth)?;
            if growth != 0 {
                self.add_kind(memory, index, growth);
            }
            return Ok(account.begin(want, growth));
        };
        let (begun, is_above_high) = match try_hold() {
            Err(Full::Group(index)) => {
                // Without the account's lock, which the helper takes too.
                memory.charge_granted(index, self.growth(want()), try_hold)?
            }
            held => (held?, false),
        };
        Ok(Advance { begun, is_above_high })
    }

    /// Makes the charge agree with what is reserved, after a call for which `held` was charged.
    ///
    /// A measurement counts only if none that began later is settled already, so the last one settled began
    /// after every call that had ended by then. No lock is held while the driver is asked.
    ///
    /// # Errors
    /// The limit that the growth exceeds, if no larger grant was given; the growth is charged.
    pub(crate) fn settle(&self, memory: &Memory, held: Option<Advance>) -> Result<(), Full> {
        self.settle_after(memory, held, After::Any)
    }

    /// Settles an allocation as [`settle`](Self::settle), within the call, which is marked as unsettled. It
    /// is compared even if it has not made the pool grow: it may lie in what another call has added beyond a
    /// limit, which could not be trimmed then.
    pub(crate) fn settle_within(&self, memory: &Memory, held: Advance) -> Result<(), Full> {
        self.settle_after(memory, Some(held), After::Marked)?;
        memory
            .reserve(self.index(), 0)
            .map(drop)
            .or_else(|_| memory.cover(self.index(), held.is_above_high))
    }

    fn settle_after(&self, memory: &Memory, held: Option<Advance>, after: After<'_>) -> Result<(), Full> {
        if self.backing == Backing::Elsewhere {
            return Ok(());
        }
        let settled = self.settle_by_ledger(memory, held.map(|held| held.begun), after);
        memory.return_unused(self.index());
        settled.or_else(|Over| memory.cover(self.index(), held.is_some_and(|held| held.is_above_high)))
    }

    fn settle_by_ledger(&self, memory: &Memory, begun: Option<Begun>, after: After<'_>) -> Result<(), Over> {
        let held = begun.map_or(0, |begun| begun.growth);
        loop {
            let has_waited = matches!(after, After::Waiting(_));
            let (number, is_leaving) = {
                let mut account = self.account.lock();
                (account.measure(has_waited), account.is_leaving())
            };
            let reserved = if is_leaving { None } else { self.reserved().ok() };
            let mut account = self.account.lock();
            // Without a size, the charge stays until everything is freed.
            let reserved = reserved.filter(|_| !account.is_leaving());
            if account.is_void(number) {
                continue;
            }
            let page_counter = &memory.page_counter;
            let (index, before) = (self.index(), account.paid());
            if held == 0 && reserved.is_some_and(|reserved| account.is_as_measured(reserved)) {
                after.passed(&mut account);
                return Ok(());
            }
            // Before anything is uncharged.
            let is_marked = matches!(after, After::Marked);
            let _unsettled = (!is_marked).then(|| Unsettled::on(memory.usage(), index));
            let mut shared = 0;
            let settled = account.settle(
                held,
                reserved,
                |bytes| page_counter.try_charge(index, bytes).is_ok(),
                |bytes| page_counter.charge(index, bytes),
                |bytes| match self.is_shared.load(Relaxed) {
                    true => shared = bytes,
                    false => page_counter.uncharge(index, bytes),
                },
            );
            if let Some(begun) = begun {
                account.learn(begun);
            }
            self.add_kind(memory, index, account.paid().wrapping_sub(before));
            page_counter.raise_to_current(index);
            after.passed(&mut account);
            drop(account);
            memory.keep_shared(self.local, index, shared);
            return settled;
        }
    }

    /// Settles the frees that streams have reached, after the program waited for these or for an unknown set
    /// of streams (none). Returns false, with nothing settled, if the reserve must be measured.
    fn passed(&self, reached: Reached<'_>) -> bool {
        let mut account = self.account.lock();
        let may_have_shrunk = account.may_have_shrunk() || self.source == Source::Graphs;
        let is_done = account.is_leaving() || account.paid() == 0 || !may_have_shrunk;
        if is_done {
            account.passed(reached);
        }
        is_done
    }

    /// Measures after such a wait, in which the driver may have shrunk a pool.
    fn synchronized(&self, memory: &Memory, reached: Reached<'_>) {
        // Measured before the frees are settled: what the driver has just released is not spare. A pool that
        // exceeds the limit stays so until its memory is freed.
        let _ = self.settle_after(memory, None, After::Waiting(reached));
    }

    fn add_kind(&self, memory: &Memory, index: usize, bytes: u64) {
        let device = memory.usage().devices.get(index);
        if let Some(kind) = device.and_then(|device| device.kinds.get(self.kind() as usize)) {
            kind.fetch_add(bytes, Relaxed);
        }
    }
}

/// Event that preceded a measurement.
#[derive(Debug, Clone, Copy)]
enum After<'a> {
    /// A call marked as unsettled is in progress.
    Marked,
    /// The program has waited for these streams, or for an unknown set of streams (none).
    Waiting(Reached<'a>),
    Any,
}

impl After<'_> {
    /// Settles the frees that streams have reached.
    fn passed(self, account: &mut Account) {
        if let Self::Waiting(reached) = self {
            account.passed(reached);
        }
    }
}
