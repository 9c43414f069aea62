//! Memory that can move, as the arbiter sees it: how much of it each process has on a device, and how much
//! the device can have.

use std::sync::atomic::Ordering::Relaxed;

use super::{Ledger, Process, Reason, State, usage};
use crate::arbiter::Holding;

/// Part of a device, one in so many, that is left for what the driver needs beyond what it shows.
const MARGIN: u64 = 64;

/// Returns the movable memory of a process on a device; nothing if it cannot swap. `most`: bytes.
pub(super) fn holding(process: &Process, device: usize, most: u64) -> Holding {
    let (usage, control) = (process.usage(), process.control());
    let (Some(on_device), Some(set)) = (usage.device(device), control.devices.get(device)) else {
        return Holding::default();
    };
    if !process.can_swap() || !process.is_hook_ok() {
        return Holding::default();
    }
    let limits = [&set.memory_limit, &set.group_limit, &control.memory_limit];
    let limits = limits.map(|limit| limit.load(Relaxed));
    let all = limits.into_iter().fold(on_device.movable(most), u64::min);
    Holding {
        all,
        resident: on_device.swappable(all),
        is_moving: usage.waits_for_memory(),
    }
}

impl State {
    /// Returns how many bytes of a device movable memory can have: what no process holds otherwise.
    pub(super) fn movable_capacity(&self, device: usize) -> u64 {
        let Some(total) = self.devices.get(device).map(|device| device.total) else {
            return 0;
        };
        let fixed = |process: &Process| {
            let existing = Ledger::of(process.usage(), device).map_or(0, |ledger| ledger.existing());
            let usage = process.usage().device(device);
            let movable = usage.filter(|_| process.can_swap() && process.is_hook_ok());
            let movable = movable.map_or(0, |usage| usage.swappable(usage.movable(existing)));
            let overhead = usage::overhead(process, device, &self.devices);
            existing.saturating_add(overhead).saturating_sub(movable)
        };
        let governed = self.processes.values().map(|process| fixed(process));
        let unmanaged = self.audit.found.iter();
        let unmanaged = unmanaged.filter(|one| one.device == device && one.reason == Reason::NoHook);
        let unmanaged = unmanaged.filter_map(|one| one.bytes);
        let used = governed.chain(unmanaged).fold(0, u64::saturating_add);
        (total - total / MARGIN).saturating_sub(used)
    }
}
