//! Counters of one thread in the usage block.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};

use gcgroup_abi::{Kind, Thread, Usage};

/// Counters of the calling thread, which no other thread writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts<'a>(&'a Thread);

impl<'a> Counts<'a> {
    /// Returns the counters in the calling thread's slot of the block; `None` if the thread is on another
    /// device.
    #[inline]
    pub(crate) fn of(usage: &'a Usage, slot: &'a Thread, index: usize) -> Option<Self> {
        if slot.counted_device.load(Relaxed) as usize == index {
            return Some(Self(slot));
        }
        Self::begin(usage, slot, index)
    }

    /// Adds what was counted for the previous device to that device's counters.
    #[cold]
    #[inline(never)]
    fn begin(usage: &Usage, slot: &'a Thread, index: usize) -> Option<Self> {
        if slot.device.load(Relaxed) as usize != index {
            return None;
        }
        let before = slot.counted_device.load(Relaxed) as usize;
        if let Some(device) = usage.devices.get(before) {
            let kinds = Kind::ALL.iter().zip(&device.kinds);
            let kinds = kinds.filter_map(|((kind, ..), shared)| Some((slot.kind(*kind)?, shared)));
            let counts = [
                (&slot.nr_alloc, &device.nr_alloc),
                (&slot.nr_free, &device.nr_free),
            ];
            for (own, shared) in counts.into_iter().chain(kinds) {
                shared.fetch_add(own.load(Relaxed), Relaxed);
                own.store(0, Release);
            }
        }
        slot.counted_device
            .store(u32::try_from(index).unwrap_or(0), Release);
        Some(Self(slot))
    }

    /// Returns the thread's counter that is odd during a call in which the device may hold more than is
    /// charged.
    #[inline]
    pub(crate) fn unsettled(&self) -> &'a AtomicU32 {
        &self.0.unsettled
    }

    #[inline]
    pub(crate) fn count_alloc(&self) {
        add(&self.0.nr_alloc, 1);
    }

    #[inline]
    pub(crate) fn count_free(&self) {
        add(&self.0.nr_free, 1);
    }

    /// Adds to the count of a kind; returns whether the kind is counted here.
    #[inline]
    pub(crate) fn add_kind(&self, kind: Kind, bytes: u64) -> bool {
        self.0.kind(kind).inspect(|count| add(count, bytes)).is_some()
    }
}

/// Adds without an atomic read-modify-write: only a slot's own thread counts in it.
#[inline]
pub(crate) fn add(count: &AtomicU64, amount: u64) {
    count.store(count.load(Relaxed).wrapping_add(amount), Relaxed);
}
