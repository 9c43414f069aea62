//! Detects in the helper thread when a device's work has ended, while the daemon wants to know.
//!
//! A round sets markers on the streams that were used. There is no more work if all have passed, no thread
//! was inside a submission when they were set, and none has submitted since. The end lies between two polls;
//! the midpoint is used.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::{BELL_AT_END, Gate, MAX_DEVICES, Usage, UsageDevice};

use super::meter::{Meter, Used, ring_if_wanted};
use super::sample::{Progress, Sampler};
use super::{Compute, Gates};
use crate::driver::cuda::CUstream;
use crate::driver::exit::in_driver;
use crate::driver::streams::PER_THREAD;
use crate::helper::Step;
use crate::program::context::{Passed, PendingMarker, ask_all};
use crate::shared::session::Session;
use crate::sys;

/// First and longest interval between polls, and the part of the time since the work began that it is at most
/// while other processes wait for the end.
const SOON: Duration = Duration::from_micros(50);
const SELDOM: Duration = Duration::from_micros(400);
const PART: u64 = 8;

#[derive(Debug, Default)]
struct Round {
    markers: Vec<PendingMarker>,
    /// Streams that this round does not settle.
    again: Vec<Used>,
    /// When markers were last seen not to have passed, nanoseconds.
    last_look: u64,
    /// Number of submissions of unknown cost, and of all, that all end before the markers pass; `None`:
    /// threads were about to submit some.
    ended: Option<Submitted>,
}

type Submitted = (u64, u64);

#[derive(Debug, Default)]
struct Device {
    is_tracked: bool,
    round: Option<Round>,
}

#[derive(Debug)]
pub(crate) struct Watch {
    devices: Vec<Device>,
    pause: Duration,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            devices: (0..MAX_DEVICES).map(|_| Device::default()).collect(),
            pause: SOON,
        }
    }

    /// Advances as far as possible without waiting.
    pub(crate) fn step(&mut self, compute: &Compute, gates: &Gates) -> Step {
        let mut is_busy = false;
        let (mut has_ended, mut has_news) = (false, false);
        let mut next = SELDOM;
        let blocks = compute.control().devices.iter().zip(&compute.usage().devices);
        for ((((control, usage), meter), gate), (index, device)) in blocks
            .zip(&compute.meters)
            .zip(gates)
            .zip(self.devices.iter_mut().enumerate())
        {
            let is_tracked = *gate != Gate::Run;
            if !is_tracked && !device.is_tracked {
                continue;
            }
            if !is_tracked {
                device.stop(meter, compute.usage(), index);
                continue;
            }
            let since = usage.busy_since.load(Relaxed);
            let works = device.advance(compute, index, meter, usage);
            is_busy |= works;
            let wants_end = control.wants_bell.load(Relaxed) & BELL_AT_END != 0;
            if works && wants_end {
                // Another process waits: the end is to be seen soon, in proportion to the length.
                let since = usage.busy_since.load(Relaxed);
                next = next.min(Duration::from_nanos(sys::now().saturating_sub(since) / PART).max(SOON));
            }
            if since != 0 && usage.busy_since.load(Relaxed) == 0 {
                has_ended = true;
                has_news |= wants_end;
                if usage.nr_waiting.load(Relaxed) != 0 {
                    // Nothing is queued, but a thread sleeps until the expected time of room.
                    sys::futex_wake(&control.gate);
                }
            }
        }
        if has_ended {
            self.pause = SOON;
        }
        let wake = is_busy.then_some(self.pause.min(next));
        self.pause = if is_busy {
            (self.pause * 2).min(SELDOM)
        } else {
            SOON
        };
        Step { wake, has_news }
    }
}

/// Has the helper look now whether work has ended, if another process waits for that. All work on the device
/// that was submitted before has probably ended.
pub(crate) fn look_if_wanted(session: &Session, index: usize) {
    let control = session.control().devices.get(index);
    if control.is_some_and(|control| control.wants_bell.load(Relaxed) & BELL_AT_END != 0) {
        session.line.wake();
    }
}

impl Device {
    fn stop(&mut self, meter: &Meter, usage: &Usage, index: usize) {
        if let Some(round) = self.round.take() {
            round.markers.into_iter().for_each(PendingMarker::abandon);
        }
        meter.stop(usage, index, sys::now());
        self.is_tracked = false;
    }

    /// Advances one device; returns whether it has work, and so must be polled again.
    fn advance(&mut self, compute: &Compute, index: usize, meter: &Meter, usage: &UsageDevice) -> bool {
        if !self.is_tracked {
            // Earlier submissions were not recorded.
            self.is_tracked = true;
            let now = sys::now();
            let Some(round) = Round::of_everything(compute, index, now) else {
                self.is_tracked = false;
                return true;
            };
            if round.markers.is_empty() {
                compute.account(index, round.progress(compute, index), 0);
            } else {
                if meter.begin(compute.usage(), index, now) {
                    // The next submission finds work already begun, and so does not ring.
                    ring_if_wanted(compute.session, index);
                }
                compute.account(index, Progress::Unseen, 0);
                self.round = Some(round);
            }
        }
        if self.round.is_none() {
            if usage.busy_since.load(Relaxed) == 0 {
                return false;
            }
            self.round = Round::begin(compute, index, meter);
        }
        let Some(round) = &mut self.round else { return true };
        let passed = in_driver(|| ask_all(&mut round.markers));
        let now = sys::now();
        match passed {
            None => return false,
            Some(Passed::Yes) => {}
            Some(Passed::NotYet) => {
                let since = std::mem::replace(&mut round.last_look, now);
                compute.account(index, Progress::None, now.saturating_sub(since));
                return true;
            }
            Some(Passed::Lost) => {
                round.markers.drain(..).for_each(PendingMarker::abandon);
                self.round = None;
                // Everything is marked anew.
                self.is_tracked = false;
                return true;
            }
        }
        let (end, again) = (round.end(now), std::mem::take(&mut round.again));
        let passed = now.saturating_sub(round.last_look);
        let (progress, ended) = (round.progress(compute, index), round.ended);
        self.round = None;
        compute.account(index, progress, passed);
        if !again.is_empty() {
            meter.put_back(&again);
            return true;
        }
        if ended.is_some_and(|(unknown, _)| unknown == submitted(compute, index).0) {
            compute.settle_unknown(index);
        }
        !meter.end(compute.usage(), index, end)
    }
}

/// Returns the number of submissions so far whose cost was unknown, and of all.
fn submitted(compute: &Compute, index: usize) -> Submitted {
    let unknown = compute.samplers.get(index).map_or(0, Sampler::nr_noted);
    (unknown, compute.program.slots.nr_entered(compute.session, index))
}

/// Returns whether a thread is inside a submission, or was when the caller read what the thread has recorded.
fn is_any_inside(compute: &Compute, index: usize) -> bool {
    sys::barrier();
    let slots = &compute.program.slots;
    slots.is_any_inside(compute.session, |device| device == index)
}

impl Round {
    /// Marks everything in flight; no markers remain if all has ended. `None` if it cannot be done now.
    fn of_everything(compute: &Compute, index: usize, now: u64) -> Option<Self> {
        let ended = submitted(compute, index);
        let mut round = Self {
            last_look: now,
            ended: (!is_any_inside(compute, index)).then_some(ended),
            ..Self::default()
        };
        let contexts = compute
            .program
            .contexts
            .on(|local| compute.session.devices.index(local) == index);
        let is_set = compute.program.contexts.captures.unless_any(|| {
            in_driver(|| {
                contexts
                    .iter()
                    .all(|context| context.mark(&mut round.markers) == Passed::Yes)
            })
        });
        if is_set.flatten() != Some(true) {
            round.markers.into_iter().for_each(PendingMarker::abandon);
            return None;
        }
        in_driver(|| ask_all(&mut round.markers));
        Some(round)
    }

    /// Sets markers on the streams used since the last round.
    fn begin(compute: &Compute, index: usize, meter: &Meter) -> Option<Self> {
        let ended = submitted(compute, index);
        let used: Vec<Used> = meter
            .take()
            .into_iter()
            .map(|used| holder(compute, used))
            .collect();
        let is_any_inside = is_any_inside(compute, index);
        let mut round = Self {
            last_look: sys::now(),
            ended: (!is_any_inside).then_some(ended),
            ..Self::default()
        };
        let is_set = compute.program.contexts.captures.unless_any(|| {
            in_driver(|| {
                by_context(&used).all(|(id, streams)| match compute.program.contexts.numbered(id) {
                    Some(context) => context.mark_streams(&streams, &mut round.markers) == Passed::Yes,
                    None => true,
                })
            })
        });
        let is_set = is_set.flatten() == Some(true);
        if !is_set || is_any_inside {
            round.again = used;
        }
        if is_set {
            return Some(round);
        }
        meter.put_back(&round.again);
        round.markers.into_iter().for_each(PendingMarker::abandon);
        None
    }

    /// Returns the progress of submissions if all markers have passed.
    fn progress(&self, compute: &Compute, index: usize) -> Progress {
        match self.ended {
            Some((_, ended)) if ended == submitted(compute, index).1 => Progress::Idle,
            _ => Progress::Some,
        }
    }

    /// Returns the estimated end of the last work, if the end was seen at `now`.
    fn end(&self, now: u64) -> u64 {
        now - now.saturating_sub(self.last_look) / 2
    }
}

/// Replaces the context of a use by the stream's own, if both are on one device: it differs for green
/// contexts.
fn holder(compute: &Compute, (id, stream): Used) -> Used {
    let handle = CUstream(std::ptr::with_exposed_provenance_mut(stream));
    let holder = (stream > PER_THREAD)
        .then(|| compute.program.contexts.holder(handle))
        .flatten();
    let current = compute.program.contexts.numbered(id);
    match holder.zip(current) {
        Some((holder, current)) if holder.local == current.local => (holder.id(), stream),
        _ => (id, stream),
    }
}

fn by_context(used: &[Used]) -> impl Iterator<Item = (u32, Vec<usize>)> {
    let mut ids: Vec<u32> = used.iter().map(|entry| entry.0).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(|id| {
        let streams = used.iter().filter(|entry| entry.0 == id).map(|entry| entry.1);
        (id, streams.collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::block;
    use crate::shared::device::LocalDevice;
    use gcgroup_abi::{BELL_AT_BEGIN, NO_LIMIT, OTHER_DEVICE, Submission, UNKNOWN_COST};

    #[test]
    fn busy_without_context_ends_unless_thread_is_inside() {
        let compute = Compute::of_test(NO_LIMIT);
        let (control, file) = block::of_daemon();
        control.publish();
        compute.adopt(&file);
        let (usage, meter) = (
            &compute.usage().devices[OTHER_DEVICE],
            &compute.meters[OTHER_DEVICE],
        );
        let slot = compute
            .program
            .slots
            .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        let mut watch = Watch::new();
        assert_eq!(
            watch.step(compute, &compute.gates()),
            Step::default(),
            "the gate is open"
        );
        control.devices[OTHER_DEVICE]
            .gate
            .store(Gate::Track as u32, Relaxed);
        assert_eq!(watch.step(compute, &compute.gates()), Step::default());
        slot.enter(Submission::Kernel);
        compute.samplers[OTHER_DEVICE].note_unknown(sys::now());
        meter.note(compute.session, slot, 1);
        usage.submitted_nsec.store(UNKNOWN_COST + 7, Relaxed);
        for _ in 0..3 {
            assert!(watch.step(compute, &compute.gates()).wake.is_some());
            assert!(usage.busy(u64::MAX).1);
        }
        assert!(usage.submitted_nsec.load(Relaxed) > UNKNOWN_COST);
        slot.uncount(Submission::Kernel);
        while watch.step(compute, &compute.gates()).wake.is_some() {}
        assert!(!usage.busy(u64::MAX).1);
        let (busy, told) = (usage.busy(u64::MAX).0, usage.submitted_nsec.load(Relaxed));
        assert!(
            (busy..UNKNOWN_COST / 2).contains(&told),
            "{told}: it had work for {busy} ns"
        );
    }

    #[test]
    fn end_of_work_is_news_only_if_wanted() {
        for (wants, told) in [(0, false), (BELL_AT_BEGIN, false), (BELL_AT_END, true)] {
            let compute = Compute::of_test(NO_LIMIT);
            let (control, file) = block::of_daemon();
            control.publish();
            compute.adopt(&file);
            let device = &control.devices[OTHER_DEVICE];
            device.gate.store(Gate::Track as u32, Relaxed);
            device.wants_bell.store(wants, Relaxed);
            let mut watch = Watch::new();
            watch.step(compute, &compute.gates());
            let slot =
                compute
                    .program
                    .slots
                    .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
            compute.meters[OTHER_DEVICE].note(compute.session, slot, 1);
            let mut has_news = false;
            loop {
                let step = watch.step(compute, &compute.gates());
                has_news |= step.has_news;
                if step.wake.is_none() {
                    break;
                }
            }
            assert_eq!(has_news, told, "{wants}");
        }
    }

    #[test]
    fn open_gate_stops_meter() {
        let compute = Compute::of_test(NO_LIMIT);
        let (control, file) = block::of_daemon();
        control.publish();
        compute.adopt(&file);
        let gate = &control.devices[OTHER_DEVICE].gate;
        gate.store(Gate::Arbitrate as u32, Relaxed);
        let mut watch = Watch::new();
        watch.step(compute, &compute.gates());
        let slot = compute
            .program
            .slots
            .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        slot.enter(Submission::Kernel);
        compute.meters[OTHER_DEVICE].note(compute.session, slot, 1);
        gate.store(Gate::Run as u32, Relaxed);
        assert_eq!(watch.step(compute, &compute.gates()), Step::default());
        assert!(!compute.usage().devices[OTHER_DEVICE].busy(u64::MAX).1);
    }
}
