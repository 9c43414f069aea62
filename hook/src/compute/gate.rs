//! Slow path of a submission, taken when the gate is not open.
//!
//! A waiting thread has withdrawn its entry, so a drain does not wait for it. A thread does not wait if that
//! would block others: while it captures a graph, inside a submission or a handler of ours, when the program
//! exits, and in forked children (which have no `Hook`). A thread without a current context uses the gate
//! of its stream's device, and none for a default stream; so a callback thread of the driver, which may not
//! submit, has none.
//!
//! Only a freeze holds without limit. Every other wait ends when its patience ends, at the latest; then one
//! batch passes. So work that waits for other work, of this or another process, is never blocked for ever.

mod admission;

use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Duration;

use gcgroup_abi::{ControlDevice, Entrance, Gate, Pressure, Submission, UsageDevice};

use super::Compute;
use super::call::{self, Arguments, Call};
use super::elsewhere::{self, KnownMemory};
use super::meter::ring_if_wanted;
use super::wait::{Waiting, doze, is_frozen, nap, wait_frozen};
use crate::driver::cuda::{CUresult, CUstream};
use crate::driver::exit;
use crate::driver::interpose::Next;
use crate::driver::streams::{default_stream, is_capturing, stream};
use crate::program::slot::{Bound, Charge};
use crate::program::window::Shape;
use crate::shared::RECHECK;
use crate::shared::stall::Stalled;
use crate::sys;
use admission::{told, window};

/// Limit for doublings of the patience: it grows by a factor of at most 2^4 after waits that timed out.
const MOST_TIMEOUTS: u32 = 4;

/// Binds the calling thread to a slot and waits at the gate; returns the slot with the entry counted. `None`
/// without a current context. `call` is the word of [`describe`](super::call::describe).
pub(crate) fn admit(
    compute: &Compute,
    known: KnownMemory<'_>,
    call: u32,
    arguments: Arguments,
    mut is_nested: bool,
) -> Option<*const Entrance> {
    let what = call::what(call);
    let shape = call::shape(what, call, arguments);
    let call = Call::Passed(call, arguments);
    if let Some(bound) = compute.program.current() {
        bound.uncount(what);
        bound.fold(compute.usage());
        is_nested |= bound.is_inside();
    }
    let bound = compute.program.bind_on(call.stream())?;
    let mut passing = Passing {
        compute,
        known,
        bound,
        shape,
        is_nested,
        credit: false,
        timeouts: 0,
        waited: 0,
        charge: Charge::Looks,
    };
    passing.enter(call);
    passing.sample(call.stream());
    Some(bound.entrance)
}

/// Ends a submission that [`admit`] has let pass, or that the driver has refused, after the driver call and
/// before its exit is counted.
pub(crate) fn finish(compute: &Compute, what: Submission, is_refused: bool) {
    let Some(bound) = compute.program.current() else {
        return;
    };
    if let Some(sampler) = compute.samplers.get(bound.index()) {
        sampler.end(bound, is_refused);
    }
    bound.settle(what, is_refused);
}

/// Waits at the gate and calls `body` with the entry counted, for a submission that has a handler. Calls
/// `next` if no slot can be bound. The submission is the launch of a graph.
pub(crate) fn submit(
    compute: &Compute,
    shape: Shape,
    stream: CUstream,
    body: &dyn Fn(&UsageDevice) -> CUresult,
    next: Next<'_>,
) -> CUresult {
    if compute.program.contexts.captures.is_any() && is_capturing(stream) == Some(true) {
        return next();
    }
    let Some(bound) = compute.program.bind_on(stream.0.addr()) else {
        return next();
    };
    let mut passing = Passing {
        compute,
        known: &|_| None,
        bound,
        shape,
        is_nested: bound.is_inside(),
        credit: false,
        timeouts: 0,
        waited: 0,
        charge: Charge::Looks,
    };
    passing.enter(Call::Graph(stream));
    compute.exec_graphs.launched(&compute.program.contexts);
    passing.sample(default_stream(stream.0.addr(), false));
    let result = match compute.usage().devices.get(bound.index()) {
        Some(usage) => body(usage),
        None => next(),
    };
    if let Some(sampler) = compute.samplers.get(bound.index()) {
        sampler.end(bound, result.is_err());
    }
    bound.exit(shape.what);
    bound.settle(shape.what, result.is_err());
    bound.fold(compute.usage());
    result
}

/// A submission that is passing the gate.
struct Passing<'a> {
    compute: &'a Compute,
    known: KnownMemory<'a>,
    bound: Bound<'a>,
    shape: Shape,
    is_nested: bool,
    /// Set when its patience has ended, so that it needs no room in the in-flight window.
    credit: bool,
    timeouts: u32,
    /// Nanoseconds for which it has waited for admission, including waits interrupted by a change of the
    /// gate.
    waited: u64,
    charge: Charge,
}

impl Passing<'_> {
    /// Waits until the submission may pass; returns with the entry counted.
    fn enter(&mut self, call: Call) {
        loop {
            self.bound.enter(self.shape.what);
            // Pairs with the drain's barrier: either the drain sees the entry or this thread sees the closed
            // gate.
            fence(SeqCst);
            let Some((usage, control)) = self.compute.session.device(self.bound.index()) else {
                return;
            };
            if self.compute.program.contexts.captures.is_any()
                && is_capturing(stream(call.stream())) == Some(true)
            {
                return self.bound.count_captured(self.shape.what);
            }
            let gate = Gate::from_word(control.gate.load(Relaxed));
            let is_watched = self.compute.program.slots.are_watched();
            let stream = call.stream();
            if (gate == Gate::Run && !is_watched) || self.may_not_wait() {
                return self.note_if_armed(stream);
            }
            if is_watched && let Some(index) = self.closed_device(call, stream) {
                self.bound.uncount(self.shape.what);
                wait_closed(self.compute, index);
                continue;
            }
            match gate {
                Gate::Frozen => {
                    self.bound.uncount(self.shape.what);
                    wait_frozen(self.compute.session, control, usage);
                }
                Gate::Throttled if !self.spend_credit() => {
                    self.bound.uncount(self.shape.what);
                    self.wait_throttled(control, usage, stream);
                }
                Gate::Arbitrate | Gate::Throttled => {
                    if let Some(nanoseconds) = self.take_room(control, usage, stream) {
                        self.bound.uncount(self.shape.what);
                        self.wait_for_room(control, usage, stream, nanoseconds);
                        continue;
                    }
                    return self.note(stream);
                }
                Gate::Run => return self.note_if_armed(stream),
                _ => return self.note(stream),
            }
        }
    }

    /// Returns a device that the call concerns and that is closed: the current one if held, another if held
    /// or frozen.
    fn closed_device(&self, call: Call, stream: usize) -> Option<usize> {
        let current = self.bound.index();
        if self.compute.holds.word(current).is_some() {
            return Some(current);
        }
        elsewhere::closed(self.compute, self.known, call, stream, current)
    }

    fn may_not_wait(&self) -> bool {
        self.is_nested || exit::is_exiting() || self.is_capturing()
    }

    /// Returns whether this thread captures a stream. `gettid` is a system call, so `is_any` is asked first.
    fn is_capturing(&self) -> bool {
        let captures = &self.compute.program.contexts.captures;
        captures.is_any() && captures.is_by(sys::gettid())
    }

    /// Begins a busy period of a device that is measured while its gate is open.
    fn note_if_armed(&self, stream: usize) {
        // A submission inside another may be one of a signal handler that has interrupted the note of that.
        if !self.is_nested && self.compute.program.slots.is_armed(self.bound.index()) {
            self.note(stream);
        }
    }

    /// Begins a sample of the submission, if all submissions to the device are known now.
    fn sample(&self, stream: usize) {
        let index = self.bound.index();
        let Some((_, control)) = self.compute.session.device(self.bound.index()) else {
            return;
        };
        let is_open = Gate::from_word(control.gate.load(Relaxed)) == Gate::Run;
        if self.shape.what == Submission::Copy || is_open && !self.compute.program.slots.is_armed(index) {
            return;
        }
        let Some(sampler) = self.compute.samplers.get(index) else {
            return;
        };
        let is_known = !self.is_nested && !self.shape.overlaps() && self.compute.program.current().is_some();
        if is_known && !self.compute.program.contexts.captures.is_any() {
            sampler.begin(self.compute.program, self.bound, self.shape, stream, self.charge);
        } else {
            sampler.skip();
        }
    }

    fn note(&self, stream: usize) {
        if let Some(meter) = self.compute.meters.get(self.bound.index()) {
            meter.note(self.compute.session, self.bound, stream);
        }
    }

    /// Uses one submission of the batch that was let through; returns whether there was one.
    fn spend_credit(&mut self) -> bool {
        let credit = &self.bound.state.credit;
        let left = credit.load(Relaxed);
        if left == 0 {
            return false;
        }
        credit.store(left - 1, Relaxed);
        true
    }

    fn wait_throttled(&mut self, control: &ControlDevice, usage: &UsageDevice, stream: usize) {
        let began = sys::now();
        let _stalled = Stalled::new(self.compute.usage(), Pressure::Compute);
        let waiting = Waiting::new(usage, &usage.nr_throttled, &usage.throttled_usec, began);
        ring_if_wanted(self.compute.session, self.bound.index());
        loop {
            let word = control.gate.load(Relaxed);
            if Gate::from_word(word) != Gate::Throttled || exit::is_exiting() {
                self.timeouts = 0;
                self.with_window(|queue| queue.disturb(window(control), sys::now()));
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
        let batch = self.with_window(|queue| {
            let window = window(control);
            queue.disturb(window, sys::now());
            queue.batch(self.shape, window)
        });
        self.bound.state.credit.store(batch, Relaxed);
    }
}

/// Waits while a device is held; if it is not, until its gate is not frozen.
fn wait_closed(compute: &Compute, index: usize) {
    if compute.holds.word(index).is_some() {
        return compute.holds.wait(compute.session, index);
    }
    if let Some((usage, control)) = compute.session.device(index) {
        wait_frozen(compute.session, control, usage);
    }
}

/// Waits while the calling thread's gate is frozen, for calls that begin submissions without being one.
pub(crate) fn hold(compute: &Compute, mut begin: impl FnMut(), mut take_back: impl FnMut()) {
    loop {
        begin();
        fence(SeqCst);
        let Some(bound) = compute.program.bind() else {
            return;
        };
        let index = bound.index();
        let is_frozen = compute
            .session
            .device(bound.index())
            .is_some_and(|(_, control)| is_frozen(&control.gate));
        if !(is_frozen || compute.holds.word(index).is_some()) || exit::is_exiting() {
            return;
        }
        take_back();
        wait_closed(compute, index);
    }
}
