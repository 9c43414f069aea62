//! Stores into control blocks, as the only module. It decides nothing: it publishes the settings.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use gcgroup_abi::{CONTEXT_CHANGED, ContextKind, Control, ControlDevice, Gate, NO_LIMIT, OTHER_DEVICE};

use super::arbitration::GateOrder;
use super::process::{Process, slots};
use super::settings::{MEMORY_LIMIT, MEMORY_SWAP_MAX, SETTINGS, Setting};
use super::{Device, ProcessId};

/// Result of [`arbitrate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    /// The gate has opened.
    pub(super) has_opened: bool,
    /// The process must begin or may stop metering its own work, or move memory.
    pub(super) is_news: bool,
}

/// Fills a new process's control block and makes it visible.
///
/// Counters that both sides compare continue from the usage block, which outlives the daemon: a peak stays
/// valid, and an old acknowledgement is never taken for one of a new freeze.
pub(super) fn publish(process: &Process, devices: &[Device]) {
    let (control, usage) = (process.control(), process.usage());
    let ProcessId(generation) = process.id;
    control.generation.store(generation, Relaxed);
    control.pid.store(process.identity.pid, Relaxed);
    control
        .nr_devices
        .store(u32::try_from(devices.len()).unwrap_or(0), Relaxed);
    control.peak_generation.store(usage.peak_generation(), Relaxed);
    control
        .progress_generation
        .store(usage.progress_generation(), Relaxed);
    control.grants_swap.store(1, Relaxed);
    control.answers_claims.store(1, Relaxed);
    // An earlier claim is unknown to this daemon: the hook makes another.
    answer_claim(process, usage.host_request(), NO_LIMIT);
    slots(devices.len()).for_each(|slot| prepare(process, slot, devices));
    settings(process, devices);
    if process.suspension.is_locked {
        hold_helper(process, true);
    }
    control.publish();
}

/// Fills the slot of a device that was just added as the last, in a block that is already visible.
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

/// Fills a slot, except for the settings.
fn prepare(process: &Process, slot: usize, devices: &[Device]) {
    let (Some(control), Some(usage)) = (process.control().devices.get(slot), process.usage().device(slot))
    else {
        return;
    };
    let drained = usage.drained_generation();
    control.freeze_generation.store(drained.wrapping_add(1), Relaxed);
    control
        .reclaim_generation
        .store(usage.reclaim_generation(), Relaxed);
    control.peak_generation.store(usage.peak_generation(), Relaxed);
    // A thread that waits for an earlier daemon's answer checks again and repeats its request.
    control.grant_answer.store(usage.memory_request().number, Relaxed);
    control.pressure_answer.store(usage.pressure_request(), Relaxed);
    control.swap_answer.store(usage.swap_request().number, Relaxed);
    control.context_missing.store(CONTEXT_CHANGED, Relaxed);
    control.context_answer.store(usage.context_request().0, Relaxed);
    control.group_limit.store(NO_LIMIT, Relaxed);
    control.group_room.store(NO_LIMIT, Relaxed);
    control.swap_group_room.store(NO_LIMIT, Relaxed);
    let Some(device) = devices.get(slot) else { return };
    let (low, high) = device.uuid.split_at(8);
    for (half, word) in [low, high].into_iter().zip(&control.uuid) {
        // Cannot fail: both halves have eight bytes.
        word.store(half.try_into().map_or(0, u64::from_le_bytes), Relaxed);
    }
    control.memory_total.store(device.total, Relaxed);
    control.usage_nsec.store(usage.usage_nsec_before(), Relaxed);
    // Holds until the overhead is measured.
    control
        .memory_overhead
        .store(usage.memory_overhead_before(device.total), Relaxed);
}

/// Requests that `bytes` more be swapped out, to stay out or to be lent to another process. Returns the
/// request's generation.
pub(super) fn reclaim(process: &Process, device: usize, bytes: u64, is_lent: bool) -> Option<u32> {
    let (control, usage) = (process.control(), process.usage());
    let (control, usage) = (control.devices.get(device)?, usage.device(device)?);
    let is_done = usage.reclaim_generation() == control.reclaim_generation.load(Relaxed);
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

/// Answers a request for memory pressure: whether other processes have made room.
pub(super) fn answer_pressure(process: &Process, device: usize, number: u32, is_granted: bool) {
    if let Some(control) = process.control().devices.get(device) {
        if !is_granted {
            control.pressure_refused.store(number, Relaxed);
        }
        control.pressure_answer.store(number, Release);
    }
}

/// Slot of a control block, and its device; none of [`OTHER_DEVICE`].
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    index: usize,
    device: Option<&'a Device>,
}

impl<'a> Slot<'a> {
    /// Returns the device's index and UUID.
    fn names(self) -> (Option<usize>, Option<&'a str>) {
        let device = self.device;
        (
            device.map(|_| self.index),
            device.map(|device| device.uuid_text.as_str()),
        )
    }

    fn of(self, process: &Process) -> Option<&ControlDevice> {
        process.control().devices.get(self.index)
    }
}

/// Puts the process's settings in force. Returns whether a gate has closed or opened, or memory may have to
/// move.
pub(super) fn settings(process: &Process, devices: &[Device]) -> bool {
    let mut changed = false;
    for of in SETTINGS {
        changed |= setting(process, of, devices);
    }
    changed
}

/// Puts one setting of the process in force. Returns as [`settings`] does.
pub(super) fn setting(process: &Process, setting: &Setting, devices: &[Device]) -> bool {
    let Some(publish) = setting.publish else {
        return false;
    };
    let mut changed = publish(process, None);
    for index in slots(devices.len()) {
        let device = devices.get(index);
        changed |= publish(process, Some(Slot { index, device }));
    }
    changed
}

/// Publishes `memory.limit`.
pub(super) fn memory_limit(process: &Process, slot: Option<Slot<'_>>) -> bool {
    let bytes = |uuid| process.settings.get(MEMORY_LIMIT, uuid).number();
    let (word, bytes) = match slot {
        None => (&process.control().memory_limit, bytes(None)),
        Some(slot) => {
            let Some(control) = slot.of(process) else {
                return false;
            };
            let (_, uuid) = slot.names();
            (
                &control.memory_limit,
                uuid.map_or(NO_LIMIT, |uuid| bytes(Some(uuid))),
            )
        }
    };
    swap(process, word, bytes)
}

/// Publishes `memory.swap.max`.
pub(super) fn memory_swap_max(process: &Process, slot: Option<Slot<'_>>) -> bool {
    let Some(slot) = slot else {
        let own = process.settings.get(MEMORY_SWAP_MAX, None).number();
        process.control().enables_swap.store(u64::from(own != 0), Relaxed);
        return swap(
            process,
            &process.control().memory_swap_max,
            process.swap_max(None, None),
        );
    };
    if let Some(control) = slot.of(process) {
        let (index, uuid) = slot.names();
        let bytes = uuid.map_or(NO_LIMIT, |_| process.swap_max(index, uuid));
        control.memory_swap_max.store(bytes, Relaxed);
    }
    false
}

/// Stores a limit. Returns whether the process must move memory for it.
fn swap(process: &Process, word: &AtomicU64, bytes: u64) -> bool {
    let is_new = word.load(Relaxed) != bytes;
    word.store(bytes, Relaxed);
    is_new && process.can_swap()
}

/// Publishes `memory.visible`.
pub(super) fn memory_visible(process: &Process, slot: Option<Slot<'_>>) -> bool {
    if let Some((slot, control)) = slot.and_then(|slot| Some((slot, slot.of(process)?))) {
        let (index, uuid) = slot.names();
        let visible = process.visible(index, uuid).number();
        control.memory_visible.store(visible, Relaxed);
    }
    false
}

/// Publishes `compute.priority`.
pub(super) fn priority(process: &Process, slot: Option<Slot<'_>>) -> bool {
    if let Some((slot, control)) = slot.and_then(|slot| Some((slot, slot.of(process)?))) {
        let (index, uuid) = slot.names();
        control.priority.store(process.priority(index, uuid), Relaxed);
    }
    false
}

/// Publishes `compute.freeze`.
pub(super) fn freeze(process: &Process, slot: Option<Slot<'_>>) -> bool {
    let Some((slot, control)) = slot.and_then(|slot| Some((slot, slot.of(process)?))) else {
        return false;
    };
    let (index, uuid) = slot.names();
    gate(control, process.freeze(index, uuid), process.gate(slot.index))
}

/// Sets one gate.
fn gate(control: &ControlDevice, freeze: bool, open: Gate) -> bool {
    if is_closed(control) == freeze {
        return false;
    }
    let gate = if freeze { Gate::Frozen } else { open };
    control.change_freeze(gate);
    true
}

/// Tells the helper thread to make no driver calls, or to make them again.
pub(super) fn hold_helper(process: &Process, is_held: bool) {
    let number = match is_held {
        false => 0,
        // Not one that the process has acknowledged before.
        true => process.usage().suspend_generation().wrapping_add(1).max(1),
    };
    process.control().suspend_generation.store(number, Release);
}

/// Sets a gate by the arbiter's order. A frozen gate stays frozen and is set when it thaws.
pub(super) fn arbitrate(process: &mut Process, device: usize, order: &GateOrder) -> Moved {
    let before = process.gate(device);
    let mut moved = Moved {
        has_opened: before == Gate::Throttled && order.gate != Gate::Throttled,
        is_news: (before == Gate::Run) != (order.gate == Gate::Run),
    };
    if let Some(kept) = process.kept_mut(Some(device)) {
        kept.gate = order.gate;
        kept.memory_turn = order.memory.turn;
    }
    let Some(control) = process.control().devices.get(device) else {
        return moved;
    };
    control.window_usec.store(order.window_usec, Relaxed);
    control.patience_usec.store(order.patience_usec, Relaxed);
    if control.measures_time.swap(order.measures.into(), Relaxed) != u32::from(order.measures) {
        moved.is_news = true;
    }
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
pub(super) fn has_memory_bound(process: &Process, device: usize) -> bool {
    let control = process.control().devices.get(device);
    control.is_some_and(|control| control.resident_limit.load(Relaxed) != 0)
}

/// Adds `nsec` nanoseconds to the GPU time that the process was charged on a device.
pub(super) fn charge(process: &Process, device: usize, nsec: u64) {
    if let Some(control) = process.control().devices.get(device) {
        // No other thread writes this word.
        let sum = control.usage_nsec.load(Relaxed).saturating_add(nsec);
        control.usage_nsec.store(sum, Relaxed);
    }
}

/// Returns whether the gate lets nothing pass.
pub(super) fn is_closed(control: &ControlDevice) -> bool {
    control.gate.load(Relaxed) == Gate::Frozen as u32
}

/// Resets the peak of the process, or its peak on one device.
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

/// Asks the process which submissions have completed.
pub(super) fn ask_progress(process: &Process) {
    process.control().progress_generation.fetch_add(1, Relaxed);
}

/// Returns whether the process has answered the last such request.
pub(super) fn has_progress(process: &Process) -> bool {
    process.usage().progress_generation() == process.control().progress_generation.load(Relaxed)
}

/// Publishes the number of bytes that the process holds on a device beyond its ledger.
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

/// Answers a process's request for a grant on a device.
pub(super) fn answer(process: &Process, device: usize, number: u32, is_granted: bool) {
    if let Some(control) = process.control().devices.get(device) {
        if !is_granted {
            control.grant_refused.store(number, Relaxed);
        }
        control.grant_answer.store(number, Release);
    }
}

/// Tells a process whether new contexts are measured.
pub(super) fn measures_contexts(process: &Process, are_measured: bool) {
    let word = &process.control().measures_contexts;
    word.store(are_measured.into(), Relaxed);
}

/// Publishes the bytes that new contexts of a process are expected to take on a device.
pub(super) fn estimate_contexts(process: &Process, device: usize, bytes: [u64; ContextKind::COUNT]) {
    if let Some(control) = process.control().devices.get(device) {
        for (word, bytes) in control.context_estimate.iter().zip(bytes) {
            word.store(bytes, Relaxed);
        }
    }
}

/// Answers a process's request to measure a context.
pub(super) fn answer_context(process: &Process, device: usize, number: u32, missing: u64) {
    if let Some(control) = process.control().devices.get(device) {
        control.context_missing.store(missing, Relaxed);
        control.context_answer.store(number, Release);
    }
}

/// Answer to a request to swap out more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SwapAnswer {
    Granted,
    Refused,
    /// Refused; other processes have been asked to release their swap pools.
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

/// Answers a process's claim of host memory: `others` is the number of bytes that other processes are about
/// to take.
pub(super) fn answer_claim(process: &Process, number: u32, others: u64) {
    let control = process.control();
    control.host_claimed.store(others, Relaxed);
    control.host_answer.store(number, Release);
}

/// Asks a process to release its swap pool.
pub(super) fn recall(process: &Process) {
    if let Some(control) = process.control().devices.first() {
        control.swap_recall.fetch_add(1, Relaxed);
    }
}

/// Publishes the flags of `memory.high` on the device of `slot`.
pub(super) fn heed_high(control: &Control, slot: usize, flags: u32) {
    if let Some(control) = control.devices.get(slot) {
        control.high.store(flags, Relaxed);
    }
}

/// Tells a process how long its allocations wait on a device for `memory.high`, microseconds; 0: not at all.
pub(super) fn wait_above_high(process: &Process, device: usize, usec: u32) {
    if let Some(control) = process.control().devices.get(device) {
        control.high_wait_usec.store(usec, Relaxed);
    }
}

/// Returns whether the process has been told so.
pub(super) fn waits_above_high(process: &Process, device: usize) -> bool {
    let control = process.control().devices.get(device);
    control.is_some_and(|control| control.high_wait_usec.load(Relaxed) != 0)
}

/// Returns the bytes that the process has been asked to swap out from a device and has not handled.
pub(super) fn pending_reclaim(process: &Process, device: usize) -> u64 {
    let (Some(control), Some(usage)) = (
        process.control().devices.get(device),
        process.usage().device(device),
    ) else {
        return 0;
    };
    match usage.reclaim_generation() == control.reclaim_generation.load(Relaxed) {
        true => 0,
        false => control.reclaim_bytes.load(Relaxed),
    }
}

/// Publishes the limit that the groups above set for a process on the device of `slot`, and the room left in
/// them.
pub(super) fn allow(control: &Control, slot: usize, limit: u64, room: u64) {
    if let Some(control) = control.devices.get(slot) {
        control.group_limit.store(limit, Relaxed);
        control.group_room.store(room, Relaxed);
    }
}

/// Publishes the room that the groups above have left for memory that a process swaps out from the device of
/// `slot`.
pub(super) fn allow_swap(control: &Control, slot: usize, room: u64) {
    if let Some(control) = control.devices.get(slot) {
        control.swap_group_room.store(room, Relaxed);
    }
}
