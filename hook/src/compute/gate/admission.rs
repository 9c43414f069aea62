//! Admission: a submission takes room in the in-flight window, or waits for it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::{ControlDevice, Gate, Pressure, UNKNOWN_COST, UsageDevice};

use super::{MOST_TIMEOUTS, Passing};
use crate::compute::meter::ring_if_wanted;
use crate::compute::wait::{PATIENCE, Waiting, doze, nap};
use crate::driver::exit;
use crate::program::slot::Charge;
use crate::program::window::{Admission, CHARGED, Window};
use crate::shared::stall::Stalled;
use crate::sys;

/// Lower limit of a window, nanoseconds.
const LEAST_WINDOW: u64 = 50_000;

impl Passing<'_> {
    pub(super) fn with_window<T>(&self, body: impl FnOnce(&mut Window) -> T) -> T {
        let state = self.bound.state;
        // Taken out, so that no lock is held during driver calls; no other thread uses it.
        let mut window = state.window.lock().take().unwrap_or_default();
        let result = body(&mut window);
        *state.window.lock() = Some(window);
        result
    }

    /// Admits a submission; if there is no room, returns the nanoseconds until there may be.
    pub(super) fn take_room(
        &mut self,
        control: &ControlDevice,
        usage: &UsageDevice,
        stream: usize,
    ) -> Option<u64> {
        let window = window(control);
        let captures = &self.compute.program.contexts.captures;
        let mut charge = Charge::Looks;
        let left = self.with_window(|queue| {
            // A marker could become part of a graph. A capturing program does not keep a device busy for
            // long.
            if captures.is_any() {
                return None;
            }
            let context = self.compute.program.contexts.numbered(self.bound.context());
            let now = sys::now();
            queue.set_charged(control.usage_nsec.load(Relaxed));
            queue.set_gap(control.gap_until.load(Relaxed), now);
            let admission = if self.credit {
                Admission::Room
            } else {
                queue.admission(context.as_ref(), self.shape, stream, window, now)
            };
            match admission {
                Admission::Later(nanoseconds) => Some(nanoseconds),
                Admission::Room => {
                    let is_known = queue.knows(self.shape);
                    let guess = queue.submit(self.shape, stream, now);
                    let sampler = self.compute.samplers.get(self.bound.index());
                    let sampled = sampler.and_then(|sampler| sampler.cost(self.shape));
                    // The cost of a long submission is learned from the GPU time that is charged for it: it
                    // must not bound that.
                    let is_unknown = sampled.is_none() && !(is_known && guess < CHARGED);
                    let cost = sampled.unwrap_or(guess);
                    charge = if is_unknown {
                        Charge::Unknown(cost)
                    } else {
                        Charge::Known(cost)
                    };
                    usage
                        .submitted_nsec
                        .fetch_add(cost + u64::from(is_unknown) * UNKNOWN_COST, Relaxed);
                    if let Some(sampler) = sampler {
                        sampler.note_charged(self.shape.what, cost);
                        // Only after it is published may the helper subtract it again.
                        if is_unknown {
                            sampler.note_unknown(now);
                        }
                    }
                    // Each thread knows its own queue only; the queues of several run at the same time.
                    usage.queued_until.store(now + queue.likely(now), Relaxed);
                    None
                }
            }
        });
        self.charge = charge;
        left
    }

    /// Returns the nanoseconds until a queued submission of the thread ends: polling then teaches its cost.
    /// Another process has the device meanwhile.
    pub(super) fn next_end(&self, control: &ControlDevice, stream: usize) -> Option<u64> {
        if self.compute.program.contexts.captures.is_any() {
            return None;
        }
        let context = self.compute.program.contexts.numbered(self.bound.context());
        self.with_window(|queue| {
            let now = sys::now();
            queue.disturb(window(control), now);
            queue.next_end(context.as_ref(), stream, now)
        })
    }

    pub(super) fn wait_for_room(
        &mut self,
        control: &ControlDevice,
        usage: &UsageDevice,
        stream: usize,
        mut nanoseconds: u64,
    ) {
        let word = control.gate.load(Relaxed);
        let began = sys::now();
        let window = window(control);
        let (longest, tried) = self.with_window(|queue| (queue.longest(), queue.tried()));
        let patience = room_patience(window, longest, told(control) << tried.min(MOST_TIMEOUTS));
        let before = self.waited;
        let _stalled = Stalled::new(self.compute.usage(), Pressure::Compute);
        let _waiting = Waiting::new(usage, &usage.nr_throttled, &usage.throttled_usec, began);
        // It may wait for the end of a gap that the daemon does not know to be waited for.
        ring_if_wanted(self.compute.session, self.bound.index());
        let captures = &self.compute.program.contexts.captures;
        // On a change of the gate, `enter` decides what to wait for.
        while control.gate.load(Relaxed) == word && !exit::is_exiting() && !captures.is_any() {
            self.waited = before + sys::now().saturating_sub(began);
            if self.waited >= patience {
                self.credit = true;
                self.with_window(|queue| queue.try_more());
                usage.gate_timeouts.fetch_add(1, Relaxed);
                return;
            }
            let nap = nap(nanoseconds).min(patience - self.waited);
            doze(&control.gate, word, Duration::from_nanos(nap));
            let is_disturbed = [word, control.gate.load(Relaxed)].contains(&(Gate::Throttled as u32));
            let context = self.compute.program.contexts.numbered(self.bound.context());
            let admission = self.with_window(|queue| {
                let now = sys::now();
                if is_disturbed {
                    queue.disturb(window, now);
                }
                queue.set_gap(control.gap_until.load(Relaxed), now);
                queue.admission(context.as_ref(), self.shape, stream, window, now)
            });
            match admission {
                Admission::Room => return,
                Admission::Later(left) => nanoseconds = left,
            }
        }
        self.waited = before + sys::now().saturating_sub(began);
    }
}

/// Returns the GPU time that may be queued, nanoseconds.
pub(super) fn window(control: &ControlDevice) -> u64 {
    (u64::from(control.window_usec.load(Relaxed)) * 1000).max(LEAST_WINDOW)
}

/// Returns the patience that the daemon asks for, nanoseconds, at least [`PATIENCE`]. After it, a waiting
/// thread lets a batch through.
pub(super) fn told(control: &ControlDevice) -> u64 {
    (u64::from(control.patience_usec.load(Relaxed)) * 1000).max(PATIENCE)
}

/// Returns how long to wait for room, nanoseconds: twice the longest submission, because one that takes
/// longer may be waiting for something. The longest may have waited too, so the limit is `told`; of the first
/// of a shape nothing is known (`None`).
fn room_patience(window: u64, longest: Option<u64>, told: u64) -> u64 {
    let longest = longest.map_or(told, |longest| longest.saturating_mul(2).min(told));
    (2 * window).max(PATIENCE).max(longest)
}

#[cfg(test)]
mod tests {
    use gcgroup_abi::{NO_LIMIT, OTHER_DEVICE, Submission};

    use super::*;
    use crate::compute::Compute;
    use crate::shared::block;
    use crate::shared::device::LocalDevice;

    fn passing(compute: &'static Compute) -> Passing<'static> {
        let device = LocalDevice::of(0).unwrap();
        Passing {
            compute,
            known: &|_| None,
            bound: compute
                .program
                .slots
                .of_test(compute.session, device, OTHER_DEVICE),
            shape: Submission::Kernel.into(),
            is_nested: false,
            credit: false,
            timeouts: 0,
            waited: 0,
            charge: Charge::Looks,
        }
    }

    /// The daemon divides time in which several computees have work by this GPU time.
    #[test]
    fn admission_publishes_gpu_time() {
        let compute = Compute::of_test(NO_LIMIT);
        let mut passing = passing(compute);
        let (usage, control) = compute.session.device(passing.bound.index()).unwrap();
        let began = sys::now();
        assert_eq!(passing.take_room(control, usage, 1), None);
        assert!(usage.submitted_nsec.load(Relaxed) > 0);
        assert!(usage.queued_until.load(Relaxed) > began);
    }

    #[test]
    fn wait_for_room_counts_across_gate_changes() {
        const SECOND: u64 = 1_000_000_000;
        let compute = Compute::of_test(NO_LIMIT);
        let (daemons, file) = block::of_daemon();
        daemons.publish();
        compute.adopt(&file);
        let daemons = &daemons.devices[OTHER_DEVICE];
        let mut passing = passing(compute);
        let (usage, control) = compute.session.device(passing.bound.index()).unwrap();
        daemons.window_usec.store(1_000_000, Relaxed);
        while passing.take_room(control, usage, 1).is_none() {}
        passing.waited = SECOND;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while usage.nr_waiting.load(Relaxed) == 0 {
                    std::thread::yield_now();
                }
                daemons.gate.store(Gate::Throttled as u32, Relaxed);
            });
            passing.wait_for_room(control, usage, 1, SECOND);
        });
        assert!(!passing.credit && passing.waited > SECOND);
        passing.waited = 2 * SECOND;
        passing.wait_for_room(control, usage, 1, SECOND);
        assert!(passing.credit, "its patience has ended");
        assert_eq!(usage.gate_timeouts.load(Relaxed), 1);
    }

    #[test]
    fn patience_is_twice_the_longest_up_to_the_daemons() {
        const MSEC: u64 = 1_000_000;
        for (window, longest, patience) in [
            (MSEC / 2, Some(0), PATIENCE),
            (20 * MSEC, Some(0), 40 * MSEC),
            (MSEC / 2, Some(10 * MSEC), 20 * MSEC),
            // It has probably waited for a flag.
            (MSEC / 2, Some(4000 * MSEC), 250 * MSEC),
            (MSEC / 2, Some(u64::MAX), 250 * MSEC),
            (MSEC / 2, None, 250 * MSEC),
        ] {
            assert_eq!(
                room_patience(window, longest, 250 * MSEC),
                patience,
                "{window} {longest:?}"
            );
        }
    }
}
