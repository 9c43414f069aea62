//! How often blocks of each device have moved, and how many bytes that was. It is counted in the device's
//! slot of the usage block; here is which part of it is whose, so that it follows its device to another
//! number, like the blocks.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{MAX_DEVICES, OTHER_DEVICE, UsageDevice};
use parking_lot::Mutex;

use super::block::Where;
use super::task::blocks;
use crate::device::LocalDevice;
use crate::process::Process;

/// What has come of a move.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    /// That many bytes are there now.
    Moved(Where, u64),
    Failed,
}

/// What each of the program's devices has counted.
#[derive(Debug)]
pub(super) struct Counts(Mutex<[Counted; MAX_DEVICES]>);

#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    /// The slot it is counted in. Means nothing before anything is.
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

impl Outcome {
    fn numbers(self) -> [u64; NUMBERS] {
        match self {
            Self::Moved(Where::Host, bytes) => [1, bytes, 0, 0, 0],
            Self::Moved(Where::Device, bytes) => [0, 0, 1, bytes, 0],
            Self::Failed => [0, 0, 0, 0, 1],
        }
    }
}

impl Counted {
    /// Brings it to the slot that its device has now.
    fn follow(&mut self, devices: &[UsageDevice], to: usize) {
        let from = std::mem::replace(&mut self.index, to);
        if let (Some(from), Some(to), true) = (devices.get(from), devices.get(to), from != to) {
            // Whoever adds up all slots meanwhile sees too much rather than too little.
            for ((from, to), number) in words(from).into_iter().zip(words(to)).zip(self.numbers) {
                to.fetch_add(number, Relaxed);
                from.fetch_sub(number, Relaxed);
            }
        }
    }
}

impl Process {
    /// Counts what has come of a move of that device's.
    pub(super) fn count_swap(&self, local: LocalDevice, outcome: Outcome) {
        let mut all = self.swap.counts.0.lock();
        let Some(counted) = all.get_mut(usize::from(local.number())) else {
            return;
        };
        let devices = &self.usage().devices;
        counted.follow(devices, self.devices.index(local));
        if let Some(usage) = devices.get(counted.index) {
            let each = words(usage).into_iter().zip(&mut counted.numbers);
            for ((word, mine), number) in each.zip(outcome.numbers()) {
                word.fetch_add(number, Relaxed);
                *mine = mine.wrapping_add(number);
            }
        }
    }

    /// Counts a move that failed, of a device of that slot.
    pub(super) fn count_swap_fail(&self, index: usize) {
        let of_block = || blocks(self, index).first().map(|block| block.local);
        let of_slot = || {
            let number = self.devices.all().iter().position(|slot| *slot == index)?;
            Some(LocalDevice::from_number(u8::try_from(number).ok()?))
        };
        // Those that the daemon does not know have one slot for all.
        let local = match index {
            OTHER_DEVICE => of_block().or_else(of_slot),
            _ => of_slot(),
        };
        if let Some(local) = local {
            self.count_swap(local, Outcome::Failed);
        }
    }

    /// Brings all counts to the slots that the devices have now.
    pub(super) fn renumber_swap_counts(&self) {
        for (number, counted) in (0..).zip(self.swap.counts.0.lock().iter_mut()) {
            let to = self.devices.index(LocalDevice::from_number(number));
            counted.follow(&self.usage().devices, to);
        }
    }
}
