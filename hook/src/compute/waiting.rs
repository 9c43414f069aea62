//! Who waits at a gate, as the daemon sees it.
//!
//! A thread may leave its wait without a word: a signal's handler jumps out of it, or ends the thread. So the wait is
//! noted in the thread's slot too, and whoever next uses that slot takes back what was left there. One that waits on (the
//! handler has only called the driver in between) notes itself anew.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::UsageDevice;

use super::slot::Bound;
use crate::process::Process;
use crate::sys;

/// A thread that is about to wait at a device's gate.
pub(super) struct Waiting<'a> {
    bound: Bound<'a>,
    index: usize,
    usage: &'a UsageDevice,
}

impl<'a> Waiting<'a> {
    pub(super) fn at(bound: Bound<'a>, index: usize, usage: &'a UsageDevice) -> Self {
        Self { bound, index, usage }
    }

    pub(super) fn frozen(self) -> Waits<'a> {
        let (times, usec) = (&self.usage.nr_frozen, &self.usage.frozen_usec);
        self.begin(times, usec)
    }

    pub(super) fn throttled(self) -> Waits<'a> {
        let (times, usec) = (&self.usage.nr_throttled, &self.usage.throttled_usec);
        self.begin(times, usec)
    }

    fn begin(self, times: &AtomicU64, usec: &'a AtomicU64) -> Waits<'a> {
        self.note();
        times.fetch_add(1, Relaxed);
        Waits {
            waiting: self,
            usec,
            since: sys::now(),
        }
    }

    fn note(&self) {
        let mark = u32::try_from(self.index + 1).unwrap_or(0);
        let before = self.bound.side.waits_at.swap(mark, Relaxed);
        if before == 0 && mark != 0 {
            self.usage.nr_waiting.fetch_add(1, Relaxed);
        }
    }
}

/// Counted as waiting while this lives, and for how long it did.
pub(super) struct Waits<'a> {
    waiting: Waiting<'a>,
    usec: &'a AtomicU64,
    since: u64,
}

impl Waits<'_> {
    /// Brings the account up to date; the thread waits yet.
    pub(super) fn tell(&mut self) {
        self.waiting.note();
        let usec = sys::now().saturating_sub(self.since) / 1000;
        self.usec.fetch_add(usec, Relaxed);
        self.since += usec * 1000;
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.tell();
        if self.waiting.bound.side.waits_at.swap(0, Relaxed) != 0 {
            self.waiting.usage.nr_waiting.fetch_sub(1, Relaxed);
        }
    }
}

impl Bound<'_> {
    /// Takes back what a wait left that nobody returned from.
    pub(super) fn waits_no_more(&self, process: &Process) {
        // Nearly always nothing.
        if self.side.waits_at.load(Relaxed) == 0 {
            return;
        }
        let mark = self.side.waits_at.swap(0, Relaxed) as usize;
        let device = mark
            .checked_sub(1)
            .and_then(|index| process.usage().devices.get(index));
        if let Some(device) = device {
            device.nr_waiting.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::LocalDevice;
    use crate::interpose;
    use gcgroup_abi::NO_LIMIT;

    fn waiting(process: &Process, index: usize) -> u32 {
        process.usage().devices[index].nr_waiting.load(Relaxed)
    }

    #[test]
    fn who_left_a_wait_by_a_jump_waits_no_more_once_it_comes_back() {
        let process = Process::of_test(NO_LIMIT);
        let bound = process.slots.of_test(process, LocalDevice::of(0).unwrap(), 0);
        let device = &process.usage().devices[1];
        std::mem::forget(Waiting::at(bound, 1, device).frozen());
        assert_eq!(waiting(process, 1), 1);
        let before = interpose::thread();
        interpose::set_thread(std::ptr::from_ref(bound.thread).cast_mut());
        for _ in 0..2 {
            assert!(process.slots.bind(process).is_some());
            assert_eq!(waiting(process, 1), 0);
        }
        interpose::set_thread(before);
        drop(Waiting::at(bound, 1, device).throttled());
        assert_eq!(waiting(process, 1), 0);
    }

    #[test]
    fn who_waits_on_after_a_call_of_a_handlers_is_counted_again() {
        let process = Process::of_test(NO_LIMIT);
        let bound = process.slots.of_test(process, LocalDevice::of(0).unwrap(), 0);
        let mut waits = Waiting::at(bound, 0, &process.usage().devices[0]).throttled();
        bound.waits_no_more(process);
        assert_eq!(waiting(process, 0), 0);
        waits.tell();
        assert_eq!(waiting(process, 0), 1);
        bound.waits_no_more(process);
        drop(waits);
        assert_eq!(waiting(process, 0), 0);
    }

    #[test]
    fn who_dies_in_a_wait_waits_no_more_for_a_drain() {
        let process = Process::of_test(NO_LIMIT);
        let bound = process.slots.of_test(process, LocalDevice::of(0).unwrap(), 0);
        std::mem::forget(Waiting::at(bound, 0, &process.usage().devices[0]).frozen());
        assert!(!process.slots.is_any_inside(process, 0));
        assert_eq!(waiting(process, 0), 1, "it lives");
        // No thread of this process has that id.
        bound.thread.tid.store(0x3fff_fff0, Relaxed);
        assert!(!process.slots.is_any_inside(process, 0));
        assert_eq!(waiting(process, 0), 0);
    }
}
