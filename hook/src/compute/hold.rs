//! Process-internal gate: closed while a device's memory is changed in a way that no submission may observe.
//!
//! While any device is held, every slot's gate leads to the slow path, so the fast path has no extra check.
//! Calls that use memory without being submissions take a `Touch`.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, fence};

use gcgroup_abi::{MAX_DEVICES, Pressure};

use crate::driver::{exit, thread};
use crate::shared::RECHECK;
use crate::shared::session::Session;
use crate::shared::stall::Stalled;
use crate::sys;

#[derive(Debug)]
struct Hold {
    /// Number of holds on the device.
    word: AtomicU32,
    /// Upper bound for waiting threads: one that a signal handler left by a jump stays counted.
    waiting: AtomicU32,
    /// Number of calls in progress that use memory.
    touching: AtomicU32,
}

/// Holds by device index.
#[derive(Debug)]
pub(crate) struct Holds([Hold; MAX_DEVICES]);

impl Holds {
    pub(crate) const fn new() -> Self {
        Self(
            [const {
                Hold {
                    word: AtomicU32::new(0),
                    waiting: AtomicU32::new(0),
                    touching: AtomicU32::new(0),
                }
            }; MAX_DEVICES],
        )
    }

    /// Returns the word to wait on if the device is held.
    pub(crate) fn word(&self, index: usize) -> Option<&AtomicU32> {
        let word = &self.0.get(index)?.word;
        (word.load(SeqCst) != 0).then_some(word)
    }

    /// Returns whether any device is held.
    pub(super) fn is_any(&self) -> bool {
        (0..MAX_DEVICES).any(|index| self.word(index).is_some())
    }

    /// Waits while the device is held or until the program exits.
    pub(super) fn wait(&self, session: &Session, index: usize) {
        let Some(hold) = self.0.get(index) else { return };
        let _stalled = Stalled::new(session.usage(), Pressure::Memory);
        // Counted before `word` is loaded: a release changes `word` before it loads `waiting`.
        hold.waiting.fetch_add(1, SeqCst);
        let word = &hold.word;
        while let holders @ 1.. = word.load(SeqCst)
            && !exit::is_exiting()
        {
            thread::hold();
            session.want_gpu();
            thread::outside(|| sys::futex_wait(word, holders, RECHECK));
        }
        hold.waiting.fetch_sub(1, SeqCst);
    }

    /// Returns whether a call that uses the device's memory is in progress. Exact while the device is held.
    fn is_touched(&self, index: usize) -> bool {
        self.0
            .get(index)
            .is_some_and(|hold| hold.touching.load(SeqCst) != 0)
    }
}

/// Devices that a hold covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A single device, by index.
    Device(usize),
    /// All devices: a device may use the memory of another.
    All,
}

impl Scope {
    pub(super) fn has(self, device: usize) -> bool {
        match self {
            Self::Device(index) => device == index,
            Self::All => true,
        }
    }
}

impl Holds {
    fn of(&self, scope: Scope) -> &[Hold] {
        match scope {
            Scope::Device(index) => self.0.get(index).map_or(&[], std::slice::from_ref),
            Scope::All => &self.0,
        }
    }
}

impl Holds {
    /// Begins a hold; see [`Compute::hold`](super::Compute::hold).
    pub(super) fn close(&self, scope: Scope) {
        for hold in self.of(scope) {
            hold.word.fetch_add(1, SeqCst);
        }
    }

    /// Ends a hold. The helper makes slots use their own gates again when it next drains.
    pub(crate) fn release(&self, scope: Scope) {
        for hold in self.of(scope) {
            hold.word.fetch_sub(1, SeqCst);
            if hold.waiting.load(SeqCst) != 0 {
                sys::futex_wake(&hold.word);
            }
        }
    }

    /// Resets holds after their holder died: everything is held once, or nothing.
    pub(crate) fn reset(&self, is_all_held: bool) {
        for hold in self.of(Scope::All) {
            if hold.word.swap(is_all_held.into(), SeqCst) != 0 {
                sys::futex_wake(&hold.word);
            }
        }
    }

    /// Returns whether no call uses the memory of held devices; queued work may.
    pub(crate) fn is_untouched(&self) -> bool {
        (0..MAX_DEVICES).all(|index| !self.is_touched(index))
    }

    /// Waits until the device is not held, and prevents holds until the result is dropped. Not for
    /// submissions, which the gate stops. `None` if there is no such device.
    pub(crate) fn touch(&self, session: &Session, index: usize) -> Option<Touch<'_>> {
        let count = &self.0.get(index)?.touching;
        loop {
            count.fetch_add(1, SeqCst);
            fence(SeqCst);
            if self.word(index).is_none() || exit::is_exiting() {
                return Some(Touch(count));
            }
            count.fetch_sub(1, SeqCst);
            self.wait(session, index);
        }
    }
}

/// A call that uses memory, counted while this lives.
#[derive(Debug)]
pub(crate) struct Touch<'a>(&'a AtomicU32);

impl Drop for Touch<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::Compute;
    use gcgroup_abi::NO_LIMIT;

    #[test]
    fn device_held_twice_is_held_until_both_release() {
        let compute = Compute::of_test(NO_LIMIT);
        compute.hold(Scope::Device(3));
        compute.hold(Scope::All);
        assert!(compute.holds.word(0).is_some() && compute.holds.word(3).is_some());
        compute.holds.release(Scope::All);
        assert!(compute.holds.word(0).is_none() && compute.holds.word(3).is_some());
        compute.holds.release(Scope::Device(3));
        assert!(!compute.holds.is_any());
    }

    #[test]
    fn reset_holds_wakes_waiting_threads() {
        let compute = Compute::of_test(NO_LIMIT);
        compute.hold(Scope::All);
        compute.hold(Scope::Device(0));
        let waiter = std::thread::spawn(|| {
            compute.holds.wait(compute.session, 0);
            compute.holds.touch(compute.session, 0).is_some()
        });
        compute.holds.reset(false);
        assert!(waiter.join().unwrap());
        assert!(!compute.holds.is_any());
    }
}
