//! Page counter: counts bytes against every limit that applies, first the device's limit and the grant of the
//! groups above there, then the limit of the process.
//!
//! Knows the shared blocks, but nothing about allocations.

mod limits;
mod peaks;
#[cfg(test)]
mod tests;
mod unsettled;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};

use gcgroup_abi::{Kind, NO_LIMIT, Short, Usage, UsageDevice, try_charge_granted, uncharge};
use parking_lot::Mutex;

use super::ledger::Entry;
use crate::shared::counters::Counts;
use crate::shared::session::Session;
use crate::sys::log;
use limits::has_room;
pub(crate) use limits::{device_limit, group_room, limit_on, process_limit};
pub(crate) use unsettled::Unsettled;

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

/// Total bytes charged on a device and on all devices, after a charge.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    in_device: u64,
    in_process: u64,
}

impl Sums {
    /// Returns the sums after `bytes` were uncharged again.
    pub(crate) fn less(self, bytes: u64) -> Self {
        Self {
            in_device: self.in_device.saturating_sub(bytes),
            in_process: self.in_process.saturating_sub(bytes),
        }
    }
}

#[derive(Debug)]
pub(crate) struct PageCounter {
    session: &'static Session,
    /// Devices on which anything was ever charged, a bit each. What is charged on all devices is the sum of
    /// theirs.
    used: AtomicU64,
    /// Held to restart a peak.
    peak: Mutex<()>,
}

impl PageCounter {
    pub(crate) fn new(session: &'static Session) -> Self {
        Self {
            session,
            used: AtomicU64::new(0),
            peak: Mutex::default(),
        }
    }

    #[inline]
    fn device(&self, index: usize) -> Option<&UsageDevice> {
        self.session.usage().devices.get(index)
    }

    /// Charges `bytes` to the device and the process, or to neither.
    #[inline]
    pub(crate) fn try_charge(&self, index: usize, bytes: u64) -> Result<(), Full> {
        let sums = self.try_reserve(index, bytes)?;
        self.raise_peaks(index, sums);
        Ok(())
    }

    /// Charges `bytes` for an allocation that may still fail, so peaks are not raised yet; returns the sums
    /// after the charge.
    ///
    /// The charge is compared with all limits, and again with that of the process: of threads that charge on
    /// several devices at once, at least the last one sees all, and undoes its charge if that exceeds it.
    pub(crate) fn try_reserve(&self, index: usize, bytes: u64) -> Result<Sums, Full> {
        let (usage, control) = (self.session.usage(), self.session.control());
        let Some(device) = usage.devices.get(index) else {
            return Ok(Sums::default());
        };
        self.use_device(index);
        let (on_device, limit) = (device_limit(control, index), process_limit(control));
        let in_process = match limit {
            NO_LIMIT => NO_LIMIT,
            limit => limit.saturating_sub(self.elsewhere(index)),
        };
        let (current, least) = (&device.memory_current, on_device.min(in_process));
        let charged = try_charge_granted(current, &device.memory_granted, bytes, least);
        let in_device = charged.map_err(|short| match short {
            Short::Grant => Full::Group(index),
            Short::Limit if in_process < on_device && has_room(current.load(Relaxed), bytes, on_device) => {
                Full::Process
            }
            Short::Limit => Full::Device(index),
        })?;
        let sums = self.sums(index, in_device);
        if sums.in_process > limit {
            uncharge(current, bytes);
            return Err(Full::Process);
        }
        if bytes != 0 {
            usage.memory_taken.fetch_add(bytes, Release);
        }
        Ok(sums)
    }

    /// Notes that the device is used, before bytes are charged there.
    #[inline]
    fn use_device(&self, index: usize) {
        let bit = 1 << index;
        if self.used.load(Relaxed) & bit == 0 {
            self.used.fetch_or(bit, SeqCst);
        }
    }

    /// Returns the bytes charged on all devices but one.
    #[inline]
    fn elsewhere(&self, index: usize) -> u64 {
        let usage = self.session.usage();
        let (mut left, mut sum) = (self.used.load(SeqCst) & !(1 << index), 0_u64);
        while let Some(device) = usage.devices.get(left.trailing_zeros() as usize) {
            sum = sum.saturating_add(device.memory_current.load(SeqCst));
            left &= left - 1;
        }
        sum
    }

    #[inline]
    fn sums(&self, index: usize, in_device: u64) -> Sums {
        let in_process = in_device.saturating_add(self.elsewhere(index));
        Sums {
            in_device,
            in_process,
        }
    }

    /// Charges memory that exists already, even beyond a limit.
    pub(crate) fn charge(&self, index: usize, bytes: u64) {
        let usage = self.session.usage();
        // Without a charge of its own, a peak would be raised to what other threads may still give back.
        let Some(device) = usage.devices.get(index).filter(|_| bytes != 0) else {
            return;
        };
        self.use_device(index);
        let before = device.memory_current.fetch_add(bytes, SeqCst);
        usage.memory_taken.fetch_add(bytes, Release);
        let sums = self.sums(index, before.wrapping_add(bytes));
        self.raise_peaks(index, sums);
    }

    #[inline]
    pub(crate) fn uncharge(&self, index: usize, bytes: u64) {
        if let Some(device) = self.device(index) {
            uncharge(&device.memory_current, bytes);
        }
    }

    /// Returns the bytes charged on all devices together.
    pub(crate) fn sum(&self) -> u64 {
        self.sums(0, self.session.usage().memory_current(0)).in_process
    }

    /// Counts an allocation, in the thread's own counters (a plain add) if it has some for the device.
    #[inline]
    pub(crate) fn enter(&self, own: Option<Counts<'_>>, entry: &Entry) {
        let Some(device) = self.device(entry.index()) else {
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
    pub(crate) fn leave(&self, own: Option<Counts<'_>>, entry: &Entry) {
        let Some(device) = self.device(entry.index()) else {
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
    pub(crate) fn show(&self, entry: &Entry) {
        if let Some(device) = self.device(entry.index()) {
            self.add_kind(device, entry, |bytes| bytes);
        }
    }

    /// Removes bytes shown by [`show`](Self::show).
    pub(crate) fn hide(&self, entry: &Entry) {
        if let Some(device) = self.device(entry.index()) {
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
    pub(crate) fn transfer(&self, entry: &Entry, to: usize) {
        let (Some(from), Some(into)) = (self.device(entry.index()), self.device(to)) else {
            return;
        };
        self.add_kind(into, entry, |bytes| bytes);
        self.add_kind(from, entry, u64::wrapping_neg);
        if entry.is_charged() {
            self.transfer_bytes(entry.index(), to, entry.charged());
        }
    }

    pub(crate) fn transfer_bytes(&self, from: usize, to: usize, bytes: u64) {
        let Some(into) = self.device(to) else {
            return;
        };
        self.use_device(to);
        // The sum is too high for a moment rather than too low.
        let before = into.memory_current.fetch_add(bytes, SeqCst);
        self.session.usage().memory_taken.fetch_add(bytes, Release);
        self.uncharge(from, bytes);
        let sums = Sums {
            in_device: before.wrapping_add(bytes),
            in_process: 0,
        };
        self.raise_peaks(to, sums);
    }
}
