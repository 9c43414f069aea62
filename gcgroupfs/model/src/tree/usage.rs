//! Sums over a process's usage block, whose numbers [`Untrusted`](super::Untrusted) has bounded, and its
//! control block.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::OTHER_DEVICE;

use super::claims::{Counts, device_total};
use super::device::Devices;
use super::process::{Kept, Process, slots};
use super::sums::Sums;

impl Sums {
    /// Returns the sums of a process, on one device or on all.
    pub(super) fn of(process: &Process, device: Option<usize>, devices: &Devices) -> Self {
        let most = Counts::since(process.identity.start_time, &devices.host);
        let mut sums = process.usage().sums(device, most, devices);
        match device {
            Some(slot) => sums.add_control(process, slot, devices),
            None => slots(devices.len()).for_each(|slot| sums.add_control(process, slot, devices)),
        }
        sums.add_kept(process, device);
        process.suspension.apply(&mut sums, device);
        sums
    }

    fn add_kept(&mut self, process: &Process, device: Option<usize>) {
        let mut add = |kept: &Kept| {
            self.nr_high += kept.nr_high;
            self.nr_over_limit += kept.nr_over_limit;
            self.nr_reclaim += kept.nr_reclaim;
            self.nr_idle += kept.nr_idle;
            self.nr_memory_turns += kept.nr_memory_turns;
            self.held_usec += kept.held.usec();
        };
        match device {
            Some(device) => process.devices.get(device).into_iter().for_each(add),
            None => process.devices.iter().chain([&process.whole]).for_each(&mut add),
        }
    }

    /// Adds the numbers that the daemon itself has stored for a device.
    fn add_control(&mut self, process: &Process, slot: usize, devices: &Devices) {
        let overhead = overhead(process, slot, devices);
        let kept = process.devices.get(slot);
        let is_estimated = kept.is_some_and(|kept| kept.is_overhead_estimated);
        *self += Self {
            overhead,
            overhead_estimated: if is_estimated { overhead } else { 0 },
            usage_nsec: charged_nsec(process, slot),
            ..Self::default()
        };
        let usage = process.usage().device(slot).filter(|_| is_estimated);
        let contexts = usage.map_or(0, |usage| usage.context_measured(device_total(slot, devices)));
        // The process may have corrected its charge meanwhile.
        self.contexts_estimated = self
            .contexts_estimated
            .saturating_add(contexts)
            .min(self.contexts);
    }
}

impl Process {
    /// Stores the current peaks of the device and of the whole.
    pub(super) fn keep_peaks(&mut self, device: usize, devices: &Devices) {
        for place in [None, Some(device)] {
            let peak = peak(self, place, devices);
            if let Some(kept) = self.kept_mut(place) {
                kept.peak = peak;
            }
        }
    }
}

/// Returns `memory.current` of one process in bytes.
pub(super) fn current(process: &Process, device: Option<usize>, devices: &Devices) -> u64 {
    if process.suspension.is_suspended() {
        return 0;
    }
    let on = |slot: usize| {
        let charged = process.usage().current(slot, device_total(slot, devices));
        charged.saturating_add(overhead(process, slot, devices))
    };
    over_slots(device, devices.len(), on)
}

/// Returns the bytes that a process claims to have in host memory, and those that were moved there when
/// it was suspended.
pub(super) fn swapped(process: &Process, device: Option<usize>, devices: &Devices) -> u64 {
    let on = |slot: usize| {
        let usage = process.usage().device(slot);
        usage.map_or(0, |usage| usage.swapped(devices.host.memory))
    };
    over_slots(device, devices.len(), on).saturating_add(process.suspension.moved(device))
}

/// Returns `on` of a device, or its saturating sum over all slots.
pub(super) fn over_slots(device: Option<usize>, nr_devices: usize, on: impl Fn(usize) -> u64) -> u64 {
    match device {
        Some(device) => on(device),
        None => slots(nr_devices).map(on).fold(0, u64::saturating_add),
    }
}

/// Returns the bytes that a process holds beyond its ledger.
pub(super) fn overhead(process: &Process, slot: usize, devices: &Devices) -> u64 {
    let control = process.control().devices.get(slot);
    control.map_or(0, |control| {
        let bytes = control.memory_overhead.load(Relaxed);
        bytes.min(device_total(slot, devices))
    })
}

/// Returns the GPU time that a process was charged on a device, nanoseconds.
pub(super) fn charged_nsec(process: &Process, slot: usize) -> u64 {
    let control = process.control().devices.get(slot);
    control.map_or(0, |control| control.usage_nsec.load(Relaxed))
}

/// Returns the highest `memory.current` since the last reset, in bytes, as far as the daemon knows.
///
/// Until the process has seen the reset, its own peak is from before. Then the higher of the bytes held
/// at the reset and now is returned.
pub(super) fn peak(process: &Process, device: Option<usize>, devices: &Devices) -> u64 {
    let (usage, control) = (process.usage(), process.control());
    // The number of the last reset that the process has seen and of the last one, and its peak.
    let (kept, seen, asked, peak) = match device {
        None => (
            Some(&process.whole),
            usage.peak_generation(),
            control.peak_generation.load(Relaxed),
            usage.memory_peak(device_total(OTHER_DEVICE, devices)),
        ),
        Some(index) => {
            let (Some(usage), Some(control)) = (usage.device(index), control.devices.get(index)) else {
                return 0;
            };
            (
                process.devices.get(index),
                usage.peak_generation(),
                control.peak_generation.load(Relaxed),
                usage.memory_peak(device_total(index, devices)),
            )
        }
    };
    let sums = Sums::of(process, device, devices);
    let earlier = if seen == asked {
        peak.saturating_add(sums.overhead)
    } else {
        0
    };
    earlier.max(sums.current()).max(kept.map_or(0, |kept| kept.peak))
}
