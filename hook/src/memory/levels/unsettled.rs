//! Calls of which nobody knows yet what they charge.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release, fence};

use gcgroup_abi::Usage;

use crate::compute::slot::Counts;

/// A call that may make the device hold more than is charged for it, or that uncharges without a free: while there is
/// one, and if there was one, what the driver says that the process holds is not to be compared with the ledger.
#[derive(Debug)]
pub(crate) enum Unsettled<'a> {
    /// By the device's word.
    Shared(Option<&'a AtomicU64>),
    /// By the thread's own, which is two plain stores: odd in between.
    Own(&'a AtomicU32),
}

impl<'a> Unsettled<'a> {
    /// Begins; ends when dropped.
    pub(crate) fn on(usage: &'a Usage, index: usize) -> Self {
        let word = usage.devices.get(index).map(|device| &device.unsettled);
        if let Some(word) = word {
            word.fetch_add((1 << 32) + 1, Release);
        }
        Self::Shared(word)
    }

    /// The same by the calling thread's own word, if it has one. Within nothing that is marked so.
    #[inline]
    pub(crate) fn of_thread(usage: &'a Usage, own: Option<Counts<'a>>, index: usize) -> Self {
        match own {
            Some(own) => {
                // One that was left by longjmp(3) is odd still.
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
