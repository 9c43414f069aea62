//! The bounded numbers of a usage block, added up.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use gcgroup_abi::{Kind, MAX_DEVICES, UsageDevice};

use super::super::claims::{Counts, device_total};
use super::super::device::Devices;
use super::super::process::slots;
use super::super::sums::{Sums, Swapped, all_counters};
use super::{MOST, Untrusted};

impl Untrusted<'_> {
    /// Returns the numbers of the block, on one device or on all: bytes charged on a device up to the
    /// device's size, bytes of host memory up to the host's, counts and times up to `most`. Sums over devices
    /// saturate.
    pub(in crate::tree) fn sums(self, device: Option<usize>, most: Counts, devices: &Devices) -> Sums {
        let mut sums = match device {
            Some(device) => self.on_device(device, most, devices),
            None => slots(devices.len()).fold(self.as_a_whole(most), |mut sums, slot| {
                sums += self.on_device(slot, most, devices);
                sums
            }),
        };
        self.add_threads(&mut sums, device, most);
        sums
    }

    /// Returns the numbers that are not counted by device.
    fn as_a_whole(self, most: Counts) -> Sums {
        let mut sums = Sums::default();
        for counter in all_counters() {
            if let Some(word) = counter.as_a_whole {
                *(counter.number)(&mut sums) = at_most(word(self.usage), (counter.most)(most));
            }
        }
        sums
    }

    fn on_device(self, slot: usize, most: Counts, devices: &Devices) -> Sums {
        let Some(usage) = self.usage.devices.get(slot) else {
            return Sums::default();
        };
        let total = device_total(slot, devices);
        let count = |word: &AtomicU64| at_most(word, most.calls);
        let allocations = self.usage.allocations(slot);
        let charged = self.current(slot, total);
        let contexts = at_most(&usage.context_charged, charged);
        let mut sums = Sums {
            charged,
            contexts,
            contexts_estimated: at_most(&usage.context_estimated, contexts),
            nr_alloc: allocations.nr_alloc.min(most.calls).min(MOST),
            nr_free: allocations.nr_free.min(most.calls).min(MOST),
            swap: held(usage, total, devices.host.memory),
            ..Sums::default()
        };
        for counter in all_counters() {
            if let Some(word) = counter.on_device {
                *(counter.number)(&mut sums) = at_most(word(usage), (counter.most)(most));
            }
        }
        for (((.., charged), counted), sum) in Kind::ALL.iter().zip(allocations.kinds).zip(&mut sums.kinds) {
            // Negative for a moment, if one thread's free is seen and another's allocation is not.
            let counted = if counted.cast_signed() < 0 { 0 } else { counted };
            *sum = counted.min(if *charged {
                total
            } else {
                total.max(devices.host.memory)
            });
        }
        for (shared, sum) in usage.shared_exited.iter().zip(&mut sums.submitted) {
            *sum = count(shared);
        }
        sums
    }

    fn add_threads(self, sums: &mut Sums, device: Option<usize>, most: Counts) {
        for thread in self.usage.used_threads() {
            let slot = thread.device.load(Acquire) as usize;
            if device.is_some_and(|device| device != slot) || slot >= MAX_DEVICES {
                continue;
            }
            for ([_, exited], sum) in thread.submissions.iter().zip(&mut sums.submitted) {
                let calls = at_most(exited, most.calls);
                *sum = sum.saturating_add(calls).min(most.calls);
            }
        }
    }
}

fn held(usage: &UsageDevice, total: u64, host_memory: u64) -> Swapped {
    Swapped {
        current: at_most(&usage.swap_current, host_memory),
        pool: at_most(&usage.swap_pool, host_memory),
        swappable: at_most(&usage.swappable, total),
        ..Swapped::default()
    }
}

/// Returns a claimed number, bounded by `most` and [`MOST`].
fn at_most(word: &AtomicU64, most: u64) -> u64 {
    word.load(Relaxed).min(most).min(MOST)
}
