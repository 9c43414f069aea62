//! Stores into control blocks, as the only module. It decides nothing: it publishes the settings.

mod answers;
mod gates;
mod settings;

use std::sync::atomic::Ordering::{Relaxed, Release};

use gcgroup_abi::{ContextKind, Control, NO_LIMIT, OTHER_DEVICE};

use super::process::{Process, slots};
use super::{Device, ProcessId};

pub(super) use self::answers::{
    SwapAnswer, answer, answer_claim, answer_context, answer_pressure, answer_swap, context_answer,
};
pub use self::gates::GateOrder;
pub(super) use self::gates::{arbitrate, charge, has_memory_bound, hold_helper};
pub(super) use self::settings::{setting, settings};

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
    // Contexts that no daemon has measured are still to be measured.
    let is_awaited = usage.context_estimated(u64::MAX) != 0;
    let answered = usage.context_request().0.wrapping_sub(is_awaited.into());
    control.context_answer.store(answered, Relaxed);
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

/// Withdraws what a process was requested to move out from a device and has not handled.
pub(super) fn cancel_reclaim(process: &Process, device: usize) {
    if let Some(control) = process.control().devices.get(device)
        && pending_reclaim(process, device) != 0
    {
        control.reclaim_bytes.store(0, Relaxed);
        control.reclaim_generation.fetch_add(1, Release);
    }
}

/// Tells a process that it leaves the GPU: calls held by a closed gate are to say that they need it.
pub(super) fn begin_idle(process: &Process) {
    // Not a number for which the process has said so before.
    let number = process.usage().wanted_generation().wrapping_add(1).max(1);
    process.control().idle_generation.store(number, Relaxed);
}

/// Ends [`begin_idle`].
pub(super) fn end_idle(process: &Process) {
    process.control().idle_generation.store(0, Relaxed);
}

/// Returns whether a call of a process that leaves has said that it needs the GPU.
pub(super) fn is_idle_wanted(process: &Process) -> bool {
    let number = process.control().idle_generation.load(Relaxed);
    number != 0 && process.usage().wanted_generation() == number
}

/// Tells a process how long to wait after a notice that has a reader, microseconds.
pub(super) fn give_notice(process: &Process, usec: u32) {
    process.control().notice_usec.store(usec, Relaxed);
}

/// Tells a process that its notices have a reader at least until then, `CLOCK_MONOTONIC` in nanoseconds.
pub(super) fn read_notices(process: &Process, usec: u32, until: u64) {
    give_notice(process, usec);
    process.control().notice_until.fetch_max(until, Relaxed);
}

/// Tells a process until when its notices have a reader.
pub(super) fn poll_notices(process: &Process, usec: u32, until: u64) {
    give_notice(process, usec);
    process.control().notice_until.store(until, Relaxed);
}

/// Returns for how long a process waits after a notice, microseconds; 0: its notices have no reader.
pub(super) fn notice_usec(process: &Process, now: u64) -> u32 {
    let control = process.control();
    let is_read = control.notice_until.load(Relaxed) > now;
    if is_read {
        control.notice_usec.load(Relaxed)
    } else {
        0
    }
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

/// Publishes the bytes that new contexts of a process are expected to take on a device.
pub(super) fn estimate_contexts(process: &Process, device: usize, bytes: [u64; ContextKind::COUNT]) {
    if let Some(control) = process.control().devices.get(device) {
        for (word, bytes) in control.context_estimate.iter().zip(bytes) {
            word.store(bytes, Relaxed);
        }
    }
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
