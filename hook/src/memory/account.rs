//! Account of one memory pool: what is charged for it, and whether the next allocation makes it grow.
//!
//! Independent of the driver and of limits.

#[cfg(test)]
mod tests;

use super::stream::Stream;

/// Smallest growth of a pool, bytes: the size of a page of device memory.
const LEAST_GROWTH: u64 = 2 << 20;
/// Growth that drivers have been seen to use, bytes.
const USUAL_GROWTH: u64 = 32 << 20;
/// Largest growth step to learn for a small allocation, bytes; a larger growth is not a step.
const MOST_GROWTH: u64 = 256 << 20;
/// Most freed blocks recorded individually; beyond that the earliest `TOGETHER` are merged by stream.
const MOST_WAITING: usize = 96;
const TOGETHER: usize = 32;
/// Most ranges recorded as reserved.
const MOST_KNOWN: usize = 32;

#[derive(Debug)]
pub(crate) struct Account {
    /// Bytes charged for the pool, and the part of them that calls in progress hold in advance.
    paid: u64,
    held: u64,
    /// Number of measurements begun, and the number of the last one settled; older ones are void.
    begun: u64,
    settled: u64,
    /// Live allocations and their bytes.
    live: u64,
    live_bytes: u64,
    /// Freed blocks whose stream has not reached the free; only that stream can reuse them. The latest last.
    waiting: Vec<Waiting>,
    /// Bytes waiting, including blocks dropped from the list.
    waiting_bytes: u64,
    /// The part of `waiting_bytes` that is not new.
    waiting_old: u64,
    /// Ranges of the latest allocations: reserved since then, allocated or not, unless the pool has shrunk.
    known: Vec<Range>,
    /// An allocation did not fit into the spare bytes although their sum sufficed. Until a stream has been
    /// waited for or the pool has shrunk, only a waiting block of exactly the size is relied on.
    is_scattered: bool,
    /// Memory has been freed since the driver last could shrink the pool. New allocations do not count: at
    /// the last measurement their memory was free as well, and the driver kept it.
    has_freed: bool,
    /// The pool's handle is destroyed; the pool lives until its last allocation is freed.
    is_destroyed: bool,
    /// The growth step, bytes, and whether a growth has been observed.
    growth: u64,
    is_seen: bool,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    stream: Stream,
    bytes: u64,
    is_new: bool,
    /// True for a single block, which the driver may hand out again as it is.
    is_one: bool,
}

/// A range of addresses that the pool has reserved.
#[derive(Debug, Clone, Copy)]
struct Range {
    from: u64,
    bytes: u64,
    /// Address of a new allocation in it, made since the pool was last measured; zero: none.
    new_at: u64,
}

/// An allocation that has begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    /// True if the pool can serve it without growing.
    pub(crate) may_do: bool,
    measurements: u64,
}

/// Error: the reserved size exceeds the limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Over;

impl Account {
    pub(crate) fn new() -> Self {
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
        }
    }

    /// Returns the bytes charged for the pool.
    pub(crate) fn paid(&self) -> u64 {
        self.paid
    }

    /// Returns the reserved size at the last measurement, bytes.
    pub(crate) fn reserved(&self) -> u64 {
        self.paid - self.held
    }

    /// Returns the bytes by which the pool is expected to grow for an allocation of `bytes`.
    pub(crate) fn foretold(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.growth).unwrap_or(u64::MAX)
    }

    /// Returns the least possible growth for an allocation of `bytes`; `None` once a growth has been
    /// observed.
    pub(crate) fn hoped(&self, bytes: u64) -> Option<u64> {
        (!self.is_seen).then(|| bytes.checked_next_multiple_of(LEAST_GROWTH))?
    }

    /// Returns the bytes that are reserved, and neither allocated nor waiting for a stream.
    fn spare(&self) -> u64 {
        self.reserved()
            .saturating_sub(self.live_bytes)
            .saturating_sub(self.waiting_bytes)
    }

    /// Returns whether trimming may release anything.
    pub(crate) fn has_spare(&self) -> bool {
        !self.is_destroyed && self.reserved() > self.live_bytes
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.is_destroyed
    }

    /// Marks the pool destroyed, or clears the mark if destroying it failed.
    pub(crate) fn set_destroyed(&mut self, is_destroyed: bool) {
        self.is_destroyed = is_destroyed;
    }

    /// Returns whether the pool is destroyed and has no live allocation.
    pub(crate) fn is_over(&self) -> bool {
        self.is_destroyed && self.live == 0
    }

    /// Returns whether the pool may have become smaller, after a call in which the driver could release free
    /// memory.
    pub(crate) fn may_have_shrunk(&self) -> bool {
        // What waits for a stream is freed then without a call.
        self.has_freed || self.waiting_old != 0
    }

    /// Notes that the driver may now keep less than at the last measurement.
    pub(crate) fn may_keep_less(&mut self) {
        self.has_freed = true;
    }

    /// Begins an allocation of `bytes` on a stream.
    pub(crate) fn begin(&mut self, bytes: u64, stream: Stream) -> Begun {
        let is_enough = self.spare() >= bytes && !self.is_scattered;
        self.live += 1;
        self.live_bytes += bytes;
        let is_it = |block: &Waiting| block.is_one && block.bytes == bytes && block.stream == stream;
        let found = self.waiting.iter().position(is_it);
        if let Some(at) = found {
            let block = self.waiting.remove(at);
            self.leave(block.bytes, if block.is_new { 0 } else { block.bytes });
            // If the stream has reached the free, the driver may use other memory and release the block's.
            self.has_freed |= !block.is_new;
        }
        Begun {
            may_do: found.is_some() || is_enough,
            measurements: self.begun,
        }
    }

    /// Returns whether the allocation at `address` lies in a range known to be reserved, so that the reserved
    /// size need not be measured.
    pub(crate) fn is_known(&mut self, address: u64, bytes: u64, begun: Begun) -> bool {
        let end = address.saturating_add(bytes);
        let holds =
            |range: &&mut Range| range.from <= address && end <= range.from.saturating_add(range.bytes);
        let Some(range) = self.known.iter_mut().rev().find(holds) else {
            return false;
        };
        // A measurement in progress may or may not see the allocation.
        if range.new_at == 0 && self.settled == begun.measurements && self.begun == begun.measurements {
            range.new_at = address;
        }
        true
    }

    /// Records a range as reserved: it was allocated and the pool was measured afterwards.
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

    /// Ends an allocation, at once or when `stream` reaches the free; returns whether the pool is over with
    /// it. Address 0: unknown.
    pub(crate) fn end(&mut self, address: u64, bytes: u64, stream: Option<Stream>) -> bool {
        let is_it = |range: &&mut Range| range.new_at == address && address != 0;
        let found = self.known.iter_mut().rev().find(is_it);
        let is_new = found.map(|range| range.new_at = 0).is_some();
        self.has_freed |= !is_new;
        self.live = self.live.saturating_sub(1);
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
        if let Some(stream) = stream {
            self.wait_for(stream, bytes, is_new);
        }
        self.is_over()
    }

    fn wait_for(&mut self, stream: Stream, bytes: u64, is_new: bool) {
        if self.waiting.len() == MOST_WAITING {
            self.put_together(TOGETHER);
        }
        if self.waiting.len() == MOST_WAITING {
            // Its bytes still wait; only its stream is forgotten.
            let block = self.waiting.remove(0);
            self.waiting_old += if block.is_new { block.bytes } else { 0 };
        }
        self.waiting.push(Waiting {
            stream,
            bytes,
            is_new,
            is_one: true,
        });
        self.waiting_bytes += bytes;
        self.waiting_old += if is_new { 0 } else { bytes };
    }

    /// Merges the earliest `count` waiting blocks into one entry per stream.
    fn put_together(&mut self, count: usize) {
        let mut sums: Vec<Waiting> = Vec::new();
        for block in self.waiting.drain(..count) {
            let is_its = |sum: &&mut Waiting| sum.stream == block.stream && sum.is_new == block.is_new;
            match sums.iter_mut().find(is_its) {
                Some(sum) => sum.bytes += block.bytes,
                None => sums.push(Waiting {
                    is_one: false,
                    ..block
                }),
            }
        }
        self.waiting.splice(0..0, sums);
    }

    /// Subtracts from the waiting bytes, `old` of them not new.
    fn leave(&mut self, bytes: u64, old: u64) {
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        self.waiting_old = self.waiting_old.saturating_sub(old).min(self.waiting_bytes);
    }

    /// Undoes an allocation for which the pool grew although that was not expected.
    pub(crate) fn mistaken(&mut self, bytes: u64, stream: Stream) {
        self.is_scattered = true;
        self.end(0, bytes, Some(stream));
    }

    /// Settles the frees that wait for a stream that has been waited for.
    pub(crate) fn passed(&mut self, stream: Stream) {
        self.is_scattered = false;
        let (mut all, mut old) = (0, 0);
        self.waiting.retain(|block| {
            let waits = block.stream != stream;
            if !waits {
                all += block.bytes;
                old += if block.is_new { 0 } else { block.bytes };
            }
            waits
        });
        self.leave(all, old);
    }

    /// Returns the streams that freed blocks wait for, as far as they are recorded.
    pub(crate) fn waits_for(&self) -> Vec<Stream> {
        let mut streams: Vec<_> = self.waiting.iter().map(|block| block.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Begins a measurement of the reserved size and returns its number; `had_occasion`: the driver has had
    /// an opportunity to shrink the pool. Existing allocations stop being new: the driver may keep the rest
    /// of the pool only because of them.
    pub(crate) fn measure(&mut self, had_occasion: bool) -> u64 {
        self.has_freed &= !had_occasion;
        self.known.iter_mut().for_each(|range| range.new_at = 0);
        self.waiting.iter_mut().for_each(|block| block.is_new = false);
        self.waiting_old = self.waiting_bytes;
        self.begun += 1;
        self.begun
    }

    /// Returns whether a measurement that began later is settled already; otherwise settles this one.
    pub(crate) fn is_void(&mut self, number: u64) -> bool {
        let is_void = number < self.settled;
        self.settled = self.settled.max(number);
        is_void
    }

    /// Returns whether `reserved` agrees with the account.
    pub(crate) fn is_as_measured(&self, reserved: u64) -> bool {
        reserved == self.reserved() && self.waiting_bytes <= reserved.saturating_sub(self.live_bytes)
    }

    /// Learns the growth step from the pool's growth for an allocation of `bytes`: the least step that
    /// explains it, unless the present one does.
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

    /// Records bytes that a call holds in advance; the caller has charged them.
    pub(crate) fn hold(&mut self, bytes: u64) {
        self.paid += bytes;
        self.held += bytes;
    }

    /// Ends a call that held `held` bytes, and makes the charge equal to `reserved`, measured after it.
    /// Growth beyond a limit is charged too, since the device holds it.
    ///
    /// # Errors
    /// [`Over`] if the growth exceeds a limit.
    #[expect(clippy::too_many_arguments, reason = "three actions of one caller")]
    pub(crate) fn settle(
        &mut self,
        held: u64,
        reserved: u64,
        try_charge: impl FnOnce(u64) -> bool,
        charge: impl FnOnce(u64),
        uncharge: impl FnOnce(u64),
    ) -> Result<(), Over> {
        if reserved < self.reserved() {
            // Any block or range may be what was released.
            self.put_together(self.waiting.len());
            self.known.clear();
            self.is_scattered = false;
        }
        self.held -= held;
        // Bytes that are no longer reserved do not wait either.
        self.waiting_bytes = self.waiting_bytes.min(reserved.saturating_sub(self.live_bytes));
        self.waiting_old = self.waiting_old.min(self.waiting_bytes);
        if reserved <= self.paid {
            // Other calls may still need what they hold in advance.
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

    /// Returns the charged bytes and sets them to zero.
    pub(crate) fn give_up(&mut self) -> u64 {
        std::mem::take(&mut self.paid)
    }
}
