//! One share of a pool's account: what is allocated and freed on its streams, and the spare bytes of the pool
//! that they may use.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::memory::lock::{Guard, Lock};
use crate::memory::stream::Stream;

/// Most freed blocks recorded individually; beyond that the earliest `TOGETHER` are merged by stream.
const MOST_WAITING: usize = 96;
const TOGETHER: usize = 32;
/// Most ranges recorded as reserved.
pub(super) const MOST_KNOWN: usize = 32;
/// Elements of room that lists have from the start and beyond their content: the rest of the last element's
/// cache line may belong to another share, which is written as often.
const APART: usize = 8;

/// A share with cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Shared {
    /// Set while anything waits for its streams; read without the lock.
    waits: AtomicBool,
    share: Lock<Share>,
}

impl Shared {
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, Share> {
        self.share.lock()
    }

    /// Runs `change` under the lock and updates `waits`.
    #[inline]
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Share) -> T) -> T {
        let mut share = self.share.lock();
        let result = change(&mut share);
        self.waits.store(!share.waiting.is_empty(), Relaxed);
        result
    }

    /// Settles the frees that wait for a stream that has been waited for.
    #[inline]
    pub(super) fn pass(&self, stream: Stream) {
        if self.waits.load(Relaxed) {
            self.change(|share| share.pass(stream));
        }
    }
}

/// Counters of a share. Allocations, frees and waits only move bytes between live, waiting and spare: their
/// sum is what the account has given to the share.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Live allocations and their bytes; negative where more was freed on its streams than allocated.
    pub(super) live: i64,
    pub(super) live_bytes: i64,
    /// Reserved bytes that only this share may use.
    spare: i64,
    /// Freed blocks whose stream has not reached the free; only that stream can reuse them. The latest last.
    waiting: Vec<Waiting>,
    /// Bytes waiting, including blocks dropped from the list.
    waiting_bytes: u64,
    /// The part of `waiting_bytes` that is not new.
    waiting_old: u64,
    /// Ranges of the latest allocations: reserved since then, allocated or not, unless the pool has shrunk.
    known: Vec<Range>,
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

/// How an allocation was counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    /// True if a block of that size waited for the stream and was reused.
    pub(super) is_found: bool,
    /// Bytes needed beyond that block.
    pub(super) needed: i64,
}

/// Converts bytes to a signed summand. No device has more than fits.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Share {
    /// Finds a block of that size that waits for the stream; returns its index and the bytes needed beside
    /// it.
    fn find(&self, bytes: u64, stream: Stream) -> (Option<usize>, u64) {
        let is_it = |block: &Waiting| block.is_one && block.bytes == bytes && block.stream == stream;
        let found = self.waiting.iter().position(is_it);
        let needed = found.map_or(bytes, |_| bytes.saturating_sub(self.waiting_bytes));
        (found, needed)
    }

    fn count(&mut self, bytes: u64, found: Option<usize>) {
        self.live += 1;
        self.live_bytes += signed(bytes);
        if let Some(at) = found {
            let block = self.waiting.remove(at);
            self.leave(block.bytes, if block.is_new { 0 } else { block.bytes });
        }
    }

    /// Counts an allocation if waiting or spare bytes of the share serve it; returns whether they do.
    #[inline]
    pub(super) fn try_begin(&mut self, bytes: u64, stream: Stream, may_spare: bool) -> bool {
        let (found, needed) = self.find(bytes, stream);
        if needed != 0 && !(may_spare && self.spare >= signed(needed)) {
            return false;
        }
        self.spare -= signed(needed);
        self.count(bytes, found);
        true
    }

    /// Counts an allocation in any case; the account provides the bytes that are missing.
    pub(super) fn begin(&mut self, bytes: u64, stream: Stream) -> Counted {
        let (found, needed) = self.find(bytes, stream);
        self.count(bytes, found);
        Counted {
            is_found: found.is_some(),
            needed: signed(needed),
        }
    }

    /// Adds spare bytes.
    pub(super) fn give(&mut self, bytes: i64) {
        self.spare += bytes;
    }

    /// Takes all spare bytes.
    pub(super) fn take(&mut self) -> i64 {
        std::mem::take(&mut self.spare)
    }

    /// Returns whether the range is known to be reserved. Marks the allocation as new if `is_unmeasured`: the
    /// pool has not been measured since it began.
    #[inline]
    pub(super) fn is_known(
        &mut self,
        address: u64,
        bytes: u64,
        is_unmeasured: impl FnOnce() -> bool,
    ) -> bool {
        let end = address.saturating_add(bytes);
        let holds =
            |range: &&mut Range| range.from <= address && end <= range.from.saturating_add(range.bytes);
        let Some(range) = self.known.iter_mut().rev().find(holds) else {
            return false;
        };
        if range.new_at == 0 && is_unmeasured() {
            range.new_at = address;
        }
        true
    }

    /// Records a range as reserved: it was allocated and the pool was measured afterwards.
    pub(super) fn know(&mut self, address: u64, bytes: u64) {
        if self.known.capacity() == 0 {
            self.known.reserve_exact(MOST_KNOWN + APART);
        }
        if self.known.len() == MOST_KNOWN {
            self.known.remove(0);
        }
        self.known.push(Range {
            from: address,
            bytes,
            new_at: 0,
        });
    }

    /// Returns whether the allocation at `address` is known to be new, and clears the mark.
    #[inline]
    pub(super) fn take_new(&mut self, address: u64) -> bool {
        let is_it = |range: &&mut Range| range.new_at == address && address != 0;
        let found = self.known.iter_mut().rev().find(is_it);
        found.map(|range| range.new_at = 0).is_some()
    }

    /// Ends an allocation at once.
    pub(super) fn end(&mut self, bytes: u64) {
        self.live -= 1;
        self.live_bytes -= signed(bytes);
        self.spare += signed(bytes);
    }

    /// Ends an allocation when `stream` reaches the free; returns whether it is still known to be new.
    #[inline]
    pub(super) fn end_on(&mut self, bytes: u64, stream: Stream, is_new: bool) -> bool {
        self.live -= 1;
        self.live_bytes -= signed(bytes);
        if self.waiting.capacity() == 0 {
            self.waiting.reserve_exact(APART);
        }
        let is_kept = self.waiting.len() < MOST_WAITING || self.make_room();
        self.waiting.push(Waiting {
            stream,
            bytes,
            is_new,
            is_one: true,
        });
        self.waiting_bytes += bytes;
        self.waiting_old += if is_new { 0 } else { bytes };
        is_new && is_kept
    }

    /// Makes room for another waiting block; returns whether every waiting block's stream is still known.
    #[cold]
    fn make_room(&mut self) -> bool {
        self.put_together(TOGETHER);
        let is_room = self.waiting.len() < MOST_WAITING;
        if !is_room {
            // Its bytes still wait; only its stream is forgotten.
            let block = self.waiting.remove(0);
            self.waiting_old += if block.is_new { block.bytes } else { 0 };
        }
        is_room
    }

    /// Merges the earliest `count` blocks into one entry per stream.
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

    /// Removes up to `bytes` waiting bytes, `old` of them not new; returns how many were removed.
    fn leave(&mut self, bytes: u64, old: u64) -> u64 {
        let left = bytes.min(self.waiting_bytes);
        self.waiting_bytes -= left;
        self.waiting_old = self.waiting_old.saturating_sub(old).min(self.waiting_bytes);
        left
    }

    fn pass(&mut self, stream: Stream) {
        let (mut all, mut old) = (0, 0);
        self.waiting.retain(|block| {
            let waits = block.stream != stream;
            if !waits {
                all += block.bytes;
                old += if block.is_new { 0 } else { block.bytes };
            }
            waits
        });
        let left = self.leave(all, old);
        self.spare += signed(left);
    }

    /// Makes everything old; returns whether anything waits.
    pub(super) fn grow_old(&mut self) -> bool {
        self.known.iter_mut().for_each(|range| range.new_at = 0);
        self.waiting.iter_mut().for_each(|block| block.is_new = false);
        self.waiting_old = self.waiting_bytes;
        self.is_old_waiting()
    }

    /// Returns whether anything waits that is not new.
    pub(super) fn is_old_waiting(&self) -> bool {
        self.waiting_old != 0
    }

    /// Drops blocks and ranges after the pool has shrunk: any of them may be what was released.
    pub(super) fn forget(&mut self) {
        self.put_together(self.waiting.len());
        self.known.clear();
    }

    /// Removes up to `bytes` waiting bytes and returns how many were removed.
    pub(super) fn cut(&mut self, bytes: u64) -> i64 {
        signed(self.leave(bytes, 0))
    }

    /// Returns the streams that freed blocks wait for, as far as they are recorded.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = Stream> {
        self.waiting.iter().map(|block| block.stream)
    }
}
