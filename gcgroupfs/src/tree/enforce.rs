//! Stores into control blocks: the only module that does. It decides nothing; what holds is in the settings.

use std::sync::atomic::Ordering::{Relaxed, Release};

use gcgroup_abi::{Control, ControlDevice, Gate, NO_LIMIT, OTHER_DEVICE};

use super::arbitration::GateOrder;
use super::process::{Process, slots};
use super::{Device, ProcessId};

/// The most GPU time, nanoseconds, that is believed to have been charged by an earlier daemon: nine years.
const MAX_USAGE: u64 = 1 << 58;

/// What has become of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    /// It holds no more.
    pub(super) has_opened: bool,
    /// The process must begin to watch its own work, or need not any more.
    pub(super) is_news: bool,
}

/// Fills a new process's block and makes it visible.
///
/// Counters that both sides compare go on from where the usage block is, since that one outlives the daemon:
/// a peak stays valid, and an old acknowledgement is never taken for one of a new freeze.
pub(super) fn publish(process: &Process, devices: &[Device]) {
    let (control, usage) = (process.control(), process.usage());
    let ProcessId(generation) = process.id;
    control.generation.store(generation, Relaxed);
    control.pid.store(process.identity.pid, Relaxed);
    control
        .nr_devices
        .store(u32::try_from(devices.len()).unwrap_or(0), Relaxed);
    control
        .peak_generation
        .store(usage.peak_generation.load(Relaxed), Relaxed);
    control
        .progress_generation
        .store(usage.progress_generation.load(Relaxed), Relaxed);
    control.grants_swap.store(1, Relaxed);
    control.knows_stocks.store(1, Relaxed);
    control.answers_claims.store(1, Relaxed);
    // A claim that was made before is not known here: the hook makes another.
    answer_claim(process, process.usage().host_request.load(Relaxed), NO_LIMIT);
    slots(devices.len()).for_each(|slot| prepare(process, slot, devices));
    settings(process, devices);
    control.publish();
}

/// Fills the slot of a device that has just been added as the last, in a block that is visible already.
pub(super) fn prepare_device(process: &Process, devices: &[Device]) {
    if let Some(slot) = devices.len().checked_sub(1) {
        prepare(process, slot, devices);
    }
}

/// Makes that slot visible.
pub(super) fn tell_device(process: &Process, devices: &[Device]) {
    let nr_devices = u32::try_from(devices.len()).unwrap_or(0);
    process.control().nr_devices.store(nr_devices, Release);
}

/// Fills a slot, all but what settings say.
fn prepare(process: &Process, slot: usize, devices: &[Device]) {
    let (Some(control), Some(usage)) = (
        process.control().devices.get(slot),
        process.usage().devices.get(slot),
    ) else {
        return;
    };
    let drained = usage.drained_generation.load(Relaxed);
    control.freeze_generation.store(drained.wrapping_add(1), Relaxed);
    control
        .reclaim_generation
        .store(usage.reclaim_generation.load(Relaxed), Relaxed);
    control
        .peak_generation
        .store(usage.peak_generation.load(Relaxed), Relaxed);
    // Who waits for an answer of an earlier daemon's looks again, and asks again.
    control
        .grant_answer
        .store(usage.grant_request.load(Relaxed), Relaxed);
    control
        .pressure_answer
        .store(usage.pressure_request.load(Relaxed), Relaxed);
    control
        .swap_answer
        .store(usage.swap_request.load(Relaxed), Relaxed);
    control.group_limit.store(NO_LIMIT, Relaxed);
    control.group_room.store(NO_LIMIT, Relaxed);
    let Some(device) = devices.get(slot) else { return };
    let (low, high) = device.uuid.split_at(8);
    for (half, word) in [low, high].into_iter().zip(&control.uuid) {
        // Both halves have eight bytes.
        word.store(half.try_into().map_or(0, u64::from_le_bytes), Relaxed);
    }
    control.memory_total.store(device.total, Relaxed);
    let before = usage.usage_nsec_before.load(Relaxed);
    control.usage_nsec.store(before.min(MAX_USAGE), Relaxed);
    // Until it is measured.
    let before = usage.memory_overhead_before.load(Relaxed);
    control.memory_overhead.store(before.min(device.total), Relaxed);
}

/// Whether the process has something to move for what the limits are going to be.
fn swap(process: &Process, memory_limit: u64, swap_max: u64) -> bool {
    let control = process.control();
    process.can_swap()
        && (control.memory_limit.load(Relaxed) != memory_limit
            || control.memory_swap_max.load(Relaxed) != swap_max)
}

/// Asks for that many bytes more to be swapped out, to stay out or lent to somebody; the generation of that.
pub(super) fn reclaim(process: &Process, device: usize, bytes: u64, is_lent: bool) -> Option<u32> {
    let (control, usage) = (process.control(), process.usage());
    let (control, usage) = (control.devices.get(device)?, usage.devices.get(device)?);
    let is_done = usage.reclaim_generation.load(Relaxed) == control.reclaim_generation.load(Relaxed);
    let (before, were_lent) = if is_done {
        (0, true)
    } else {
        let were_lent = control.reclaim_is_lent.load(Relaxed) != 0;
        (control.reclaim_bytes.load(Relaxed), were_lent)
    };
    control.reclaim_bytes.store(before.saturating_add(bytes), Relaxed);
    control
        .reclaim_is_lent
        .store((is_lent && were_lent).into(), Relaxed);
    Some(control.reclaim_generation.fetch_add(1, Release).wrapping_add(1))
}

/// Tells that others have made room, or that they cannot.
pub(super) fn answer_pressure(process: &Process, device: usize, number: u32, is_granted: bool) {
    if let Some(control) = process.control().devices.get(device) {
        if !is_granted {
            control.pressure_refused.store(number, Relaxed);
        }
        control.pressure_answer.store(number, Release);
    }
}

/// Makes what is asked of the process hold. Returns whether a gate has closed or opened, or memory may have
/// to move.
pub(super) fn settings(process: &Process, devices: &[Device]) -> bool {
    let (control, asked) = (process.control(), &process.settings);
    let mut changed = swap(process, asked.memory_limit(None), process.swap_max(None, None));
    control.memory_limit.store(asked.memory_limit(None), Relaxed);
    swap_max(process, devices);
    for slot in slots(devices.len()) {
        let Some(control) = control.devices.get(slot) else {
            continue;
        };
        let uuid = devices.get(slot).map(|device| device.uuid_text.as_str());
        let index = uuid.map(|_| slot);
        let limit = uuid.map_or(NO_LIMIT, |_| asked.memory_limit(uuid));
        changed |= process.can_swap() && control.memory_limit.load(Relaxed) != limit;
        control.memory_limit.store(limit, Relaxed);
        control.priority.store(process.priority(index, uuid), Relaxed);
        changed |= gate(control, process.freeze(index, uuid), process.gate(slot));
    }
    changed
}

/// Publishes how much may be swapped out.
pub(super) fn swap_max(process: &Process, devices: &[Device]) {
    let control = process.control();
    control
        .memory_swap_max
        .store(process.swap_max(None, None), Relaxed);
    for slot in slots(devices.len()) {
        let device = devices.get(slot);
        let bytes = device.map_or(NO_LIMIT, |device| {
            process.swap_max(Some(slot), Some(&device.uuid_text))
        });
        if let Some(control) = control.devices.get(slot) {
            control.memory_swap_max.store(bytes, Relaxed);
        }
    }
}

/// Closes or opens one gate.
fn gate(control: &ControlDevice, freeze: bool, open: Gate) -> bool {
    if is_closed(control) == freeze {
        return false;
    }
    let gate = if freeze { Gate::Frozen } else { open };
    control.change_freeze(gate);
    true
}

/// Sets a gate as the arbiter has it. A frozen one stays so, and is set when it thaws.
pub(super) fn arbitrate(process: &mut Process, device: usize, order: &GateOrder) -> Moved {
    let before = process.gate(device);
    let moved = Moved {
        has_opened: before == Gate::Throttled && order.gate != Gate::Throttled,
        is_news: (before == Gate::Run) != (order.gate == Gate::Run),
    };
    if let Some(kept) = process.kept_mut(Some(device)) {
        kept.gate = order.gate;
    }
    let Some(control) = process.control().devices.get(device) else {
        return moved;
    };
    control.window_usec.store(order.window_usec, Relaxed);
    control.patience_usec.store(order.patience_usec, Relaxed);
    control.set_wants_bell(order.wants_bell, order.wants_end);
    if before != order.gate && !is_closed(control) {
        control.gate.store(order.gate as u32, Release);
    }
    moved
}

/// Adds GPU time to what the process has had on a device, nanoseconds.
pub(super) fn charge(process: &Process, device: usize, nsec: u64) {
    if let Some(control) = process.control().devices.get(device) {
        // Nobody else writes it.
        let sum = control.usage_nsec.load(Relaxed).saturating_add(nsec);
        control.usage_nsec.store(sum, Relaxed);
    }
}

/// Whether a gate says that nothing may pass.
pub(super) fn is_closed(control: &ControlDevice) -> bool {
    control.gate.load(Relaxed) == Gate::Frozen as u32
}

/// Begins a new peak, of the process or of it on a device.
pub(super) fn reset_peak(process: &Process, device: Option<usize>) {
    let control = process.control();
    let generation = match device {
        None => &control.peak_generation,
        Some(device) => match control.devices.get(device) {
            Some(control) => &control.peak_generation,
            None => return,
        },
    };
    generation.fetch_add(1, Relaxed);
}

/// Asks which submissions have ended.
pub(super) fn ask_progress(process: &Process) {
    process.control().progress_generation.fetch_add(1, Relaxed);
}

/// Whether the process says that it has found out since it was last asked.
pub(super) fn has_progress(process: &Process) -> bool {
    process.usage().progress_generation.load(Relaxed) == process.control().progress_generation.load(Relaxed)
}

/// Publishes what the process holds on a device beyond its ledger.
pub(super) fn store_overhead(process: &Process, device: usize, bytes: u64) {
    if let Some(control) = process
        .control()
        .devices
        .get(device)
        .filter(|_| device != OTHER_DEVICE)
    {
        control.memory_overhead.store(bytes, Relaxed);
    }
}

/// Answers a process's request for more on a device.
pub(super) fn answer(process: &Process, device: usize, number: u32, is_granted: bool) {
    if let Some(control) = process.control().devices.get(device) {
        if !is_granted {
            control.grant_refused.store(number, Relaxed);
        }
        control.grant_answer.store(number, Release);
    }
}

/// What becomes of a request to swap out more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SwapAnswer {
    Granted,
    Refused,
    /// Refused, and others have been asked to let go what they keep.
    Recalled,
}

/// Answers a process's request to swap out more from a device.
pub(super) fn answer_swap(process: &Process, device: usize, number: u32, answer: SwapAnswer) {
    if let Some(control) = process.control().devices.get(device) {
        if answer != SwapAnswer::Granted {
            control.swap_refused.store(number, Relaxed);
        }
        if answer == SwapAnswer::Recalled {
            control.swap_recalled.store(number, Relaxed);
        }
        control.swap_answer.store(number, Release);
    }
}

/// Answers a process's claim of the host's memory: `others` is the number of bytes that other processes are
/// about to take.
pub(super) fn answer_claim(process: &Process, number: u32, others: u64) {
    let control = process.control();
    control.host_claimed.store(others, Relaxed);
    control.host_answer.store(number, Release);
}

/// Asks a process to let go the host memory that it keeps.
pub(super) fn recall(process: &Process) {
    if let Some(control) = process.control().devices.first() {
        control.swap_recall.fetch_add(1, Relaxed);
    }
}

/// Publishes what the groups above allow a process on the device of that slot, and what they have left there.
pub(super) fn allow(control: &Control, slot: usize, limit: u64, room: u64) {
    if let Some(control) = control.devices.get(slot) {
        control.group_limit.store(limit, Relaxed);
        control.group_room.store(room, Relaxed);
    }
}
