//! Counting bytes against every limit that applies: first the device's and what the groups above grant there, then the
//! process's as a whole.
//!
//! Knows the blocks and nothing of who allocates what.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release, fence};

use gcgroup_abi::{Control, NO_LIMIT, Short, Usage, UsageDevice, try_charge, try_charge_granted, uncharge};
use parking_lot::Mutex;

use super::ledger::Entry;
use crate::compute::slot::Counts;

/// Which limit had no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Device(usize),
    Process,
    /// What the groups above grant on the device. They may grant more: see `grant`.
    Group(usize),
}

impl Full {
    /// An allocation came up against the limit (`memory.events`: max).
    pub(crate) fn count_hit(self, usage: &Usage) {
        match self {
            Self::Device(index) => count(usage, index, |device| &device.nr_max),
            Self::Process => drop(usage.nr_max.fetch_add(1, Relaxed)),
            // Counted by the daemon, in the group whose limit it is.
            Self::Group(_) => {}
        }
    }

    /// It was refused for that (`memory.events`: oom).
    pub(crate) fn count_refusal(self, usage: &Usage) {
        match self {
            Self::Device(index) => count(usage, index, |device| &device.nr_oom),
            Self::Process => drop(usage.nr_oom.fetch_add(1, Relaxed)),
            Self::Group(_) => {}
        }
    }
}

/// Adds one to a device's counter.
pub(crate) fn count(usage: &Usage, index: usize, counter: impl Fn(&UsageDevice) -> &AtomicU64) {
    if let Some(device) = usage.devices.get(index) {
        counter(device).fetch_add(1, Relaxed);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Levels {
    /// Taken where two limits apply at once: whoever passes the first but not the second has then held nothing of the
    /// first that another could have used.
    both: Mutex<()>,
    /// Taken to begin a new peak.
    peak: Mutex<()>,
}

impl Levels {
    /// Charges `bytes` to the device and the process, or to neither.
    #[inline]
    pub(crate) fn try_charge(
        &self,
        usage: &Usage,
        control: &Control,
        index: usize,
        bytes: u64,
    ) -> Result<(), Full> {
        let sums = self.try_reserve(usage, control, index, bytes)?;
        self.raise_peaks(usage, control, index, sums);
        Ok(())
    }

    /// Charges `bytes` for what may come to nothing: it is no peak until it is there. Gives what is charged then.
    #[inline(never)]
    pub(crate) fn try_reserve(
        &self,
        usage: &Usage,
        control: &Control,
        index: usize,
        bytes: u64,
    ) -> Result<Sums, Full> {
        self.try_reserve_here(usage, control, index, bytes)
    }

    /// The same, in the caller's own code.
    #[inline(always)]
    pub(crate) fn try_reserve_here(
        &self,
        usage: &Usage,
        control: &Control,
        index: usize,
        bytes: u64,
    ) -> Result<Sums, Full> {
        let Some((device, set)) = usage.devices.get(index).zip(control.devices.get(index)) else {
            return Ok(Sums::default());
        };
        if set.memory_limit.load(Relaxed) != NO_LIMIT || control.memory_limit.load(Relaxed) != NO_LIMIT {
            return self.try_reserve_within(usage, control, index, bytes);
        }
        self.reserve(usage, device, index, bytes, [NO_LIMIT; 2])
    }

    /// The same, where a limit is in force.
    #[inline(never)]
    fn try_reserve_within(
        &self,
        usage: &Usage,
        control: &Control,
        index: usize,
        bytes: u64,
    ) -> Result<Sums, Full> {
        let Some(device) = usage.devices.get(index) else {
            return Ok(Sums::default());
        };
        let limits = [device_limit(control, index), process_limit(control)];
        self.reserve(usage, device, index, bytes, limits)
    }

    /// Charges the device and the process within limits of the one and the other. Where there are none, little is left of it.
    #[inline(always)]
    fn reserve(
        &self,
        usage: &Usage,
        device: &UsageDevice,
        index: usize,
        bytes: u64,
        [on_device, on_process]: [u64; 2],
    ) -> Result<Sums, Full> {
        let _both = (on_device != NO_LIMIT && on_process != NO_LIMIT).then(|| self.both.lock());
        let charged = try_charge_granted(&device.memory_current, &device.memory_granted, bytes, on_device);
        let in_device = charged.map_err(|short| match short {
            Short::Limit => Full::Device(index),
            // What the process's own limit has no room for, nobody is to be asked for.
            Short::Grant if !has_room(&usage.memory_current, bytes, on_process) => Full::Process,
            Short::Grant => Full::Group(index),
        })?;
        let Ok(in_process) = try_charge(&usage.memory_current, bytes, on_process) else {
            uncharge(&device.memory_current, bytes);
            return Err(Full::Process);
        };
        Ok(Sums {
            in_device,
            in_process,
        })
    }

    /// Charges what is there already, limit or not.
    pub(crate) fn charge(&self, usage: &Usage, control: &Control, index: usize, bytes: u64) {
        let Some(device) = usage.devices.get(index) else {
            return;
        };
        let in_device = device
            .memory_current
            .fetch_add(bytes, Relaxed)
            .wrapping_add(bytes);
        let in_process = usage.memory_current.fetch_add(bytes, Relaxed).wrapping_add(bytes);
        let sums = Sums {
            in_device,
            in_process,
        };
        self.raise_peaks(usage, control, index, sums);
    }

    #[inline]
    pub(crate) fn uncharge(&self, usage: &Usage, index: usize, bytes: u64) {
        if let Some(device) = usage.devices.get(index) {
            uncharge(&device.memory_current, bytes);
            uncharge(&usage.memory_current, bytes);
        }
    }

    /// Counts an allocation of that kind: in the thread's own counts on its device, which is a plain add, if it has them.
    #[inline]
    pub(crate) fn enter(&self, usage: &Usage, own: Option<Counts<'_>>, entry: &Entry) {
        let Some(device) = usage.devices.get(entry.index()) else {
            return;
        };
        match own {
            Some(own) => own.count_alloc(),
            None => drop(device.nr_alloc.fetch_add(1, Relaxed)),
        }
        self.count_kind(device, own, entry, entry.size);
    }

    /// Counts its end. Whatever is uncharged after is seen to be uncharged after.
    #[inline]
    pub(crate) fn leave(&self, usage: &Usage, own: Option<Counts<'_>>, entry: &Entry) {
        let Some(device) = usage.devices.get(entry.index()) else {
            return;
        };
        match own {
            Some(own) => own.count_free(),
            None => drop(device.nr_free.fetch_add(1, Relaxed)),
        }
        self.count_kind(device, own, entry, entry.size.wrapping_neg());
        fence(Release);
    }

    #[inline]
    fn count_kind(&self, device: &UsageDevice, own: Option<Counts<'_>>, entry: &Entry, bytes: u64) {
        if !own.is_some_and(|own| own.add_kind(entry.kind(), bytes)) {
            self.add_kind(device, entry, bytes);
        }
    }

    /// Shows bytes of that kind that are no allocation by themselves.
    pub(crate) fn show(&self, usage: &Usage, entry: &Entry) {
        if let Some(device) = usage.devices.get(entry.index()) {
            self.add_kind(device, entry, entry.size);
        }
    }

    /// Takes that back.
    pub(crate) fn hide(&self, usage: &Usage, entry: &Entry) {
        if let Some(device) = usage.devices.get(entry.index()) {
            self.add_kind(device, entry, entry.size.wrapping_neg());
        }
    }

    /// What is allocated from a pool is not counted by itself: the pool's reservation is.
    #[inline]
    fn add_kind(&self, device: &UsageDevice, entry: &Entry, bytes: u64) {
        if entry.kind() == gcgroup_abi::Kind::Pool {
            return;
        }
        if let Some(kind) = device.kinds.get(entry.kind() as usize) {
            kind.fetch_add(bytes, Relaxed);
        }
    }

    /// Moves an entry's bytes to another device's counts; the process's stay.
    pub(crate) fn transfer(&self, usage: &Usage, control: &Control, entry: &Entry, to: usize) {
        let (Some(from), Some(into)) = (usage.devices.get(entry.index()), usage.devices.get(to)) else {
            return;
        };
        self.add_kind(into, entry, entry.size);
        self.add_kind(from, entry, entry.size.wrapping_neg());
        if entry.is_charged() {
            self.transfer_bytes(usage, control, entry.index(), to, entry.size);
        }
    }

    pub(crate) fn transfer_bytes(
        &self,
        usage: &Usage,
        control: &Control,
        from: usize,
        to: usize,
        bytes: u64,
    ) {
        let (Some(from), Some(into)) = (usage.devices.get(from), usage.devices.get(to)) else {
            return;
        };
        let now = into.memory_current.fetch_add(bytes, Relaxed).wrapping_add(bytes);
        uncharge(&from.memory_current, bytes);
        let sums = Sums {
            in_device: now,
            in_process: 0,
        };
        self.raise_peaks(usage, control, to, sums);
    }

    /// Has the peaks be at least what is charged now.
    pub(crate) fn raise_to_current(&self, usage: &Usage, control: &Control, index: usize) {
        let in_device = usage.devices.get(index).map(|device| &device.memory_current);
        let sums = Sums {
            in_device: in_device.map_or(0, |current| current.load(Relaxed)),
            in_process: usage.memory_current.load(Relaxed),
        };
        self.raise_peaks(usage, control, index, sums);
    }

    /// Has the peaks be at least those sums.
    #[inline]
    pub(crate) fn raise_peaks(&self, usage: &Usage, control: &Control, index: usize, sums: Sums) {
        if let (Some(used), Some(set)) = (usage.devices.get(index), control.devices.get(index)) {
            let peak = Peak {
                current: &used.memory_current,
                peak: &used.memory_peak,
                seen: &used.peak_generation,
            };
            self.raise(peak, &set.peak_generation, sums.in_device);
        }
        let peak = Peak {
            current: &usage.memory_current,
            peak: &usage.memory_peak,
            seen: &usage.peak_generation,
        };
        self.raise(peak, &control.peak_generation, sums.in_process);
    }

    /// Has the peak be at least `sum`, since the reset that was asked for last. Under the lock, so that nobody who has
    /// seen the new reset stores a peak that another then overwrites.
    #[inline]
    fn raise(&self, peak: Peak<'_>, reset: &AtomicU32, sum: u64) {
        if peak.seen.load(Relaxed) != reset.load(Relaxed) {
            self.begin_peak(peak.current, peak.peak, peak.seen, reset);
        }
        if peak.peak.load(Relaxed) < sum {
            peak.peak.fetch_max(sum, Relaxed);
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_peak(&self, current: &AtomicU64, peak: &AtomicU64, seen: &AtomicU32, reset: &AtomicU32) {
        let _begin = self.peak.lock();
        let reset = reset.load(Relaxed);
        if seen.load(Relaxed) != reset {
            peak.store(current.load(Relaxed), Relaxed);
            seen.store(reset, Relaxed);
        }
    }
}

/// A call that may make the device hold more than is charged for it, or that uncharges without a free: while there is
/// one, and if there was one, what the driver says that the process holds is not to be compared with the ledger.
#[derive(Debug)]
pub(crate) struct Unsettled<'a>(Option<&'a AtomicU64>);

impl<'a> Unsettled<'a> {
    /// Begins; ends when dropped.
    pub(crate) fn on(usage: &'a Usage, index: usize) -> Self {
        let word = usage.devices.get(index).map(|device| &device.unsettled);
        if let Some(word) = word {
            word.fetch_add((1 << 32) + 1, Release);
        }
        Self(word)
    }
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            word.fetch_sub(1, Release);
        }
    }
}

/// What was charged after a charge.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    in_device: u64,
    in_process: u64,
}

impl Sums {
    /// Less was charged in the end.
    pub(crate) fn lessen(&mut self, bytes: u64) {
        self.in_device = self.in_device.saturating_sub(bytes);
        self.in_process = self.in_process.saturating_sub(bytes);
    }
}

struct Peak<'a> {
    current: &'a AtomicU64,
    peak: &'a AtomicU64,
    seen: &'a AtomicU32,
}

/// The limit that is in force on the device, if there is any.
pub(crate) fn limit_on(usage: &Usage, control: &Control, index: usize) -> Option<Full> {
    if device_limit(control, index) != NO_LIMIT {
        return Some(Full::Device(index));
    }
    if process_limit(control) != NO_LIMIT {
        return Some(Full::Process);
    }
    (granted(usage, index) != NO_LIMIT).then_some(Full::Group(index))
}

/// Whether there is room for so many bytes more.
fn has_room(current: &AtomicU64, bytes: u64, limit: u64) -> bool {
    let sum = current.load(Relaxed).checked_add(bytes);
    sum.is_some_and(|sum| sum <= limit)
}

/// Most bytes the ledger may have on the device without asking the groups above; no limit without such groups.
fn granted(usage: &Usage, index: usize) -> u64 {
    let device = usage.devices.get(index);
    device.map_or(NO_LIMIT, |device| device.memory_granted.load(Relaxed))
}

/// Bytes that the groups above leave the process on the device, asked for or not.
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

/// Most bytes the ledger may have on the device: what the limit leaves beside contexts and modules.
pub(crate) fn device_limit(control: &Control, index: usize) -> u64 {
    let Some(device) = control.devices.get(index) else {
        return NO_LIMIT;
    };
    match device.memory_limit.load(Relaxed) {
        NO_LIMIT => NO_LIMIT,
        limit => limit.saturating_sub(device.memory_overhead.load(Relaxed)),
    }
}

/// The same of the process as a whole.
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
