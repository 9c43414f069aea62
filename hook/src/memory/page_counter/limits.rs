//! Limits in force, and what they leave.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{Control, NO_LIMIT, Usage};

use super::Full;

/// Returns the limit in force on the device, if any.
pub(crate) fn limit_on(usage: &Usage, control: &Control, index: usize) -> Option<Full> {
    if device_limit(control, index) != NO_LIMIT {
        return Some(Full::Device(index));
    }
    if process_limit(control) != NO_LIMIT {
        return Some(Full::Process);
    }
    (granted(usage, index) != NO_LIMIT).then_some(Full::Group(index))
}

/// Returns whether `bytes` more fit under `limit`.
pub(super) fn has_room(current: u64, bytes: u64, limit: u64) -> bool {
    let sum = current.checked_add(bytes);
    sum.is_some_and(|sum| sum <= limit)
}

/// Returns the most bytes the ledger may have on the device without a larger grant; [`NO_LIMIT`] without
/// limited groups.
pub(super) fn granted(usage: &Usage, index: usize) -> u64 {
    let device = usage.devices.get(index);
    device.map_or(NO_LIMIT, |device| device.memory_granted.load(Relaxed))
}

/// Returns the bytes that the groups above leave the process on the device, including what they could still
/// grant.
pub(crate) fn group_room(usage: &Usage, control: &Control, index: usize) -> u64 {
    let (Some(used), Some(set)) = (usage.devices.get(index), control.devices.get(index)) else {
        return NO_LIMIT;
    };
    match used.memory_granted.load(Relaxed) {
        NO_LIMIT => NO_LIMIT,
        granted => granted
            .saturating_sub(used.memory_current.load(Relaxed))
            .saturating_add(set.group_room.load(Relaxed)),
    }
}

/// Returns the most bytes the ledger may have on the device: the limit minus contexts and modules.
pub(crate) fn device_limit(control: &Control, index: usize) -> u64 {
    let Some(device) = control.devices.get(index) else {
        return NO_LIMIT;
    };
    match device.memory_limit.load(Relaxed) {
        NO_LIMIT => NO_LIMIT,
        limit => limit.saturating_sub(device.memory_overhead.load(Relaxed)),
    }
}

/// Returns the most bytes the ledger may have on all devices: the process's limit minus contexts and modules.
pub(crate) fn process_limit(control: &Control) -> u64 {
    match control.memory_limit.load(Relaxed) {
        NO_LIMIT => NO_LIMIT,
        limit => {
            let known = control.nr_devices.load(Relaxed) as usize;
            let overheads = control
                .devices
                .iter()
                .take(known)
                .map(|device| device.memory_overhead.load(Relaxed));
            limit.saturating_sub(overheads.fold(0, u64::saturating_add))
        }
    }
}
