//! Moves blocks, in the helper thread: out when a limit is lowered or on request, in when there is room.
//!
//! A step advances the moves of each device (`device`), settles one moved block, or frees one piece of the
//! swap pool.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::MAX_DEVICES;
use gcgroup_abi::environment::{GCGROUP_RECLAIM, GCGROUP_SWAP_AHEAD, GCGROUP_THAW};

use super::ahead::Ahead;
use super::counts::Outcome;
use super::device::Device;
use crate::compute::Step;
use crate::compute::hold::Scope;
use crate::helper;
use crate::process::Process;
use crate::sys;
use crate::wishes;

/// Choices that the program's environment makes.
#[derive(Debug)]
pub(super) struct Manner {
    /// Name of the reclaim policy (`GCGROUP_RECLAIM`).
    pub(super) order: Option<String>,
    /// Whether a thaw waits for room on the device (`GCGROUP_THAW=wait`) instead of running from host memory.
    pub(super) waits: bool,
}

#[derive(Debug)]
pub(crate) struct Mover {
    devices: Vec<Device>,
    /// The slots of the program's devices at the last step.
    slots: [usize; MAX_DEVICES],
    manner: Manner,
    ahead: Ahead,
    /// Whether all submissions are held because some block has nothing mapped at its addresses.
    is_all_kept: bool,
    /// The daemon's recall counter at the last step.
    recalls: u32,
}

impl Mover {
    /// Makes the mover. Releases the holds of a previous mover that was lost, except where a block has
    /// nothing mapped at its addresses.
    pub(crate) fn new(process: &Process) -> Self {
        let is_all_kept = process.swap.is_any_absent();
        process.reset_holds(is_all_kept);
        Self {
            devices: std::iter::repeat_with(Device::new).take(MAX_DEVICES).collect(),
            slots: process.devices.all(),
            manner: Manner {
                order: sys::variable(GCGROUP_RECLAIM.name).and_then(|order| order.into_string().ok()),
                waits: sys::variable(GCGROUP_THAW.name).is_some_and(|how| how == "wait"),
            },
            ahead: Ahead::new(sys::variable(GCGROUP_SWAP_AHEAD.name).map_or(0, |size| wishes::size(&size))),
            is_all_kept,
            recalls: recalls(process),
        }
    }

    /// Advances the moves of each device by one step.
    pub(crate) fn step(&mut self, process: &Process) -> Step {
        let mut all = Step::default();
        if !process.swap.is_on() {
            return all;
        }
        // Before a move releases its hold.
        self.keep(process);
        if self.slots != process.devices.all() {
            self.renumber(process);
        }
        for ((index, device), usage) in self.devices.iter_mut().enumerate().zip(&process.usage().devices) {
            device.hear(process, index);
            if device.is_at_ease(process, index, usage) {
                continue;
            }
            let step = device.step(process, index, usage, &self.manner);
            all.has_news |= step.has_news;
            all.wake = all.wake.into_iter().chain(step.wake).min();
        }
        // Not while the program is held for a move.
        if !self.devices.iter().any(Device::is_moving) {
            all.has_news |= settle(process);
            let wake = match process.swap.unsettled.lock().is_empty() {
                true => self.tidy(process),
                false => Some(Duration::ZERO),
            };
            all.wake = all.wake.into_iter().chain(wake).min();
        }
        all
    }

    /// Moves the state of each device to its current slot. A move in progress is ended and started again
    /// there.
    #[cold]
    fn renumber(&mut self, process: &Process) {
        let before = std::mem::replace(&mut self.slots, process.devices.all());
        let mut left = [None; MAX_DEVICES];
        for (from, to) in before.into_iter().zip(self.slots).filter(|(from, to)| from != to) {
            for index in [from, to] {
                if let (Some(left @ None), Some(device)) = (left.get_mut(index), self.devices.get_mut(index))
                {
                    *left = Some(device.leave(process, index));
                }
            }
        }
        for (from, to) in before.into_iter().zip(self.slots) {
            if let (Some(Some(known)), Some(device)) = (left.get(from), self.devices.get_mut(to)) {
                device.inherit(process, to, known);
            }
        }
        // Old holds are released after the new ones are taken.
        for (index, known) in left.into_iter().enumerate() {
            if known.is_some_and(|known| known.is_kept) {
                process.release(Scope::Device(index));
            }
        }
    }

    /// Frees pool memory that has expired or that other processes need, and makes memory in advance. Returns
    /// how long until there is more to do.
    fn tidy(&mut self, process: &Process) -> Option<Duration> {
        let supply = &process.swap.supply;
        let recalls = recalls(process);
        if self.recalls != recalls && supply.bytes() != 0 {
            self.ahead.give_way(process);
            helper::in_driver(|| process.let_go(true));
            return Some(Duration::ZERO);
        }
        self.recalls = recalls;
        let ahead = match self.devices.iter().all(Device::is_at_rest) {
            true => self.ahead.step(process, self.manner.order.as_deref()),
            false => None,
        };
        if supply.next().is_some_and(|next| next.is_zero()) {
            helper::in_driver(|| process.let_go(false));
        }
        ahead.into_iter().chain(supply.next()).min()
    }

    /// Holds all submissions while some block has nothing mapped at its addresses.
    fn keep(&mut self, process: &Process) {
        let is_any_absent = process.swap.is_any_absent();
        match (self.is_all_kept, is_any_absent) {
            (false, true) => process.hold(Scope::All),
            (true, false) => process.release(Scope::All),
            _ => return,
        }
        self.is_all_kept = is_any_absent;
    }
}

/// Settles one moved block. Returns whether there was one.
fn settle(process: &Process) -> bool {
    let Some(block) = process.swap.unsettled.lock().pop() else {
        return false;
    };
    if let Some(Err(_)) = helper::in_driver(|| block.settle(process)) {
        process.swap.is_stuck.store(true, Relaxed);
        process.count_swap(block.local, Outcome::Failed);
    }
    true
}

/// Returns how often the daemon has asked for pool memory to be freed.
fn recalls(process: &Process) -> u32 {
    let device = process.control().devices.first();
    device.map_or(0, |device| device.swap_recall.load(Relaxed))
}
