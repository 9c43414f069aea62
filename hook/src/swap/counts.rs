//! Counters of moves and moved bytes of each device. They are published in the device's slot of the usage
//! block; the table here records each device's part, so that it can be moved when devices are renumbered.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{MAX_DEVICES, OTHER_DEVICE, UsageDevice};
use parking_lot::Mutex;

use super::Swap;
use super::block::Where;
use super::task::blocks;
use crate::shared::device::LocalDevice;
use crate::sys::log;

/// Result of a move.
#[derive(Debug, Clone, Copy)]
pub(super) enum MoveResult {
    /// Destination and size, bytes.
    Moved(Where, u64),
    Failed,
}

/// Counters of each of the program's devices.
#[derive(Debug)]
pub(super) struct Counts(Mutex<[Counted; MAX_DEVICES]>);

#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    /// The slot they are published in. Meaningless while all counters are 0.
    index: usize,
    numbers: [u64; NUMBERS],
}

const NUMBERS: usize = 5;

impl Counts {
    pub(super) fn new() -> Self {
        Self(Mutex::new([Counted::default(); MAX_DEVICES]))
    }
}

fn words(usage: &UsageDevice) -> [&AtomicU64; NUMBERS] {
    [
        &usage.nr_swap_out,
        &usage.swap_out_bytes,
        &usage.nr_swap_in,
        &usage.swap_in_bytes,
        &usage.nr_swap_fail,
    ]
}

impl MoveResult {
    fn numbers(self) -> [u64; NUMBERS] {
        match self {
            Self::Moved(Where::Host, bytes) => [1, bytes, 0, 0, 0],
            Self::Moved(Where::Device, bytes) => [0, 0, 1, bytes, 0],
            Self::Failed => [0, 0, 0, 0, 1],
        }
    }
}

impl Counted {
    /// Moves the counters to slot `to`.
    fn follow(&mut self, devices: &[UsageDevice], to: usize) {
        let from = std::mem::replace(&mut self.index, to);
        if let (Some(from), Some(to), true) = (devices.get(from), devices.get(to), from != to) {
            // A reader that sums up all slots meanwhile sees too much rather than too little.
            for ((from, to), number) in words(from).into_iter().zip(words(to)).zip(self.numbers) {
                to.fetch_add(number, Relaxed);
                from.fetch_sub(number, Relaxed);
            }
        }
    }
}

impl Swap {
    /// Counts the result of a move of a device.
    pub(super) fn count_swap(&self, local: LocalDevice, result: MoveResult) {
        let index = self.session.devices.index(local);
        log::line(|| match result {
            MoveResult::Moved(Where::Host, bytes) => {
                format!("moved {bytes} bytes from GPU {index} to the host")
            }
            MoveResult::Moved(Where::Device, bytes) => {
                format!("moved {bytes} bytes from the host to GPU {index}")
            }
            MoveResult::Failed => format!("move failed on GPU {index}"),
        });
        let mut all = self.counts.0.lock();
        let Some(counted) = all.get_mut(usize::from(local.number())) else {
            return;
        };
        let devices = &self.usage().devices;
        counted.follow(devices, index);
        if let Some(usage) = devices.get(counted.index) {
            let each = words(usage).into_iter().zip(&mut counted.numbers);
            for ((word, mine), number) in each.zip(result.numbers()) {
                word.fetch_add(number, Relaxed);
                *mine = mine.wrapping_add(number);
            }
        }
    }

    /// Counts a failed move of the device in slot `index`.
    pub(super) fn count_swap_fail(&self, index: usize) {
        let of_block = || blocks(self, index).first().map(|block| block.local);
        let of_slot = || {
            let number = self
                .session
                .devices
                .all()
                .iter()
                .position(|slot| *slot == index)?;
            Some(LocalDevice::from_number(u8::try_from(number).ok()?))
        };
        // Devices unknown to the daemon share one slot.
        let local = match index {
            OTHER_DEVICE => of_block().or_else(of_slot),
            _ => of_slot(),
        };
        if let Some(local) = local {
            self.count_swap(local, MoveResult::Failed);
        }
    }

    /// Moves all counters to the current slots of their devices.
    pub(super) fn renumber_swap_counts(&self) {
        for (number, counted) in (0..).zip(self.counts.0.lock().iter_mut()) {
            let to = self.session.devices.index(LocalDevice::from_number(number));
            counted.follow(&self.usage().devices, to);
        }
    }
}
