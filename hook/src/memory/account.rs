//! A pool's account: what is charged for it, and whether the next allocation needs more.
//!
//! Pure: knows neither the driver nor the limits.

#[cfg(test)]
mod tests;

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
