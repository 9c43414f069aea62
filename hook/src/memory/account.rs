//! Account of one memory pool: what is charged for it, and whether the next allocation makes it grow.
//!
//! Independent of the driver and of limits.

#[cfg(test)]
mod tests;

use super::stream::{Order, Reached, Stream};

/// Smallest growth of a pool, bytes: the size of a page of device memory.
const LEAST_STEP: u64 = 2 << 20;
/// Largest growth step to learn for a small allocation, bytes; a larger growth is not a step.
const MOST_STEP: u64 = 256 << 20;
/// Number of freed blocks from which on the earliest `TOGETHER` are merged by stream.
const MOST_WAITING: usize = 96;
const TOGETHER: usize = 32;

#[derive(Debug, Default)]
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
    /// Sum of the bytes waiting.
    waiting_bytes: u64,
    /// Size of an allocation that did not fit into the spare bytes although their sum sufficed, bytes; all
    /// ones: none. Until a stream has been passed or the pool has shrunk, allocations of that size and larger
    /// are expected to make the pool grow.
    misfit: u64,
    /// Memory has been freed since the driver last could shrink the pool.
    has_freed: bool,
    /// The pool is being destroyed, so its handle is not used any more.
    is_leaving: bool,
    /// The driver has destroyed the pool, which lives until its last allocation is freed.
    is_destroyed: bool,
    /// The growth step, bytes.
    step: u64,
    /// The reserved size could not be measured the last time, or never was.
    is_unknown: bool,
    /// Number of the graph that ran last, if its memory is still reserved; 0: none.
    last_graph: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// The call that frees the block; of merged blocks, the last one.
    order: Order,
    bytes: u64,
    /// True for a single block, which the driver may hand out again as it is.
    is_one: bool,
    /// Its stream did not reach the free for as long as an allocation waits, so none waits for it again.
    is_stuck: bool,
}

/// Memory that a call is about to take of a reserve.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Want {
    /// A block of so many bytes, in the order of a stream.
    Block(u64, Stream),
    /// Memory for the graph with this number, counted from 1. `free`: the bytes that the reserve has free,
    /// including those that calls in progress take, asked for when so many measurements had begun.
    Graph {
        number: u64,
        bytes: u64,
        free: u64,
        measurements: u64,
    },
}

/// A call that may make the reserve grow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    /// Bytes that it takes, and the expected growth, which the account holds.
    pub(crate) bytes: u64,
    pub(crate) growth: u64,
    /// Reserved size and number of measurements when it began.
    reserved: u64,
    measurements: u64,
}

/// Error: the reserved size exceeds the limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Over;

impl Account {
    pub(crate) fn new() -> Self {
        Self {
            misfit: u64::MAX,
            step: LEAST_STEP,
            is_unknown: true,
            ..Self::default()
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

    /// Returns whether the reserved size is unknown.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Returns the number of measurements begun.
    pub(crate) fn measurements(&self) -> u64 {
        self.begun
    }

    /// Returns whether a call may have ended since `want` was found, and taken what was free then.
    pub(crate) fn is_outdated(&self, want: Want) -> bool {
        matches!(want, Want::Graph { measurements, .. } if measurements != self.begun)
    }

    /// Returns the bytes by which the reserve is expected to grow: none if the spare bytes or a waiting block
    /// suffice.
    pub(crate) fn growth(&self, want: Want) -> u64 {
        match want {
            // Its memory is in use by itself, or no other graph has it.
            Want::Graph { number, .. } if number == self.last_graph => 0,
            Want::Graph { bytes, free, .. } => bytes.saturating_sub(free.saturating_sub(self.live_bytes)),
            Want::Block(bytes, stream)
                if bytes <= self.spare() && bytes < self.misfit
                    || self.waiting_for(bytes, stream).is_some() =>
            {
                0
            }
            Want::Block(bytes, _) => self.in_steps(bytes),
        }
    }

    fn in_steps(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.step).unwrap_or(u64::MAX)
    }

    /// Returns the position of a waiting block that the driver may hand out as it is.
    fn waiting_for(&self, bytes: u64, stream: Stream) -> Option<usize> {
        let is_it = |block: &Waiting| block.is_one && block.bytes == bytes && block.order.stream == stream;
        self.waiting.iter().position(is_it)
    }

    /// Returns the bytes that are reserved, and neither allocated nor waiting for a stream.
    fn spare(&self) -> u64 {
        self.reserved()
            .saturating_sub(self.live_bytes)
            .saturating_sub(self.waiting_bytes)
    }

    /// Returns whether trimming may release anything.
    pub(crate) fn has_spare(&self) -> bool {
        !self.is_leaving && self.reserved() > self.live_bytes
    }

    /// Returns whether the pool's handle is, or may be, no longer valid.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Marks the pool before the driver destroys it.
    pub(crate) fn destroying(&mut self) {
        self.is_leaving = true;
    }

    /// Ends [`destroying`](Self::destroying); the driver may have failed to destroy the pool.
    pub(crate) fn destroyed(&mut self, is_destroyed: bool) {
        self.is_leaving = is_destroyed;
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
        self.has_freed || self.waiting_bytes != 0
    }

    /// Notes that the driver may now keep less than at the last measurement.
    pub(crate) fn may_keep_less(&mut self) {
        self.has_freed = true;
    }

    /// Begins a call that takes `want`; the caller has charged `growth`.
    pub(crate) fn begin(&mut self, want: Want, growth: u64) -> Begun {
        let (Want::Block(bytes, _) | Want::Graph { bytes, .. }) = want;
        let begun = Begun {
            bytes,
            growth,
            reserved: self.reserved(),
            measurements: self.begun,
        };
        self.paid += growth;
        self.held += growth;
        self.live += 1;
        self.live_bytes += bytes;
        if let Want::Block(bytes, stream) = want
            && let Some(at) = self.waiting_for(bytes, stream)
        {
            let block = self.waiting.remove(at);
            self.leave(block.bytes);
            // If the stream has reached the free, the driver may use other memory and release this.
            self.has_freed = true;
        }
        if let Want::Graph { number, .. } = want {
            self.last_graph = number;
        }
        begun
    }

    /// Notes that the memory of the graph that ran last may no longer be reserved.
    pub(crate) fn forget_graph(&mut self) {
        self.last_graph = 0;
    }

    /// Ends an allocation, at once or when a stream reaches the free; returns whether the pool is over with
    /// it.
    pub(crate) fn end(&mut self, bytes: u64, order: Option<Order>) -> bool {
        self.has_freed = true;
        self.live = self.live.saturating_sub(1);
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
        if let Some(order) = order {
            self.wait_for(order, bytes);
        }
        self.is_over()
    }

    fn wait_for(&mut self, order: Order, bytes: u64) {
        if self.waiting.len() >= MOST_WAITING {
            self.put_together(TOGETHER);
        }
        self.waiting.push(Waiting {
            order,
            bytes,
            is_one: true,
            is_stuck: false,
        });
        self.waiting_bytes += bytes;
    }

    /// Merges the earliest `count` waiting blocks into one entry per stream.
    fn put_together(&mut self, count: usize) {
        let mut sums: Vec<Waiting> = Vec::new();
        for block in self.waiting.drain(..count) {
            let kind = |block: &Waiting| (block.order.stream, block.is_stuck);
            match sums.iter_mut().find(|sum| kind(sum) == kind(&block)) {
                Some(sum) => {
                    sum.bytes += block.bytes;
                    sum.order.number = sum.order.number.max(block.order.number);
                }
                None => sums.push(Waiting {
                    is_one: false,
                    ..block
                }),
            }
        }
        self.waiting.splice(0..0, sums);
    }

    fn leave(&mut self, bytes: u64) {
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
    }

    /// Undoes an allocation for which the pool grew beyond a limit.
    pub(crate) fn mistaken(&mut self, bytes: u64, order: Order) {
        self.misfit = self.misfit.min(bytes);
        self.end(bytes, Some(order));
    }

    /// Settles the frees that streams have reached.
    pub(crate) fn passed(&mut self, reached: Reached<'_>) {
        if reached.streams.is_empty() {
            return;
        }
        self.misfit = u64::MAX;
        let passed = self.waiting.extract_if(.., |block| reached.has(&block.order));
        let bytes = passed.map(|block| block.bytes).sum();
        self.leave(bytes);
    }

    /// Has what waits for a stream wait for another one; returns whether anything does.
    pub(crate) fn replace(&mut self, stream: Stream, by: Stream) -> bool {
        let waiting = self
            .waiting
            .iter_mut()
            .filter(|block| block.order.stream == stream);
        waiting.map(|block| block.order.stream = by).count() != 0
    }

    /// Notes that an allocation has waited in vain for what waits now.
    pub(crate) fn give_up_waiting(&mut self) {
        self.waiting.iter_mut().for_each(|block| block.is_stuck = true);
    }

    /// Returns the streams that freed blocks wait for.
    pub(crate) fn waits_for(&self) -> Vec<Stream> {
        self.streams(|_| true)
    }

    /// Returns those of them that no allocation has waited for in vain.
    pub(crate) fn may_wait_for(&self) -> Vec<Stream> {
        self.streams(|block| !block.is_stuck)
    }

    fn streams(&self, is_meant: impl Fn(&Waiting) -> bool) -> Vec<Stream> {
        let meant = self.waiting.iter().filter(|block| is_meant(block));
        let mut streams: Vec<_> = meant.map(|block| block.order.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Begins a measurement of the reserved size and returns its number; `had_occasion`: the driver has had
    /// an opportunity to shrink the pool.
    pub(crate) fn measure(&mut self, had_occasion: bool) -> u64 {
        self.has_freed &= !had_occasion;
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
        !self.is_unknown
            && reserved == self.reserved()
            && self.waiting_bytes <= reserved.saturating_sub(self.live_bytes)
    }

    /// Learns the growth step from a call that has been settled: the least step that explains the
    /// growth, unless the present one does. Nothing is learnt if other calls were in progress.
    pub(crate) fn learn(&mut self, begun: Begun) {
        let bytes = begun.bytes;
        let grown = self.reserved().saturating_sub(begun.reserved);
        if grown == 0 || self.held != 0 || self.begun != begun.measurements + 1 {
            return;
        }
        if self.in_steps(bytes) > grown {
            self.step = LEAST_STEP;
        }
        while self.in_steps(bytes) < grown && self.step < MOST_STEP {
            self.step *= 2;
        }
    }

    /// Ends a call that held `held` bytes, and makes the charge equal to `reserved`, measured after it.
    /// `None`: it could not be measured, and everything stays charged. Growth beyond a limit is charged too,
    /// since the device holds it.
    ///
    /// # Errors
    /// [`Over`] if the growth exceeds a limit.
    #[expect(clippy::too_many_arguments, reason = "three actions of one caller")]
    pub(crate) fn settle(
        &mut self,
        held: u64,
        reserved: Option<u64>,
        try_charge: impl FnOnce(u64) -> bool,
        charge: impl FnOnce(u64),
        uncharge: impl FnOnce(u64),
    ) -> Result<(), Over> {
        self.is_unknown = reserved.is_none();
        let reserved = reserved.unwrap_or(self.paid);
        if reserved < self.reserved() {
            // Any block may be what was released.
            self.put_together(self.waiting.len());
            self.misfit = u64::MAX;
        }
        self.held -= held;
        // Bytes that are no longer reserved do not wait either.
        self.waiting_bytes = self.waiting_bytes.min(reserved.saturating_sub(self.live_bytes));
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
