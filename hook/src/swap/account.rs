//! Charges of blocks: device memory against `memory.limit`, host memory against `memory.swap.max` of the
//! process (for groups see `grant`). A block is charged in one place. While it moves out, and until it is
//! settled, it is charged on the device and reserved on the host, where its memory counts in the swap pool,
//! so that its bytes count once. While it moves in, it is charged in both, and shown on the host.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::{Control, Kind, NO_LIMIT, Usage, UsageDevice, uncharge};

use super::Swap;
use super::allocation::Allocation;
use super::block::{Block, Goal, Placed, Where};
use super::counts::MoveResult;
use crate::driver::cuda::CUerror;
use crate::memory::ledger::Entry;
use crate::memory::page_counter::Full;
use crate::shared::target::Target;

impl Swap {
    /// Charges device memory for a block that is about to be made.
    pub(super) fn charge_block(&self, target: Target, size: u64) -> Result<(), Full> {
        self.memory.charge_bytes(target.index, size)
    }

    pub(super) fn uncharge_block(&self, index: usize, size: u64) {
        self.memory.uncharge(index, size);
    }

    /// Charges host memory for a block. Returns whether `memory.swap.max` of the device and of the process
    /// allow it.
    pub(super) fn charge_swap(&self, index: usize, size: u64) -> bool {
        let is_reserved = self.reserve_swap(index, size);
        if is_reserved {
            self.charge_reserved(index, size);
        }
        is_reserved
    }

    /// Reserves host memory for a block that is about to move out. Returns as
    /// [`charge_swap`](Self::charge_swap).
    pub(super) fn reserve_swap(&self, index: usize, size: u64) -> bool {
        let mut reserved = self.reserved.lock();
        let is_room = self.swap_left(index, reserved.as_slice()) >= size;
        if let Some(reserved) = reserved.get_mut(index).filter(|_| is_room) {
            *reserved += size;
        }
        is_room
    }

    /// Charges host memory that has been reserved.
    pub(super) fn charge_reserved(&self, index: usize, size: u64) {
        let mut reserved = self.reserved.lock();
        if let (Some(reserved), Some(usage)) = (reserved.get_mut(index), self.usage().devices.get(index)) {
            *reserved = reserved.saturating_sub(size);
            usage.swap_current.fetch_add(size, Relaxed);
        }
    }

    /// Charges reserved host memory that is lost and has been counted in the pool.
    pub(super) fn charge_lost(&self, index: usize, size: u64) {
        self.leave_pool(index, size);
        self.charge_reserved(index, size);
    }

    /// Counts device memory that has been charged and prepared for a block to move in.
    pub(super) fn count_moving_in(&self, to: Goal, size: u64) {
        if to == Goal::Device {
            self.usage().moving_in.fetch_add(size, Relaxed);
        }
    }

    /// Ends [`count_moving_in`](Self::count_moving_in): the block is settled, or the memory is not used.
    pub(super) fn end_moving_in(&self, to: Goal, size: u64) {
        if to == Goal::Device {
            uncharge(&self.usage().moving_in, size);
        }
    }

    pub(super) fn drop_reserved(&self, index: usize, size: u64) {
        if let Some(reserved) = self.reserved.lock().get_mut(index) {
            *reserved = reserved.saturating_sub(size);
        }
    }

    pub(super) fn uncharge_swap(&self, index: usize, size: u64) {
        if let Some(usage) = self.usage().devices.get(index) {
            uncharge(&usage.swap_current, size);
        }
    }

    /// Returns how many more bytes may be swapped out from a device.
    pub(super) fn swap_room(&self, index: usize) -> u64 {
        self.swap_left(index, self.reserved.lock().as_slice())
    }

    fn swap_left(&self, index: usize, reserved: &[u64]) -> u64 {
        let (Some((usage, control)), Some(here)) = (self.session.device(index), reserved.get(index)) else {
            return 0;
        };
        let left = |limit: &AtomicU64, used: u64| match limit.load(Relaxed) {
            NO_LIMIT => NO_LIMIT,
            limit => limit.saturating_sub(used),
        };
        let all = reserved
            .iter()
            .fold(swapped(self.usage()), |sum, bytes| sum.saturating_add(*bytes));
        let on_device = left(
            &control.memory_swap_max,
            usage.swap_current.load(Relaxed).saturating_add(*here),
        );
        on_device.min(left(&self.control().memory_swap_max, all))
    }

    /// Returns the bytes of a device that have been swapped out, and those that may still be, by
    /// `memory.swap.max` of the process and of its groups and by the host's memory.
    pub(crate) fn visible(&self, index: usize) -> (u64, u64) {
        let Some((usage, control)) = self.session.device(index) else {
            return (0, 0);
        };
        let swapped = usage.swap_current.load(Relaxed);
        if !self.is_on() || self.is_host_no_use() {
            return (swapped, 0);
        }
        let granted = usage.swap_granted.load(Relaxed);
        let granted = granted.saturating_sub(usage.swap_charged.load(Relaxed));
        let by_groups = granted.saturating_add(control.swap_group_room.load(Relaxed));
        (
            swapped,
            self.swap_room(index).min(by_groups).min(self.room_on_host()),
        )
    }

    /// Counts a new allocation, charged in slot `index`.
    pub(super) fn enter_allocation(&self, allocation: &Allocation, index: usize) {
        self.memory.count_in(&entry(allocation, index));
        for block in allocation.blocks() {
            self.add_movable(block, index);
            match block.place() {
                Where::Device => self.add_swappable(block, index),
                Where::Host => self.take_kind(block.size, index),
            }
        }
    }

    /// Uncharges a freed block, which was last at `last`, in slot `index`.
    pub(super) fn leave_block(&self, block: &Block, (last, index): (Where, usize)) {
        match last {
            Where::Device => {
                self.uncharge_block(index, block.size);
                self.take_kind(block.size, index);
                self.take_swappable(block, index);
            }
            Where::Host => {
                self.uncharge_swap(index, block.size);
                self.uncharge_host(index, block.size);
            }
        }
        self.take_movable(block, index);
    }

    /// Uncounts an allocation whose blocks have all been freed.
    pub(super) fn leave_allocation(&self, allocation: &Allocation, index: usize) {
        // The kind was subtracted block by block and is subtracted again here.
        self.add_kind(allocation.size, index);
        self.memory.count_out(&entry(allocation, index));
    }

    /// Counts a settled move, charges host memory that was reserved, and drops the charge of the old place.
    /// The bytes of a block count as linear memory only while they are on the device.
    pub(super) fn moved_block(&self, block: &Block, index: usize, to: Where) {
        self.count_swap(block.local, MoveResult::Moved(to, block.size));
        match to {
            Where::Device => {
                self.uncharge_swap(index, block.size);
                self.add_kind(block.size, index);
                self.add_swappable(block, index);
            }
            Where::Host => {
                self.charge_reserved(index, block.size);
                self.uncharge_block(index, block.size);
                self.take_kind(block.size, index);
                self.take_swappable(block, index);
            }
        }
    }

    /// Moves the charges of a block to slot `to`; the process's sums stay. An unsettled block counts at the
    /// old place, and its memory there is charged as well.
    pub(super) fn transfer_block(&self, block: &Block, placed: &Placed, to: usize) {
        let (from, size) = (placed.index, block.size);
        let (is_on_host, is_in_both) = (placed.place == Where::Host, placed.is_unsettled());
        if is_in_both || !is_on_host {
            self.memory.page_counter.transfer_bytes(from, to, size);
        }
        if is_in_both || is_on_host {
            self.transfer_host(from, to, size, placed.is_reserved());
        }
        if placed.is_reserved() {
            let mut reserved = self.reserved.lock();
            for (index, change) in [(from, size.wrapping_neg()), (to, size)] {
                if let Some(reserved) = reserved.get_mut(index) {
                    *reserved = reserved.wrapping_add(change);
                }
            }
        }
        self.add_movable(block, to);
        self.take_movable(block, from);
        if is_in_both == is_on_host {
            self.add_kind(block.size, to);
            self.take_kind(block.size, from);
            self.add_swappable(block, to);
            self.take_swappable(block, from);
        }
    }

    /// Moves a host memory charge to another slot, of a block or of the pool.
    #[cold]
    #[inline(never)]
    pub(super) fn transfer_host(&self, from: usize, to: usize, size: u64, is_pool: bool) {
        let devices = &self.usage().devices;
        if let (Some(from), Some(to)) = (devices.get(from), devices.get(to)) {
            // A thread that sums up swapped bytes under this lock sees these bytes once.
            let _reserved = self.reserved.lock();
            let counted = match is_pool {
                true => (&from.swap_pool, &to.swap_pool),
                false => (&from.swap_current, &to.swap_current),
            };
            for (from, to) in [counted, (&from.swap_charged, &to.swap_charged)] {
                to.fetch_add(size, Relaxed);
                uncharge(from, size);
            }
        }
    }

    fn kind(&self, index: usize) -> Option<&AtomicU64> {
        self.usage().devices.get(index)?.kinds.get(Kind::Linear as usize)
    }

    fn add_kind(&self, size: u64, index: usize) {
        if let Some(kind) = self.kind(index) {
            kind.fetch_add(size, Relaxed);
        }
    }

    fn take_kind(&self, size: u64, index: usize) {
        if let Some(kind) = self.kind(index) {
            kind.fetch_sub(size, Relaxed);
        }
    }

    fn add_swappable(&self, block: &Block, index: usize) {
        if let Some(usage) = self.usage().devices.get(index).filter(|_| !block.is_pinned()) {
            usage.swappable.fetch_add(block.size, Relaxed);
        }
    }

    /// Subtracts the block from the swappable bytes. Also called when a block is pinned on the device.
    pub(super) fn take_swappable(&self, block: &Block, index: usize) {
        if let Some(usage) = self.usage().devices.get(index).filter(|_| !block.is_pinned()) {
            usage.swappable.fetch_sub(block.size, Relaxed);
        }
    }

    fn add_movable(&self, block: &Block, index: usize) {
        if let Some(usage) = self.usage().devices.get(index).filter(|_| !block.is_pinned()) {
            usage.movable.fetch_add(block.size, Relaxed);
        }
    }

    /// Subtracts the block from the movable bytes. Also called when a block is pinned.
    pub(super) fn take_movable(&self, block: &Block, index: usize) {
        if let Some(usage) = self.usage().devices.get(index).filter(|_| !block.is_pinned()) {
            usage.movable.fetch_sub(block.size, Relaxed);
        }
    }

    /// Counts an allocation of `bytes` that has room neither on the device nor on the host. If a limit
    /// allowed it none on the device, it is `full`, and is counted as what refused it.
    #[cold]
    pub(super) fn refuse(&self, index: usize, bytes: u64, full: Option<Full>) -> CUerror {
        if let Some(full) = full {
            return self.memory.refused_by(index, bytes, full);
        }
        self.memory.count_failure(index);
        CUerror::OUT_OF_MEMORY
    }
}

fn entry(allocation: &Allocation, index: usize) -> Entry {
    let Allocation {
        size, local, context, ..
    } = *allocation;
    Entry::new(Kind::Linear, size, local, index, context)
}

fn swapped(usage: &Usage) -> u64 {
    let each = |device: &UsageDevice| device.swap_current.load(Relaxed);
    usage.devices.iter().map(each).fold(0, u64::saturating_add)
}

/// Returns the limits of the device, the process and the groups above. When one changes, memory that was
/// moved out on request may return.
pub(super) fn limits(control: &Control, index: usize) -> [u64; 3] {
    let (on_device, of_groups) = control.devices.get(index).map_or((NO_LIMIT, NO_LIMIT), |device| {
        (
            device.memory_limit.load(Relaxed),
            device.group_limit.load(Relaxed),
        )
    });
    [on_device, control.memory_limit.load(Relaxed), of_groups]
}
