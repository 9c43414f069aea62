//! Memory of the host that is there before it is needed. Making it takes longer than a copy, and letting it
//! go takes time too, so neither is done while anything is held for a move: what a move needs is made before,
//! and what it leaves is kept for the next, for a moment. What is made and in no block's place is counted as
//! `swap_supply`, wherever it is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use gcgroup_abi::UsageDevice;
use parking_lot::Mutex;

use super::block::{Failed, Goal};
use super::host::Unclaimed;
use super::physical::Memory;
use crate::cuda::CUmemLocation;
use crate::device::LocalDevice;
use crate::process::Process;

/// For how long what nobody uses is kept.
const LEAVE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Supply(Mutex<Vec<Spare>>);

#[derive(Debug)]
struct Spare {
    memory: Memory,
    /// The device it was made for, and its slot.
    local: LocalDevice,
    index: usize,
    since: Instant,
    /// Whether it is kept for a move to come, however long that may be.
    is_wanted: bool,
}

impl Spare {
    fn is_for(&self, index: usize, location: CUmemLocation, size: u64) -> bool {
        self.index == index && self.memory.is_like(location, size)
    }
}

/// A piece that a move to come needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) local: LocalDevice,
    /// The device's slot.
    pub(super) index: usize,
    pub(super) location: CUmemLocation,
    pub(super) size: u64,
}

impl Supply {
    /// Bytes that are there and not spoken for.
    pub(super) fn bytes(&self) -> u64 {
        self.0.lock().iter().map(|spare| spare.memory.size()).sum()
    }

    fn put(&self, process: &Process, spare: Spare) {
        self.0.lock().push(spare);
        self.renumber(process);
    }

    /// Brings what is charged to the slots that the devices have now.
    pub(super) fn renumber(&self, process: &Process) {
        for spare in self.0.lock().iter_mut() {
            let to = process.devices.index(spare.local);
            if to != spare.index {
                process.transfer_host(spare.index, to, spare.memory.size(), true);
                spare.index = to;
            }
        }
    }

    fn take(&self, index: usize, location: CUmemLocation, size: u64) -> Option<Memory> {
        let mut spares = self.0.lock();
        let at = spares
            .iter()
            .position(|spare| spare.is_for(index, location, size))?;
        Some(spares.swap_remove(at).memory)
    }

    /// Keeps one piece for each of these, and no other for longer than for a moment; the first for which
    /// there is none.
    pub(super) fn want(&self, wanted: &[Wanted]) -> Option<Wanted> {
        let (mut spares, now) = (self.0.lock(), Instant::now());
        spares.iter_mut().for_each(|spare| spare.is_wanted = false);
        let mut lacking = None;
        for one in wanted {
            let is_it =
                |spare: &&mut Spare| !spare.is_wanted && spare.is_for(one.index, one.location, one.size);
            match spares.iter_mut().find(is_it) {
                Some(spare) => (spare.is_wanted, spare.since) = (true, now),
                None => lacking = lacking.or(Some(*one)),
            }
        }
        lacking
    }

    /// What is to be let go next: the one that nobody has used for longest, if that is long enough, or
    /// whatever it is, but first of all what nobody wants.
    fn drain(&self, any: bool) -> Option<Spare> {
        let mut spares = self.0.lock();
        let order = |(_, spare): &(usize, &Spare)| (spare.is_wanted, spare.since);
        let (at, oldest) = spares.iter().enumerate().min_by_key(order)?;
        let is_due = any || !oldest.is_wanted && oldest.since.elapsed() >= LEAVE;
        is_due.then(|| spares.swap_remove(at))
    }

    /// When the next is to be let go.
    pub(super) fn next(&self) -> Option<Duration> {
        let spares = self.0.lock();
        let unwanted = spares.iter().filter(|spare| !spare.is_wanted);
        let oldest = unwanted.map(|spare| spare.since).min()?;
        Some(LEAVE.saturating_sub(oldest.elapsed()))
    }
}

/// Why there is no memory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotMade {
    /// Others are about to take what is there, or the daemon has not answered.
    NotYet,
    /// The groups above have no room for so much.
    NotGranted,
    Failed(Failed),
}

impl From<Unclaimed> for NotMade {
    fn from(unclaimed: Unclaimed) -> Self {
        match unclaimed {
            Unclaimed::NotYet => Self::NotYet,
            Unclaimed::NoRoom => Self::Failed(Failed::NoRoom),
        }
    }
}

impl From<Failed> for NotMade {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

impl Process {
    /// Memory of the host for a block of that device, counted as supply: what is there already, or made.
    /// `is_late` if others have been waited for long enough.
    pub(super) fn host_memory(
        &self,
        index: usize,
        location: CUmemLocation,
        size: u64,
        is_late: bool,
    ) -> Result<Memory, NotMade> {
        if self.is_host_granted(index)
            && let Some(memory) = self.swap.supply.take(index, location, size)
        {
            return Ok(memory);
        }
        // What is of no use now is not kept beyond what may be on the host.
        while self.swap_room(index) < self.supplied().saturating_add(size) && self.let_go(true) {}
        self.reserve_host(index, size)?;
        let made = self.make_host_memory(location, size, is_late);
        match &made {
            Ok(_) => self.return_supply(index, size),
            Err(_) => self.uncharge_host(index, size),
        }
        made
    }

    /// Charges host memory that is about to be made, in the place of what is kept if there is no other. In
    /// the driver.
    pub(super) fn reserve_host(&self, index: usize, size: u64) -> Result<(), NotMade> {
        loop {
            match self.charge_host(index, size) {
                Err(NotMade::NotGranted) if self.let_go(true) => {}
                reserved => return reserved,
            }
        }
    }

    fn make_host_memory(&self, location: CUmemLocation, size: u64, is_late: bool) -> Result<Memory, NotMade> {
        loop {
            match self.claim_host(size, is_late) {
                Ok(_claim) => {
                    let made = Memory::new(location, size);
                    return made.map_err(|error| Failed::of(error, Goal::Host).into());
                }
                Err(Unclaimed::NotYet) => return Err(NotMade::NotYet),
                Err(Unclaimed::NoRoom) if self.let_go(true) => {}
                Err(Unclaimed::NoRoom) => return Err(Failed::NoRoom.into()),
            }
        }
    }

    /// It is a block's from now on.
    pub(super) fn leave_supply(&self, index: usize, size: u64) {
        self.count_supply(index, |word| word.fetch_sub(size, Relaxed));
    }

    /// It is no block's after all.
    pub(super) fn return_supply(&self, index: usize, size: u64) {
        self.count_supply(index, |word| word.fetch_add(size, Relaxed));
    }

    /// It was a block's until now.
    pub(super) fn enter_supply(&self, local: LocalDevice, index: usize, memory: Memory) {
        self.return_supply(index, memory.size());
        self.keep(local, index, memory);
    }

    /// It was made, and is not needed now.
    pub(super) fn keep(&self, local: LocalDevice, index: usize, memory: Memory) {
        let since = Instant::now();
        let spare = Spare {
            memory,
            local,
            index,
            since,
            is_wanted: false,
        };
        self.swap.supply.put(self, spare);
    }

    /// Lets one piece go that has not been used for a while, or any; whether there was one. In the driver.
    pub(super) fn let_go(&self, any: bool) -> bool {
        // Not under the lock.
        let Some(spare) = self.swap.supply.drain(any) else {
            return false;
        };
        let size = spare.memory.size();
        drop(spare.memory);
        self.leave_supply(spare.index, size);
        self.uncharge_host(spare.index, size);
        true
    }

    /// Bytes that the host has for blocks, with what is there already and not spoken for.
    pub(super) fn room_on_host(&self) -> u64 {
        self.swap.host.room().saturating_add(self.swap.supply.bytes())
    }

    /// Bytes of all that is made and in no block's place.
    pub(super) fn supplied(&self) -> u64 {
        let each = |device: &UsageDevice| device.swap_supply.load(Relaxed);
        self.usage().devices.iter().map(each).fold(0, u64::saturating_add)
    }

    fn count_supply(&self, index: usize, count: impl FnOnce(&AtomicU64) -> u64) {
        if let Some(usage) = self.usage().devices.get(index) {
            count(&usage.swap_supply);
        }
    }
}
