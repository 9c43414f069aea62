//! Calls whose charge is not known yet.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release, fence};

use gcgroup_abi::Usage;

use crate::shared::counters::Counts;

/// A call that may make the device hold more than is charged, or that uncharges without a free. A measurement
/// during which there was one says nothing about the ledger.
#[derive(Debug)]
pub(crate) enum Unsettled<'a> {
    /// Counted in the device's word.
    Shared(Option<&'a AtomicU64>),
    /// Counted in the thread's own word with two plain stores: odd in between.
    Own(&'a AtomicU32),
}

impl<'a> Unsettled<'a> {
    /// Begins a call, counted in the device's word; ends when dropped.
    pub(crate) fn on(usage: &'a Usage, index: usize) -> Self {
        let word = usage.devices.get(index).map(|device| &device.unsettled);
        if let Some(word) = word {
            word.fetch_add((1 << 32) + 1, Release);
        }
        Self::Shared(word)
    }

    /// Begins a call, counted in the calling thread's own word if it has one. Must not be nested.
    #[inline]
    pub(crate) fn of_thread(usage: &'a Usage, own: Option<Counts<'a>>, index: usize) -> Self {
        match own {
            Some(own) => {
                // The word is still odd if longjmp(3) left an earlier call.
                let word = own.unsettled();
                word.store(word.load(Relaxed).wrapping_add(1) | 1, Relaxed);
                fence(Release);
                Self::Own(word)
            }
            None => Self::on(usage, index),
        }
    }
}

impl Drop for Unsettled<'_> {
    #[inline]
    fn drop(&mut self) {
        match self {
            Self::Shared(Some(word)) => drop(word.fetch_sub(1, Release)),
            Self::Shared(None) => {}
            Self::Own(word) => word.store(word.load(Relaxed).wrapping_add(1) & !1, Release),
        }
    }
}
