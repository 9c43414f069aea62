//! Requests for larger grants from the groups above: a request in the usage block, the daemon's bell, and a
//! futex on its answer.
//!
//! `memory.high` ends a grant too: a charge beyond it is granted, and then waits
//! ([`Memory::charge_granted`]).
//!
//! Needed only when a charge exceeds the grant. An answer enlarges the grant of the process, not of the
//! requesting thread, so the charge is tried again. Every wait ends, whatever happens to the daemon.

use std::sync::atomic::{
    AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};
use std::time::{Duration, Instant};

use gcgroup_abi::{
    ControlDevice, HIGH_ALONE, HIGH_IN_FORCE, MAX_DEVICES, Pressure, UsageDevice, WANTED_AGAIN,
    WANTED_BELOW_HIGH,
};
use parking_lot::Mutex;

use super::Memory;
use super::page_counter::Full;
use crate::driver::exit;
use crate::shared::stall::Stalled;
use crate::{helper, sys};

/// Longest wait for an answer, for a daemon that is stopped or being restarted.
const PATIENCE: Duration = if cfg!(test) {
    Duration::from_millis(500)
} else {
    Duration::from_secs(5)
};
/// Longest wait of an allocation for `memory.high`.
const HIGH_PATIENCE: Duration = Duration::from_secs(1);
/// How often a waiting thread checks for a new daemon's block and rings again.
const RECHECK: Duration = Duration::from_millis(20);
/// Most requests for one charge, since other threads may use the grant or return what was missing.
const MOST_TRIES: usize = 1000;

#[derive(Debug)]
pub(crate) struct Grants {
    /// One lock per device, held by the requesting thread: a device has one request in progress.
    asking: [Mutex<()>; MAX_DEVICES],
    /// Set for a device while a request is unanswered: until an answer comes or a daemon connects, no thread
    /// waits there.
    is_silent: [AtomicBool; MAX_DEVICES],
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The daemon has looked at it and not refused.
    Given,
    Refused,
    /// No answer, or the caller may not wait.
    Missing,
}

impl Grants {
    pub(crate) fn new() -> Self {
        Self {
            asking: [const { Mutex::new(()) }; MAX_DEVICES],
            is_silent: [const { AtomicBool::new(false) }; MAX_DEVICES],
        }
    }

    /// Allows waits again after a daemon connected.
    pub(crate) fn begin_again(&self) {
        for silent in &self.is_silent {
            silent.store(false, Relaxed);
        }
    }
}

impl Memory {
    /// Charges `bytes` on a device by `charge`, which has returned [`Full::Group`], after requesting a larger
    /// grant. Returns also whether the daemon has counted the request as beyond `memory.high`.
    ///
    /// The caller must hold no lock that the helper takes.
    #[cold]
    pub(crate) fn charge_granted<T>(
        &self,
        index: usize,
        bytes: u64,
        charge: impl Fn() -> Result<T, Full>,
    ) -> Result<(T, bool), Full> {
        let _stalled = self.stalled();
        let charged = self.charge_by_asking(index, (bytes, false), charge)?;
        // Without the lock, so that other threads may ask meanwhile.
        self.wait_above_high(index);
        Ok(charged)
    }

    /// Counts the calling thread as waiting for memory. The helper is not the program.
    fn stalled(&self) -> Option<Stalled<'_>> {
        (!helper::is_caller()).then(|| Stalled::new(self.usage(), Pressure::Memory))
    }

    /// Charges after requesting a larger grant; `is_counted`: the daemon has counted the allocation as beyond
    /// `memory.high`. Returns also whether it has by now.
    fn charge_by_asking<T>(
        &self,
        index: usize,
        (bytes, mut is_counted): (u64, bool),
        charge: impl Fn() -> Result<T, Full>,
    ) -> Result<(T, bool), Full> {
        let full = Full::Group(index);
        let (Some(lock), Some(device)) = (self.grants.asking.get(index), self.usage().devices.get(index))
        else {
            return Err(full);
        };
        let _asking = match lock.try_lock() {
            Some(asking) => asking,
            None if helper::is_caller() => return Err(full),
            // Normally the other request ends sooner, unless one of the program's signal handlers interrupted
            // it for good.
            None => match lock.try_lock_for(2 * PATIENCE) {
                Some(asking) => asking,
                None => return Ok((self.charge_without_asking(index, bytes, charge)?, is_counted)),
            },
        };
        for _ in 0..MOST_TRIES {
            // Another thread's request may have brought enough.
            match charge() {
                Err(Full::Group(_)) => {}
                charged => return Ok((charged?, is_counted)),
            }
            let before = device.memory_current.load(Relaxed);
            match self.ask(index, bytes, is_counted) {
                Answer::Given => is_counted |= self.is_above_high(index),
                // Something was uncharged or undone after the daemon looked.
                Answer::Refused if device.memory_current.load(Relaxed) < before => {}
                Answer::Missing if self.grants_itself(index, bytes) => {}
                Answer::Refused | Answer::Missing => break,
            }
        }
        Ok((charge()?, is_counted))
    }

    /// Charges if nothing but `memory.high` bounds the grant.
    #[cold]
    fn charge_without_asking<T>(
        &self,
        index: usize,
        bytes: u64,
        charge: impl Fn() -> Result<T, Full>,
    ) -> Result<T, Full> {
        for _ in 0..MOST_TRIES {
            match charge() {
                // Another thread may use the grant.
                Err(Full::Group(_)) if self.grants_itself(index, bytes) => {}
                charged => return charged,
            }
        }
        charge()
    }

    /// Raises the grant for a charge that no daemon has answered, if nothing but `memory.high` bounds it:
    /// that refuses no allocation. Not for the helper, which only brings memory back.
    #[cold]
    fn grants_itself(&self, index: usize, bytes: u64) -> bool {
        let (Some(usage), Some(control)) =
            (self.usage().devices.get(index), self.control().devices.get(index))
        else {
            return false;
        };
        if !is_alone(control) || helper::is_caller() {
            return false;
        }
        let wanted = usage.memory_current.load(Relaxed).saturating_add(bytes);
        usage.memory_granted.fetch_max(wanted, SeqCst);
        true
    }

    /// Returns whether the daemon's last answer was given beyond `memory.high`.
    fn is_above_high(&self, index: usize) -> bool {
        let control = self.control().devices.get(index);
        control.is_some_and(|control| control.high_wait_usec.load(Relaxed) != 0)
    }

    /// Waits after a charge beyond `memory.high` until usage has fallen, for at most as long as the daemon
    /// says and [`HIGH_PATIENCE`]; without a daemon not at all.
    #[cold]
    fn wait_above_high(&self, index: usize) {
        let begun = Instant::now();
        loop {
            let Some(control) = self.control().devices.get(index) else {
                return;
            };
            let usec = control.high_wait_usec.load(Relaxed);
            let most = Duration::from_micros(usec.into()).min(HIGH_PATIENCE);
            let left = most.saturating_sub(begun.elapsed());
            let may_wait = !exit::is_exiting() && !helper::is_caller() && self.has_daemon();
            if left.is_zero() || !may_wait {
                return;
            }
            // The daemon learns what has been freed, and resets the time.
            self.session.ring();
            sys::futex_wait(&control.high_wait_usec, usec, left.min(RECHECK));
        }
    }

    /// Requests a grant for memory that has been charged without one because it exists already. Does not wait
    /// above `memory.high`: the allocation has done so, or there is none. `is_again`: the allocation has been
    /// counted there.
    ///
    /// # Errors
    /// The limit that is exceeded.
    #[cold]
    pub(crate) fn cover(&self, index: usize, is_again: bool) -> Result<(), Full> {
        let _stalled = self.stalled();
        self.charge_by_asking(index, (0, is_again), || self.reserve(index, 0))
            .map(drop)
    }

    fn has_daemon(&self) -> bool {
        self.session.connection.lock().is_some()
    }

    /// Publishes one request and waits for its answer; `is_again` as in [`cover`](Self::cover).
    fn ask(&self, index: usize, bytes: u64, is_again: bool) -> Answer {
        let (Some(usage), Some(control), Some(silent)) = (
            self.usage().devices.get(index),
            self.control().devices.get(index),
            self.grants.is_silent.get(index),
        ) else {
            return Answer::Missing;
        };
        if is_answered(control, usage.grant_request.load(Relaxed)) {
            silent.store(false, Relaxed);
        }
        let number = put(usage, word(control, bytes, is_again));
        let patience = match is_alone(control) {
            false => PATIENCE,
            true if self.has_daemon() => PATIENCE.min(HIGH_PATIENCE),
            true => Duration::ZERO,
        };
        let begun = Instant::now();
        loop {
            self.session.ring();
            let may_wait = !silent.load(Relaxed) && !exit::is_exiting() && !helper::is_caller();
            let seen = control.grant_answer.load(Acquire);
            if reaches(seen, number) {
                return outcome(control, number);
            }
            if !may_wait {
                return Answer::Missing;
            }
            if begun.elapsed() >= patience {
                // A daemon that was not waited for is not known to be silent.
                if !patience.is_zero() {
                    silent.store(true, Relaxed);
                }
                return Answer::Missing;
            }
            sys::futex_wait(&control.grant_answer, seen, RECHECK);
            if is_answered(control, number) {
                return outcome(control, number);
            }
        }
    }
}

/// Returns whether only `memory.high` bounds the grant: no group above has a limit.
pub(super) fn is_alone(control: &ControlDevice) -> bool {
    control.high.load(Relaxed) & HIGH_ALONE != 0
}

/// Returns the size of a request, with flags where `memory.high` is in force: the helper, which brings memory
/// back, must not exceed it, and an allocation is counted once.
fn word(control: &ControlDevice, bytes: u64, is_again: bool) -> u64 {
    let is_bounded = control.high.load(Relaxed) & HIGH_IN_FORCE != 0;
    let flag = |is_set: bool, flag: u64| if is_bounded && is_set { flag } else { 0 };
    let below_high = flag(bytes != 0 && helper::is_caller(), WANTED_BELOW_HIGH);
    bytes | below_high | flag(is_again, WANTED_AGAIN)
}

/// Publishes a request; returns its number.
fn put(usage: &UsageDevice, bytes: u64) -> u32 {
    usage.grant_wanted.store(bytes, Relaxed);
    usage.grant_request.fetch_add(1, Release).wrapping_add(1)
}

fn is_answered(control: &ControlDevice, number: u32) -> bool {
    reaches(control.grant_answer.load(Acquire), number)
}

fn outcome(control: &ControlDevice, number: u32) -> Answer {
    if control.grant_refused.load(Relaxed) == number {
        Answer::Refused
    } else {
        Answer::Given
    }
}

/// Returns whether a wrapping counter has reached `number`.
pub(crate) fn reaches(count: u32, number: u32) -> bool {
    count.wrapping_sub(number).cast_signed() >= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ABSURD;
    use crate::shared::block;
    use gcgroup_abi::{Control, NO_LIMIT, Usage};
    use std::sync::atomic::AtomicU32;
    use std::thread;

    /// Returns a process in a group and the daemon's view of its control block.
    fn member(granted: u64) -> (&'static Memory, &'static Control) {
        let memory = Memory::of_test(NO_LIMIT);
        memory.usage().devices[0].memory_granted.store(granted, Relaxed);
        (memory, adopt(memory))
    }

    /// Connects another daemon, which has seen the earlier requests.
    fn adopt(memory: &Memory) -> &'static Control {
        let (control, file) = block::of_daemon();
        for (device, usage) in control.devices.iter().zip(&memory.usage().devices) {
            device.memory_limit.store(NO_LIMIT, Relaxed);
            let asked = usage.grant_request.load(Relaxed);
            device.grant_answer.store(asked, Relaxed);
        }
        control.memory_limit.store(NO_LIMIT, Relaxed);
        control.publish();
        memory.adopt(&file);
        control
    }

    fn request(usage: &Usage) -> &AtomicU32 {
        &usage.devices[0].grant_request
    }

    fn wait_for(request: &AtomicU32, number: u32) {
        while request.load(Acquire) != number {
            thread::yield_now();
        }
    }

    fn answer(control: &Control, number: u32) {
        control.devices[0].grant_answer.store(number, Release);
        sys::futex_wake(&control.devices[0].grant_answer);
    }

    #[test]
    fn daemon_is_asked_only_beyond_the_grant() {
        let (memory, control) = member(100);
        let device = &memory.usage().devices[0];
        assert!(memory.charge(0, 100).is_ok());
        assert_eq!(request(memory.usage()).load(Relaxed), 0);
        thread::scope(|scope| {
            let charging = scope.spawn(|| memory.charge(0, 50).is_ok());
            wait_for(request(memory.usage()), 1);
            assert_eq!(device.grant_wanted.load(Relaxed), 50);
            // Answered, but not enough: another process was faster.
            device.memory_granted.store(120, Relaxed);
            answer(control, 1);
            wait_for(request(memory.usage()), 2);
            device.memory_granted.store(150, Relaxed);
            answer(control, 2);
            assert!(charging.join().unwrap());
        });
        assert_eq!(device.memory_current.load(Relaxed), 150);
    }

    #[test]
    fn refused_request_refuses_charge_unless_bytes_were_freed() {
        let (memory, control) = member(100);
        assert!(memory.charge(0, 100).is_ok());
        let refuse = |number| {
            wait_for(request(memory.usage()), number);
            control.devices[0].grant_refused.store(number, Relaxed);
            answer(control, number);
        };
        thread::scope(|scope| {
            let charging = scope.spawn(|| memory.charge(0, 10).map(drop));
            refuse(1);
            assert_eq!(charging.join().unwrap(), Err(Full::Group(0)));
            let charging = scope.spawn(|| memory.charge(0, 10).map(drop));
            wait_for(request(memory.usage()), 2);
            memory.page_counter.uncharge(memory.usage(), 0, 20);
            refuse(2);
            assert_eq!(charging.join().unwrap(), Ok(()));
        });
        assert_eq!(memory.usage().devices[0].memory_current.load(Relaxed), 90);
    }

    #[test]
    fn waiting_request_is_repeated_to_the_next_daemon() {
        let (memory, _lost) = member(0);
        thread::scope(|scope| {
            let charging = scope.spawn(|| memory.charge(0, 10).is_ok());
            wait_for(request(memory.usage()), 1);
            let next = adopt(memory);
            wait_for(request(memory.usage()), 2);
            memory.usage().devices[0].memory_granted.store(10, Relaxed);
            answer(next, 2);
            assert!(charging.join().unwrap());
        });
    }

    #[test]
    fn silent_daemon_is_waited_for_once() {
        let (memory, control) = member(0);
        assert_eq!(memory.charge(0, 10).map(drop), Err(Full::Group(0)));
        let silent = &memory.grants.is_silent[0];
        assert!(silent.load(Relaxed));
        assert_eq!(memory.charge(0, 10).map(drop), Err(Full::Group(0)));
        let asked = request(memory.usage()).load(Relaxed);
        assert_eq!(asked, 2, "it is asked without waiting");
        // The daemon was only slow.
        memory.usage().devices[0].memory_granted.store(10, Relaxed);
        answer(control, asked);
        assert!(memory.charge(0, 10).is_ok());
        thread::scope(|scope| {
            let charging = scope.spawn(|| memory.charge(0, 10).is_ok());
            wait_for(request(memory.usage()), 3);
            memory.usage().devices[0].memory_granted.store(20, Relaxed);
            answer(control, 3);
            assert!(charging.join().unwrap());
        });
        assert!(!silent.load(Relaxed));
    }

    #[test]
    fn existing_memory_is_covered_if_groups_have_room() {
        let (memory, control) = member(0);
        let page_counter = &memory.page_counter;
        page_counter.charge(memory.usage(), memory.control(), 0, 30);
        thread::scope(|scope| {
            let covering = scope.spawn(|| memory.cover(0, false));
            wait_for(request(memory.usage()), 1);
            assert_eq!(memory.usage().devices[0].grant_wanted.load(Relaxed), 0);
            memory.usage().devices[0].memory_granted.store(30, Relaxed);
            answer(control, 1);
            assert_eq!(covering.join().unwrap(), Ok(()));
        });
        page_counter.charge(memory.usage(), memory.control(), 0, 1);
        thread::scope(|scope| {
            let covering = scope.spawn(|| memory.cover(0, false));
            wait_for(request(memory.usage()), 2);
            control.devices[0].grant_refused.store(2, Relaxed);
            answer(control, 2);
            assert_eq!(covering.join().unwrap(), Err(Full::Group(0)));
        });
        control.devices[0].memory_limit.store(29, Relaxed);
        assert_eq!(memory.cover(0, false), Err(Full::Device(0)));
    }

    #[test]
    fn charge_bounded_by_high_alone_passes_without_a_daemon() {
        let (memory, control) = member(100);
        control.devices[0].high.store(HIGH_IN_FORCE | HIGH_ALONE, Relaxed);
        // Left by the daemon that is gone: nobody would reset it.
        control.devices[0].high_wait_usec.store(u32::MAX, Relaxed);
        assert!(memory.charge(0, 150).is_ok());
        assert!(memory.charge(0, 1000).is_ok());
        assert_eq!(memory.usage().devices[0].memory_current.load(Relaxed), 1150);
        // The driver refuses it.
        assert!(memory.try_charge(0, ABSURD).is_ok());
        // A thread that never ends its request.
        let asking = memory.grants.asking[0].lock();
        let charged = thread::scope(|scope| scope.spawn(|| memory.charge(0, 10).is_ok()).join());
        assert!(charged.unwrap());
        drop(asking);
        control.devices[0].memory_limit.store(1210, Relaxed);
        assert_eq!(memory.charge(0, 51).map(drop), Err(Full::Device(0)));
        control.devices[0].high.store(HIGH_IN_FORCE, Relaxed);
        assert_eq!(
            memory.charge(0, 1).map(drop),
            Err(Full::Group(0)),
            "a group has a limit"
        );
    }

    #[test]
    fn high_on_one_device_ends_no_wait_on_another() {
        let (memory, _lost) = member(0);
        let usage = memory.usage();
        usage.devices[1].memory_granted.store(0, Relaxed);
        let control = adopt(memory);
        control.devices[1].high.store(HIGH_IN_FORCE | HIGH_ALONE, Relaxed);
        thread::scope(|scope| {
            let charging = scope.spawn(|| memory.charge(0, 10).is_ok());
            wait_for(request(usage), 1);
            assert!(memory.charge(1, 10).is_ok());
            let silent = &memory.grants.is_silent;
            assert!(silent.iter().all(|silent| !silent.load(Relaxed)));
            let next = adopt(memory);
            wait_for(request(usage), 2);
            usage.devices[0].memory_granted.store(10, Relaxed);
            answer(next, 2);
            assert!(charging.join().unwrap());
        });
    }

    #[test]
    fn growth_of_an_allocation_beyond_high_is_marked_as_counted() {
        let (memory, control) = member(0);
        let (device, set) = (&memory.usage().devices[0], &control.devices[0]);
        set.high.store(HIGH_IN_FORCE, Relaxed);
        let charge = || memory.reserve(0, 10);
        thread::scope(|scope| {
            for (number, wait_usec) in [(1, 0), (2, 1)] {
                let charging = scope.spawn(move || memory.charge_granted(0, 10, charge));
                wait_for(request(memory.usage()), number);
                assert_eq!(device.grant_wanted.load(Relaxed), 10);
                set.high_wait_usec.store(wait_usec, Relaxed);
                device.memory_granted.fetch_add(10, Relaxed);
                answer(control, number);
                assert_eq!(charging.join().unwrap().unwrap().1, wait_usec != 0);
            }
            memory.page_counter.charge(memory.usage(), memory.control(), 0, 5);
            let covering = scope.spawn(|| memory.cover(0, true));
            wait_for(request(memory.usage()), 3);
            assert_eq!(device.grant_wanted.load(Relaxed), WANTED_AGAIN);
            device.memory_granted.fetch_add(5, Relaxed);
            answer(control, 3);
            assert_eq!(covering.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn request_numbers_wrap() {
        assert!(reaches(1, u32::MAX) && reaches(7, 7));
        assert!(!reaches(u32::MAX, 1) && !reaches(6, 7));
    }
}
