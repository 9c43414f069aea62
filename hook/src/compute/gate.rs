//! The gate: what a submission does when it may not simply pass.
//!
//! Who waits has taken its mark back, so a drain does not wait for it. Nobody waits who holds up others by it: threads
//! that capture a graph, calls from within a submission or a handler of ours, programs on their way out, forked
//! children (which find no process). A callback thread of the driver's has no current context, and so no gate.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use gcgroup_abi::{Gate, Submission, Thread};

use super::slot::Bound;
use crate::process::{self, Process};
use crate::{interpose, sys};

/// Who waits looks at the gate this often, whether woken or not: the block it waits on may have been replaced.
pub(crate) const RECHECK: Duration = Duration::from_millis(100);

/// Binds the calling thread to a slot and waits while the gate is held; returns the slot, already marked.
pub(crate) extern "C" fn admit(what: u32) -> *mut Thread {
    let is_nested = interpose::is_inside();
    let what = match what {
        0 => Submission::Kernel,
        1 => Submission::Graph,
        _ => Submission::Copy,
    };
    interpose::guarded(|| admitted(what, is_nested))
        .flatten()
        .unwrap_or_else(interpose::unbound)
}

/// `None` where nothing governs: the thread counts in the slot that is nobody's.
fn admitted(what: Submission, mut is_nested: bool) -> Option<*mut Thread> {
    let process = process::get()?;
    if let Some(bound) = process.slots.current(process) {
        bound.uncount(what);
        bound.fold(process);
        is_nested |= bound.thread.is_inside();
    }
    let bound = process.slots.bind(process)?;
    loop {
        bound.enter(what);
        // The drain's barrier pairs with this one: either it sees the mark or we see the gate.
        fence(SeqCst);
        if !is_held(process, bound)
            || is_nested
            || process::is_exiting()
            || process.contexts.captures.is_by(sys::gettid())
        {
            return Some(std::ptr::from_ref(bound.thread).cast_mut());
        }
        bound.uncount(what);
        wait(process, bound);
    }
}

fn is_held(process: &Process, bound: Bound<'_>) -> bool {
    gate(process, bound).is_some_and(is_frozen)
}

fn is_frozen(gate: &AtomicU32) -> bool {
    Gate::from_word(gate.load(Relaxed)) == Gate::Frozen
}

fn gate<'a>(process: &'a Process, bound: Bound<'_>) -> Option<&'a AtomicU32> {
    Some(&process.control().devices.get(bound.index())?.gate)
}

/// Waits until the gate is not frozen, the program exits, or somebody has to look at something else.
fn wait(process: &Process, bound: Bound<'_>) {
    let Some(usage) = process.usage().devices.get(bound.index()) else {
        return;
    };
    let Some(gate) = gate(process, bound) else { return };
    usage.nr_frozen.fetch_add(1, Relaxed);
    let mut since = Instant::now();
    while is_frozen(gate) && !process::is_exiting() {
        sys::futex_wait(gate, Gate::Frozen as u32, RECHECK);
        let now = Instant::now();
        let waited = u64::try_from((now - since).as_micros()).unwrap_or(0);
        usage.frozen_usec.fetch_add(waited, Relaxed);
        since = now;
    }
}

/// Waits while the calling thread's gate is frozen, for calls that are not submissions but begin some.
pub(crate) fn hold(process: &Process, mut begin: impl FnMut(), mut take_back: impl FnMut()) {
    loop {
        begin();
        fence(SeqCst);
        let Some(bound) = process.slots.bind(process) else {
            return;
        };
        if !is_held(process, bound) || process::is_exiting() {
            return;
        }
        take_back();
        wait(process, bound);
    }
}
