//! Moves blocks, in the helper thread: out when a limit is lowered or on request, in when there is room.
//!
//! A step advances the moves of each device (`device`), settles one moved block, or frees one piece of the
//! swap pool.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::MAX_DEVICES;
use gcgroup_abi::environment::{GCGROUP_RECLAIM, GCGROUP_THAW};

use super::Swap;
use super::counts::MoveResult;
use super::device::Device;
use super::settings::SwapSettings;
use super::turn;
use crate::compute::hold::Scope;
use crate::driver::exit::in_driver;
use crate::helper::{Order, Step};
use crate::sys;

#[derive(Debug)]
pub(crate) struct Mover {
    devices: Vec<Device>,
    /// The slots of the program's devices at the last step.
    slots: [usize; MAX_DEVICES],
    settings: SwapSettings,
    /// Whether all submissions are held because some block has nothing mapped at its addresses.
    is_all_kept: bool,
    /// The daemon's recall counter at the last step.
    recalls: u32,
}

impl Mover {
    /// Makes the mover. Releases the holds of a previous mover that was lost, except where a block has
    /// nothing mapped at its addresses.
    pub(crate) fn new(swap: &Swap) -> Self {
        let is_all_kept = swap.is_any_absent();
        swap.compute.holds.reset(is_all_kept);
        Self {
            devices: std::iter::repeat_with(Device::new).take(MAX_DEVICES).collect(),
            slots: swap.session.devices.all(),
            settings: SwapSettings {
                order: sys::word(&GCGROUP_RECLAIM),
                waits: sys::word(&GCGROUP_THAW).is_some(),
            },
            is_all_kept,
            recalls: recalls(swap),
        }
    }

    /// Advances the moves of each device by one step, or ends them.
    pub(crate) fn step(&mut self, swap: &Swap, order: Order) -> Step {
        let mut all = Step::default();
        if !swap.is_on() {
            return all;
        }
        if order == Order::Stop {
            self.stop(swap);
            return all;
        }
        // Before a move releases its hold.
        self.keep(swap);
        if self.slots != swap.session.devices.all() {
            self.renumber(swap);
        }
        for ((index, device), usage) in self.devices.iter_mut().enumerate().zip(&swap.usage().devices) {
            device.hear(swap, index);
            if device.is_at_ease(swap, index, usage) {
                continue;
            }
            all = all.and(device.step(swap, index, usage, &self.settings));
        }
        let is_moving = self.devices.iter().any(Device::is_moving);
        swap.count_moving(is_moving);
        // Not while the program is held for a move.
        if !is_moving {
            let has_news = settle(swap);
            let wake = match swap.unsettled.lock().is_empty() {
                true => self.tidy(swap),
                false => Some(Duration::ZERO),
            };
            all = all.and(Step { wake, has_news });
        }
        all
    }

    /// Moves the state of each device to its current slot. A move in progress is ended and started again
    /// there.
    #[cold]
    fn renumber(&mut self, swap: &Swap) {
        let before = std::mem::replace(&mut self.slots, swap.session.devices.all());
        let mut left = [None; MAX_DEVICES];
        for (from, to) in before.into_iter().zip(self.slots).filter(|(from, to)| from != to) {
            for index in [from, to] {
                if let (Some(left @ None), Some(device)) = (left.get_mut(index), self.devices.get_mut(index))
                {
                    *left = Some(device.leave(swap, index));
                }
            }
        }
        for (from, to) in before.into_iter().zip(self.slots) {
            if let (Some(Some(known)), Some(device)) = (left.get(from), self.devices.get_mut(to)) {
                device.inherit(swap, to, known);
            }
        }
        // Old holds are released after the new ones are taken.
        for (index, known) in left.into_iter().enumerate() {
            if known.is_some_and(|known| known.is_kept) {
                swap.compute.holds.release(Scope::Device(index));
            }
        }
    }

    /// Ends the moves in progress and frees what only they need, so that the process is charged for its
    /// blocks alone. Submissions stay held only while some block has nothing mapped at its addresses.
    fn stop(&mut self, swap: &Swap) {
        for (index, device) in self.devices.iter_mut().enumerate() {
            device.stop(swap, index);
        }
        swap.count_moving(false);
        while settle(swap) {}
        in_driver(|| while swap.let_go(true) {});
        self.keep(swap);
    }

    /// Frees pool memory that has expired or that other processes need. Returns how long until there is more
    /// to do.
    fn tidy(&mut self, swap: &Swap) -> Option<Duration> {
        let pool = &swap.pool;
        let recalls = recalls(swap);
        if self.recalls != recalls && pool.bytes() != 0 {
            in_driver(|| swap.let_go(true));
            return Some(Duration::ZERO);
        }
        self.recalls = recalls;
        if pool.next().is_some_and(|next| next.is_zero()) {
            match turn::keeps_pool(swap) {
                true => pool.renew(),
                false => _ = in_driver(|| swap.let_go(false)),
            }
        }
        pool.next()
    }

    /// Holds all submissions while some block has nothing mapped at its addresses.
    fn keep(&mut self, swap: &Swap) {
        let is_any_absent = swap.is_any_absent();
        match (self.is_all_kept, is_any_absent) {
            (false, true) => swap.compute.hold(Scope::All),
            (true, false) => swap.compute.holds.release(Scope::All),
            _ => return,
        }
        self.is_all_kept = is_any_absent;
    }
}

/// Settles one moved block. Returns whether there was one.
fn settle(swap: &Swap) -> bool {
    let Some(block) = swap.unsettled.lock().pop() else {
        return false;
    };
    if let Some(Err(_)) = in_driver(|| block.settle(swap)) {
        swap.is_stuck.store(true, Relaxed);
        swap.count_swap(block.local, MoveResult::Failed);
    }
    true
}

/// Returns how often the daemon has asked for pool memory to be freed.
fn recalls(swap: &Swap) -> u32 {
    let device = swap.control().devices.first();
    device.map_or(0, |device| device.swap_recall.load(Relaxed))
}
