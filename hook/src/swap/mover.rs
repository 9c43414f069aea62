//! Moves blocks, in the helper thread: out when a limit is lowered or somebody asks for it, in when there is
//! room.
//!
//! A step goes on with each device's moves (`device`), settles what one block left, or lets one piece of host
//! memory go.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::MAX_DEVICES;

use super::ahead::Ahead;
use super::counts::Outcome;
use super::device::Device;
use crate::compute::Step;
use crate::compute::hold::Scope;
use crate::helper;
use crate::process::Process;
use crate::sys;
use crate::wishes;

/// How it is done where that is a matter of taste: by the environment of the program.
#[derive(Debug)]
pub(super) struct Manner {
    /// Of the reclaim policies, by name (`GCGROUP_RECLAIM`).
    pub(super) order: Option<String>,
    /// Whether a thaw waits for room on the device (`GCGROUP_THAW=wait`), instead of running from host memory
    /// what does not fit.
    pub(super) waits: bool,
}

#[derive(Debug)]
pub(crate) struct Mover {
    devices: Vec<Device>,
    /// The slots of the program's devices, as last seen.
    slots: [usize; MAX_DEVICES],
    manner: Manner,
    ahead: Ahead,
    /// Whether everything is held because some block has nothing at its addresses.
    is_all_kept: bool,
    /// How often others had no room for what is kept, as last seen.
    recalls: u32,
}

impl Mover {
    /// What another held, if there was one that is lost, is let go, but for what must not be.
    pub(crate) fn new(process: &Process) -> Self {
        let is_all_kept = process.swap.is_any_absent();
        process.reset_holds(is_all_kept);
        Self {
            devices: std::iter::repeat_with(Device::new).take(MAX_DEVICES).collect(),
            slots: process.devices.all(),
            manner: Manner {
                order: sys::variable("GCGROUP_RECLAIM").and_then(|order| order.into_string().ok()),
                waits: sys::variable("GCGROUP_THAW").is_some_and(|how| how == "wait"),
            },
            ahead: Ahead::new(sys::variable("GCGROUP_SWAP_AHEAD").map_or(0, |size| wishes::size(&size))),
            is_all_kept,
            recalls: recalls(process),
        }
    }

    /// Goes on by one thing on each device.
    pub(crate) fn step(&mut self, process: &Process) -> Step {
        let mut all = Step::default();
        if !process.swap.is_on() {
            return all;
        }
        // Before a move lets go what it held.
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
        // Not while anything waits for it.
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

    /// Has what is known of each device follow it to the slot that it has now. What was under way is ended,
    /// and begun anew there.
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
        // Not before what is held is held in its new place.
        for (index, known) in left.into_iter().enumerate() {
            if known.is_some_and(|known| known.is_kept) {
                process.release(Scope::Device(index));
            }
        }
    }

    /// Lets host memory go that has not been used for a while, or that others need, and makes what is to be
    /// there before it is needed; when there will be more to do.
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

    /// Holds everything while some block has nothing at its addresses.
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

/// Lets go what a block has left that was moved; whether there was one.
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

/// How often the daemon has asked for what is kept.
fn recalls(process: &Process) -> u32 {
    let device = process.control().devices.first();
    device.map_or(0, |device| device.swap_recall.load(Relaxed))
}
