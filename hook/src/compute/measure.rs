//! Measures in the helper thread for how long a device has work while its gate is open, without a look at
//! each submission.
//!
//! While the device is idle, its slots are armed: the next submission takes the slow path, begins the busy
//! period (`meter`) and wakes the helper, which opens the slots again. From then on it marks all contexts,
//! less often the longer the period lasts. If a marker has passed and nothing was submitted since it was set,
//! the work has ended between the last two looks; the slots are armed, and the period ends unless a
//! submission came in between. Time between two submissions that no look falls into counts as work.
//!
//! Only markers of whole contexts (`cuCtxRecordEvent`, CUDA 12.5) are used: a marker on the legacy stream
//! would make streams wait for each other. With older drivers the time is measured by `watch`, while the
//! daemon wants it.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};
use std::time::Duration;

use gcgroup_abi::{Gate, MAX_DEVICES, UsageDevice};

use super::Compute;
use super::meter::{Meter, ring_if_wanted};
use crate::driver::exit::in_driver;
use crate::helper::Step;
use crate::program::context::{Passed, PendingMarker, ask_all};
use crate::sys;

/// Shortest and longest interval between looks, nanoseconds. In between it is a part of the length of the
/// busy period; from [`STEADY`] times the longest interval on it grows further, up to [`SELDOM`].
const SOON: u64 = 100_000;
const LATER: u64 = 2_000_000;
const SELDOM: u64 = 8_000_000;
const PART: u64 = 4;
const STEADY: u64 = 256;
/// Failures to set markers on a device, one after the other, after which it is not measured for [`RETRY`].
const MOST_FAILED: u32 = 8;
const RETRY: u64 = 60_000_000_000;

#[derive(Debug)]
struct Round {
    markers: Vec<PendingMarker>,
    /// Number of submissions that had begun before the markers were set.
    entered: u64,
    /// When they were set, nanoseconds.
    since: u64,
}

/// The looks of one busy period.
#[derive(Debug)]
struct Looks {
    /// Times in nanoseconds.
    began: u64,
    next: u64,
    /// When there was last seen to be work.
    last_busy: u64,
    round: Option<Round>,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is measured.
    Off,
    /// Idle.
    Armed,
    Busy(Looks),
}

/// Failures to set markers on one device.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    /// When it is tried again, nanoseconds; 0: it can be measured.
    until: u64,
}

#[derive(Debug)]
pub(crate) struct Measure {
    phases: Vec<Phase>,
    failures: Vec<Failures>,
    /// State of the generator that varies the intervals, so that they do not fall in step with the program.
    random: u64,
}

impl Measure {
    pub(crate) fn new() -> Self {
        Self {
            phases: (0..MAX_DEVICES).map(|_| Phase::Off).collect(),
            failures: (0..MAX_DEVICES).map(|_| Failures::default()).collect(),
            random: sys::now() | 1,
        }
    }

    /// Advances as far as possible without waiting.
    pub(crate) fn step(&mut self, compute: &Compute) -> Step {
        let now = sys::now();
        for failures in self.failures.iter_mut().filter(|failures| failures.until <= now) {
            failures.until = 0;
        }
        let can = self.failures.iter().all(|failures| failures.until == 0);
        // The daemon asks to be rung when work begins only once it knows that this process tells.
        let has_news = compute.usage().measures_time.swap(can.into(), Relaxed) != u32::from(can);
        let mut wake = None;
        for index in 0..MAX_DEVICES {
            let (Some(control), Some(usage), Some(meter), Some(phase)) = (
                compute.control().devices.get(index),
                compute.usage().devices.get(index),
                compute.meters.get(index),
                self.phases.get_mut(index),
            ) else {
                continue;
            };
            let phase = std::mem::replace(phase, Phase::Off);
            let is_open = Gate::from_word(control.gate.load(Acquire)) == Gate::Run;
            let is_wanted = can && control.measures_time.load(Relaxed) != 0;
            let next = match is_wanted && is_open {
                true => self.advance(compute, index, (meter, usage), phase),
                false => stop(compute, index, meter, is_open, phase),
            };
            if let Phase::Busy(looks) = &next {
                let pause = Duration::from_nanos(looks.next.saturating_sub(sys::now()));
                wake = Some(wake.map_or(pause, |wake: Duration| wake.min(pause)));
            }
            if let Some(phase) = self.phases.get_mut(index) {
                *phase = next;
            }
        }
        Step { wake, has_news }
    }

    fn advance(
        &mut self,
        compute: &Compute,
        index: usize,
        (meter, usage): (&Meter, &UsageDevice),
        phase: Phase,
    ) -> Phase {
        let slots = &compute.program.slots;
        let now = sys::now();
        let mut looks = match phase {
            Phase::Armed if usage.busy_since.load(Relaxed) == 0 => return Phase::Armed,
            Phase::Armed => {
                slots.arm(compute.session, index, false);
                return Phase::Busy(Looks::begin(usage.busy_since.load(Relaxed), now));
            }
            Phase::Off => {
                arm(compute, index);
                if slots.nr_entered(compute.session, index) == 0 {
                    return Phase::Armed;
                }
                // Earlier work may be in flight.
                if meter.begin(compute.usage(), index, now) {
                    ring_if_wanted(compute.session, index);
                }
                Looks::begin(now, now)
            }
            Phase::Busy(looks) if now < looks.next => return Phase::Busy(looks),
            Phase::Busy(looks) => looks,
        };
        let round = looks.round.take().or_else(|| self.begin(compute, index, meter));
        let Some(mut round) = round else {
            looks.last_busy = now;
            slots.arm(compute.session, index, false);
            looks.schedule(now, &mut self.random);
            return Phase::Busy(looks);
        };
        match in_driver(|| ask_all(&mut round.markers)) {
            // The program exits.
            None => return Phase::Off,
            Some(Passed::NotYet) => {
                looks.last_busy = now;
                looks.round = Some(round);
            }
            Some(Passed::Lost) => round.markers.into_iter().for_each(PendingMarker::abandon),
            Some(Passed::Yes) if slots.nr_entered(compute.session, index) == round.entered => {
                let end = now - now.saturating_sub(looks.last_busy) / 2;
                arm(compute, index);
                let is_over = slots.nr_entered(compute.session, index) == round.entered
                    && !slots.is_any_inside(compute.session, |device| device == index)
                    && meter.end(compute.usage(), index, end);
                if is_over {
                    return Phase::Armed;
                }
            }
            Some(Passed::Yes) => {
                // Something was submitted after the markers.
                looks.last_busy = looks.last_busy.max(round.since);
                looks.round = self.begin(compute, index, meter);
                if let Some(round) = &mut looks.round
                    && in_driver(|| ask_all(&mut round.markers)) == Some(Passed::NotYet)
                {
                    looks.last_busy = now;
                }
            }
        }
        slots.arm(compute.session, index, false);
        looks.schedule(now, &mut self.random);
        Phase::Busy(looks)
    }

    /// Marks everything in flight; `None` if that cannot be done now: what a thread is about to submit would
    /// not be marked.
    fn begin(&mut self, compute: &Compute, index: usize, meter: &Meter) -> Option<Round> {
        // What was used is in flight, or has ended before the markers pass.
        meter.take();
        let mut round = Round {
            markers: Vec::new(),
            entered: compute.program.slots.nr_entered(compute.session, index),
            since: sys::now(),
        };
        let slots = &compute.program.slots;
        if slots.is_any_inside(compute.session, |device| device == index) {
            return None;
        }
        let contexts = compute
            .program
            .contexts
            .on(|local| compute.session.devices.index(local) == index);
        let set = compute.program.contexts.captures.unless_any(|| {
            in_driver(|| {
                let mut set = contexts
                    .iter()
                    .map(|context| context.mark_whole(&mut round.markers));
                set.try_fold(true, |all, one| Some(all & (one? == Passed::Yes)))
            })
        });
        match set.flatten() {
            Some(Some(true)) => {
                self.count(index, false);
                return Some(round);
            }
            Some(None) => self.count(index, true),
            _ => {}
        }
        round.markers.into_iter().for_each(PendingMarker::abandon);
        None
    }
}

impl Measure {
    /// Counts an attempt to set markers.
    fn count(&mut self, index: usize, has_failed: bool) {
        let Some(failures) = self.failures.get_mut(index) else {
            return;
        };
        failures.count = if has_failed { failures.count + 1 } else { 0 };
        if failures.count >= MOST_FAILED {
            *failures = Failures {
                count: 0,
                until: sys::now() + RETRY,
            };
        }
    }
}

impl Looks {
    fn begin(began: u64, now: u64) -> Self {
        Self {
            began,
            next: now,
            last_busy: now,
            round: None,
        }
    }

    /// Sets the time of the next look.
    fn schedule(&mut self, now: u64, random: &mut u64) {
        let length = now.saturating_sub(self.began);
        let pause = (length / PART)
            .clamp(SOON, LATER)
            .max((length / STEADY).min(SELDOM));
        // Xorshift (Marsaglia, 2003): three quarters to five quarters of it.
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        self.next = now + pause * 3 / 4 + *random % (pause / 2 + 1);
    }
}

/// Sends the next submission to a device through the slow path. Every thread has seen that afterwards, or is
/// counted.
fn arm(compute: &Compute, index: usize) {
    compute.program.slots.arm(compute.session, index, true);
    sys::barrier();
}

/// Ends measuring. If the gate is no longer open, `watch` goes on with the busy period.
fn stop(compute: &Compute, index: usize, meter: &Meter, is_open: bool, phase: Phase) -> Phase {
    match phase {
        Phase::Off => return Phase::Off,
        Phase::Armed => {}
        Phase::Busy(looks) => {
            let round = looks.round.into_iter().flat_map(|round| round.markers);
            round.for_each(PendingMarker::abandon);
        }
    }
    compute.program.slots.arm(compute.session, index, false);
    // A submission may have begun a period since the last look.
    if is_open {
        meter.stop(compute.usage(), index, sys::now());
    }
    Phase::Off
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::slot::Bound;
    use crate::shared::block;
    use crate::shared::device::LocalDevice;
    use gcgroup_abi::{Control, NO_LIMIT, OTHER_DEVICE, Submission};

    fn measured() -> (&'static Compute, &'static Control, Bound<'static>) {
        let compute = Compute::of_test(NO_LIMIT);
        let (control, file) = block::of_daemon();
        control.publish();
        compute.adopt(&file);
        control.devices[OTHER_DEVICE].measures_time.store(1, Relaxed);
        let local = LocalDevice::of(0).unwrap();
        let slot = compute
            .program
            .slots
            .of_test(compute.session, local, OTHER_DEVICE);
        (compute, control, slot)
    }

    fn is_busy(compute: &Compute) -> bool {
        compute.usage().devices[OTHER_DEVICE].busy(u64::MAX).1
    }

    fn is_armed(compute: &Compute) -> bool {
        compute.program.slots.is_armed(OTHER_DEVICE)
    }

    /// Steps until the helper would sleep.
    fn settle(measure: &mut Measure, compute: &Compute) {
        while measure.step(compute).wake.is_some() {}
    }

    #[test]
    fn period_begins_with_a_submission_and_ends_after_it() {
        let (compute, _, slot) = measured();
        let mut measure = Measure::new();
        assert!(
            measure.step(compute).has_news,
            "the daemon learns that it measures"
        );
        assert!(is_armed(compute) && !is_busy(compute));
        assert_eq!(measure.step(compute), Step::default(), "nothing to do while idle");
        for _ in 0..2 {
            slot.enter(Submission::Kernel);
            compute.meters[OTHER_DEVICE].note(compute.session, slot, 7);
            for _ in 0..3 {
                assert!(measure.step(compute).wake.is_some(), "a thread is inside");
                assert!(is_busy(compute));
            }
            assert!(!is_armed(compute), "submissions pass without a look");
            slot.uncount(Submission::Kernel);
            settle(&mut measure, compute);
            assert!(is_armed(compute) && !is_busy(compute));
        }
    }

    #[test]
    fn nothing_is_marked_while_a_thread_is_inside() {
        let (compute, _, slot) = measured();
        let mut measure = Measure::new();
        measure.step(compute);
        slot.enter(Submission::Graph);
        compute.meters[OTHER_DEVICE].note(compute.session, slot, 7);
        for _ in 0..3 {
            measure.step(compute);
            let phase = &measure.phases[OTHER_DEVICE];
            assert!(matches!(phase, Phase::Busy(looks) if looks.round.is_none()));
        }
        slot.exit(Submission::Graph);
        settle(&mut measure, compute);
        assert!(!is_busy(compute));
    }

    #[test]
    fn period_that_nobody_has_seen_begin_ends_with_measuring() {
        let (compute, control, slot) = measured();
        let mut measure = Measure::new();
        measure.step(compute);
        compute.meters[OTHER_DEVICE].note(compute.session, slot, 7);
        control.devices[OTHER_DEVICE].measures_time.store(0, Relaxed);
        measure.step(compute);
        assert!(!is_busy(compute) && !is_armed(compute));
    }

    #[test]
    fn device_that_cannot_be_marked_is_left_for_a_while() {
        let (compute, _, _) = measured();
        let mut measure = Measure::new();
        for _ in 0..MOST_FAILED {
            assert_eq!(compute.usage().measures_time.load(Relaxed), 0);
            measure.count(OTHER_DEVICE, true);
        }
        assert!(!measure.step(compute).has_news && !is_armed(compute));
        measure.failures[OTHER_DEVICE].until = 1;
        assert!(measure.step(compute).has_news && is_armed(compute));
    }

    #[test]
    fn earlier_submissions_are_looked_for() {
        let (compute, _, slot) = measured();
        slot.enter(Submission::Graph);
        let mut measure = Measure::new();
        assert!(measure.step(compute).wake.is_some());
        assert!(is_busy(compute) && !is_armed(compute));
        slot.uncount(Submission::Graph);
        settle(&mut measure, compute);
        assert!(is_armed(compute) && !is_busy(compute));
    }

    #[test]
    fn other_gates_and_the_daemon_end_it() {
        let (compute, control, slot) = measured();
        let device = &control.devices[OTHER_DEVICE];
        let mut measure = Measure::new();
        for (gate, measures, goes_on) in [(Gate::Track, 1, true), (Gate::Run, 0, false)] {
            device.gate.store(Gate::Run as u32, Relaxed);
            device.measures_time.store(1, Relaxed);
            settle(&mut measure, compute);
            slot.enter(Submission::Kernel);
            compute.meters[OTHER_DEVICE].note(compute.session, slot, 7);
            measure.step(compute);
            device.gate.store(gate as u32, Relaxed);
            device.measures_time.store(measures, Relaxed);
            assert_eq!(measure.step(compute), Step::default());
            assert!(!is_armed(compute));
            assert_eq!(is_busy(compute), goes_on, "{gate:?}");
            slot.uncount(Submission::Kernel);
            compute.meters[OTHER_DEVICE].stop(compute.usage(), OTHER_DEVICE, sys::now());
        }
    }

    #[test]
    fn looks_become_rare_but_not_too_rare() {
        let mut random = 1;
        for (length, least, most) in [
            (0, SOON * 3 / 4, SOON * 5 / 4),
            (4_000_000, 750_000, 1_250_000),
            (100_000_000, LATER * 3 / 4, LATER * 5 / 4),
            (60_000_000_000, SELDOM * 3 / 4, SELDOM * 5 / 4),
        ] {
            for _ in 0..100 {
                let mut looks = Looks::begin(5, 5);
                looks.schedule(5 + length, &mut random);
                let pause = looks.next - 5 - length;
                assert!((least..=most).contains(&pause), "{length}: {pause}");
            }
        }
    }
}
