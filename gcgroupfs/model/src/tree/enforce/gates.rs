//! Gates: what the arbiter orders, and the GPU time that it charges.

use std::sync::atomic::Ordering::{Relaxed, Release};

use gcgroup_abi::Gate;

use crate::arbiter::{MemoryTurn, Share};
use crate::tree::process::{Process, is_closed};
use crate::tree::{ProcessId, WaitsFor};

/// State that a gate is to have while it is not frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateOrder<Id = ProcessId> {
    pub gate: Gate,
    /// With [`Gate::Arbitrate`]: the in-flight window, nanoseconds.
    pub window: u64,
    /// With [`Gate::Throttled`]: the longest wait, nanoseconds.
    pub patience: u64,
    /// With [`Gate::Arbitrate`]: when all submitted work is to have ended, because a process of higher
    /// priority is expected to have work, nanoseconds; 0: none is expected.
    pub gap_until: u64,
    /// Whether the process must ring when its work begins.
    pub wants_bell: bool,
    /// Whether the process must ring when its work ends.
    pub wants_end: bool,
    pub memory: Share,
    /// Percentage of the device for the process while all that have lately had work want it.
    pub share_percent: u64,
    /// Whether the process is to measure its work while the gate is open.
    pub measures: bool,
    /// Number of other processes that have work on the device.
    pub nr_others: u32,
    /// The process that it waits for.
    pub waits_for: Option<(Id, WaitsFor)>,
}

impl<Id> GateOrder<Id> {
    pub const OPEN: Self = Self {
        gate: Gate::Run,
        window: 0,
        patience: 0,
        gap_until: 0,
        wants_bell: false,
        wants_end: false,
        memory: Share {
            turn: MemoryTurn::None,
            is_parked: false,
            resident_limit: 0,
        },
        share_percent: 0,
        measures: false,
        nr_others: 0,
        waits_for: None,
    };
}

/// Result of [`arbitrate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) struct Moved {
    /// The gate has opened.
    pub(in crate::tree) has_opened: bool,
    /// The process must begin or may stop metering its own work, or move memory.
    pub(in crate::tree) is_news: bool,
}

/// Tells the helper thread to make no driver calls, or to make them again.
pub(in crate::tree) fn hold_helper(process: &Process, is_held: bool) {
    let number = match is_held {
        false => 0,
        // Not one that the process has acknowledged before.
        true => process.usage().suspend_generation().wrapping_add(1).max(1),
    };
    process.control().suspend_generation.store(number, Release);
}

/// Returns `nsec` in microseconds, the unit of control blocks.
fn usec(nsec: u64) -> u32 {
    u32::try_from(nsec / 1000).unwrap_or(u32::MAX)
}

/// Sets a gate by the arbiter's order. A frozen gate stays frozen and is set when it thaws.
pub(in crate::tree) fn arbitrate(process: &mut Process, device: usize, order: &GateOrder) -> Moved {
    let before = process.gate(device);
    let mut moved = Moved {
        has_opened: before == Gate::Throttled && order.gate != Gate::Throttled,
        is_news: (before == Gate::Run) != (order.gate == Gate::Run),
    };
    if let Some(kept) = process.kept_mut(Some(device)) {
        kept.gate = order.gate;
        kept.memory_turn = order.memory.turn;
        kept.share_percent = order.share_percent;
    }
    let Some(control) = process.control().devices.get(device) else {
        return moved;
    };
    control.window_usec.store(usec(order.window), Relaxed);
    control.patience_usec.store(usec(order.patience), Relaxed);
    control.gap_until.store(order.gap_until, Relaxed);
    if control.measures_time.swap(order.measures.into(), Relaxed) != u32::from(order.measures) {
        moved.is_news = true;
    }
    control.nr_others.store(order.nr_others, Relaxed);
    control.set_wants_bell(order.wants_bell, order.wants_end);
    if control.resident_limit.load(Relaxed) != order.memory.resident_limit {
        control.resident_limit.store(order.memory.resident_limit, Relaxed);
        moved.is_news = true;
    }
    if before != order.gate && !is_closed(control) {
        control.gate.store(order.gate as u32, Release);
    }
    moved
}

/// Returns whether the process's movable memory on a device is bounded.
pub(in crate::tree) fn has_memory_bound(process: &Process, device: usize) -> bool {
    let control = process.control().devices.get(device);
    control.is_some_and(|control| control.resident_limit.load(Relaxed) != 0)
}

/// Adds `nsec` nanoseconds to the GPU time that the process was charged on a device.
pub(in crate::tree) fn charge(process: &Process, device: usize, nsec: u64) {
    if let Some(control) = process.control().devices.get(device) {
        // No other thread writes this word.
        let sum = control.usage_nsec.load(Relaxed).saturating_add(nsec);
        control.usage_nsec.store(sum, Relaxed);
    }
}
