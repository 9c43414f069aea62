//! What a pool's account has of the streams of one share: what is allocated and freed on them, and what they may use of what the
//! pool has to spare.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::memory::lock::{Guard, Lock};
use crate::memory::stream::Stream;

/// Freed blocks that are remembered by one entry each, at most; of more, the earliest are remembered together.
const MOST_WAITING: usize = 96;
const TOGETHER: usize = 32;
/// Ranges that are remembered to be reserved.
pub(super) const MOST_KNOWN: usize = 32;
/// Elements that lists have room for from the start, and beyond what is in them: what else may lie in the cache line of the last
/// one is another share's, and is written as often.
const APART: usize = 8;

/// A share has cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Shared {
    /// Whether anything waits for its streams, for who does not hold it.
    waits: AtomicBool,
    share: Lock<Share>,
}

impl Shared {
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, Share> {
        self.share.lock()
    }

    /// Changes what may wait for its streams.
    #[inline]
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Share) -> T) -> T {
        let mut share = self.share.lock();
        let result = change(&mut share);
        self.waits.store(!share.waiting.is_empty(), Relaxed);
        result
    }

    /// A stream has come to its end: nothing waits for it any more.
    #[inline]
    pub(super) fn pass(&self, stream: Stream) {
        if self.waits.load(Relaxed) {
            self.change(|share| share.pass(stream));
        }
    }
}

/// What is counted here changes places: what is allocated, waits and is to spare is together what the pool's account has given
/// to the share, whatever its streams do.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Allocations, and the bytes of them: less than nothing where more was freed on its streams than was allocated.
    pub(super) live: i64,
    pub(super) live_bytes: i64,
    /// Reserved, and nobody else's to rely on.
    spare: i64,
    /// Freed, but not before a stream has come so far; until then only that stream is given them again. The latest last.
    waiting: Vec<Waiting>,
    /// With those of which nobody knows any more whose they are.
    waiting_bytes: u64,
    /// The part of these that is not new.
    waiting_old: u64,
    /// Where the latest allocations were: reserved since, whether allocated or not, unless the pool has given something back.
    known: Vec<Range>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    stream: Stream,
    bytes: u64,
    is_new: bool,
    /// Whether it is one block, which the driver may give out again as it is.
    is_one: bool,
}

/// Part of what the pool reserves.
#[derive(Debug, Clone, Copy)]
struct Range {
    from: u64,
    bytes: u64,
    /// Where in it something is allocated that is new: made since the pool was measured last. Zero: nowhere.
    new_at: u64,
}

/// How an allocation was counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    /// Whether a block of that size waits for the stream, which is given that.
    pub(super) is_found: bool,
    /// Bytes that it takes beyond.
    pub(super) needed: i64,
}

/// Bytes as a part of a sum that may be less than nothing. No device has so many that they do not fit.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Share {
    /// The block that waits for the stream and is of that size, and what the allocation needs beside it.
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

    /// Counts an allocation, if what waits or is to spare here serves it.
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

    /// Counts an allocation whatever there is; what it needs is for the account to give.
    pub(super) fn begin(&mut self, bytes: u64, stream: Stream) -> Counted {
        let (found, needed) = self.find(bytes, stream);
        self.count(bytes, found);
        Counted {
            is_found: found.is_some(),
            needed: signed(needed),
        }
    }

    /// Gives it what it may rely on.
    pub(super) fn give(&mut self, bytes: i64) {
        self.spare += bytes;
    }

    /// Takes that back.
    pub(super) fn take(&mut self) -> i64 {
        std::mem::take(&mut self.spare)
    }

    /// Whether an allocation that was made there took nothing that was not reserved before. It is new if `is_unmeasured`:
    /// nobody has measured the pool since it was begun.
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

    /// An allocation was made there, and what is reserved was measured after.
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

    /// Whether what is allocated there is known to be new; nothing is, from here on.
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

    /// Ends one when that stream has come so far. Whether it is as new as before.
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

    /// Makes room for another block that waits. Whether it is known yet of all that do whose they are.
    #[cold]
    fn make_room(&mut self) -> bool {
        self.put_together(TOGETHER);
        let is_room = self.waiting.len() < MOST_WAITING;
        if !is_room {
            // Its bytes still wait: all that is lost is whose they are.
            let block = self.waiting.remove(0);
            self.waiting_old += if block.is_new { block.bytes } else { 0 };
        }
        is_room
    }

    /// Remembers of the earliest blocks only how much there is of them for each stream.
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

    /// So many bytes wait no longer, `old` of them not new; how many of them did.
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

    /// From here on nothing is new. Whether anything waits.
    pub(super) fn grow_old(&mut self) -> bool {
        self.known.iter_mut().for_each(|range| range.new_at = 0);
        self.waiting.iter_mut().for_each(|block| block.is_new = false);
        self.waiting_old = self.waiting_bytes;
        self.is_old_waiting()
    }

    /// Whether anything waits that is not new.
    pub(super) fn is_old_waiting(&self) -> bool {
        self.waiting_old != 0
    }

    /// Something was given back, and nobody says what: no block, and no range, is sure to be there yet.
    pub(super) fn forget(&mut self) {
        self.put_together(self.waiting.len());
        self.known.clear();
    }

    /// So many bytes less wait, or all that do; how many.
    pub(super) fn cut(&mut self, bytes: u64) -> i64 {
        signed(self.leave(bytes, 0))
    }

    /// The streams that freed blocks wait for, as far as they are remembered.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = Stream> {
        self.waiting.iter().map(|block| block.stream)
    }
}
