//! Doorbell: when a process wakes the daemon, which sleeps while no event it waits for happens.
//!
//! The daemon stores what it wants to be told, fences, and checks once more what the process has published.
//! The process publishes, fences, and checks what the daemon wants. So at least one of them sees the other's
//! store. See `hook/abi/models/src/bell.rs`.

use crate::sync::{Ordering::Relaxed, Ordering::SeqCst, fence};
use crate::{BELL_AT_BEGIN, BELL_AT_END, ControlDevice, UsageDevice};

impl ControlDevice {
    /// Returns whether the daemon wants to be told what the process has just published: work or a waiting
    /// thread.
    #[inline]
    pub fn wants_bell_now(&self) -> bool {
        fence(SeqCst);
        self.wants_bell.load(Relaxed) & BELL_AT_BEGIN != 0
    }

    /// Stores whether the daemon wants to be told of the begin and of the end of work. Call
    /// [`Self::fence_bells`] next.
    pub fn set_wants_bell(&self, at_begin: bool, at_end: bool) {
        let at_begin = if at_begin { BELL_AT_BEGIN } else { 0 };
        let at_end = if at_end { BELL_AT_END } else { 0 };
        self.wants_bell.store(at_begin | at_end, Relaxed);
    }

    /// Fences between [`Self::set_wants_bell`], for any number of processes, and [`UsageDevice::has_begun`]
    /// of each.
    pub fn fence_bells() {
        fence(SeqCst);
    }
}

impl UsageDevice {
    /// Returns whether there is work, or more threads wait than `nr_waiting`, the number seen before.
    pub fn has_begun(&self, nr_waiting: u32) -> bool {
        self.busy_since.load(Relaxed) != 0 || self.nr_waiting.load(Relaxed) > nr_waiting
    }
}
