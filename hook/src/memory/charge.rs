//! Charging an allocation before it is made, and making room for it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gcgroup_abi::{ControlDevice, Gate, OTHER_DEVICE};

use super::account::Account;
use super::page_counter::{self, Full, Sums};
use super::{ABSURD, Memory, grant};
use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::interpose::Next;
use crate::driver::{exit, thread};
use crate::{helper, sys};

/// Longest wait of an allocation at a limit for streams to reach frees, and the pause between two looks.
const PATIENCE: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_micros(200);

/// Bytes charged for an allocation that the driver has not made yet; uncharged when dropped. The sums after
/// the charge ([`Sums`]) are passed separately.
#[derive(Debug)]
pub(crate) struct Charge<'a> {
    pub(super) memory: &'a Memory,
    pub(super) index: usize,
    pub(super) bytes: u64,
}

impl Charge<'_> {
    /// Keeps the charge for the ledger: the allocation was made.
    #[inline(always)]
    pub(crate) fn keep(self, sums: Sums) {
        let (memory, index) = (self.memory, self.index);
        std::mem::forget(self);
        memory.page_counter.raise_peaks(index, sums);
    }

    /// Charges the size of memory that was refused and cannot be freed, even beyond a limit, for as long as
    /// the process lives. Returns the driver's error.
    #[cold]
    pub(crate) fn keep_refused(self, bytes: u64, error: CUerror) -> CUerror {
        let (memory, index, more) = (self.memory, self.index, bytes.saturating_sub(self.bytes));
        std::mem::forget(self);
        memory.page_counter.charge(index, more);
        error
    }

    /// Changes the charge to `bytes`, the size that the allocation turned out to take; returns the new sums.
    /// The device is marked as unsettled meanwhile.
    #[inline]
    pub(crate) fn fit(&mut self, sums: Sums, bytes: u64) -> Result<Sums, CUerror> {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => self.grow(bytes, more)?,
            None => return Ok(self.lessen(sums, bytes)),
        }
        Ok(sums)
    }

    /// Changes the charge to `bytes`, which are more, even beyond a limit; returns the new sums.
    #[cold]
    pub(crate) fn exceed(&mut self, bytes: u64) -> Sums {
        let more = bytes.saturating_sub(self.bytes);
        self.memory.page_counter.charge(self.index, more);
        self.bytes = bytes;
        Sums::default()
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: u64, more: u64) -> Result<(), CUerror> {
        let (charge, sums) = self.memory.try_charge(self.index, more)?;
        charge.keep(sums);
        self.bytes = bytes;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn lessen(&mut self, sums: Sums, bytes: u64) -> Sums {
        let excess = self.bytes - bytes;
        self.memory.uncharge(self.index, excess);
        self.bytes = bytes;
        sums.less(excess)
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.memory.uncharge(self.index, self.bytes);
    }
}

impl Memory {
    /// Charges `bytes` before the driver is called. At a limit, pools are trimmed first.
    pub(crate) fn try_charge(&self, index: usize, bytes: u64) -> Result<(Charge<'_>, Sums), CUerror> {
        let sums = if bytes < ABSURD {
            self.know_contexts(index, || bytes);
            let charge = || self.charge(index, bytes);
            let charged = charge().or_else(|full| self.with_room(index, full, charge));
            charged.map_err(|full| self.refused_by(index, bytes, full))?
        } else {
            self.absurd(index, bytes).map(|()| Sums::default())?
        };
        Ok((self.charged(index, bytes), sums))
    }

    /// Charges `likely` if it fits, `least` otherwise.
    pub(crate) fn try_charge_likely(
        &self,
        index: usize,
        likely: u64,
        least: impl Fn() -> u64,
    ) -> Result<(Charge<'_>, Sums), CUerror> {
        self.know_contexts(index, || likely);
        if likely < ABSURD
            && let Ok(sums) = self.reserve(index, likely)
        {
            return Ok((self.charged(index, likely), sums));
        }
        self.try_charge(index, least())
    }

    pub(crate) fn charged(&self, index: usize, bytes: u64) -> Charge<'_> {
        Charge {
            memory: self,
            index,
            bytes: if bytes < ABSURD { bytes } else { 0 },
        }
    }

    /// Refuses a size that no device has if any limit is set; `memory.high` is none. Otherwise the driver
    /// refuses it; it must not be charged meanwhile.
    #[cold]
    #[inline(never)]
    fn absurd(&self, index: usize, bytes: u64) -> Result<(), CUerror> {
        let Some(full) = page_counter::limit_on(self.usage(), self.control(), index) else {
            return Ok(());
        };
        let control = self.control().devices.get(index);
        if matches!(full, Full::Group(_)) && control.is_some_and(grant::is_alone) {
            return Ok(());
        }
        if let Full::Group(index) = full {
            // The daemon refuses it too, and so learns which group has the limit.
            let _ = self.charge_granted(index, ABSURD - 1, || Err::<(), _>(full));
        }
        self.count_hit(full);
        Err(self.refused_by(index, bytes, full))
    }

    /// Charges `bytes`; the caller uncharges them.
    ///
    /// # Errors
    /// The limit or the grant that does not allow it; the hit is counted, a refusal is not.
    pub(crate) fn charge_bytes(&self, index: usize, bytes: u64) -> Result<(), Full> {
        let charged = self.charge(index, bytes);
        let sums = charged.inspect_err(|full| self.count_hit(*full))?;
        self.page_counter.raise_peaks(index, sums);
        Ok(())
    }

    /// Charges `bytes` if they fit, waiting for a larger grant if that is what is missing.
    pub(crate) fn charge(&self, index: usize, bytes: u64) -> Result<Sums, Full> {
        let charge = || self.reserve(index, bytes);
        match charge() {
            Err(Full::Group(index)) => Ok(self.charge_granted(index, bytes, charge)?.0),
            charged => charged,
        }
    }

    /// Charges `bytes` if they fit.
    pub(crate) fn reserve(&self, index: usize, bytes: u64) -> Result<Sums, Full> {
        self.page_counter.try_reserve(index, bytes)
    }

    /// Counts an allocation that hit a limit and rings the daemon, which notifies pollers of `memory.events`.
    /// The allocation may still succeed: after pools have been trimmed, or in host memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_hit(&self, full: Full) {
        full.count_hit(self.usage());
        self.session.ring();
    }

    pub(crate) fn refused_by(&self, index: usize, bytes: u64, full: Full) -> CUerror {
        full.count_refusal(self.usage(), bytes);
        self.count_failure(index);
        CUerror::OUT_OF_MEMORY
    }

    /// Makes room on a device after `charge` has failed with `full`, and charges again: pools release what
    /// they do not use, also what streams free meanwhile. Waits for streams for at most [`PATIENCE`], and not
    /// while the process is frozen there; no thread waits for a free that was waited for in vain.
    #[cold]
    #[inline(never)]
    pub(crate) fn with_room<T>(
        &self,
        index: usize,
        full: Full,
        charge: impl Fn() -> Result<T, Full>,
    ) -> Result<T, Full> {
        self.count_hit(full);
        let until = Instant::now() + PATIENCE;
        let mut is_trimmed = false;
        loop {
            // Another thread may settle a free, or trim, at any moment: what it has not done by now is done
            // here, and what it has done is seen by the charge.
            let may_wait = self.awaits_frees(index);
            if self.settle_passed() || !may_wait || !is_trimmed {
                self.reserves.trim(self);
                is_trimmed = true;
            }
            match charge() {
                Err(_) if may_wait && Instant::now() < until => {}
                Err(full) if may_wait => {
                    self.reserves.give_up_waiting();
                    return Err(full);
                }
                done => return done,
            }
            thread::outside(|| {
                sys::poll([], Some(NAP));
            });
        }
    }

    fn awaits_frees(&self, index: usize) -> bool {
        let device = self.control().devices.get(index);
        let is_frozen = |device: &ControlDevice| Gate::from_word(device.gate.load(Relaxed)) == Gate::Frozen;
        let may_wait = !exit::is_exiting() && !helper::is_caller();
        may_wait && !device.is_some_and(is_frozen) && self.reserves.is_waiting(self, Account::may_wait_for)
    }

    /// Has pools release what they do not use; returns whether anything may have been released.
    pub(crate) fn release(&self) -> bool {
        self.settle_passed() | self.reserves.trim(self)
    }

    /// Has pools release what they do not use if a limit is exceeded on a device with pools; returns whether
    /// anything may have been released.
    pub(crate) fn release_excess(&self) -> bool {
        self.reserves.is_any() && self.reserves.exceed(self) && self.release()
    }

    /// Answers an allocation that cannot be charged, since the driver did not tell what must be known for it:
    /// `error`. Without a limit the driver is called.
    #[cold]
    #[inline(never)]
    pub(crate) fn without_charge(&self, error: CUerror, next: Next<'_>) -> CUresult {
        if self.is_limited() { Err(error) } else { next() }
    }

    /// Returns whether any limit is in force on any device.
    pub(crate) fn is_limited(&self) -> bool {
        let is_limited = |index| page_counter::limit_on(self.usage(), self.control(), index).is_some();
        let known = self.control().nr_devices.load(Relaxed) as usize;
        (0..known.min(OTHER_DEVICE)).chain([OTHER_DEVICE]).any(is_limited)
    }

    /// Counts an allocation that failed and rings the daemon, which notifies pollers of such events. Pools
    /// are measured again, since a driver short of memory takes back what any of them does not use.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_failure(&self, index: usize) {
        page_counter::count(self.usage(), index, |device| &device.nr_alloc_fail);
        self.reserves.settle_all(self);
        self.session.ring();
    }
}
