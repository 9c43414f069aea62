//! A pool's account: what is charged for it, and whether the next allocation needs more.
//!
//! Pure: knows neither the driver nor the limits.

use std::collections::VecDeque;

/// What pools grow by at least: the size of a page of device memory.
const LEAST_GROWTH: u64 = 2 << 20;
/// What drivers have been seen to grow them by.
const USUAL_GROWTH: u64 = 32 << 20;
/// What they grow by at most for a small allocation; more is something else than a step.
const MOST_GROWTH: u64 = 256 << 20;
/// Freed blocks that are remembered one by one.
const MOST_WAITING: usize = 64;
/// Ranges that are remembered to be reserved.
const MOST_KNOWN: usize = 32;

#[derive(Debug)]
pub(crate) struct Account {
    /// Bytes charged for the pool, and the part of them that calls under way hold in advance.
    pub(crate) paid: u64,
    held: u64,
    /// The last measurement that was settled; an older one is void.
    pub(crate) settled: u64,
    /// Allocations, and the bytes of them.
    live: u64,
    live_bytes: u64,
    /// Freed, but not before a stream has come so far; until then only that stream is given them again.
    /// Stream and bytes, the latest last.
    waiting: VecDeque<(usize, u64)>,
    waiting_bytes: u64,
    /// Where the latest allocations were, first address and bytes: reserved since, whether allocated or not, unless the pool
    /// has given something back.
    known: VecDeque<(u64, u64)>,
    /// Whether what the pool has to spare did not serve: then only a block of the very size is relied on, until a stream
    /// has ended or something was given back.
    is_scattered: bool,
    /// Whether something was freed since the driver last had occasion to give it back.
    has_freed: bool,
    /// The pool's handle is gone; it lives until nothing is allocated from it.
    pub(crate) is_destroyed: bool,
    /// What it grows by, and whether that was seen.
    growth: u64,
    is_seen: bool,
    /// The slot that it is charged in.
    pub(crate) index: usize,
}

/// The reservation is larger than the limit allows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Over;

impl Account {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            paid: 0,
            held: 0,
            settled: 0,
            live: 0,
            live_bytes: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            known: VecDeque::new(),
            is_scattered: false,
            has_freed: false,
            is_destroyed: false,
            growth: USUAL_GROWTH,
            is_seen: false,
            index,
        }
    }

    /// What the pool reserved when it was last measured.
    pub(crate) fn reserved(&self) -> u64 {
        self.paid - self.held
    }

    /// Bytes that growing for an allocation of that size takes.
    pub(crate) fn foretold(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.growth).unwrap_or(u64::MAX)
    }

    /// The least that it may take, while nobody knows better.
    pub(crate) fn hoped(&self, bytes: u64) -> Option<u64> {
        (!self.is_seen).then(|| bytes.checked_next_multiple_of(LEAST_GROWTH))?
    }

    /// What is reserved, and neither allocated nor waiting for a stream.
    fn spare(&self) -> u64 {
        self.reserved()
            .saturating_sub(self.live_bytes)
            .saturating_sub(self.waiting_bytes)
    }

    /// Whether trimming may give anything back.
    pub(crate) fn has_spare(&self) -> bool {
        !self.is_destroyed && self.reserved() > self.live_bytes
    }

    /// The driver has had occasion to give back what is free; whether there may be such that had not been before.
    pub(crate) fn may_have_shrunk(&mut self) -> bool {
        // What waits for a stream is freed without a word.
        std::mem::take(&mut self.has_freed) || self.waiting_bytes != 0
    }

    /// Whether that is what is known.
    pub(crate) fn is_as_measured(&self, reserved: u64) -> bool {
        reserved == self.reserved() && self.waiting_bytes <= reserved.saturating_sub(self.live_bytes)
    }

    /// Whether waiting for a stream may change anything.
    pub(crate) fn is_touched(&self) -> bool {
        self.has_freed
            || self.waiting_bytes != 0
            || !self.waiting.is_empty()
            || self.is_scattered
            || self.is_over()
    }

    /// Begins an allocation on a stream; whether the pool can serve it as it is, without growing.
    pub(crate) fn begin(&mut self, bytes: u64, stream: usize) -> bool {
        let spare = self.spare();
        self.live += 1;
        self.live_bytes += bytes;
        if let Some(at) = self.waiting.iter().position(|block| *block == (stream, bytes)) {
            self.forget(at);
            return true;
        }
        !self.is_scattered && spare >= bytes
    }

    /// Whether an allocation that was made there took nothing that was not reserved before: then nobody need ask.
    pub(crate) fn is_known(&self, address: u64, bytes: u64) -> bool {
        let end = address.saturating_add(bytes);
        let holds = |(from, length): &(u64, u64)| *from <= address && end <= from.saturating_add(*length);
        self.known.iter().rev().any(holds)
    }

    /// An allocation was made there, and what is reserved was measured after.
    pub(crate) fn know(&mut self, address: u64, bytes: u64) {
        if self.known.len() == MOST_KNOWN {
            self.known.pop_front();
        }
        self.known.push_back((address, bytes));
    }

    /// Ends an allocation, at once or when that stream has come so far.
    pub(crate) fn end(&mut self, bytes: u64, stream: Option<usize>) {
        self.has_freed = true;
        self.live = self.live.saturating_sub(1);
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
        let Some(stream) = stream else { return };
        if self.waiting.len() == MOST_WAITING {
            // Its bytes still wait: all that is lost is whose they are.
            self.waiting.pop_front();
        }
        self.waiting.push_back((stream, bytes));
        self.waiting_bytes += bytes;
    }

    /// The pool grew where it was thought not to need to, and the allocation was undone.
    pub(crate) fn mistaken(&mut self, bytes: u64, stream: usize) {
        self.is_scattered = true;
        self.end(bytes, Some(stream));
    }

    fn forget(&mut self, at: usize) {
        if let Some((_, bytes)) = self.waiting.remove(at) {
            self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        }
    }

    /// A stream has come to its end: nothing waits for it any more.
    pub(crate) fn passed(&mut self, stream: usize) {
        self.is_scattered = false;
        let waiting_bytes = &mut self.waiting_bytes;
        self.waiting.retain(|(other, bytes)| {
            let has_passed = *other == stream;
            if has_passed {
                *waiting_bytes = waiting_bytes.saturating_sub(*bytes);
            }
            !has_passed
        });
    }

    /// Whether the pool is gone, once the streams that it waits for have come so far.
    pub(crate) fn is_over(&self) -> bool {
        self.is_destroyed && self.live == 0
    }

    /// The streams that freed blocks wait for, as far as they are remembered.
    pub(crate) fn waits_for(&self) -> Vec<usize> {
        let mut streams: Vec<_> = self.waiting.iter().map(|(stream, _)| *stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Makes foretelling agree with what the pool grew by for an allocation of that size: by the least step that
    /// explains it, if the present one does not.
    pub(crate) fn learn(&mut self, bytes: u64, before: u64) {
        let grown = self.reserved().saturating_sub(before);
        if grown == 0 {
            return;
        }
        self.is_seen = true;
        if self.foretold(bytes) > grown {
            self.growth = LEAST_GROWTH;
        }
        while self.foretold(bytes) < grown && self.growth < MOST_GROWTH {
            self.growth *= 2;
        }
    }

    /// Notes what a call holds in advance, charged by the caller.
    pub(crate) fn hold(&mut self, bytes: u64) {
        self.paid += bytes;
        self.held += bytes;
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
        if reserved < self.reserved() {
            // Something was given back; whose it was, nobody says.
            self.waiting.clear();
            self.known.clear();
            self.is_scattered = false;
        }
        self.held -= held;
        // What is not reserved any more does not wait either.
        self.waiting_bytes = self.waiting_bytes.min(reserved.saturating_sub(self.live_bytes));
        if reserved <= self.paid {
            // What others hold in advance they may still need.
            let keep = self.paid.min(reserved.saturating_add(self.held));
            uncharge(self.paid - keep);
            self.paid = keep;
            return Ok(());
        }
        let missing = reserved - self.paid;
        self.paid = reserved;
        if try_charge(missing) {
            return Ok(());
        }
        charge(missing);
        Err(Over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn account(reserved: u64, held: u64) -> Account {
        let mut account = Account::new(0);
        account.paid = reserved;
        account.hold(held);
        account
    }

    /// Settles against a ledger with room for `room` more bytes; returns what was charged (less what was given back).
    fn settle(account: &mut Account, held: u64, reserved: u64, room: i64) -> (Result<(), Over>, i64) {
        let charged = Cell::new(0_i64);
        let add = |bytes: u64| charged.set(charged.get() + i64::try_from(bytes).unwrap());
        let result = account.settle(
            held,
            reserved,
            |bytes| {
                let fits = i64::try_from(bytes).unwrap() <= room;
                if fits {
                    add(bytes);
                }
                fits
            },
            add,
            |bytes| charged.set(charged.get() - i64::try_from(bytes).unwrap()),
        );
        (result, charged.get())
    }

    #[test]
    fn what_is_made_where_something_was_needs_no_measurement_until_the_pool_shrinks() {
        let mut one = account(100, 0);
        assert!(!one.is_known(1000, 10));
        one.know(1000, 10);
        assert!(one.is_known(1000, 10) && one.is_known(1004, 6));
        assert!(!one.is_known(1000, 11) && !one.is_known(999, 5) && !one.is_known(1010, 1));
        assert_eq!(
            settle(&mut one, 0, 120, 20),
            (Ok(()), 20),
            "growing takes nothing away"
        );
        assert!(one.is_known(1000, 10));
        for number in 1..=u64::try_from(MOST_KNOWN).unwrap() {
            one.know(1000 + 100 * number, 10);
        }
        assert!(!one.is_known(1000, 10), "the earliest is forgotten");
        assert!(one.is_known(1100, 10));
        assert_eq!(settle(&mut one, 0, 119, 0), (Ok(()), -1));
        assert!(!one.is_known(1100, 10), "it may be what was given back");
    }

    #[test]
    fn a_call_pays_for_the_growth_that_was_measured() {
        let mut one = account(100, 32);
        assert_eq!(settle(&mut one, 32, 120, 0), (Ok(()), -12));
        assert_eq!((one.paid, one.held), (120, 0));
        assert_eq!(settle(&mut one, 0, 40, 0), (Ok(()), -80), "trimmed");
        assert_eq!(settle(&mut one, 0, 50, 10), (Ok(()), 10));
    }

    #[test]
    fn growth_that_does_not_fit_is_said_and_charged() {
        let mut one = account(100, 32);
        assert_eq!(settle(&mut one, 32, 164, 31), (Err(Over), 32));
        assert_eq!((one.paid, one.held), (164, 0));
    }

    #[test]
    fn calls_under_way_keep_what_they_hold() {
        let mut both = account(100, 64);
        assert_eq!(
            settle(&mut both, 32, 164, 0),
            (Ok(()), 0),
            "the other's growth was measured too"
        );
        assert_eq!((both.paid, both.held), (164, 32));
        assert_eq!(settle(&mut both, 32, 164, 0), (Ok(()), 0));
        let mut both = account(100, 64);
        assert_eq!(settle(&mut both, 32, 100, 0), (Ok(()), -32));
        assert_eq!((both.paid, both.held), (132, 32));
    }

    #[test]
    fn growth_is_foretold_in_steps_that_are_learnt() {
        const M: u64 = 1 << 20;
        let mut one = account(0, 0);
        let grow = |one: &mut Account, bytes, by| {
            one.paid = by;
            one.learn(bytes, 0);
        };
        assert_eq!((one.foretold(1), one.hoped(1)), (32 * M, Some(2 * M)));
        grow(&mut one, M, 0);
        assert_eq!(one.hoped(3 * M), Some(4 * M), "nothing was seen");
        grow(&mut one, 30 * M, 32 * M);
        assert_eq!((one.foretold(1), one.hoped(1)), (32 * M, None), "as foretold");
        grow(&mut one, M, 64 * M);
        assert_eq!(one.foretold(1), 64 * M);
        grow(&mut one, 5 * M, 8 * M);
        assert_eq!(one.foretold(1), 4 * M, "the least step that takes 5 to 8");
        grow(&mut one, 1, u64::MAX);
        assert_eq!(one.foretold(1), MOST_GROWTH);
        assert_eq!(one.foretold(u64::MAX), u64::MAX);
    }

    #[test]
    fn what_waits_for_a_stream_serves_that_stream_alone() {
        let mut one = account(100, 0);
        assert!(one.begin(60, 1), "nothing is allocated yet");
        one.end(60, Some(1));
        assert!(!one.begin(60, 2));
        one.end(60, None);
        assert!(one.begin(60, 1));
        assert!(!one.begin(60, 1), "it is given once");
        one.end(60, None);
        one.end(60, Some(1));
        one.passed(1);
        assert!(one.begin(90, 2), "nothing waits any more");
        one.end(90, Some(2));
        assert_eq!(settle(&mut one, 0, 95, 0), (Ok(()), -5));
        assert!(!one.begin(90, 2), "it may have been what was given back");
    }

    #[test]
    fn it_is_measured_again_after_something_was_freed_or_while_it_waits() {
        let mut one = account(100, 0);
        assert!(!one.may_have_shrunk());
        one.begin(10, 1);
        one.begin(20, 1);
        assert!(!one.may_have_shrunk());
        one.end(10, None);
        assert!(one.may_have_shrunk() && !one.may_have_shrunk());
        one.end(20, Some(1));
        assert!(one.may_have_shrunk() && one.may_have_shrunk());
        one.passed(1);
        assert!(!one.may_have_shrunk());
    }

    #[test]
    fn after_a_mistake_only_a_block_of_the_very_size_is_relied_on() {
        let mut one = account(100, 0);
        assert!(one.begin(50, 1));
        one.mistaken(50, 1);
        assert!(!one.begin(40, 1));
        one.end(40, None);
        assert!(one.begin(50, 1));
        one.end(50, None);
        one.passed(7);
        assert!(one.begin(40, 1), "it may be another matter now");
    }
}
