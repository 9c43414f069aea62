//! The swap pool: host memory that is in no block's place. Making and freeing host memory takes longer than a
//! copy, so neither is done while submissions are held: memory for a move is made before it, and memory that
//! a move leaves is kept for [`LEAVE`] for the next. The bytes are published as `swap_pool`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use gcgroup_abi::UsageDevice;
use parking_lot::Mutex;

use super::Swap;
use super::block::Failed;
use super::host::Unclaimed;
use super::physical::Memory;
use crate::shared::device::LocalDevice;

/// How long unused memory is kept.
const LEAVE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct SwapPool(Mutex<Vec<Spare>>);

#[derive(Debug)]
struct Spare {
    memory: Memory,
    /// The device it was made for, and that device's slot (`index`).
    local: LocalDevice,
    index: usize,
    since: Instant,
}

impl SwapPool {
    /// Returns the bytes in the pool that no move has taken.
    pub(super) fn bytes(&self) -> u64 {
        self.0.lock().iter().map(|spare| spare.memory.size()).sum()
    }

    fn put(&self, swap: &Swap, spare: Spare) {
        self.0.lock().push(spare);
        self.renumber(swap);
    }

    /// Moves charges to the current slots of their devices.
    pub(super) fn renumber(&self, swap: &Swap) {
        for spare in self.0.lock().iter_mut() {
            let to = swap.session.devices.index(spare.local);
            if to != spare.index {
                swap.transfer_host(spare.index, to, spare.memory.size(), true);
                spare.index = to;
            }
        }
    }

    fn take(&self, index: usize, size: u64) -> Option<Memory> {
        let mut spares = self.0.lock();
        let at = spares
            .iter()
            .position(|spare| spare.index == index && spare.memory.size() == size)?;
        Some(spares.swap_remove(at).memory)
    }

    /// Removes the least recently used piece, without `any` only if it is older than [`LEAVE`].
    fn drain(&self, any: bool) -> Option<Spare> {
        let mut spares = self.0.lock();
        let (at, oldest) = spares.iter().enumerate().min_by_key(|(_, spare)| spare.since)?;
        let is_due = any || oldest.since.elapsed() >= LEAVE;
        is_due.then(|| spares.swap_remove(at))
    }

    /// Keeps all pieces for another [`LEAVE`].
    pub(super) fn renew(&self) {
        let now = Instant::now();
        self.0.lock().iter_mut().for_each(|spare| spare.since = now);
    }

    /// Returns how long until the next piece is to be freed.
    pub(super) fn next(&self) -> Option<Duration> {
        let spares = self.0.lock();
        let oldest = spares.iter().map(|spare| spare.since).min()?;
        Some(LEAVE.saturating_sub(oldest.elapsed()))
    }
}

/// Why host memory was not obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotMade {
    /// Other processes are about to take what is available, or the daemon has not answered: try again.
    NotYet,
    /// The groups above do not allow so much.
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

impl Swap {
    /// Returns host memory for a block of the device in slot `index`, from the pool or new. It is counted as
    /// part of the pool. `is_late` means that other processes have been waited for long enough.
    pub(super) fn host_memory(
        &self,
        local: LocalDevice,
        index: usize,
        size: u64,
        is_late: bool,
    ) -> Result<Memory, NotMade> {
        if self.is_host_granted(index)
            && let Some(memory) = self.pool.take(index, size)
        {
            return Ok(memory);
        }
        // Frees unsuitable pieces where the pool would exceed what may be on the host.
        while self.swap_room(index) < self.pool_bytes().saturating_add(size) && self.let_go(true) {}
        self.reserve_host(index, size)?;
        let made = self.make_host_memory(local, size, is_late);
        match &made {
            Ok(_) => self.return_to_pool(index, size),
            Err(_) => self.uncharge_host(index, size),
        }
        made
    }

    /// Charges host memory that is about to be made, freeing pool memory if the groups grant no more. Called
    /// inside `in_driver`.
    pub(super) fn reserve_host(&self, index: usize, size: u64) -> Result<(), NotMade> {
        loop {
            match self.charge_host(index, size) {
                Err(NotMade::NotGranted) if self.let_go(true) => {}
                reserved => return reserved,
            }
        }
    }

    fn make_host_memory(&self, local: LocalDevice, size: u64, is_late: bool) -> Result<Memory, NotMade> {
        loop {
            match self.claim_host(size, is_late) {
                Ok(_claim) => return Ok(self.new_host_memory(local, size)?),
                Err(Unclaimed::NotYet) => return Err(NotMade::NotYet),
                Err(Unclaimed::NoRoom) if self.let_go(true) => {}
                Err(Unclaimed::NoRoom) => return Err(Failed::NoRoom.into()),
            }
        }
    }

    /// Uncounts memory of the pool that now belongs to a block.
    pub(super) fn leave_pool(&self, index: usize, size: u64) {
        self.count_pool(index, |word| word.fetch_sub(size, Relaxed));
    }

    /// Counts memory of a cancelled move in the pool again.
    pub(super) fn return_to_pool(&self, index: usize, size: u64) {
        self.count_pool(index, |word| word.fetch_add(size, Relaxed));
    }

    /// Takes memory that a block has left into the pool.
    pub(super) fn enter_pool(&self, local: LocalDevice, index: usize, memory: Memory) {
        self.return_to_pool(index, memory.size());
        self.keep(local, index, memory);
    }

    /// Keeps memory in the pool that is counted there already.
    pub(super) fn keep(&self, local: LocalDevice, index: usize, memory: Memory) {
        let since = Instant::now();
        let spare = Spare {
            memory,
            local,
            index,
            since,
        };
        self.pool.put(self, spare);
    }

    /// Frees one piece that has expired, or with `any` one piece at all. Returns whether there was one.
    /// Called inside `in_driver`.
    pub(super) fn let_go(&self, any: bool) -> bool {
        // The memory is freed without the lock.
        let Some(spare) = self.pool.drain(any) else {
            return false;
        };
        let size = spare.memory.size();
        drop(spare.memory);
        self.leave_pool(spare.index, size);
        self.uncharge_host(spare.index, size);
        true
    }

    /// Returns the host memory available for blocks, bytes, including the pool.
    pub(super) fn room_on_host(&self) -> u64 {
        self.host.room().saturating_add(self.pool.bytes())
    }

    /// Returns the published size of the pool over all devices, bytes.
    pub(super) fn pool_bytes(&self) -> u64 {
        let each = |device: &UsageDevice| device.swap_pool.load(Relaxed);
        self.usage().devices.iter().map(each).fold(0, u64::saturating_add)
    }

    fn count_pool(&self, index: usize, count: impl FnOnce(&AtomicU64) -> u64) {
        if let Some(usage) = self.usage().devices.get(index) {
            count(&usage.swap_pool);
        }
    }
}
