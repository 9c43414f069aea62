//! Memory that can move, as the arbiter sees it: how much of it each process has on a device, and how much
//! the device can have.

use std::sync::atomic::Ordering::Relaxed;

use super::{Arbitration, Ledger, Process, ProcessId, Reason, State, View, sums};
use crate::arbiter::{Holding, MemoryTurn};
use crate::tree::view::Scope;

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
    fn movable_capacity(&self, device: usize) -> u64 {
        let Some(total) = self.devices.get(device).map(|device| device.total) else {
            return 0;
        };
        let fixed = |process: &Process| {
            let existing = Ledger::of(process.usage(), device).map_or(0, |ledger| ledger.existing());
            let usage = process.usage().device(device);
            let movable = usage.filter(|_| process.can_swap() && process.is_hook_ok());
            let movable = movable.map_or(0, |usage| usage.swappable(usage.movable(existing)));
            let overhead = sums::overhead(process, device, &self.devices);
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

impl Arbitration<'_> {
    /// Returns how many bytes of a device movable memory can have.
    pub fn capacity(&self, device: usize) -> u64 {
        self.state.movable_capacity(device)
    }

    /// Counts a memory turn of a process on a device.
    pub fn count_memory_turn(&mut self, id: ProcessId, device: usize) {
        let process = self.state.processes.get_mut(&id);
        if let Some(kept) = process.and_then(|process| process.kept_mut(Some(device))) {
            kept.nr_memory_turns += 1;
        }
    }
}

impl View<'_> {
    /// Returns the role of the process in memory turns here, on any device if this is not one; `None` except
    /// for processes.
    pub fn memory_turn(&self) -> Option<u64> {
        let Scope::Process(process, device) = self.scope() else {
            return None;
        };
        let turn = |device: &super::process::Kept| device.memory_turn;
        let turn = match device {
            Some(device) => process.devices.get(device).map(turn),
            None => process.devices.iter().map(turn).max_by_key(|turn| *turn as u64),
        };
        Some(turn.unwrap_or(MemoryTurn::None) as u64)
    }
}
