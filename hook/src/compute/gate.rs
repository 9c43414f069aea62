//! The gate: what a submission does when it may not simply pass.
//!
//! Who waits has taken its mark back, so a drain does not wait for it. Nobody waits who holds up others by it: threads
//! that capture a graph, calls from within a submission or a handler of ours, programs on their way out, forked
//! children (which find no process). A thread with no current context has the gate of its stream's device, and none for a
//! default stream; so a callback thread of the driver's, which may submit nothing, has none.
//!
//! Only a freeze holds without bound. Every other wait ends, at the latest when its patience does, and then a batch goes
//! through: work that waits for other work, of this process or of another, cannot stand still for it.

mod place;

use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Duration;

use gcgroup_abi::{ControlDevice, Entrance, Gate, Submission, UsageDevice};

use super::call::{Arguments, Call};
use super::meter::ring_if_wanted;
use super::reach::DeviceSet;
use super::slot::{Bound, unaccounted};
use super::wait::{RECHECK, Waiting, doze, is_frozen, nap, wait_closed, wait_frozen};
use super::{capture, context, elsewhere};
use crate::cuda::{CUresult, CUstream};
use crate::interpose::Next;
use crate::process::{self, Process};
use crate::{interpose, sys, thread};
use place::{told, window};

/// By how much patience grows when it was tried in vain.
const MOST_TIMEOUTS: u32 = 4;

/// Binds the calling thread to a slot and waits while the gate is held; returns the slot, already marked.
pub(crate) extern "C" fn admit(call: u32, arguments: Arguments) -> *const Entrance {
    let is_nested = thread::is_inside();
    let what = match call & 0xf {
        0 => Submission::Kernel,
        1 => Submission::Graph,
        _ => Submission::Copy,
    };
    interpose::guarded(|| admitted(what, Call::Passed(call, arguments), is_nested))
        .flatten()
        .unwrap_or_else(unaccounted)
}

/// `None` where nothing governs: the thread counts in the slot that is nobody's.
fn admitted(what: Submission, call: Call, mut is_nested: bool) -> Option<*const Entrance> {
    let process = process::get()?;
    if let Some(bound) = process.slots.current(process) {
        bound.uncount(what);
        bound.discount();
        bound.fold(process);
        is_nested |= bound.is_inside();
    }
    let bound = process.slots.bind_on(process, call.stream())?;
    let mut passing = Passing {
        process,
        bound,
        what,
        is_nested,
        credit: false,
        timeouts: 0,
        waited: 0,
    };
    passing.enter(call);
    Some(bound.entrance)
}

/// A submission whose call is handled, rather than passed on by `fast`: waits at the gate, and calls `body` marked.
/// Where nothing governs, `next`. It may do work on those devices too, beside the stream's.
pub(crate) fn submit(
    what: Submission,
    stream: CUstream,
    devices: DeviceSet,
    body: &dyn Fn(&UsageDevice) -> CUresult,
    next: Next<'_>,
) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    if process.contexts.captures.is_any() && capture::is_capturing(stream) == Some(true) {
        if let Some(bound) = process.slots.bind(process) {
            process.reach.capture(process, stream, bound.local());
        }
        return next();
    }
    let Some(bound) = process.slots.bind_on(process, stream.0.addr()) else {
        return next();
    };
    let mut passing = Passing {
        process,
        bound,
        what,
        is_nested: bound.is_inside(),
        credit: false,
        timeouts: 0,
        waited: 0,
    };
    passing.enter(Call::Handled(stream, devices));
    process
        .reach
        .launch(devices, || process.contexts.device_of(stream).or(bound.local()));
    let result = match blocks(process, bound) {
        Some((_, usage)) => body(usage),
        None => next(),
    };
    bound.exit(what);
    bound.fold(process);
    result
}

/// One submission on its way through.
struct Passing<'a> {
    process: &'a Process,
    bound: Bound<'a>,
    what: Submission,
    is_nested: bool,
    /// Whether it has waited for as long as it must.
    credit: bool,
    timeouts: u32,
    /// Nanoseconds for which it has waited for a place, however often the gate closed meanwhile.
    waited: u64,
}

impl Passing<'_> {
    /// Ends with the mark entered.
    fn enter(&mut self, call: Call) {
        loop {
            self.bound.enter(self.what);
            // The drain's barrier pairs with this one: either it sees the mark or we see the gate.
            fence(SeqCst);
            let Some((control, usage)) = blocks(self.process, self.bound) else {
                return;
            };
            if self.process.contexts.captures.is_any()
                && capture::is_capturing(context::stream(call.stream())) == Some(true)
            {
                let stream = context::stream(call.stream());
                self.process
                    .reach
                    .capture(self.process, stream, self.bound.local());
                return self.bound.count_captured(self.what);
            }
            let gate = Gate::from_word(control.gate.load(Relaxed));
            let is_watched = self.process.slots.are_watched();
            if (gate == Gate::Run && !is_watched) || self.may_not_wait() {
                return;
            }
            let stream = call.stream();
            if is_watched && let Some(index) = self.closed_device(call, stream) {
                self.bound.uncount(self.what);
                wait_closed(self.process, index);
                continue;
            }
            match gate {
                Gate::Frozen => {
                    self.bound.uncount(self.what);
                    wait_frozen(control, usage);
                }
                Gate::Throttled if !self.spend_credit() => {
                    self.bound.uncount(self.what);
                    self.wait_throttled(control, usage, stream);
                }
                Gate::Arbitrate | Gate::Throttled => {
                    if let Some(taken) = self.take_place(control, usage, stream) {
                        self.bound.uncount(self.what);
                        self.wait_for_place(control, usage, stream, taken);
                        continue;
                    }
                    return self.note(stream);
                }
                Gate::Run => return,
                _ => return self.note(stream),
            }
        }
    }

    /// A device that is held, or another than the current one that is frozen, and that the call concerns.
    fn closed_device(&self, call: Call, stream: usize) -> Option<usize> {
        let current = self.bound.index();
        if self.process.holds.word(current).is_some() {
            return Some(current);
        }
        elsewhere::closed(self.process, call, stream, current)
    }

    fn may_not_wait(&self) -> bool {
        self.is_nested || process::is_exiting() || self.is_capturing()
    }

    /// The thread's id is a system call, so first whether anybody captures.
    fn is_capturing(&self) -> bool {
        let captures = &self.process.contexts.captures;
        captures.is_any() && captures.is_by(sys::gettid())
    }

    fn note(&self, stream: usize) {
        if let Some(meter) = self.process.meters.get(self.bound.index()) {
            meter.note(self.process, self.bound, stream);
        }
    }

    /// Whether the thread still may submit some of a batch that was let through.
    fn spend_credit(&mut self) -> bool {
        let credit = &self.bound.side.credit;
        let left = credit.load(Relaxed);
        if left == 0 {
            return false;
        }
        credit.store(left - 1, Relaxed);
        true
    }

    fn wait_throttled(&mut self, control: &ControlDevice, usage: &UsageDevice, stream: usize) {
        let began = sys::now();
        let waiting = Waiting::new(usage, &usage.nr_throttled, &usage.throttled_usec, began);
        ring_if_wanted(self.process, self.bound.index());
        loop {
            let word = control.gate.load(Relaxed);
            if Gate::from_word(word) != Gate::Throttled || process::is_exiting() {
                self.timeouts = 0;
                self.with_window(|places| places.disturb(window(control), sys::now()));
                return;
            }
            let patience = told(control) << self.timeouts.min(MOST_TIMEOUTS);
            let waited = sys::now().saturating_sub(began);
            if waited >= patience {
                break;
            }
            let mut longest = Duration::from_nanos(patience - waited).min(RECHECK);
            if let Some(end) = self.next_end(control, stream) {
                longest = longest.min(Duration::from_nanos(nap(end)));
            }
            doze(&control.gate, word, longest);
        }
        drop(waiting);
        self.timeouts += 1;
        usage.gate_timeouts.fetch_add(1, Relaxed);
        let batch = self.with_window(|places| {
            let window = window(control);
            places.disturb(window, sys::now());
            places.batch(self.what, window)
        });
        self.bound.side.credit.store(batch, Relaxed);
    }
}

fn blocks<'a>(process: &'a Process, bound: Bound<'_>) -> Option<(&'a ControlDevice, &'a UsageDevice)> {
    let control = process.control().devices.get(bound.index())?;
    Some((control, process.usage().devices.get(bound.index())?))
}

/// Waits while the calling thread's gate is frozen, for calls that are not submissions but begin some.
pub(crate) fn hold(process: &Process, mut begin: impl FnMut(), mut take_back: impl FnMut()) {
    loop {
        begin();
        fence(SeqCst);
        let Some(bound) = process.slots.bind(process) else {
            return;
        };
        let index = bound.index();
        let is_frozen = blocks(process, bound).is_some_and(|(control, _)| is_frozen(&control.gate));
        if !(is_frozen || process.holds.word(index).is_some()) || process::is_exiting() {
            return;
        }
        take_back();
        wait_closed(process, index);
    }
}
