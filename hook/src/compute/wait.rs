//! Waiting at a gate: asleep on the gate's word, counted as waiting, with no lock held.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use gcgroup_abi::{ControlDevice, Gate, Pressure, UsageDevice};

use crate::driver::{exit, thread};
use crate::shared::RECHECK;
use crate::shared::session::Session;
use crate::shared::stall::Stalled;
use crate::sys;

/// Minimum patience, nanoseconds.
pub(super) const PATIENCE: u64 = 5_000_000;
/// A wait for room ends twice this before room is expected; from then on it is polled at this interval,
/// nanoseconds.
const NAP: u64 = 30_000;

/// Returns how long to sleep, nanoseconds, if room is expected in `nanoseconds`.
pub(crate) fn nap(nanoseconds: u64) -> u64 {
    nanoseconds.saturating_sub(2 * NAP).clamp(NAP, PATIENCE)
}

pub(super) fn is_frozen(gate: &AtomicU32) -> bool {
    Gate::from_word(gate.load(Relaxed)) == Gate::Frozen
}

/// Counts a thread as waiting while this lives, and adds the time to its account.
pub(super) struct Waiting<'a> {
    usage: &'a UsageDevice,
    usec: &'a AtomicU64,
    since: u64,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(usage: &'a UsageDevice, times: &AtomicU64, usec: &'a AtomicU64, since: u64) -> Self {
        times.fetch_add(1, Relaxed);
        usage.nr_waiting.fetch_add(1, Relaxed);
        Self { usage, usec, since }
    }

    /// Adds the time since the last call to the account.
    fn tell(&mut self) {
        let now = sys::now();
        let usec = now.saturating_sub(self.since) / 1000;
        self.usec.fetch_add(usec, Relaxed);
        self.since += usec * 1000;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.tell();
        self.usage.nr_waiting.fetch_sub(1, Relaxed);
    }
}

/// Sleeps on the gate with no lock held, so that a signal handler may call the driver, or never return.
pub(super) fn doze(gate: &AtomicU32, word: u32, longest: Duration) {
    thread::outside(|| sys::futex_wait(gate, word, longest));
}

/// Waits until the gate is not frozen, or the program exits.
pub(super) fn wait_frozen(session: &Session, control: &ControlDevice, usage: &UsageDevice) {
    let _stalled = Stalled::new(session.usage(), Pressure::Compute);
    let mut waiting = Waiting::new(usage, &usage.nr_frozen, &usage.frozen_usec, sys::now());
    while is_frozen(&control.gate) && !exit::is_exiting() {
        thread::hold();
        session.want_gpu();
        doze(&control.gate, Gate::Frozen as u32, RECHECK);
        waiting.tell();
    }
}
