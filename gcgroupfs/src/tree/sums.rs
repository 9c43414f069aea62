//! Sums over usage blocks. A process can write anything there, so every number is bounded before it is added,
//! and sums saturate.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::{Kind, MAX_DEVICES, OTHER_DEVICE, Submission, Usage, UsageDevice};
use serde::{Deserialize, Serialize};

use super::Host;
use super::claims::{Counts, device_total};
use super::devices::Devices;
use super::process::{Kept, Process, slots};

/// Upper bound of every count: not reached in a century, and representable by every reader.
const MAX_COUNT: u64 = 1 << 53;

/// Bytes and counts of a process on a device, of a process, of a group, or of all processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sums {
    /// Bytes charged by the process's ledger.
    pub charged: u64,
    /// Bytes held beyond the ledger: contexts and other memory that the driver keeps for the process.
    pub overhead: u64,
    /// Bytes by kind, in the order of [`Kind::ALL`].
    pub kinds: [u64; Kind::ALL.len()],
    pub nr_alloc: u64,
    pub nr_free: u64,
    pub nr_alloc_fail: u64,
    pub nr_max: u64,
    pub nr_oom: u64,
    /// Counts by [`Submission`].
    pub submitted: [u64; Submission::COUNT],
    /// Kernels in launched graphs.
    pub graph_kernels: u64,
    /// Kernels known to have completed.
    pub nr_ended: u64,
    pub nr_frozen: u64,
    pub frozen_usec: u64,
    /// GPU time charged.
    pub usage_nsec: u64,
    pub nr_throttled: u64,
    pub throttled_usec: u64,
    pub gate_timeouts: u64,
    pub swap: Swapped,
    /// Counted for processes as a whole; 0 on a device.
    pub nr_unknown_symbols: u64,
    /// Number of times that a limit was set below usage.
    pub nr_over_limit: u64,
    /// Number of requests to swap memory out.
    pub nr_reclaim: u64,
}

/// Memory moved between devices and the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Swapped {
    /// Bytes of device allocations that are in host memory.
    pub current: u64,
    /// Bytes of host memory in the swap pool, not in use.
    pub supply: u64,
    /// Bytes that could be moved to the host.
    pub swappable: u64,
    /// Bytes and blocks moved so far.
    pub out_bytes: u64,
    pub in_bytes: u64,
    pub nr_out: u64,
    pub nr_in: u64,
    /// Moves that failed.
    pub nr_fail: u64,
}

impl Swapped {
    fn of(usage: &UsageDevice, counts: Counts, total: u64, host_memory: u64) -> Self {
        Self {
            current: at_most(&usage.swap_current, host_memory),
            supply: at_most(&usage.swap_supply, host_memory),
            swappable: at_most(&usage.swappable, total),
            out_bytes: at_most(&usage.swap_out_bytes, counts.moved),
            in_bytes: at_most(&usage.swap_in_bytes, counts.moved),
            nr_out: at_most(&usage.nr_swap_out, counts.calls),
            nr_in: at_most(&usage.nr_swap_in, counts.calls),
            nr_fail: at_most(&usage.nr_swap_fail, counts.calls),
        }
    }

    fn each(&mut self) -> [&mut u64; 8] {
        let Self {
            current,
            supply,
            swappable,
            out_bytes,
            in_bytes,
            nr_out,
            nr_in,
            nr_fail,
        } = self;
        [
            current, supply, swappable, out_bytes, in_bytes, nr_out, nr_in, nr_fail,
        ]
    }
}

impl Sums {
    /// Returns the sums of a process, on one device or on all.
    pub(super) fn of(process: &Process, device: Option<usize>, devices: &Devices) -> Self {
        let mut sums = Self::default();
        let counts = Counts::since(process.identity.start_time, &devices.host);
        let count = |word: &AtomicU64| at_most(word, counts.calls);
        match device {
            Some(device) => sums.add_device(process, device, devices, counts),
            None => {
                slots(devices.len()).for_each(|device| sums.add_device(process, device, devices, counts));
            }
        }
        if device.is_none() {
            sums.nr_max = sums.nr_max.saturating_add(count(&process.usage().nr_max));
            sums.nr_oom = sums.nr_oom.saturating_add(count(&process.usage().nr_oom));
            sums.nr_unknown_symbols = count(&process.usage().nr_unknown_symbols);
        }
        sums.add_threads(process.usage(), device, counts);
        sums.add_kept(process, device);
        sums
    }

    fn add_kept(&mut self, process: &Process, device: Option<usize>) {
        let mut add = |kept: &Kept| {
            self.nr_over_limit += kept.nr_over_limit;
            self.nr_reclaim += kept.nr_reclaim;
        };
        match device {
            Some(device) => process.devices.get(device).into_iter().for_each(add),
            None => process.devices.iter().chain([&process.whole]).for_each(&mut add),
        }
    }

    /// Returns the charged bytes that cannot be swapped out.
    pub fn unswappable(&self) -> u64 {
        self.charged.saturating_sub(self.swap.swappable)
    }

    /// Returns `memory.current` in bytes.
    pub fn current(&self) -> u64 {
        self.charged.saturating_add(self.overhead)
    }

    pub fn submitted(&self, what: Submission) -> u64 {
        self.submitted[what as usize]
    }

    /// Returns the number of kernels submitted, single or in graphs.
    pub fn kernels(&self) -> u64 {
        self.submitted(Submission::Kernel)
            .saturating_add(self.graph_kernels)
    }

    /// Returns the number of kernels not known to have completed.
    pub fn nr_pending(&self) -> u64 {
        self.kernels().saturating_sub(self.nr_ended)
    }

    /// Returns the counts that a process brings from elsewhere, without the memory that it holds now.
    pub(super) fn counts(&self) -> Self {
        Self {
            nr_ended: self.nr_ended,
            ..self.departed()
        }
    }

    /// Returns the wrapping sum of all numbers. For counts, which only grow, it changes whenever one of them
    /// does.
    pub(super) fn digest(mut self) -> u64 {
        let numbers = self.each().into_iter();
        numbers.fold(0, |sum: u64, number| sum.wrapping_add(*number))
    }

    /// Returns the counts that remain of a process that has ended, all of whose submissions have completed.
    pub(super) fn departed(&self) -> Self {
        let nr_ended = self.kernels();
        Self {
            charged: 0,
            overhead: 0,
            kinds: [0; Kind::ALL.len()],
            nr_ended,
            swap: Swapped {
                current: 0,
                supply: 0,
                swappable: 0,
                ..self.swap
            },
            ..*self
        }
    }

    fn add_device(&mut self, process: &Process, device: usize, devices: &Devices, counts: Counts) {
        let (Some(usage), Some(control)) = (
            process.usage().devices.get(device),
            process.control().devices.get(device),
        ) else {
            return;
        };
        let (most, host_memory) = (device_total(device, devices), devices.host.memory);
        let count = |word: &AtomicU64| at_most(word, counts.calls);
        let waited = |word: &AtomicU64| at_most(word, counts.waited_usec);
        let allocations = process.usage().allocations(device);
        let mut one = Self {
            charged: process.usage().memory_current(device).min(most),
            overhead: overhead(process, device, devices),
            nr_alloc: allocations.nr_alloc.min(counts.calls).min(MAX_COUNT),
            nr_free: allocations.nr_free.min(counts.calls).min(MAX_COUNT),
            nr_alloc_fail: count(&usage.nr_alloc_fail),
            nr_max: count(&usage.nr_max),
            nr_oom: count(&usage.nr_oom),
            graph_kernels: at_most(&usage.graph_kernels, counts.kernels),
            nr_ended: at_most(&usage.nr_ended, counts.kernels),
            nr_frozen: count(&usage.nr_frozen),
            frozen_usec: waited(&usage.frozen_usec),
            usage_nsec: control.usage_nsec.load(Relaxed),
            nr_throttled: count(&usage.nr_throttled),
            throttled_usec: waited(&usage.throttled_usec),
            gate_timeouts: count(&usage.gate_timeouts),
            swap: Swapped::of(usage, counts, most, host_memory),
            ..Self::default()
        };
        for (((.., charged), counted), sum) in Kind::ALL.iter().zip(allocations.kinds).zip(&mut one.kinds) {
            // Negative for a moment, if one thread's free is seen and another's allocation is not.
            let counted = if counted.cast_signed() < 0 { 0 } else { counted };
            *sum = counted.min(if *charged { most } else { most.max(host_memory) });
        }
        for (shared, sum) in usage.shared_exited.iter().zip(&mut one.submitted) {
            *sum = count(shared);
        }
        *self += one;
    }

    fn add_threads(&mut self, usage: &Usage, device: Option<usize>, counts: Counts) {
        for thread in usage.used_threads() {
            let slot = thread.device.load(Relaxed) as usize;
            if device.is_some_and(|device| device != slot) || slot >= MAX_DEVICES {
                continue;
            }
            for ([_, exited], sum) in thread.submissions.iter().zip(&mut self.submitted) {
                let calls = at_most(exited, counts.calls);
                *sum = sum.saturating_add(calls).min(counts.calls);
            }
        }
    }
}

impl Sums {
    /// Combines each number with the corresponding one of `other`.
    fn combine(&mut self, mut other: Self, with: fn(u64, u64) -> u64) {
        for (number, other) in self.each().into_iter().zip(other.each()) {
            *number = with(*number, *other);
        }
    }

    fn each(&mut self) -> impl IntoIterator<Item = &mut u64> {
        let Self {
            charged,
            overhead,
            kinds,
            nr_alloc,
            nr_free,
            nr_alloc_fail,
            nr_max,
            nr_oom,
            submitted,
            graph_kernels,
            nr_ended,
            nr_frozen,
            frozen_usec,
            usage_nsec,
            nr_throttled,
            throttled_usec,
            gate_timeouts,
            swap,
            nr_unknown_symbols,
            nr_over_limit,
            nr_reclaim,
        } = self;
        let single = [
            charged,
            overhead,
            nr_alloc,
            nr_free,
            nr_alloc_fail,
            nr_max,
            nr_oom,
            graph_kernels,
            nr_ended,
            nr_frozen,
            frozen_usec,
            usage_nsec,
            nr_throttled,
            throttled_usec,
            gate_timeouts,
            nr_unknown_symbols,
            nr_over_limit,
            nr_reclaim,
        ];
        single
            .into_iter()
            .chain(kinds)
            .chain(submitted)
            .chain(swap.each())
    }

    /// Bounds the sums of a group by the bytes that it is believed to hold on devices and to have swapped
    /// out.
    pub(super) fn bound(&mut self, current: u64, swapped: u64, host: &Host) {
        self.overhead = self.overhead.min(current);
        self.charged = self.charged.min(current - self.overhead);
        for ((.., charged), bytes) in Kind::ALL.iter().zip(&mut self.kinds) {
            if *charged {
                *bytes = (*bytes).min(self.charged);
            }
        }
        self.swap.current = self.swap.current.min(swapped);
        self.swap.supply = self.swap.supply.min(host.memory);
        self.swap.swappable = self.swap.swappable.min(self.charged);
    }

    /// Subtracts counts brought from elsewhere, saturating at 0, since a process that leaves takes its counts
    /// back.
    pub(super) fn less(mut self, arrived: Self) -> Self {
        self.combine(arrived, u64::saturating_sub);
        self
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.combine(other, u64::saturating_add);
    }
}

/// Returns `memory.current` of one process in bytes.
pub(super) fn current(process: &Process, device: Option<usize>, devices: &Devices) -> u64 {
    let on = |slot: usize| {
        let charged = process
            .usage()
            .memory_current(slot)
            .min(device_total(slot, devices));
        charged.saturating_add(overhead(process, slot, devices))
    };
    over_slots(device, devices.len(), on)
}

/// Returns the bytes that a process claims to have in host memory.
pub(super) fn swapped(process: &Process, device: Option<usize>, devices: &Devices) -> u64 {
    let on = |slot: usize| {
        let usage = process.usage().devices.get(slot);
        usage.map_or(0, |usage| at_most(&usage.swap_current, devices.host.memory))
    };
    over_slots(device, devices.len(), on)
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
        at_most(&control.memory_overhead, device_total(slot, devices))
    })
}

/// Returns the highest `memory.current` since the last reset, in bytes, as far as the daemon knows.
///
/// Until the process has seen the reset, its own peak is from before. Then the higher of the bytes held
/// at the reset and now is returned.
pub(super) fn peak(process: &Process, device: Option<usize>, devices: &Devices) -> u64 {
    let (usage, control) = (process.usage(), process.control());
    let (kept, seen, asked, word, most) = match device {
        None => {
            let most = device_total(OTHER_DEVICE, devices);
            (
                Some(&process.whole),
                &usage.peak_generation,
                &control.peak_generation,
                &usage.memory_peak,
                most,
            )
        }
        Some(index) => {
            let (usage, control) = (&usage.devices[index], &control.devices[index]);
            let kept = process.devices.get(index);
            let most = device_total(index, devices);
            (
                kept,
                &usage.peak_generation,
                &control.peak_generation,
                &usage.memory_peak,
                most,
            )
        }
    };
    let sums = Sums::of(process, device, devices);
    let earlier = if seen.load(Relaxed) == asked.load(Relaxed) {
        word.load(Relaxed).min(most).saturating_add(sums.overhead)
    } else {
        0
    };
    earlier.max(sums.current()).max(kept.map_or(0, |kept| kept.peak))
}

/// Returns a claimed number, bounded by `most` and [`MAX_COUNT`].
fn at_most(word: &AtomicU64, most: u64) -> u64 {
    word.load(Relaxed).min(most).min(MAX_COUNT)
}
