//! Requests for larger grants from the groups above: a request in the usage block, the daemon's bell, and a
//! futex on its answer.
//!
//! `memory.high` ends a grant too: a charge beyond it is granted, and then waits
//! ([`Memory::charge_granted`]).
//!
//! Needed only when a charge exceeds the grant. An answer enlarges the grant of the process, not of the
//! requesting thread, so the charge is tried again. Every wait ends, whatever happens to the daemon.

#[cfg(test)]
mod tests;

use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};
use std::time::{Duration, Instant};

use gcgroup_abi::{
    ControlDevice, HIGH_ALONE, HIGH_IN_FORCE, MAX_DEVICES, NO_LIMIT, Pressure, UsageDevice, WANTED_AGAIN,
    WANTED_BELOW_HIGH, most_unused,
};
use parking_lot::Mutex;

use super::Memory;
use super::page_counter::Full;
use crate::driver::exit;
use crate::shared::patience::{Limit, MOST};
use crate::shared::stall::Stalled;
use crate::{helper, sys};

/// Longest wait for an answer, for a daemon that is stopped or being restarted; longer for one that is busy.
const PATIENCE: Duration = if cfg!(test) {
    Duration::from_millis(500)
} else {
    Duration::from_secs(5)
};
/// Longest wait for another thread's request.
const LOCKED: Duration = if cfg!(test) { PATIENCE } else { MOST };
/// Longest wait of an allocation for `memory.high`.
const HIGH_PATIENCE: Duration = Duration::from_secs(1);
/// How often a waiting thread checks for a new daemon's block and rings again.
const RECHECK: Duration = Duration::from_millis(20);
/// Shortest time between two rings for unused grants, milliseconds: less than between two of the daemon's
/// checks.
const RETURN_PAUSE: u64 = 40;
/// Most requests for one charge, since other threads may use the grant or return what was missing.
const MOST_TRIES: usize = 1000;

#[derive(Debug)]
pub(crate) struct Grants {
    /// One lock per device, held by the requesting thread: a device has one request in progress.
    asking: [Mutex<()>; MAX_DEVICES],
    /// Set for a device while a request is unanswered: until an answer comes or a daemon connects, no thread
    /// waits there.
    is_silent: [AtomicBool; MAX_DEVICES],
    /// When the process last rang for unused grants, milliseconds of the monotonic clock.
    last_return: AtomicU64,
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
            last_return: AtomicU64::new(0),
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

    /// Uncharges `bytes`.
    #[inline]
    pub(crate) fn uncharge(&self, index: usize, bytes: u64) {
        self.page_counter.uncharge(index, bytes);
        self.return_unused(index);
    }

    /// Rings the daemon where much of a grant is unused after an uncharge; it takes that back.
    #[inline]
    pub(crate) fn return_unused(&self, index: usize) {
        let device = self.usage().devices.get(index);
        if let Some(device) = device.filter(|device| device.memory_granted.load(Relaxed) != NO_LIMIT) {
            self.ring_if_unused(index, device);
        }
    }

    #[cold]
    #[inline(never)]
    fn ring_if_unused(&self, index: usize, device: &UsageDevice) {
        let control = self.control().devices.get(index);
        let limit = control.map_or(NO_LIMIT, |control| control.group_limit.load(Relaxed));
        let granted = device.memory_granted.load(Relaxed);
        if granted.saturating_sub(device.memory_current.load(Relaxed)) <= most_unused(limit) {
            return;
        }
        let (now, last) = (sys::now() / 1_000_000, &self.grants.last_return);
        if now.saturating_sub(last.load(Relaxed)) >= RETURN_PAUSE {
            last.store(now, Relaxed);
            self.session.ring();
        }
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
            None => match lock.try_lock_for(LOCKED) {
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
        let Some((usage, control)) = self.session.device(index) else {
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
        let (Some((usage, control)), Some(silent)) =
            (self.session.device(index), self.grants.is_silent.get(index))
        else {
            return Answer::Missing;
        };
        if is_answered(control, usage.grant_request.load(Relaxed)) {
            silent.store(false, Relaxed);
        }
        let number = put(usage, word(control, bytes, is_again));
        let limit = match is_alone(control) {
            false => Limit::of_program(PATIENCE),
            true if self.has_daemon() => PATIENCE.min(HIGH_PATIENCE).into(),
            true => Duration::ZERO.into(),
        };
        let mut patience = self.session.patience(limit);
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
            if patience.left().is_none() {
                // A daemon that was not waited for is not known to be silent.
                if !limit.idle().is_zero() {
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
