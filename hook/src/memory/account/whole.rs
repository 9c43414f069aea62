//! Sums of what is charged for a pool and measured of it.

use std::sync::atomic::Ordering::Relaxed;

use super::share::{Shared, signed};
use super::{Account, Begun, HAS_FREED, HAS_WAITING, IS_OVER, IS_SCATTERED, IS_SHORT, LEAST_GROWTH, Over};
use crate::memory::lock::Guard;
use crate::memory::stream::Stream;

/// Largest growth step to learn for a small allocation, bytes; a larger growth is not a step.
pub(super) const MOST_GROWTH: u64 = 256 << 20;
/// Divisor: a share that needs more is also given 1/8 of the pool's remaining spare bytes.
const PART: i64 = 8;

#[derive(Debug)]
pub(super) struct Sums {
    /// Bytes charged for the pool, and the part of them that calls in progress hold in advance.
    paid: u64,
    held: u64,
    /// Reserved bytes that no share was given; negative where shares have counted more than is reserved.
    spare: i64,
    /// The device slot in which the pool is charged.
    index: usize,
}

impl Sums {
    pub(super) fn new(index: usize) -> Self {
        Self {
            paid: 0,
            held: 0,
            spare: 0,
            index,
        }
    }
}

/// The account while its lock is held: no other thread charges or measures.
#[derive(Debug)]
pub(crate) struct Whole<'a> {
    account: &'a Account,
    sums: Guard<'a, Sums>,
}

impl<'a> Whole<'a> {
    pub(super) fn new(account: &'a Account, sums: Guard<'a, Sums>) -> Self {
        Self { account, sums }
    }

    pub(crate) fn paid(&self) -> u64 {
        self.sums.paid
    }

    pub(crate) fn index(&self) -> usize {
        self.sums.index
    }

    pub(crate) fn set_index(&mut self, index: usize) {
        self.sums.index = index;
    }

    /// Returns the reserved size at the last measurement, bytes.
    pub(crate) fn reserved(&self) -> u64 {
        self.sums.paid - self.sums.held
    }

    /// Returns whether trimming may release anything.
    pub(crate) fn has_spare(&self) -> bool {
        let live: i64 = self.account.shares().map(|share| share.lock().live_bytes).sum();
        !self.account.is_destroyed() && signed(self.reserved()) > live
    }

    /// Returns whether the pool is destroyed and has no live allocation.
    pub(crate) fn is_over(&self) -> bool {
        let live = || self.account.shares().map(|share| share.lock().live).sum::<i64>();
        self.account.is_destroyed() && live() <= 0
    }

    pub(super) fn look_whether_over(&self) -> bool {
        let is_over = self.is_over();
        self.account.set(IS_OVER, is_over);
        is_over
    }

    /// Returns the streams that freed blocks wait for, as far as they are recorded.
    pub(crate) fn waits_for(&self) -> Vec<Stream> {
        let mut streams = Vec::new();
        for share in self.account.shares() {
            streams.extend(share.lock().waits_for());
        }
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Begins an allocation for which the stream's share has too little.
    pub(super) fn begin(&mut self, share: &Shared, bytes: u64, stream: Stream) -> Begun {
        let counted = share.change(|share| {
            self.sums.spare += share.take();
            share.begin(bytes, stream)
        });
        if self.sums.spare < counted.needed {
            self.take_back();
        }
        let is_enough = self.sums.spare >= counted.needed && !self.account.is(IS_SCATTERED);
        self.sums.spare -= counted.needed;
        let part = self.sums.spare / PART;
        if part > 0 {
            self.sums.spare -= part;
            share.lock().give(part);
        }
        self.look_whether_short();
        Begun {
            may_do: counted.is_found || is_enough,
            measurements: self.account.begun.load(Relaxed),
        }
    }

    /// Takes the spare bytes back from all shares.
    fn take_back(&mut self) {
        let given: i64 = self.account.shares().map(|share| share.lock().take()).sum();
        self.sums.spare += given;
    }

    fn look_whether_short(&self) {
        self.account.set(IS_SHORT, self.sums.spare < 0);
    }

    /// Begins a measurement of the reserved size and returns its number; `had_occasion`: the driver has had
    /// an opportunity to shrink the pool. Existing allocations stop being new: the driver may keep the rest
    /// of the pool only because of them.
    pub(crate) fn measure(&mut self, had_occasion: bool) -> u64 {
        if had_occasion {
            self.account.set(HAS_FREED, false);
        }
        let number = self.account.begun.load(Relaxed) + 1;
        self.account.begun.store(number, Relaxed);
        // A thread that locks a share before this sees its changes counted here; one that locks it later sees
        // what was written above.
        for share in self.account.shares() {
            if share.lock().grow_old() {
                self.account.set(HAS_WAITING, true);
            }
        }
        number
    }

    /// Returns whether a measurement that began later is settled already; otherwise settles this one.
    pub(crate) fn is_void(&mut self, number: u64) -> bool {
        let is_void = number < self.account.settled.load(Relaxed);
        if !is_void {
            self.account.settled.store(number, Relaxed);
        }
        is_void
    }

    /// Returns whether `reserved` agrees with the account.
    pub(crate) fn is_as_measured(&self, reserved: u64) -> bool {
        reserved == self.reserved() && self.sums.spare >= 0
    }

    /// Settles the frees that wait for a stream that has been waited for.
    pub(crate) fn passed(&mut self, stream: Stream) {
        self.account.set(IS_SCATTERED, false);
        self.account.passed(stream);
        if self.account.is(HAS_WAITING) {
            // Cleared before the shares are inspected: a thread that adds a waiting block afterwards sets it
            // again.
            self.account.set(HAS_WAITING, false);
            if self.account.shares().any(|share| share.lock().is_old_waiting()) {
                self.account.set(HAS_WAITING, true);
            }
        }
    }

    /// Clears `HAS_FREED` if nothing is charged: the driver has nothing to release.
    pub(crate) fn look_whether_empty(&mut self) {
        if self.sums.paid == 0 {
            self.account.set(HAS_FREED, false);
        }
    }

    /// Learns the growth step from what the pool grew by for an allocation of `bytes`: if the present step
    /// does not explain it, the least one that does.
    pub(crate) fn learn(&mut self, bytes: u64, before: u64) {
        let account = self.account;
        let grown = self.reserved().saturating_sub(before);
        if grown == 0 {
            return;
        }
        account.is_seen.store(true, Relaxed);
        if account.foretold(bytes) > grown {
            account.growth.store(LEAST_GROWTH, Relaxed);
        }
        while account.foretold(bytes) < grown && account.growth.load(Relaxed) < MOST_GROWTH {
            account.growth.store(2 * account.growth.load(Relaxed), Relaxed);
        }
    }

    /// Records bytes that a call holds in advance; the caller has charged them.
    pub(crate) fn hold(&mut self, bytes: u64) {
        self.sums.paid += bytes;
        self.sums.held += bytes;
    }

    /// Ends a call that held `held` bytes, with `reserved` measured after it: charges what is missing,
    /// uncharges what is too much. Growth that does not fit is charged all the same, since the device has it.
    ///
    /// # Errors
    /// [`Over`] if the growth did not fit; it is charged.
    pub(crate) fn settle(
        &mut self,
        held: u64,
        reserved: u64,
        try_charge: impl FnOnce(u64) -> bool,
        charge: impl FnOnce(u64),
        uncharge: impl FnOnce(u64),
    ) -> Result<(), Over> {
        let before = self.reserved();
        if reserved < before {
            self.account
                .shares()
                .for_each(|share| share.change(|share| share.forget()));
            self.account.set(IS_SCATTERED, false);
        }
        self.sums.held -= held;
        let missing = reserved.saturating_sub(self.sums.paid);
        // Other calls may still need what they hold in advance.
        let keep = self.sums.paid.min(reserved.saturating_add(self.sums.held));
        let too_much = self.sums.paid - keep;
        self.sums.paid = keep + missing;
        self.sums.spare += signed(self.reserved()) - signed(before);
        self.even_out(signed(reserved) - signed(self.reserved()));
        self.account.reserved.store(self.reserved(), Relaxed);
        if missing == 0 {
            uncharge(too_much);
            return Ok(());
        }
        if try_charge(missing) {
            return Ok(());
        }
        charge(missing);
        Err(Over)
    }

    /// Brings the shares into line with the reserved size: bytes that are no longer reserved do not wait
    /// either. `more`: bytes reserved beyond what the sums know.
    fn even_out(&mut self, more: i64) {
        if self.sums.spare < 0 {
            self.take_back();
            for share in self.account.shares() {
                let missing = u64::try_from(-(self.sums.spare + more)).unwrap_or(0);
                self.sums.spare += share.lock().cut(missing);
            }
        }
        self.look_whether_short();
    }

    /// Returns the charged bytes and sets them to zero.
    pub(crate) fn give_up(&mut self) -> u64 {
        std::mem::take(&mut self.sums.paid)
    }
}
