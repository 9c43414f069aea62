//! Measures in the helper thread for how long a device has work while its gate is open, without a look at
//! each submission.
//!
//! While the device is idle, its slots are armed: the next submission takes the slow path and begins the busy
//! period (`meter`). The helper looks for that itself for a second after the last period, and is woken later
//! on. It opens the slots again unless submissions can be sampled (`sample`). From then on it marks all
//! contexts, less often the longer the period lasts. If a marker has passed and nothing was submitted since
//! it was set, the work has ended between the last two looks; the slots are armed, and the period ends unless
//! a submission came in between. Time between two submissions that no look falls into counts as work.
//!
//! Only markers of whole contexts (`cuCtxRecordEvent`, CUDA 12.5) are used: a marker on the legacy stream
//! would make streams wait for each other. With older drivers the time is measured by `watch`, while the
//! daemon wants it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::{Gate, MAX_DEVICES, UsageDevice};

use super::meter::{Meter, ring_if_wanted};
use super::sample::Progress;
use super::{Compute, Gates};
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
/// Longest interval between looks for work that begins, and how long the device has been idle when they end,
/// nanoseconds: until then, the first submission after a pause does not pay for waking the helper.
const REST: u64 = 64_000_000;
const RESTS: u64 = 1_000_000_000;
/// Time that a look uses up, and how far looks may be ahead of that rate, nanoseconds: a program that submits
/// little and waits for it again and again does not keep the helper busy.
const COST: u64 = 1_000_000;
const MOST_AHEAD: u64 = 100_000_000;
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
    /// Time of the last look.
    last: u64,
    round: Option<Round>,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is measured.
    Off,
    /// Idle. Since when the helper looks by itself for work that begins, nanoseconds; `None`: it is woken.
    Armed(Option<u64>),
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
    pace: Pace,
}

/// State of all looks of the process.
#[derive(Debug)]
struct Pace {
    /// State of the generator that varies the intervals, so that they do not fall in step with the program.
    random: u64,
    /// Time at which the looks so far would have been due at one each [`COST`], nanoseconds (generic cell
    /// rate algorithm, ITU-T I.371).
    due: u64,
}

impl Measure {
    pub(crate) fn new() -> Self {
        Self {
            phases: (0..MAX_DEVICES).map(|_| Phase::Off).collect(),
            failures: (0..MAX_DEVICES).map(|_| Failures::default()).collect(),
            pace: Pace {
                random: sys::now() | 1,
                due: 0,
            },
        }
    }

    /// Advances as far as possible without waiting.
    pub(crate) fn step(&mut self, compute: &Compute, gates: &Gates) -> Step {
        let now = sys::now();
        for failures in self.failures.iter_mut().filter(|failures| failures.until <= now) {
            failures.until = 0;
        }
        let can = self.failures.iter().all(|failures| failures.until == 0);
        // The daemon asks to be rung when work begins only once it knows that this process tells.
        let has_news = compute.usage().measures_time.swap(can.into(), Relaxed) != u32::from(can);
        let mut wake = None;
        for (index, gate) in gates.iter().enumerate() {
            let (Some((usage, control)), Some(meter), Some(phase)) = (
                compute.session.device(index),
                compute.meters.get(index),
                self.phases.get_mut(index),
            ) else {
                continue;
            };
            let phase = std::mem::replace(phase, Phase::Off);
            let is_open = *gate == Gate::Run;
            let is_wanted = can && control.measures_time.load(Relaxed) != 0;
            let next = match is_wanted && is_open {
                true => self.advance(compute, index, (meter, usage), phase),
                false => stop(compute, index, meter, is_open, phase, now),
            };
            let now = sys::now();
            let pause = match &next {
                Phase::Busy(looks) => Some(looks.next.saturating_sub(now)),
                Phase::Armed(since) => since.map(|since| (now - since).clamp(LATER, REST)),
                Phase::Off => None,
            };
            wake = wake.into_iter().chain(pause.map(Duration::from_nanos)).min();
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
            Phase::Armed(Some(since)) if usage.busy_since.load(Relaxed) == 0 && now < since + RESTS => {
                return Phase::Armed(Some(since));
            }
            Phase::Armed(is_polled) => {
                meter.poll(false);
                if usage.busy_since.load(Relaxed) == 0 {
                    return Phase::Armed(None);
                }
                if is_polled.is_some() {
                    ring_if_wanted(compute.session, index);
                }
                arm_for_samples(compute, index, now);
                return Phase::Busy(Looks::begin(usage.busy_since.load(Relaxed), now));
            }
            Phase::Off => {
                compute.account(index, Progress::Unseen, 0);
                arm(compute, index);
                if slots.nr_entered(compute.session, index) == 0 {
                    return Phase::Armed(None);
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
        let passed = now.saturating_sub(std::mem::replace(&mut looks.last, now));
        let Some(mut round) = round else {
            looks.last_busy = now;
            compute.account(index, Progress::Unseen, passed);
            arm_for_samples(compute, index, now);
            looks.schedule(now, &mut self.pace);
            return Phase::Busy(looks);
        };
        match in_driver(|| ask_all(&mut round.markers)) {
            // The program exits.
            None => return Phase::Off,
            Some(Passed::NotYet) => {
                looks.last_busy = now;
                let since = now.saturating_sub(round.since).min(passed);
                compute.account(index, Progress::None, since);
                looks.round = Some(round);
            }
            Some(Passed::Lost) => round.markers.into_iter().for_each(PendingMarker::abandon),
            Some(Passed::Yes) if slots.nr_entered(compute.session, index) == round.entered => {
                compute.account(index, Progress::Idle, passed);
                let end = now - now.saturating_sub(looks.last_busy) / 2;
                arm(compute, index);
                let is_over = slots.nr_entered(compute.session, index) == round.entered
                    && !slots.is_any_inside(compute.session, |device| device == index)
                    && meter.end(compute.usage(), index, end);
                if is_over {
                    compute.settle_unknown(index);
                    meter.poll(true);
                    return Phase::Armed(Some(now));
                }
            }
            Some(Passed::Yes) => {
                // Something was submitted after the markers.
                compute.account(index, Progress::Some, passed);
                looks.last_busy = looks.last_busy.max(round.since);
                looks.round = self.begin(compute, index, meter);
                if let Some(round) = &mut looks.round
                    && in_driver(|| ask_all(&mut round.markers)) == Some(Passed::NotYet)
                {
                    looks.last_busy = now;
                }
            }
        }
        arm_for_samples(compute, index, now);
        looks.schedule(now, &mut self.pace);
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
            last: now,
            round: None,
        }
    }

    /// Sets the time of the next look.
    fn schedule(&mut self, now: u64, pace: &mut Pace) {
        let length = now.saturating_sub(self.began);
        let pause = (length / PART)
            .clamp(SOON, LATER)
            .max((length / STEADY).min(SELDOM));
        // Xorshift (Marsaglia, 2003): three quarters to five quarters of it.
        let random = &mut pace.random;
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let pause = pause * 3 / 4 + *random % (pause / 2 + 1);
        pace.due = pace.due.max(now) + COST;
        self.next = (now + pause).max(pace.due.saturating_sub(MOST_AHEAD));
    }
}

/// Sends the next submission to a device through the slow path. Every thread has seen that afterwards, or is
/// counted.
fn arm(compute: &Compute, index: usize) {
    send(compute, index, true);
    sys::barrier();
}

/// Sends submissions to a device through the slow path while they can be sampled.
fn arm_for_samples(compute: &Compute, index: usize, now: u64) {
    let may = compute
        .samplers
        .get(index)
        .is_some_and(|sampler| sampler.decide(now));
    send(compute, index, may);
}

fn send(compute: &Compute, index: usize, is_slow: bool) {
    let slots = &compute.program.slots;
    if slots.is_armed(index) == is_slow {
        return;
    }
    slots.arm(compute.session, index, is_slow);
    if let Some(sampler) = compute.samplers.get(index) {
        sampler.skip();
    }
}

/// Ends measuring. If the gate is no longer open, `watch` goes on with the busy period.
#[expect(clippy::too_many_arguments, reason = "one device")]
fn stop(compute: &Compute, index: usize, meter: &Meter, is_open: bool, phase: Phase, now: u64) -> Phase {
    if is_open && let Some(sampler) = compute.samplers.get(index) {
        sampler.pause();
    }
    match phase {
        Phase::Off => return Phase::Off,
        Phase::Armed(_) => {
            meter.poll(false);
            let usage = compute.usage().devices.get(index);
            if usage.is_some_and(|usage| usage.busy_since.load(Relaxed) != 0) {
                ring_if_wanted(compute.session, index);
            }
        }
        Phase::Busy(looks) => {
            if let Some(mut round) = looks.round {
                if !is_open && in_driver(|| ask_all(&mut round.markers)) == Some(Passed::NotYet) {
                    let since = now.saturating_sub(round.since.max(looks.last));
                    compute.account(index, Progress::None, since);
                }
                round.markers.into_iter().for_each(PendingMarker::abandon);
            }
        }
    }
    send(compute, index, false);
    // A submission may have begun a period since the last look.
    if is_open {
        meter.stop(compute.usage(), index, sys::now());
    }
    Phase::Off
}

#[cfg(test)]
mod tests;
