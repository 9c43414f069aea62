//! A pool's account: what is charged for it, and whether the next allocation needs more.
//!
//! Pure: knows neither the driver nor the limits.

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
    /// Measurements that were begun, and the last one that was settled; an older one is void.
    begun: u64,
    pub(crate) settled: u64,
    /// Allocations, and the bytes of them.
    live: u64,
    live_bytes: u64,
    /// Freed, but not before a stream has come so far; until then only that stream is given them again. The latest last.
    waiting: Vec<Waiting>,
    waiting_bytes: u64,
    /// The part of these that is not new.
    waiting_old: u64,
    /// Where the latest allocations were: reserved since, whether allocated or not, unless the pool has given something back.
    known: Vec<Range>,
    /// Whether what the pool has to spare did not serve: then only a block of the very size is relied on, until a stream
    /// has ended or something was given back.
    is_scattered: bool,
    /// Whether something was freed since the driver last had occasion to give it back, but for what is new: when the pool was
    /// measured last, that was as free as it is again, and the driver has kept it.
    has_freed: bool,
    /// The pool's handle is gone; it lives until nothing is allocated from it.
    pub(crate) is_destroyed: bool,
    /// What it grows by, and whether that was seen.
    growth: u64,
    is_seen: bool,
    /// The slot that it is charged in.
    pub(crate) index: usize,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    stream: usize,
    bytes: u64,
    is_new: bool,
}

impl Waiting {
    /// Takes it off all that waits and off what does and is old.
    fn leave(self, all: &mut u64, old: &mut u64) {
        *all = all.saturating_sub(self.bytes);
        if !self.is_new {
            *old = old.saturating_sub(self.bytes);
        }
    }
}

/// Part of what the pool reserves.
#[derive(Debug, Clone, Copy)]
struct Range {
    from: u64,
    bytes: u64,
    /// Where in it something is allocated that is new: made since the pool was measured last. Zero: nowhere.
    new_at: u64,
}

/// For whom waiting for a stream may change anything, as a number: a stream's, or one of these.
pub(crate) const NOBODY: usize = 0;
pub(crate) const ANYBODY: usize = usize::MAX;

/// An allocation that was begun, by when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    /// Whether the pool can serve it as it is, without growing.
    pub(crate) may_do: bool,
    measurements: u64,
}

/// The reservation is larger than the limit allows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Over;

impl Account {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            paid: 0,
            held: 0,
            begun: 0,
            settled: 0,
            live: 0,
            live_bytes: 0,
            waiting: Vec::new(),
            waiting_bytes: 0,
            waiting_old: 0,
            known: Vec::new(),
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
    pub(crate) fn may_have_shrunk(&self) -> bool {
        // What waits for a stream is freed without a word.
        self.has_freed || self.waiting_old != 0
    }

    /// What the driver would keep when the pool was measured last says nothing any more.
    pub(crate) fn may_keep_less(&mut self) {
        self.has_freed = true;
    }

    /// Begins to measure what is reserved, after the driver had occasion to give something back or not; the measurement's
    /// number. From here on nothing is new: it may be for this alone that the driver keeps what is beside it.
    pub(crate) fn measure(&mut self, had_occasion: bool) -> u64 {
        self.has_freed &= !had_occasion;
        self.known.iter_mut().for_each(|range| range.new_at = 0);
        self.waiting.iter_mut().for_each(|block| block.is_new = false);
        self.waiting_old = self.waiting_bytes;
        self.begun += 1;
        self.begun
    }

    /// Whether that is what is known.
    pub(crate) fn is_as_measured(&self, reserved: u64) -> bool {
        reserved == self.reserved() && self.waiting_bytes <= reserved.saturating_sub(self.live_bytes)
    }

    /// For whom waiting for a stream may change anything.
    pub(crate) fn matters_to(&self) -> usize {
        if self.may_have_shrunk() || self.is_scattered || self.is_over() {
            return ANYBODY;
        }
        match self.waiting.first() {
            None => NOBODY,
            Some(first) if self.waiting.iter().all(|block| block.stream == first.stream) => {
                // The number of the default stream is nobody's.
                if first.stream == NOBODY {
                    ANYBODY
                } else {
                    first.stream
                }
            }
            Some(_) => ANYBODY,
        }
    }

    /// Begins an allocation on a stream.
    pub(crate) fn begin(&mut self, bytes: u64, stream: usize) -> Begun {
        let spare = self.spare();
        self.live += 1;
        self.live_bytes += bytes;
        let is_it = |block: &Waiting| block.stream == stream && block.bytes == bytes;
        let found = self.waiting.iter().position(is_it);
        if let Some(at) = found {
            let block = self.waiting.remove(at);
            block.leave(&mut self.waiting_bytes, &mut self.waiting_old);
        }
        Begun {
            may_do: found.is_some() || !self.is_scattered && spare >= bytes,
            measurements: self.begun,
        }
    }

    /// Whether an allocation that was made there took nothing that was not reserved before: then nobody need ask.
    pub(crate) fn is_known(&mut self, address: u64, bytes: u64, begun: Begun) -> bool {
        let end = address.saturating_add(bytes);
        let holds =
            |range: &&mut Range| range.from <= address && end <= range.from.saturating_add(range.bytes);
        let Some(range) = self.known.iter_mut().rev().find(holds) else {
            return false;
        };
        // A measurement under way may see it or not.
        if range.new_at == 0 && self.settled == begun.measurements && self.begun == begun.measurements {
            range.new_at = address;
        }
        true
    }

    /// An allocation was made there, and what is reserved was measured after.
    pub(crate) fn know(&mut self, address: u64, bytes: u64) {
        if self.known.len() == MOST_KNOWN {
            self.known.remove(0);
        }
        self.known.push(Range {
            from: address,
            bytes,
            new_at: 0,
        });
    }

    /// Ends an allocation, at once or when that stream has come so far. Address zero: nobody knows where it was.
    pub(crate) fn end(&mut self, address: u64, bytes: u64, stream: Option<usize>) {
        let is_it = |range: &&mut Range| range.new_at == address && address != 0;
        let found = self.known.iter_mut().rev().find(is_it);
        let is_new = found.is_some();
        found.into_iter().for_each(|range| range.new_at = 0);
        self.has_freed |= !is_new;
        self.live = self.live.saturating_sub(1);
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
        let Some(stream) = stream else { return };
        if self.waiting.len() == MOST_WAITING {
            // Its bytes still wait: all that is lost is whose they are.
            let block = self.waiting.remove(0);
            self.waiting_old += if block.is_new { block.bytes } else { 0 };
        }
        self.waiting.push(Waiting {
            stream,
            bytes,
            is_new,
        });
        self.waiting_bytes += bytes;
        self.waiting_old += if is_new { 0 } else { bytes };
    }

    /// The pool grew where it was thought not to need to, and the allocation was undone.
    pub(crate) fn mistaken(&mut self, bytes: u64, stream: usize) {
        self.is_scattered = true;
        self.end(0, bytes, Some(stream));
    }

    /// A stream has come to its end: nothing waits for it any more.
    pub(crate) fn passed(&mut self, stream: usize) {
        self.is_scattered = false;
        let (mut all, mut old) = (self.waiting_bytes, self.waiting_old);
        self.waiting.retain(|block| {
            let waits = block.stream != stream;
            if !waits {
                block.leave(&mut all, &mut old);
            }
            waits
        });
        (self.waiting_bytes, self.waiting_old) = (all, old);
    }

    /// Whether the pool is gone, once the streams that it waits for have come so far.
    pub(crate) fn is_over(&self) -> bool {
        self.is_destroyed && self.live == 0
    }

    /// The streams that freed blocks wait for, as far as they are remembered.
    pub(crate) fn waits_for(&self) -> Vec<usize> {
        let mut streams: Vec<_> = self.waiting.iter().map(|block| block.stream).collect();
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
        self.waiting_old = self.waiting_old.min(self.waiting_bytes);
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
        let begun = one.begin(0, 1);
        let is_known = |one: &mut Account, address, bytes| one.is_known(address, bytes, begun);
        assert!(!is_known(&mut one, 1000, 10));
        one.know(1000, 10);
        assert!(is_known(&mut one, 1000, 10) && is_known(&mut one, 1004, 6));
        for (address, bytes) in [(1000, 11), (999, 5), (1010, 1)] {
            assert!(!is_known(&mut one, address, bytes));
        }
        assert_eq!(
            settle(&mut one, 0, 120, 20),
            (Ok(()), 20),
            "growing takes nothing away"
        );
        assert!(is_known(&mut one, 1000, 10));
        for number in 1..=u64::try_from(MOST_KNOWN).unwrap() {
            one.know(1000 + 100 * number, 10);
        }
        assert!(!is_known(&mut one, 1000, 10), "the earliest is forgotten");
        assert!(is_known(&mut one, 1100, 10));
        assert_eq!(settle(&mut one, 0, 119, 0), (Ok(()), -1));
        assert!(!is_known(&mut one, 1100, 10), "it may be what was given back");
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
        assert!(one.begin(60, 1).may_do, "nothing is allocated yet");
        one.end(0, 60, Some(1));
        assert!(!one.begin(60, 2).may_do);
        one.end(0, 60, None);
        assert!(one.begin(60, 1).may_do);
        assert!(!one.begin(60, 1).may_do, "it is given once");
        one.end(0, 60, None);
        one.end(0, 60, Some(1));
        one.passed(1);
        assert!(one.begin(90, 2).may_do, "nothing waits any more");
        one.end(0, 90, Some(2));
        assert_eq!(settle(&mut one, 0, 95, 0), (Ok(()), -5));
        assert!(!one.begin(90, 2).may_do, "it may have been what was given back");
    }

    /// Measures it after a stream was waited for, where that is wanted; whether it was.
    fn is_measured(one: &mut Account, stream: usize) -> bool {
        let is_wanted = one.may_have_shrunk();
        if is_wanted {
            let number = one.measure(true);
            one.settled = number;
        }
        one.passed(stream);
        is_wanted
    }

    #[test]
    fn it_is_measured_again_after_something_was_freed_or_while_it_waits() {
        let mut one = account(100, 0);
        one.begin(10, 1);
        one.begin(20, 1);
        assert!(!is_measured(&mut one, 1));
        one.end(0, 10, None);
        assert!(is_measured(&mut one, 1) && !is_measured(&mut one, 1));
        one.end(0, 20, Some(1));
        assert!(is_measured(&mut one, 2) && is_measured(&mut one, 2));
        assert!(is_measured(&mut one, 1) && !is_measured(&mut one, 1));
    }

    /// Allocates where it is known that the pool has some.
    fn allocate(one: &mut Account, address: u64, stream: usize) {
        let begun = one.begin(10, stream);
        assert!(one.is_known(address, 10, begun));
    }

    #[test]
    fn what_came_and_went_since_it_was_measured_is_no_reason_to_measure_again() {
        let mut one = account(100, 0);
        one.know(1000, 10);
        one.know(2000, 10);
        for _ in 0..3 {
            allocate(&mut one, 1000, 1);
            allocate(&mut one, 2000, 2);
            one.end(1000, 10, Some(1));
            one.end(2000, 10, None);
            assert_eq!(one.matters_to(), 1);
            assert!(!is_measured(&mut one, 1));
            assert_eq!(one.matters_to(), NOBODY);
        }
        // What was there when it was measured is: the driver may have kept the rest for its sake.
        allocate(&mut one, 1000, 1);
        allocate(&mut one, 2000, 1);
        one.end(2000, 10, Some(2));
        let number = one.measure(true);
        one.settled = number;
        one.end(1000, 10, Some(1));
        assert_eq!(one.matters_to(), ANYBODY);
        assert!(is_measured(&mut one, 1));
        assert!(is_measured(&mut one, 2), "it waited then");
        assert!(!is_measured(&mut one, 2));
        // Freed twice, or of an unknown address.
        allocate(&mut one, 1000, 1);
        one.end(1000, 10, Some(1));
        one.end(1000, 10, Some(1));
        assert!(is_measured(&mut one, 1));
        allocate(&mut one, 1000, 1);
        one.end(0, 10, None);
        assert!(is_measured(&mut one, 1));
    }

    #[test]
    fn what_a_measurement_under_way_may_see_is_not_new() {
        for settle_first in [false, true] {
            let mut one = account(100, 0);
            one.know(1000, 10);
            let begun = one.begin(10, 1);
            let number = one.measure(true);
            if settle_first {
                one.settled = number;
            }
            assert!(one.is_known(1000, 10, begun));
            one.end(1000, 10, None);
            assert!(one.may_have_shrunk());
        }
        let mut one = account(100, 0);
        one.know(1000, 10);
        let number = one.measure(true);
        allocate(&mut one, 1000, 1);
        one.settled = number;
        one.end(1000, 10, None);
        assert!(one.may_have_shrunk());
    }

    #[test]
    fn after_a_mistake_only_a_block_of_the_very_size_is_relied_on() {
        let mut one = account(100, 0);
        assert!(one.begin(50, 1).may_do);
        one.mistaken(50, 1);
        assert!(!one.begin(40, 1).may_do);
        one.end(0, 40, None);
        assert!(one.begin(50, 1).may_do);
        one.end(0, 50, None);
        one.passed(7);
        assert!(one.begin(40, 1).may_do, "it may be another matter now");
    }
}
