//! Measures for how long a device has work while its gate is not [`Gate::Run`](gcgroup_abi::Gate::Run).
//!
//! A busy period begins with the submission that finds the device idle, and ends when markers set behind the
//! last submission have passed. Submitting threads record here which streams they use; the helper (`watch`)
//! marks these, detects the end and closes the period. Time in which only other processes' work ran counts
//! too: the daemon, which sees all processes, divides it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst, fence};

use gcgroup_abi::{ControlDevice, Usage};
use parking_lot::Mutex;

use crate::program::slot::Bound;
use crate::shared::session::Session;
use crate::sys;

/// A stream: its context's number and its handle.
pub(super) type Used = (u32, usize);

/// Meter of one device.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Increments when markers are about to be set: they may cover earlier uses of a stream, but no later
    /// ones.
    round: AtomicU32,
    /// Whether the helper looks by itself for work that begins, and rings the daemon.
    is_polled: AtomicBool,
    used: Mutex<Vec<Used>>,
}

impl Meter {
    pub(crate) const fn new() -> Self {
        Self {
            round: AtomicU32::new(1),
            is_polled: AtomicBool::new(false),
            used: Mutex::new(Vec::new()),
        }
    }

    /// Records that the calling thread is about to submit to a stream. Its entry is counted and a barrier has
    /// passed.
    pub(super) fn note(&self, session: &Session, bound: Bound<'_>, stream: usize) {
        let (round, context) = (self.round.load(SeqCst), bound.context());
        let last_stream = &bound.state.last_stream;
        let device = u32::try_from(bound.index() + 1).unwrap_or(0);
        if last_stream.is(device, round, context, stream) {
            return;
        }
        let (round, has_begun) = {
            let mut used = self.used.lock();
            // `round` changes only under the lock, so this is the round of the list.
            let round = self.round.load(Relaxed);
            if !used.contains(&(context, stream)) {
                used.push((context, stream));
            }
            (round, session.usage().begin_busy(bound.index(), sys::now()))
        };
        last_stream.set(device, round, context, stream);
        fence(SeqCst);
        if has_begun && !self.is_polled.load(Relaxed) {
            // Rung first: another process may have to make room.
            ring_if_wanted(session, bound.index());
            session.line.wake();
        }
    }

    /// Sets whether the helper looks by itself for work that begins; otherwise submitting threads wake it. A
    /// reader of `busy_since` after this sees each period whose thread has not woken it.
    pub(super) fn poll(&self, is_polled: bool) {
        self.is_polled.store(is_polled, Relaxed);
        fence(SeqCst);
    }

    /// Begins a round and returns the streams used until now; later submissions record their streams again.
    pub(super) fn take(&self) -> Vec<Used> {
        let mut used = self.used.lock();
        self.round.fetch_add(1, SeqCst);
        std::mem::take(&mut *used)
    }

    /// Puts back streams that [`Self::take`] returned and that are not settled.
    pub(super) fn put_back(&self, streams: &[Used]) {
        let mut used = self.used.lock();
        for stream in streams {
            if !used.contains(stream) {
                used.push(*stream);
            }
        }
    }

    /// Begins a busy period of the device in slot `index` at `now` if it is idle; returns whether it was.
    pub(super) fn begin(&self, usage: &Usage, index: usize, now: u64) -> bool {
        let _used = self.used.lock();
        usage.begin_busy(index, now)
    }

    /// Ends the busy period at `end` unless a stream was used since; returns whether it ended.
    pub(super) fn end(&self, usage: &Usage, index: usize, end: u64) -> bool {
        let used = self.used.lock();
        if !used.is_empty() {
            return false;
        }
        usage.end_busy(index, end);
        true
    }

    /// Ends measuring. Threads record their streams again when it is resumed.
    pub(super) fn stop(&self, usage: &Usage, index: usize, end: u64) {
        let mut used = self.used.lock();
        self.round.fetch_add(1, SeqCst);
        used.clear();
        usage.end_busy(index, end);
    }
}

/// Wakes a sleeping daemon because work has begun or waits. The caller has stored what the daemon is to see.
pub(super) fn ring_if_wanted(session: &Session, index: usize) {
    let control = session.control().devices.get(index);
    if control.is_some_and(ControlDevice::wants_bell_now) {
        session.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::Compute;
    use crate::shared::device::LocalDevice;
    use crate::shared::stall::Stalled;
    use gcgroup_abi::{NO_LIMIT, OTHER_DEVICE, Pressure, StallClock};
    use std::sync::Barrier;

    #[test]
    fn meter_end_only_if_nothing_submitted_since() {
        let compute = Compute::of_test(NO_LIMIT);
        let usage = &compute.usage().devices[OTHER_DEVICE];
        let meter = &compute.meters[OTHER_DEVICE];
        let slot = compute
            .program
            .slots
            .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        assert_eq!(usage.busy(100), (0, false));
        meter.note(compute.session, slot, 7);
        let since = usage.busy_since.load(Relaxed);
        assert_eq!(usage.busy(since + 5), (5, true));
        assert_eq!(meter.take(), [(slot.context(), 7)]);
        meter.note(compute.session, slot, 7);
        assert!(
            !meter.end(compute.usage(), OTHER_DEVICE, since + 10),
            "the same stream was used again"
        );
        assert_eq!(meter.take().len(), 1);
        assert!(meter.end(compute.usage(), OTHER_DEVICE, since + 10));
        assert_eq!(usage.busy(since + 100), (10, false));
        meter.note(compute.session, slot, 7);
        assert!(usage.busy(u64::MAX).1);
    }

    #[test]
    fn work_stops_the_clock_of_full_pressure_alone() {
        let compute = Compute::of_test(NO_LIMIT);
        let slot = compute
            .program
            .slots
            .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        let stall = &compute.usage().stalls[Pressure::Compute as usize];
        let stalled = Stalled::new(compute.usage(), Pressure::Compute);
        let later = |clock: &StallClock| StallClock::elapsed(clock.usec(2_000_000), clock.usec(1_000_000));
        let both = || [&stall.some, &stall.full].map(later);
        assert_eq!(both(), [1000, 1000]);
        compute.meters[OTHER_DEVICE].note(compute.session, slot, 7);
        assert_eq!(both(), [1000, 0]);
        compute.meters[OTHER_DEVICE].stop(compute.usage(), OTHER_DEVICE, sys::now());
        assert_eq!(both(), [1000, 1000]);
        drop(stalled);
        assert_eq!(both(), [0, 0]);
    }

    #[test]
    fn stopped_meter_begins_again_with_same_stream() {
        let compute = Compute::of_test(NO_LIMIT);
        let usage = &compute.usage().devices[OTHER_DEVICE];
        let meter = &compute.meters[OTHER_DEVICE];
        let slot = compute
            .program
            .slots
            .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        meter.note(compute.session, slot, 7);
        meter.stop(compute.usage(), OTHER_DEVICE, sys::now());
        assert!(!usage.busy(u64::MAX).1);
        meter.note(compute.session, slot, 7);
        assert!(usage.busy(u64::MAX).1);
    }

    /// A third thread holds the list repeatedly, so that the two others reach it at varying times.
    #[test]
    fn note_while_round_ends_is_repeated_in_next_round() {
        const ROUNDS: usize = 2_000;
        let compute = Compute::of_test(NO_LIMIT);
        let usage = &compute.usage().devices[OTHER_DEVICE];
        let meter = &compute.meters[OTHER_DEVICE];
        let (barrier, is_over) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let _held = meter.used.lock();
                    std::thread::yield_now();
                }
            });
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    barrier.wait();
                    meter.take();
                    meter.end(compute.usage(), OTHER_DEVICE, sys::now());
                    barrier.wait();
                }
            });
            let slot =
                compute
                    .program
                    .slots
                    .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
            let mut missed = 0;
            for _ in 0..ROUNDS {
                barrier.wait();
                meter.note(compute.session, slot, 7);
                barrier.wait();
                meter.note(compute.session, slot, 7);
                missed += u32::from(!usage.busy(u64::MAX).1);
            }
            is_over.store(true, Relaxed);
            assert_eq!(missed, 0, "of {ROUNDS}");
        });
    }

    #[test]
    fn used_stream_is_listed_once_and_put_back_stays() {
        let compute = Compute::of_test(NO_LIMIT);
        let meter = &compute.meters[OTHER_DEVICE];
        let slot = compute
            .program
            .slots
            .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        for stream in [7, 8, 7, 8] {
            meter.note(compute.session, slot, stream);
        }
        let taken = meter.take();
        assert_eq!(taken.len(), 2);
        meter.note(compute.session, slot, 8);
        meter.put_back(&taken);
        assert_eq!(meter.take().len(), 2);
    }
}
