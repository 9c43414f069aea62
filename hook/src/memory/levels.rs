//! Counting bytes against every limit that applies: first the device's and what the groups above grant there, then the
//! process's as a whole.
//!
//! Knows the blocks and nothing of who allocates what.

mod peaks;
#[cfg(test)]
mod tests;
mod unsettled;
mod whole;

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};

use gcgroup_abi::{Control, NO_LIMIT, Short, Usage, UsageDevice, try_charge_granted, uncharge};
use parking_lot::Mutex;

use super::ledger::Entry;
use crate::compute::slot::Counts;
use crate::cuda::CUerror;
pub(crate) use unsettled::Unsettled;
use whole::Whole;

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
    whole: Whole,
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
        let Some(device) = usage.devices.get(index) else {
            return Ok(Sums::default());
        };
        let [on_device, on_process] = [device_limit(control, index), process_limit(control)];
        if !self.whole.is_only(index) {
            return self.reserve_on_one_of_several(usage, device, index, bytes, [on_device, on_process]);
        }
        let limit = on_device.min(on_process);
        let charged = try_charge_granted(&device.memory_current, &device.memory_granted, bytes, limit);
        let sum = charged.map_err(|short| match short {
            Short::Grant => Full::Group(index),
            Short::Limit if on_device <= on_process => Full::Device(index),
            Short::Limit if !has_room(device.memory_current.load(Relaxed), bytes, on_device) => {
                Full::Device(index)
            }
            Short::Limit => Full::Process,
        })?;
        if !self.whole.is_still(index) {
            return self.reserved_beside_others(usage, index, bytes, sum, on_process);
        }
        Ok(Sums::of_one(sum))
    }

    /// The same where there is nothing to be refused for, in the caller's own code: no limit is in force, and only this
    /// device was ever charged. What is charged there then; `None` if that is not so.
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
        let before = device.memory_current.fetch_add(bytes, SeqCst);
        // Either this sees the other device, or what was granted, or who wrote that sees the charge.
        if device.memory_granted.load(SeqCst) != NO_LIMIT || !self.whole.is_still(index) {
            return self.not_freely(usage, index, bytes);
        }
        Some(before.wrapping_add(bytes))
    }

    #[cold]
    #[inline(never)]
    fn not_freely(&self, usage: &Usage, index: usize, bytes: u64) -> Option<u64> {
        self.uncharge(usage, index, bytes);
        None
    }

    /// The same for a process that has charged several. Nobody else does meanwhile: whoever passes the device's limit but
    /// not the process's has then held nothing of the first that another could have used.
    #[cold]
    #[inline(never)]
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
            // What the process's own limit has no room for, nobody is to be asked for.
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

    /// Another device was charged for the first time just when this one was.
    #[cold]
    #[inline(never)]
    fn reserved_beside_others(
        &self,
        usage: &Usage,
        index: usize,
        bytes: u64,
        in_device: u64,
        on_process: u64,
    ) -> Result<Sums, Full> {
        let _alone = self.whole.alone();
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

    /// Charges what is there already, limit or not.
    pub(crate) fn charge(&self, usage: &Usage, control: &Control, index: usize, bytes: u64) {
        let Some(device) = usage.devices.get(index) else {
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

    /// Bytes charged on all devices together.
    pub(crate) fn sum(&self, usage: &Usage) -> u64 {
        let _alone = self.whole.are_several().then(|| self.whole.alone());
        self.whole.sum(usage)
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
        let Some(into) = usage.devices.get(to).filter(|_| from < usage.devices.len()) else {
            return;
        };
        let _ = self.whole.is_only(to);
        let now = {
            // The sum is another for a moment, which nobody is refused for.
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

/// What was charged after a charge.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    in_device: u64,
    in_process: u64,
}

impl Sums {
    /// All that is charged is on one device.
    pub(crate) fn of_one(sum: u64) -> Self {
        Self {
            in_device: sum,
            in_process: sum,
        }
    }

    /// These, or an error, in two words, so that where they hardly ever come from does not have them lie in memory.
    pub(crate) fn packed(result: Result<Self, CUerror>) -> (u64, u64) {
        match result {
            Ok(sums) => (sums.in_device, sums.in_process),
            Err(error) => (u64::MAX, error.0.get().into()),
        }
    }

    #[inline]
    pub(crate) fn unpacked(words: (u64, u64)) -> Result<Self, CUerror> {
        let (in_device, in_process) = words;
        let error = u32::try_from(in_process).ok().and_then(NonZero::new);
        match error {
            Some(error) if in_device == u64::MAX => Err(CUerror(error)),
            _ => Ok(Self {
                in_device,
                in_process,
            }),
        }
    }

    /// Less was charged in the end.
    pub(crate) fn less(self, bytes: u64) -> Self {
        Self {
            in_device: self.in_device.saturating_sub(bytes),
            in_process: self.in_process.saturating_sub(bytes),
        }
    }
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
fn has_room(current: u64, bytes: u64, limit: u64) -> bool {
    let sum = current.checked_add(bytes);
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
