//! For how long there was work on a device, while its gate is not [`Gate::Run`](gcgroup_abi::Gate::Run).
//!
//! Work begins with the submission that finds the device idle, and ends when marks set after the last one have passed.
//! Submitting threads note here which streams they use; the helper (`watch`) marks those, finds out, and closes the
//! account. Time during which only other processes' work ran counts too: the daemon divides it, which sees them all.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use gcgroup_abi::{ControlDevice, UsageDevice};
use parking_lot::Mutex;

use super::slot::Bound;
use crate::process::Process;
use crate::sys;

/// A stream, by the number of its context and its handle.
pub(super) type Used = (u32, usize);

/// One device's.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Moves when marks are to be set: what threads used before may be covered by them, what they use after is not.
    round: AtomicU32,
    used: Mutex<Vec<Used>>,
}

/// What a thread last noted, so that the next submission to the same stream need not.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// The device's index, plus one: a slot may come to be another device's.
    device: AtomicU32,
    round: AtomicU32,
    context: AtomicU32,
    stream: AtomicU64,
}

impl Noted {
    pub(super) const fn new() -> Self {
        Self {
            device: AtomicU32::new(0),
            round: AtomicU32::new(0),
            context: AtomicU32::new(0),
            stream: AtomicU64::new(0),
        }
    }
}

impl Meter {
    pub(crate) const fn new() -> Self {
        Self {
            round: AtomicU32::new(1),
            used: Mutex::new(Vec::new()),
        }
    }

    /// The calling thread is about to submit to a stream. It has entered its mark and passed a barrier since.
    pub(super) fn note(&self, process: &Process, bound: Bound<'_>, stream: usize) {
        let (round, context) = (self.round.load(SeqCst), bound.context());
        let noted = &bound.side.noted;
        let device = u32::try_from(bound.index() + 1).unwrap_or(0);
        if noted.device.load(Relaxed) == device
            && noted.round.load(Relaxed) == round
            && noted.context.load(Relaxed) == context
            && noted.stream.load(Relaxed) == stream as u64
        {
            return;
        }
        let Some(usage) = process.usage().devices.get(bound.index()) else {
            return;
        };
        let (round, has_begun) = {
            let mut used = self.used.lock();
            // The round that the list is of: it changes under the lock.
            let round = self.round.load(Relaxed);
            if !used.contains(&(context, stream)) {
                used.push((context, stream));
            }
            (round, usage.begin_busy(sys::now()))
        };
        noted.device.store(device, Relaxed);
        noted.round.store(round, Relaxed);
        noted.context.store(context, Relaxed);
        noted.stream.store(stream as u64, Relaxed);
        if has_begun {
            // First of all: somebody else may have to make room.
            ring_if_wanted(process, bound.index());
            process.line.wake();
        }
    }

    /// Begins a round: whoever submits from now on notes its stream anew. Gives what was used until now.
    pub(super) fn take(&self) -> Vec<Used> {
        let mut used = self.used.lock();
        self.round.fetch_add(1, SeqCst);
        std::mem::take(&mut *used)
    }

    /// What [`Self::take`] gave is not done with.
    pub(super) fn put_back(&self, streams: &[Used]) {
        let mut used = self.used.lock();
        for stream in streams {
            if !used.contains(stream) {
                used.push(*stream);
            }
        }
    }

    /// Work has been there since `now`, if the device was idle; whether it was.
    pub(super) fn begin(&self, usage: &UsageDevice, now: u64) -> bool {
        let _used = self.used.lock();
        usage.begin_busy(now)
    }

    /// Everything had ended by `end`, unless something was submitted since; whether it is so.
    pub(super) fn end(&self, usage: &UsageDevice, end: u64) -> bool {
        let used = self.used.lock();
        if !used.is_empty() {
            return false;
        }
        usage.end_busy(end);
        true
    }

    /// The account is kept no longer. Who submits when it is kept again notes its stream anew.
    pub(super) fn stop(&self, usage: &UsageDevice, end: u64) {
        let mut used = self.used.lock();
        self.round.fetch_add(1, SeqCst);
        used.clear();
        usage.end_busy(end);
    }
}

/// Tells the daemon that work has begun or waits, if it sleeps. What is to be seen has been stored before.
pub(super) fn ring_if_wanted(process: &Process, index: usize) {
    let control = process.control().devices.get(index);
    if control.is_some_and(ControlDevice::wants_bell_now) {
        process.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::LocalDevice;
    use gcgroup_abi::{NO_LIMIT, OTHER_DEVICE};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn work_begins_with_the_first_submission_and_ends_when_nothing_was_submitted_since() {
        let process = Process::of_test(NO_LIMIT);
        let usage = &process.usage().devices[OTHER_DEVICE];
        let meter = &process.meters[OTHER_DEVICE];
        let slot = process
            .slots
            .of_test(process, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        assert_eq!(usage.busy(100), (0, false));
        meter.note(process, slot, 7);
        let since = usage.busy_since.load(Relaxed);
        assert_eq!(usage.busy(since + 5), (5, true));
        assert_eq!(meter.take(), [(slot.context(), 7)]);
        meter.note(process, slot, 7);
        assert!(!meter.end(usage, since + 10), "the same stream was used again");
        assert_eq!(meter.take().len(), 1);
        assert!(meter.end(usage, since + 10));
        assert_eq!(usage.busy(since + 100), (10, false));
        meter.note(process, slot, 7);
        assert!(usage.busy(u64::MAX).1);
    }

    #[test]
    fn an_account_that_was_closed_begins_again_with_the_same_stream() {
        let process = Process::of_test(NO_LIMIT);
        let usage = &process.usage().devices[OTHER_DEVICE];
        let meter = &process.meters[OTHER_DEVICE];
        let slot = process
            .slots
            .of_test(process, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        meter.note(process, slot, 7);
        meter.stop(usage, sys::now());
        assert!(!usage.busy(u64::MAX).1);
        meter.note(process, slot, 7);
        assert!(usage.busy(u64::MAX).1);
    }

    /// Two threads, and a third that holds the list again and again, so that the others come to it at odd times.
    #[test]
    fn who_notes_while_a_round_ends_notes_again_in_the_next() {
        const ROUNDS: usize = 20_000;
        let process = Process::of_test(NO_LIMIT);
        let usage = &process.usage().devices[OTHER_DEVICE];
        let meter = &process.meters[OTHER_DEVICE];
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
                    meter.end(usage, sys::now());
                    barrier.wait();
                }
            });
            let slot = process
                .slots
                .of_test(process, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
            let mut missed = 0;
            for _ in 0..ROUNDS {
                barrier.wait();
                meter.note(process, slot, 7);
                barrier.wait();
                meter.note(process, slot, 7);
                missed += u32::from(!usage.busy(u64::MAX).1);
            }
            is_over.store(true, Relaxed);
            assert_eq!(missed, 0, "of {ROUNDS}");
        });
    }

    #[test]
    fn a_stream_is_listed_once_and_what_was_put_back_stays() {
        let process = Process::of_test(NO_LIMIT);
        let meter = &process.meters[OTHER_DEVICE];
        let slot = process
            .slots
            .of_test(process, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        for stream in [7, 8, 7, 8] {
            meter.note(process, slot, stream);
        }
        let taken = meter.take();
        assert_eq!(taken.len(), 2);
        meter.note(process, slot, 8);
        meter.put_back(&taken);
        assert_eq!(meter.take().len(), 2);
    }
}
