//! What is charged for a pool, and what is measured of it.

use std::sync::atomic::Ordering::Relaxed;

use super::share::{Shared, signed};
use super::{Account, Begun, HAS_FREED, HAS_WAITING, IS_OVER, IS_SCATTERED, IS_SHORT, LEAST_GROWTH, Over};
use crate::memory::lock::Guard;
use crate::memory::stream::Stream;

/// What they grow by at most for a small allocation; more is something else than a step.
pub(super) const MOST_GROWTH: u64 = 256 << 20;
/// The part of what the pool has to spare that a share is given, beyond what it needs.
const PART: i64 = 8;

#[derive(Debug)]
pub(super) struct Sums {
    /// Bytes charged for the pool, and the part of them that calls under way hold in advance.
    paid: u64,
    held: u64,
    /// What is reserved and no share was given; less than nothing where shares have counted more than is reserved.
    spare: i64,
    /// The slot that it is charged in.
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

/// The account while nobody else charges or measures.
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

    /// What the pool reserved when it was measured last.
    pub(crate) fn reserved(&self) -> u64 {
        self.sums.paid - self.sums.held
    }

    /// Whether trimming may give anything back.
    pub(crate) fn has_spare(&self) -> bool {
        let live: i64 = self.account.shares().map(|share| share.lock().live_bytes).sum();
        !self.account.is_destroyed() && signed(self.reserved()) > live
    }

    /// Whether the pool is gone, once the streams that it waits for have come so far.
    pub(crate) fn is_over(&self) -> bool {
        let live = || self.account.shares().map(|share| share.lock().live).sum::<i64>();
        self.account.is_destroyed() && live() <= 0
    }

    pub(super) fn look_whether_over(&self) -> bool {
        let is_over = self.is_over();
        self.account.set(IS_OVER, is_over);
        is_over
    }

    /// The streams that freed blocks wait for, as far as they are remembered.
    pub(crate) fn waits_for(&self) -> Vec<Stream> {
        let mut streams = Vec::new();
        for share in self.account.shares() {
            streams.extend(share.lock().waits_for());
        }
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Begins an allocation that the stream's share has not enough for.
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

    /// Takes back what shares may rely on.
    fn take_back(&mut self) {
        let given: i64 = self.account.shares().map(|share| share.lock().take()).sum();
        self.sums.spare += given;
    }

    fn look_whether_short(&self) {
        self.account.set(IS_SHORT, self.sums.spare < 0);
    }

    /// Begins to measure what is reserved, after the driver had occasion to give something back or not; the measurement's
    /// number. From here on nothing is new: it may be for this alone that the driver keeps what is beside it.
    pub(crate) fn measure(&mut self, had_occasion: bool) -> u64 {
        if had_occasion {
            self.account.set(HAS_FREED, false);
        }
        let number = self.account.begun.load(Relaxed) + 1;
        self.account.begun.store(number, Relaxed);
        // Whoever locks a share before this is seen, and whoever does after sees what was written.
        for share in self.account.shares() {
            if share.lock().grow_old() {
                self.account.set(HAS_WAITING, true);
            }
        }
        number
    }

    /// Whether a measurement that was begun later is settled already. If not, that one is now.
    pub(crate) fn is_void(&mut self, number: u64) -> bool {
        let is_void = number < self.account.settled.load(Relaxed);
        if !is_void {
            self.account.settled.store(number, Relaxed);
        }
        is_void
    }

    /// Whether that is what is known.
    pub(crate) fn is_as_measured(&self, reserved: u64) -> bool {
        reserved == self.reserved() && self.sums.spare >= 0
    }

    /// A stream has come to its end: nothing waits for it any more.
    pub(crate) fn passed(&mut self, stream: Stream) {
        self.account.set(IS_SCATTERED, false);
        self.account.passed(stream);
        if self.account.is(HAS_WAITING) {
            // Before they are looked at: who adds to one after says so after.
            self.account.set(HAS_WAITING, false);
            if self.account.shares().any(|share| share.lock().is_old_waiting()) {
                self.account.set(HAS_WAITING, true);
            }
        }
    }

    /// Where nothing is charged there is nothing that the driver could give back, and nobody who frees anything.
    pub(crate) fn look_whether_empty(&mut self) {
        if self.sums.paid == 0 {
            self.account.set(HAS_FREED, false);
        }
    }

    /// Makes foretelling agree with what the pool grew by for an allocation of that size: by the least step that
    /// explains it, if the present one does not.
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

    /// Notes what a call holds in advance, charged by the caller.
    pub(crate) fn hold(&mut self, bytes: u64) {
        self.sums.paid += bytes;
        self.sums.held += bytes;
    }

    /// Ends a call that held `held`, with `reserved` measured after it: charges what is missing, gives back what is
    /// too much. What does not fit is charged all the same, since it is there.
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
        // What others hold in advance they may still need.
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

    /// What is not reserved any more does not wait either. `more` is reserved than is known of as yet.
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

    /// Gives up what is charged; how much.
    pub(crate) fn give_up(&mut self) -> u64 {
        std::mem::take(&mut self.sums.paid)
    }
}
