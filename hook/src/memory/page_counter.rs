//! Page counter: counts bytes against every limit that applies, first the device's limit and the grant of the
//! groups above there, then the limit of the process.
//!
//! Knows the shared blocks, but nothing about allocations.

mod limits;
mod peaks;
mod sums;
#[cfg(test)]
mod tests;
mod unsettled;
mod whole;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};

use gcgroup_abi::{
    Control, Kind, NO_LIMIT, Short, Usage, UsageDevice, charge_ungranted, try_charge_granted, uncharge,
};
use parking_lot::Mutex;

use super::ledger::Entry;
use crate::shared::counters::Counts;
use crate::sys::log;
use limits::has_room;
pub(crate) use limits::{device_limit, group_room, limit_on, process_limit};
pub(crate) use sums::Sums;
pub(crate) use unsettled::Unsettled;
use whole::Whole;

/// The limit that a charge would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Device(usize),
    Process,
    /// The grant of the groups above on the device. They may grant more: see `grant`.
    Group(usize),
}

impl Full {
    /// Counts an allocation that hit the limit (`memory.events`: max).
    pub(crate) fn count_hit(self, usage: &Usage) {
        match self {
            Self::Device(index) => count(usage, index, |device| &device.nr_max),
            Self::Process => drop(usage.nr_max.fetch_add(1, Relaxed)),
            // Counted by the daemon, in the group that has the limit.
            Self::Group(_) => {}
        }
    }

    /// Counts an allocation of `bytes` that was refused for the limit (`memory.events`: oom,
    /// group_max). The caller counts the failed allocation afterwards.
    pub(crate) fn count_refusal(self, usage: &Usage, bytes: u64) {
        usage.refused_bytes.store(bytes, Relaxed);
        log::line(|| match self {
            Self::Device(index) => {
                format!("allocation of {bytes} bytes on GPU {index} refused: its memory.limit")
            }
            Self::Process => format!("allocation of {bytes} bytes refused: memory.limit of the process"),
            Self::Group(index) => {
                format!("allocation of {bytes} bytes on GPU {index} refused: memory.limit of a group")
            }
        });
        match self {
            Self::Device(index) => count(usage, index, |device| &device.nr_oom),
            Self::Process => drop(usage.nr_oom.fetch_add(1, Relaxed)),
            Self::Group(index) => count(usage, index, |device| &device.nr_group_max),
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
pub(crate) struct PageCounter {
    whole: Whole,
    /// Held to restart a peak.
    peak: Mutex<()>,
}

impl PageCounter {
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

    /// Charges `bytes` for an allocation that may still fail, so peaks are not raised yet; returns the sums
    /// after the charge.
    #[inline(never)]
    pub(crate) fn try_reserve(
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
        if self.whole.is_only(index)
            && let Some(charged) = self.charge_at_home(usage, device, index, bytes, limits)
        {
            return charged.map(Sums::of_one);
        }
        self.reserve_on_one_of_several(usage, device, index, bytes, limits)
    }

    /// Charges the home device and returns the sum; `None` if another device has been charged meanwhile.
    #[expect(clippy::too_many_arguments, reason = "on the path of each allocation")]
    fn charge_at_home(
        &self,
        usage: &Usage,
        device: &UsageDevice,
        index: usize,
        bytes: u64,
        [on_device, on_process]: [u64; 2],
    ) -> Option<Result<u64, Full>> {
        let limit = on_device.min(on_process);
        let charged = try_charge_granted(&device.memory_current, &device.memory_granted, bytes, limit);
        let charged = charged.map_err(|short| match short {
            Short::Grant => Full::Group(index),
            Short::Limit if on_device <= on_process => Full::Device(index),
            Short::Limit if !has_room(device.memory_current.load(Relaxed), bytes, on_device) => {
                Full::Device(index)
            }
            Short::Limit => Full::Process,
        });
        if charged.is_ok() && !self.whole.is_still(index) {
            self.uncharge(usage, index, bytes);
            return None;
        }
        Some(charged)
    }

    /// Charges without any check of limits where none is in force and only this device was ever charged;
    /// inlined into the caller. Returns the new sum; `None`: not charged.
    #[inline(always)]
    pub(crate) fn reserve_freely(
        &self,
        usage: &Usage,
        control: &Control,
        index: usize,
        bytes: u64,
    ) -> Option<u64> {
        let (device, set) = usage.devices.get(index).zip(control.devices.get(index))?;
        let is_free = set.memory_limit.load(Relaxed) == NO_LIMIT
            && control.memory_limit.load(Relaxed) == NO_LIMIT
            && device.memory_granted.load(Relaxed) == NO_LIMIT
            && self.whole.is_still(index);
        if !is_free {
            return None;
        }
        let (sum, is_free) = charge_ungranted(&device.memory_current, &device.memory_granted, bytes);
        // Either this sees the other device, or the thread that charges the other device sees this charge.
        if !is_free || !self.whole.is_still(index) {
            return self.not_freely(usage, index, bytes);
        }
        Some(sum)
    }

    #[cold]
    #[inline(never)]
    fn not_freely(&self, usage: &Usage, index: usize, bytes: u64) -> Option<u64> {
        self.uncharge(usage, index, bytes);
        None
    }

    /// Charges a process that has charged several devices, under the lock: otherwise a charge that fits into
    /// the device's limit but not into the process's would for a moment take room that another charge could
    /// use.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "on the path of each allocation")]
    fn reserve_on_one_of_several(
        &self,
        usage: &Usage,
        device: &UsageDevice,
        index: usize,
        bytes: u64,
        [on_device, on_process]: [u64; 2],
    ) -> Result<Sums, Full> {
        let _alone = self.whole.alone();
        let charged = try_charge_granted(&device.memory_current, &device.memory_granted, bytes, on_device);
        let in_device = charged.map_err(|short| match short {
            Short::Limit => Full::Device(index),
            // If the process's own limit has no room, a larger grant would not help.
            Short::Grant if !has_room(self.whole.sum(usage), bytes, on_process) => Full::Process,
            Short::Grant => Full::Group(index),
        })?;
        self.whole.add(usage, index, bytes);
        let in_process = self.whole.sum(usage);
        if in_process > on_process {
            self.uncharge(usage, index, bytes);
            return Err(Full::Process);
        }
        Ok(Sums {
            in_device,
            in_process,
        })
    }

    /// Charges memory that exists already, even beyond a limit.
    pub(crate) fn charge(&self, usage: &Usage, control: &Control, index: usize, bytes: u64) {
        // Without a charge of its own, a peak would be raised to what other threads may still give back.
        let Some(device) = usage.devices.get(index).filter(|_| bytes != 0) else {
            return;
        };
        let _ = self.whole.is_only(index);
        let sums = {
            let _alone = self.whole.alone();
            let before = device.memory_current.fetch_add(bytes, SeqCst);
            self.whole.add(usage, index, bytes);
            Sums {
                in_device: before.wrapping_add(bytes),
                in_process: self.whole.sum(usage),
            }
        };
        self.raise_peaks(usage, control, index, sums);
    }

    #[inline]
    pub(crate) fn uncharge(&self, usage: &Usage, index: usize, bytes: u64) {
        if let Some(device) = usage.devices.get(index) {
            uncharge(&device.memory_current, bytes);
            self.whole.take(usage, index, bytes);
        }
    }

    /// Returns the bytes charged on all devices together.
    pub(crate) fn sum(&self, usage: &Usage) -> u64 {
        let _alone = self.whole.are_several().then(|| self.whole.alone());
        self.whole.sum(usage)
    }

    /// Counts an allocation, in the thread's own counters (a plain add) if it has some for the device.
    #[inline]
    pub(crate) fn enter(&self, usage: &Usage, own: Option<Counts<'_>>, entry: &Entry) {
        let Some(device) = usage.devices.get(entry.index()) else {
            return;
        };
        match own {
            Some(own) => own.count_alloc(),
            None => drop(device.nr_alloc.fetch_add(1, Relaxed)),
        }
        self.count_kind(device, own, entry, |bytes| bytes);
    }

    /// Counts a free. A reader that sees a later uncharge also sees this.
    #[inline]
    pub(crate) fn leave(&self, usage: &Usage, own: Option<Counts<'_>>, entry: &Entry) {
        let Some(device) = usage.devices.get(entry.index()) else {
            return;
        };
        match own {
            Some(own) => own.count_free(),
            None => drop(device.nr_free.fetch_add(1, Relaxed)),
        }
        self.count_kind(device, own, entry, u64::wrapping_neg);
        fence(Release);
    }

    #[inline]
    fn count_kind(
        &self,
        device: &UsageDevice,
        own: Option<Counts<'_>>,
        entry: &Entry,
        sign: impl Fn(u64) -> u64,
    ) {
        if own.is_some_and(|own| own.add_kind(entry.kind(), sign(entry.size))) {
            self.add_padding(device, entry, sign);
        } else {
            self.add_kind(device, entry, sign);
        }
    }

    /// Shows bytes of a kind that are not an allocation of their own.
    pub(crate) fn show(&self, usage: &Usage, entry: &Entry) {
        if let Some(device) = usage.devices.get(entry.index()) {
            self.add_kind(device, entry, |bytes| bytes);
        }
    }

    /// Removes bytes shown by [`show`](Self::show).
    pub(crate) fn hide(&self, usage: &Usage, entry: &Entry) {
        if let Some(device) = usage.devices.get(entry.index()) {
            self.add_kind(device, entry, u64::wrapping_neg);
        }
    }

    /// Adds to the bytes of a kind. Allocations from a pool are not counted: the pool's reservation is.
    #[inline]
    fn add_kind(&self, device: &UsageDevice, entry: &Entry, sign: impl Fn(u64) -> u64) {
        if entry.is(Kind::Pool) {
            return;
        }
        if let Some(kind) = device.kinds.get(entry.kind() as usize) {
            kind.fetch_add(sign(entry.size), Relaxed);
        }
        self.add_padding(device, entry, sign);
    }

    /// Adds what is charged for an entry beyond its size.
    #[inline]
    fn add_padding(&self, device: &UsageDevice, entry: &Entry, sign: impl Fn(u64) -> u64) {
        let padding = entry.padding();
        if padding != 0
            && let Some(rounding) = device.kinds.get(Kind::Rounding as usize)
        {
            rounding.fetch_add(sign(padding), Relaxed);
        }
    }

    /// Moves an entry's bytes to another device's counters; the process's total is unchanged.
    pub(crate) fn transfer(&self, usage: &Usage, control: &Control, entry: &Entry, to: usize) {
        let (Some(from), Some(into)) = (usage.devices.get(entry.index()), usage.devices.get(to)) else {
            return;
        };
        self.add_kind(into, entry, |bytes| bytes);
        self.add_kind(from, entry, u64::wrapping_neg);
        if entry.is_charged() {
            self.transfer_bytes(usage, control, entry.index(), to, entry.charged());
        }
    }

    #[expect(clippy::too_many_arguments, reason = "two devices of one process")]
    pub(crate) fn transfer_bytes(
        &self,
        usage: &Usage,
        control: &Control,
        from: usize,
        to: usize,
        bytes: u64,
    ) {
        let Some(into) = usage.devices.get(to).filter(|_| from < usage.devices.len()) else {
            return;
        };
        let _ = self.whole.is_only(to);
        let now = {
            // The sum is higher for a moment; the lock keeps charges from being refused for it.
            let _alone = self.whole.alone();
            let before = into.memory_current.fetch_add(bytes, SeqCst);
            self.whole.add(usage, to, bytes);
            self.uncharge(usage, from, bytes);
            before.wrapping_add(bytes)
        };
        let sums = Sums {
            in_device: now,
            in_process: 0,
        };
        self.raise_peaks(usage, control, to, sums);
    }
}
