//! What the program keeps on the device: charged before the driver is asked, remembered, given back.
//!
//! A charge goes to (process, device) and to the process, and is part of what the groups above have granted; what exceeds
//! a limit is refused with `CUDA_ERROR_OUT_OF_MEMORY`, and the driver is not asked. `levels` counts, `grant` asks for
//! more, `ledger` remembers, the others say what a call takes.

use std::sync::atomic::AtomicBool;

use gcgroup_abi::{Kind, MAX_DEVICES};

use crate::compute::slot::Bound;
use crate::cuda::{CUerror, CUresult};
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
pub(crate) use charge::Charge;
use freeing::Freeing;
use grant::Grants;
use graph::Graphs;
use ipc::Opened;
use ledger::{Entry, Ledger};
use levels::{Full, Levels, Sums};
use linear::Pitch;
use reserve::Reserves;
pub(crate) use reserve::kept::Kept;
use vmm::Vmm;

/// Everything charged and remembered.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) levels: Levels,
    /// By device address: linear, pitched, managed, imported, and allocations from pools.
    blocks: Ledger,
    /// By host address.
    host: Ledger,
    /// By handle of the array or mipmapped array.
    pub(crate) arrays: Ledger,
    sizes: Sizes,
    pitch: Pitch,
    pub(crate) reserves: Reserves,
    /// By handle of external memory.
    external: Ledger,
    freeing: Freeing,
    opened: Opened,
    physical: Vmm,
    graphs: Graphs,
    /// A request for room was not answered: until it is, nobody waits for another.
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

    /// Takes off what a context owned that is no more.
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
        // The daemon has something to measure.
        process.ring();
    }

    /// The program has waited for a stream, or for who knows which: the driver gives memory back then.
    pub(crate) fn synchronized(&self, process: &Process, stream: Option<usize>) {
        self.reserves.synchronized(process, stream);
        self.freeing.settle(process, stream);
        process.passed_physical(stream);
    }

    /// The program has waited for all of its current context.
    pub(crate) fn context_synchronized(&self, process: &Process) {
        self.freeing.context_passed(process);
        self.synchronized(process, None);
    }

    /// Brings every charge to the slot that its device has now.
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

/// Which device an allocation is for, and the context that owns it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) local: LocalDevice,
    /// The device's slot in the blocks.
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

/// More bytes than any device has, and so few that sums of them do not overflow.
const ABSURD: u64 = 1 << 56;

impl Process {
    /// Where the calling thread allocates; `None` without a current context, which the driver refuses by itself.
    #[inline]
    fn place(&self) -> Option<Place> {
        self.slots.place(self)
    }

    /// Charges `bytes` before the driver is asked for them. What pools reserve and do not use makes room first.
    #[inline(always)]
    fn try_charge(&self, index: usize, bytes: u64) -> Result<(Charge<'_>, Sums), CUerror> {
        let sums = match self.charge_freely(index, bytes) {
            Some(sum) => Sums::of_one(sum),
            None => Sums::unpacked(self.charge_in_time(index, bytes))?,
        };
        Ok((self.charged(index, bytes), sums))
    }

    /// Charges `likely`, if that is more and there is room, or else `bytes`.
    #[inline(always)]
    fn try_charge_likely(
        &self,
        index: usize,
        likely: u64,
        bytes: u64,
    ) -> Result<(Charge<'_>, Sums), CUerror> {
        let likely = likely.max(bytes);
        if let Some(sum) = self.charge_freely(index, likely) {
            return Ok((self.charged(index, likely), Sums::of_one(sum)));
        }
        self.try_charge_likely_in_time(index, likely, bytes)
    }

    fn charged(&self, index: usize, bytes: u64) -> Charge<'_> {
        Charge {
            process: self,
            index,
            bytes: if bytes < ABSURD { bytes } else { 0 },
        }
    }

    /// Charges where nothing limits it; what is charged then.
    #[inline(always)]
    fn charge_freely(&self, index: usize, bytes: u64) -> Option<u64> {
        if bytes >= ABSURD {
            return None;
        }
        let (levels, usage) = (&self.memory.levels, self.usage());
        levels.reserve_freely(usage, self.control(), index, self.slots.stock(usage), bytes)
    }

    #[cold]
    #[inline(never)]
    fn try_charge_likely_in_time(
        &self,
        index: usize,
        likely: u64,
        bytes: u64,
    ) -> Result<(Charge<'_>, Sums), CUerror> {
        if likely < ABSURD
            && let Ok(sums) = self.reserve(index, likely)
        {
            return Ok((self.charged(index, likely), sums));
        }
        let sums = Sums::unpacked(self.charge_in_time(index, bytes))?;
        Ok((self.charged(index, bytes), sums))
    }

    /// Packed.
    #[cold]
    #[inline(never)]
    fn charge_in_time(&self, index: usize, bytes: u64) -> (u64, u64) {
        if bytes >= ABSURD {
            return Sums::packed(self.absurd(index).map(|()| Sums::default()));
        }
        let charged = self.charge(index, bytes);
        Sums::packed(charged.or_else(|full| self.make_room(index, bytes, full)))
    }

    /// Refuses what no device has, if there is a limit. If not, that is for the driver, and must not be charged meanwhile.
    #[cold]
    #[inline(never)]
    fn absurd(&self, index: usize) -> Result<(), CUerror> {
        let Some(full) = levels::limit_on(self.usage(), self.control(), index) else {
            return Ok(());
        };
        full.count_hit(self.usage());
        Err(self.refused_by(index, full))
    }

    /// Charges `bytes`, and leaves it to the caller to uncharge them.
    pub(crate) fn charge_bytes(&self, index: usize, bytes: u64) -> Result<(), CUerror> {
        let sums = self.charge(index, bytes).map_err(|full| {
            full.count_hit(self.usage());
            CUerror::OUT_OF_MEMORY
        })?;
        let (usage, control) = (self.usage(), self.control());
        self.memory.levels.raise_peaks(usage, control, index, sums);
        Ok(())
    }

    /// Charges what fits. Where more must be granted first, that is waited for.
    fn charge(&self, index: usize, bytes: u64) -> Result<Sums, Full> {
        let charge = || self.reserve(index, bytes);
        match charge() {
            Err(Full::Group(index)) => self.charge_granted(index, bytes, charge),
            charged => charged,
        }
    }

    /// Charges what fits.
    fn reserve(&self, index: usize, bytes: u64) -> Result<Sums, Full> {
        let (levels, usage) = (&self.memory.levels, self.usage());
        levels.try_reserve_from(self.slots.stock(usage), usage, self.control(), index, bytes)
    }

    fn refused_by(&self, index: usize, full: Full) -> CUerror {
        full.count_refusal(self.usage());
        self.count_failure(index);
        CUerror::OUT_OF_MEMORY
    }

    /// A limit was hit: charges after trimming every pool, or refuses.
    #[cold]
    #[inline(never)]
    fn make_room(&self, index: usize, bytes: u64, full: Full) -> Result<Sums, CUerror> {
        full.count_hit(self.usage());
        let has_freed = self.memory.freeing.settle(self, None);
        let charged = if self.memory.reserves.trim(self) || has_freed {
            self.charge(index, bytes)
        } else {
            Err(full)
        };
        charged.map_err(|full| self.refused_by(index, full))
    }

    /// Counts an allocation that failed, and has the daemon tell whoever waits for such events. Short of memory, the
    /// driver takes back what pools do not use, whichever they are.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_failure(&self, index: usize) {
        levels::count(self.usage(), index, |device| &device.nr_alloc_fail);
        self.memory.reserves.settle_all(self);
        self.ring();
    }

    /// Counts an allocation.
    #[inline]
    pub(crate) fn count_in(&self, entry: &Entry) {
        let own = self.slots.counts(self.usage(), entry.index());
        self.memory.levels.enter(self.usage(), own, entry);
    }

    /// Counts its end.
    #[inline]
    pub(crate) fn count_out(&self, entry: &Entry) {
        let own = self.slots.counts(self.usage(), entry.index());
        self.memory.levels.leave(self.usage(), own, entry);
    }

    /// Enters an allocation that was charged or needs no charge.
    #[inline]
    fn remember(&self, ledger: &Ledger, key: u64, mut entry: Entry) {
        self.count_in(&entry);
        let displaced = ledger.insert(key, || {
            self.follow(&mut entry);
            entry
        });
        // The driver gave the address out anew, so what was there is gone: with a context, or by a call we do not know.
        if let Some(gone) = displaced {
            self.discharge(&gone);
        }
    }

    /// Moves an entry's charge to the slot that its device has now, if that is another.
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

    /// Takes an entry off again.
    #[inline(never)]
    fn discharge(&self, entry: &Entry) {
        self.discharge_on(entry, 0, None);
    }

    /// With the address, or zero, for what is a pool's.
    #[inline(always)]
    fn discharge_on(&self, entry: &Entry, address: u64, stream: Option<usize>) {
        let (levels, usage, index) = (&self.memory.levels, self.usage(), entry.index());
        let own = self.slots.counts(usage, index);
        levels.leave(usage, own, entry);
        if entry.is_charged() {
            levels.give(usage, self.control(), index, own, entry.size);
        }
        if entry.is(Kind::Pool) {
            self.memory.reserves.freed(self, entry, address, stream);
        }
    }

    /// Runs a freeing call: what it frees stays charged until the driver has freed it, and if it fails.
    ///
    /// Taken out before, since another thread may be given the address as soon as the driver has it back.
    #[inline]
    fn free(&self, ledger: &Ledger, key: u64, next: Next<'_>) -> Freed {
        self.free_on(ledger, key, None, next)
    }

    /// The same for a call that frees when a stream has come so far.
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

/// What came of a freeing call.
#[derive(Debug, Clone, Copy)]
struct Freed {
    result: CUresult,
    /// Whether it was known, and of a pool.
    is_pools: bool,
}
