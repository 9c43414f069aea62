//! Drain: a frozen device is drained when nothing is submitted to it any more and all submitted work has
//! completed.
//!
//! Runs in the helper thread, in steps that do not wait, so that a thaw ends it at once. A device is reported
//! as drained only for the freeze during which all of this held, in this order: the gate is frozen; every
//! thread has passed a memory barrier since, and so sees it; no capture is in progress, and none can begin;
//! no thread is inside a submission to this device, or inside an older one to another; markers set after that
//! on every context and stream have passed.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::MAX_DEVICES;

use super::Compute;
use super::elsewhere;
use super::hold::Scope;
use super::quiet::{self, Quiet};
use crate::driver;
use crate::driver::cuda::CUerror;
use crate::driver::exit::in_driver;
use crate::helper::Step;
use crate::sys::{self, log};

/// First interval between checks; it grows.
const SOON: Duration = Duration::from_micros(20);
const SELDOM: Duration = Duration::from_millis(1);
/// Number of failed checks after which the driver's error is reported, if there is one: about 60 ms.
const STUCK: u32 = 64;

#[derive(Debug)]
enum Phase {
    /// No freeze, or already drained.
    Rest,
    /// Waiting for threads to leave submissions and for submitted work.
    Draining(Quiet),
}

#[derive(Debug)]
struct Device {
    generation: u32,
    phase: Phase,
    /// Failed checks since the freeze began.
    looks: u32,
}

#[derive(Debug)]
pub(crate) struct Drain {
    devices: Vec<Device>,
    pause: Duration,
    /// Whether the program has several devices; `None` until the driver was asked.
    are_several: Option<bool>,
}

impl Drain {
    pub(crate) fn new() -> Self {
        let devices = (0..MAX_DEVICES)
            .map(|_| Device {
                generation: 0,
                phase: Phase::Rest,
                looks: 0,
            })
            .collect();
        Self {
            devices,
            pause: SOON,
            are_several: None,
        }
    }

    /// Advances all drains as far as possible without waiting.
    pub(crate) fn step(&mut self, compute: &Compute) -> Step {
        let mut step = Step::default();
        self.watch(compute);
        if self.follow(compute) {
            sys::barrier();
            self.pause = SOON;
        }
        for (index, device) in self.devices.iter_mut().enumerate() {
            if device.advance(compute, index) {
                step.has_news = true;
            }
        }
        if self
            .devices
            .iter()
            .any(|device| !matches!(device.phase, Phase::Rest))
        {
            step.wake = Some(self.pause);
            self.pause = (self.pause * 2).min(SELDOM);
        }
        step
    }

    /// Sends submissions through the slow path while they may concern a frozen device that is not current.
    fn watch(&mut self, compute: &Compute) {
        let is_any_frozen = elsewhere::is_any_frozen(compute);
        if is_any_frozen && self.are_several.is_none() {
            let mut count = 0;
            let asked = in_driver(|| driver::cuDeviceGetCount(&mut count));
            self.are_several = matches!(asked, Some(Ok(()))).then_some(count > 1);
        }
        let are_several = self.are_several == Some(true);
        let is_wanted = || {
            is_any_frozen && are_several
                || compute.holds.is_any()
                || compute.program.contexts.captures.is_any()
        };
        compute.program.slots.watch(compute.session, is_wanted());
        // A hold or capture may have begun in between.
        if is_wanted() {
            compute.program.slots.watch(compute.session, true);
        }
    }

    /// Starts drains for new freezes and drops those of thawed devices. Returns whether one was started.
    fn follow(&mut self, compute: &Compute) -> bool {
        let mut has_begun = false;
        for ((device, control), usage) in self
            .devices
            .iter_mut()
            .zip(&compute.control().devices)
            .zip(&compute.usage().devices)
        {
            let (generation, is_frozen) = control.freeze_state();
            let is_wanted = is_frozen && usage.drained_generation.load(Relaxed) != generation;
            let is_under_way = !matches!(device.phase, Phase::Rest);
            if is_under_way && (!is_wanted || device.generation != generation) {
                device.give_up();
                usage.drain_error.store(0, Relaxed);
            }
            if is_wanted && matches!(device.phase, Phase::Rest) {
                *device = Device {
                    generation,
                    phase: Phase::Draining(Quiet::default()),
                    looks: 0,
                };
                has_begun = true;
            }
        }
        has_begun
    }
}

impl Device {
    fn give_up(&mut self) {
        if let Phase::Draining(quiet) = std::mem::replace(&mut self.phase, Phase::Rest) {
            quiet.abandon();
        }
    }

    /// Advances one drain. Returns whether the device has become drained, or the reported error has changed.
    fn advance(&mut self, compute: &Compute, index: usize) -> bool {
        let Phase::Draining(quiet) = &mut self.phase else {
            return false;
        };
        let scope = Scope::Device(index);
        if !quiet.step(compute, scope) {
            self.looks = self.looks.saturating_add(1);
            return self.looks >= STUCK && report_error(compute, index, quiet::fault(compute, scope));
        }
        self.phase = Phase::Rest;
        self.publish(compute, index)
    }

    /// Publishes that the device is drained, unless it was thawed meanwhile.
    fn publish(&self, compute: &Compute, index: usize) -> bool {
        let Some((usage, control)) = compute.session.device(index) else {
            return false;
        };
        usage.drain_error.store(0, Relaxed);
        let is_drained = usage.report_drained(control, self.generation);
        if is_drained {
            log::line(|| format!("frozen on GPU {index}: submitted work has completed"));
        }
        is_drained
    }
}

/// Publishes the driver's error that prevents the drain, or that there is none any more. Returns whether it
/// has changed.
fn report_error(compute: &Compute, index: usize, error: Option<CUerror>) -> bool {
    let Some(usage) = compute.usage().devices.get(index) else {
        return false;
    };
    let error = error.map_or(0, |error| error.0.get());
    usage.drain_error.swap(error, Relaxed) != error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::block;
    use crate::shared::device::LocalDevice;
    use gcgroup_abi::{Control, Gate, NO_LIMIT, OTHER_DEVICE, Submission};

    fn governed() -> (&'static Compute, &'static Control) {
        let compute = Compute::of_test(NO_LIMIT);
        let (control, file) = block::of_daemon();
        control.publish();
        compute.adopt(&file);
        (compute, control)
    }

    fn set(control: &Control, gate: Gate) {
        let device = &control.devices[OTHER_DEVICE];
        device.freeze_generation.fetch_add(1, Relaxed);
        device.gate.store(gate as u32, Relaxed);
    }

    fn drained(compute: &Compute) -> u32 {
        compute.usage().devices[OTHER_DEVICE]
            .drained_generation
            .load(Relaxed)
    }

    #[test]
    fn process_without_submissions_is_drained_at_once() {
        let (compute, control) = governed();
        let mut drain = Drain::new();
        assert_eq!(drain.step(compute), Step::default());
        set(control, Gate::Frozen);
        assert_eq!(
            drain.step(compute),
            Step {
                wake: None,
                has_news: true
            }
        );
        assert_eq!(drained(compute), 1);
        assert_eq!(drain.step(compute), Step::default());
    }

    #[test]
    fn drain_waits_for_thread_inside_submission() {
        let (compute, control) = governed();
        let slot = compute
            .program
            .slots
            .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        slot.enter(Submission::Kernel);
        set(control, Gate::Frozen);
        let mut drain = Drain::new();
        let step = drain.step(compute);
        assert!(step.wake.is_some() && !step.has_news);
        assert_eq!(drained(compute), 0);
        slot.uncount(Submission::Kernel);
        assert!(drain.step(compute).has_news);
        assert_eq!(drained(compute), 1);
    }

    #[test]
    fn thaw_ends_drain_and_next_freeze_starts_again() {
        let (compute, control) = governed();
        let slot = compute
            .program
            .slots
            .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        slot.enter(Submission::Kernel);
        let mut drain = Drain::new();
        set(control, Gate::Frozen);
        drain.step(compute);
        set(control, Gate::Run);
        assert_eq!(drain.step(compute), Step::default());
        slot.uncount(Submission::Kernel);
        assert_eq!(drain.step(compute), Step::default());
        assert_eq!(drained(compute), 0, "never said of a freeze that is over");
        set(control, Gate::Frozen);
        assert!(drain.step(compute).has_news);
        assert_eq!(drained(compute), 3);
    }
}
