//! When a process rings the daemon, which sleeps while nothing it waits for happens.
//!
//! The daemon stores what it wants to be told, fences, and looks once more at what the process has published; the process
//! publishes, fences, and looks at what the daemon wants. So at least one of both sees the other. See
//! `hook/abi/models/src/bell.rs`.

use crate::sync::{Ordering::Relaxed, Ordering::SeqCst, fence};
use crate::{BELL_AT_BEGIN, BELL_AT_END, ControlDevice, UsageDevice};

impl ControlDevice {
    /// Whether the daemon wants to be told what the process has just published: that work began, or that a thread waits.
    #[inline]
    pub fn wants_bell_now(&self) -> bool {
        fence(SeqCst);
        self.wants_bell.load(Relaxed) & BELL_AT_BEGIN != 0
    }

    /// Stores whether the daemon wants to be told of the begin of work, and of its end. [`Self::fence_bells`] comes next.
    pub fn set_wants_bell(&self, at_begin: bool, at_end: bool) {
        let at_begin = if at_begin { BELL_AT_BEGIN } else { 0 };
        let at_end = if at_end { BELL_AT_END } else { 0 };
        self.wants_bell.store(at_begin | at_end, Relaxed);
    }

    /// Stands between [`Self::set_wants_bell`], of any number of processes, and [`UsageDevice::has_begun`] of each.
    pub fn fence_bells() {
        fence(SeqCst);
    }
}

impl UsageDevice {
    /// Whether work is there, or more threads wait than the `nr_waiting` that were seen before.
    pub fn has_begun(&self, nr_waiting: u32) -> bool {
        self.busy_since.load(Relaxed) != 0 || self.nr_waiting.load(Relaxed) > nr_waiting
    }
}
