//! Freezing: the gate and the counter of its changes, the entry and exit counters of each thread, and the
//! generation that a process reports as drained.
//!
//! A thread counts its entry, then loads the gate. The hook's helper sees the gate closed, makes every thread
//! of the process pass a memory barrier, and then reads the counters. So a thread that saw the gate open is
//! seen inside, and any other thread sees the gate closed. See `hook/abi/models/src/freeze.rs`.

use crate::sync::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::{ControlDevice, Entrance, Gate, Submission, Thread, UsageDevice};

impl ControlDevice {
    /// Stores the gate, to or from [`Gate::Frozen`], and counts the change. Called by the daemon; one writer
    /// at a time.
    ///
    /// The generation is stored after the gate, so a reader of a freeze's generation also sees the closed
    /// gate.
    pub fn change_freeze(&self, gate: Gate) {
        self.gate.store(gate as u32, Release);
        self.freeze_generation.fetch_add(1, Release);
    }

    /// Returns the freeze generation, and whether the gate is frozen.
    #[inline]
    pub fn freeze_state(&self) -> (u32, bool) {
        let generation = self.freeze_generation.load(Acquire);
        (generation, self.is_frozen_now())
    }

    #[inline]
    fn is_frozen_now(&self) -> bool {
        Gate::from_word(self.gate.load(Acquire)) == Gate::Frozen
    }
}

impl UsageDevice {
    /// Reports the freeze `generation` as drained unless the gate was thawed meanwhile; returns whether it
    /// did.
    pub fn report_drained(&self, control: &ControlDevice, generation: u32) -> bool {
        let is_frozen = control.is_frozen_now();
        if !is_frozen || control.freeze_generation.load(Acquire) != generation {
            return false;
        }
        self.drained_generation.store(generation, Release);
        true
    }
}

impl Entrance {
    /// Counts the entry of a submission. Called by the slot's thread, as are [`Self::withdraw`] and
    /// [`Thread::exit`].
    ///
    /// A full barrier must separate this from the load of the gate: the caller's own, or that of the thread
    /// that drains.
    #[inline]
    pub fn enter(&self, what: Submission) {
        self.count(what, 1);
    }

    /// Withdraws an entry: nothing was submitted.
    #[inline]
    pub fn withdraw(&self, what: Submission) {
        self.count(what, u64::MAX);
    }

    #[inline]
    fn count(&self, what: Submission, amount: u64) {
        if let Some(count) = self.entered.get(what as usize) {
            add(count, amount);
        }
    }

    /// Returns whether the thread is in a submitting call. `thread` is the other part of its slot.
    pub fn is_inside(&self, thread: &Thread) -> bool {
        let exits = thread.submissions.iter().map(|[_, exited]| exited);
        let mut counts = self.entered.iter().zip(exits);
        counts.any(|(entered, exited)| entered.load(Acquire) != exited.load(Acquire))
    }
}

impl Thread {
    /// Counts the exit of a submission whose driver call has returned.
    #[inline]
    pub fn exit(&self, what: Submission) {
        let exited = self.exited(what);
        // Release: a reader of this count also sees the submission.
        exited.store(exited.load(Relaxed).wrapping_add(1), Release);
    }
}

/// Adds without an atomic read-modify-write: only one thread writes the word.
#[inline]
fn add(count: &AtomicU64, amount: u64) {
    count.store(count.load(Relaxed).wrapping_add(amount), Relaxed);
}
