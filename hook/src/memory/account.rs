//! A pool's account: what is charged for it, and whether the next allocation needs more.
//!
//! Cut into shares by streams, so that threads with streams of their own do not meet: what an allocation, a free and a wait look
//! for is in their stream's share, and what a share may use of what the pool has to spare it has been given. What is charged and
//! measured is a whole (`whole`), which is looked at when that does not do.
//!
//! Pure: knows neither the driver nor the limits.

mod share;
#[cfg(test)]
mod tests;
mod whole;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::lock::Lock;
use super::stream::Stream;
use share::Shared;
use whole::Sums;
pub(crate) use whole::Whole;

/// What pools grow by at least: the size of a page of device memory.
const LEAST_GROWTH: u64 = 2 << 20;
/// What drivers have been seen to grow them by.
const USUAL_GROWTH: u64 = 32 << 20;

/// Shares of a pool, made when a stream wants one; and the places that are looked at for a stream's own.
const SHARES: usize = 16;
const LOOKS: usize = 4;

/// Something was freed since the driver last had occasion to give it back, but for what is new: when the pool was measured
/// last, that was as free as it is again, and the driver has kept it.
const HAS_FREED: u32 = 1;
/// Something waits for a stream that is not new: it is freed without a word.
const HAS_WAITING: u32 = 2;
/// What the pool has to spare did not serve: then only a block of the very size is relied on, until a stream has ended or
/// something was given back.
const IS_SCATTERED: u32 = 4;
/// It is destroyed, and nothing is allocated from it.
const IS_OVER: u32 = 8;
/// More is allocated and waits than is reserved: what a share has to spare somebody else may count on.
const IS_SHORT: u32 = 16;
/// What gives any wait something to do.
const IS_RESTLESS: u32 = HAS_FREED | HAS_WAITING | IS_SCATTERED | IS_OVER;

#[derive(Debug)]
pub(crate) struct Account {
    /// What of the above is so.
    state: AtomicU32,
    /// The pool's handle is gone; it lives until nothing is allocated from it.
    is_destroyed: AtomicBool,
    /// Whether it was seen what it grows by, and that. Written by who holds the whole, as are those below.
    is_seen: AtomicBool,
    growth: AtomicU64,
    /// What was reserved when it was measured last.
    reserved: AtomicU64,
    /// Measurements that were begun, and the last one that was settled; an older one is void.
    begun: AtomicU64,
    settled: AtomicU64,
    shares: [OnceLock<Owned>; SHARES],
    whole: Lock<Sums>,
}

/// A share, and the stream that it was made for.
#[derive(Debug)]
struct Owned {
    stream: Stream,
    share: Box<Shared>,
}

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
            state: AtomicU32::new(0),
            is_destroyed: AtomicBool::new(false),
            is_seen: AtomicBool::new(false),
            growth: AtomicU64::new(USUAL_GROWTH),
            reserved: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            shares: [const { OnceLock::new() }; SHARES],
            whole: Lock::new(Sums::new(index)),
        }
    }

    /// Holds what is charged and measured. Shares may be locked meanwhile; who has locked one takes nothing else.
    pub(crate) fn lock(&self) -> Whole<'_> {
        Whole::new(self, self.whole.lock())
    }

    #[inline]
    fn is(&self, state: u32) -> bool {
        self.state.load(Relaxed) & state != 0
    }

    /// Written only where it changes: everybody reads it.
    #[inline]
    fn set(&self, state: u32, is_so: bool) {
        if self.is(state) == is_so {
            return;
        }
        if is_so {
            self.state.fetch_or(state, Relaxed);
        } else {
            self.state.fetch_and(!state, Relaxed);
        }
    }

    fn shares(&self) -> impl Iterator<Item = &Shared> {
        self.shares
            .iter()
            .filter_map(OnceLock::get)
            .map(|owned| &*owned.share)
    }

    /// The share in one of the places where a stream's may be.
    #[inline]
    fn place(&self, stream: Stream, look: usize) -> &OnceLock<Owned> {
        &self.shares[stream.hash().wrapping_add(look) % SHARES]
    }

    /// A stream's share, if it is where most are.
    #[inline]
    fn own_share(&self, stream: Stream) -> Option<&Shared> {
        let owned = self.place(stream, 0).get()?;
        (owned.stream == stream).then_some(&*owned.share)
    }

    /// A stream's share: its own, or one that it has with others. It is found where it was before, since none ever goes.
    #[inline]
    fn share(&self, stream: Stream) -> &Shared {
        self.own_share(stream).unwrap_or_else(|| self.any_share(stream))
    }

    #[inline(never)]
    fn any_share(&self, stream: Stream) -> &Shared {
        let at = |look| self.place(stream, look).get_or_init(|| self.new_share(stream));
        let own = (0..LOOKS).map(at).find(|owned| owned.stream == stream);
        &own.unwrap_or_else(|| at(0)).share
    }

    /// Nobody measures meanwhile: a measurement must have seen every share, or the share have seen the measurement.
    #[cold]
    fn new_share(&self, stream: Stream) -> Owned {
        let _whole = self.whole.lock();
        Owned {
            stream,
            share: Box::default(),
        }
    }

    /// The same if there is any.
    #[inline]
    fn known_share(&self, stream: Stream) -> Option<&Shared> {
        for look in 0..LOOKS {
            let owned = self.place(stream, look).get()?;
            if owned.stream == stream {
                return Some(&owned.share);
            }
        }
        Some(&self.place(stream, 0).get()?.share)
    }

    /// The account as it is for a stream.
    #[inline]
    pub(crate) fn on(&self, stream: Stream) -> OnStream<'_> {
        OnStream {
            account: self,
            share: self.share(stream),
            stream,
        }
    }

    /// What the pool reserved when it was measured last.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// Bytes that growing for an allocation of that size takes.
    pub(crate) fn foretold(&self, bytes: u64) -> u64 {
        let growth = self.growth.load(Relaxed);
        bytes.checked_next_multiple_of(growth).unwrap_or(u64::MAX)
    }

    /// The least that it may take, while nobody knows better.
    pub(crate) fn hoped(&self, bytes: u64) -> Option<u64> {
        (!self.is_seen.load(Relaxed)).then(|| bytes.checked_next_multiple_of(LEAST_GROWTH))?
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Relaxed)
    }

    /// It is destroyed, or is not after all.
    pub(crate) fn set_destroyed(&self, is_destroyed: bool) {
        self.is_destroyed.store(is_destroyed, Relaxed);
        self.lock().look_whether_over();
    }

    /// The driver has had occasion to give back what is free; whether there may be such that had not been before.
    pub(crate) fn may_have_shrunk(&self) -> bool {
        self.is(HAS_FREED | HAS_WAITING)
    }

    /// What the driver would keep when the pool was measured last says nothing any more.
    pub(crate) fn may_keep_less(&self) {
        self.set(HAS_FREED, true);
    }

    /// Whether waiting for any stream may change something.
    #[inline]
    pub(crate) fn is_restless(&self) -> bool {
        self.is(IS_RESTLESS)
    }

    /// A stream has come to its end, of a pool that is not restless.
    #[inline]
    pub(crate) fn passed(&self, stream: Stream) {
        self.known_share(stream).inspect(|share| share.pass(stream));
    }

    /// Ends an allocation, at once or when that stream has come so far; whether the pool is over by it. Address zero: nobody
    /// knows where it was.
    #[inline]
    pub(crate) fn end(&self, address: u64, bytes: u64, stream: Option<Stream>) -> bool {
        let is_new = match stream {
            Some(stream) => self.end_on(address, bytes, stream),
            None => self.end_at_once(address, bytes),
        };
        if !is_new {
            self.set(HAS_FREED, true);
        }
        self.is_destroyed() && self.lock().look_whether_over()
    }

    /// Whether what was allocated there is known to be new.
    #[inline]
    fn end_on(&self, address: u64, bytes: u64, stream: Stream) -> bool {
        let share = self.share(stream);
        let ended = share.change(|share| {
            let is_its = share.take_new(address);
            // What is measured in any case is not new after.
            let is_decided = is_its || self.is(HAS_FREED);
            is_decided.then(|| share.end_on(bytes, stream, is_its))
        });
        ended.unwrap_or_else(|| self.end_elsewhere(share, address, bytes, stream))
    }

    /// The same for what was allocated on another stream, or is not new.
    #[inline(never)]
    fn end_elsewhere(&self, share: &Shared, address: u64, bytes: u64, stream: Stream) -> bool {
        let measurements = self.begun.load(Relaxed);
        let is_new = self.shares().any(|other| other.lock().take_new(address));
        share.change(|share| {
            let is_new = is_new && self.begun.load(Relaxed) == measurements;
            share.end_on(bytes, stream, is_new)
        })
    }

    #[inline(never)]
    fn end_at_once(&self, address: u64, bytes: u64) -> bool {
        for share in self.shares() {
            let mut share = share.lock();
            if share.take_new(address) {
                share.end(bytes);
                return true;
            }
        }
        // Wherever it is counted, it is of the whole.
        self.shares().next().inspect(|share| share.lock().end(bytes));
        false
    }

    /// The pool grew where it was thought not to need to, and the allocation was undone.
    pub(crate) fn mistaken(&self, bytes: u64, stream: Stream) {
        self.set(IS_SCATTERED, true);
        self.end(0, bytes, Some(stream));
    }
}

/// A pool's account as it is for a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnStream<'a> {
    account: &'a Account,
    share: &'a Shared,
    stream: Stream,
}

impl OnStream<'_> {
    /// Begins an allocation.
    #[inline]
    pub(crate) fn begin(self, bytes: u64) -> Begun {
        let begun = self.share.change(|share| {
            let may_spare = !self.account.is(IS_SCATTERED | IS_SHORT);
            share.try_begin(bytes, self.stream, may_spare).then(|| Begun {
                may_do: true,
                measurements: self.account.begun.load(Relaxed),
            })
        });
        begun.unwrap_or_else(|| self.account.lock().begin(self.share, bytes, self.stream))
    }

    /// Whether an allocation that was made there took nothing that was not reserved before: then nobody need ask.
    #[inline]
    pub(crate) fn is_known(self, address: u64, bytes: u64, begun: Begun) -> bool {
        let account = self.account;
        // A measurement under way may see it or not.
        let is_unmeasured = || {
            account.settled.load(Relaxed) == begun.measurements
                && account.begun.load(Relaxed) == begun.measurements
        };
        let is_known = |share: &Shared| share.lock().is_known(address, bytes, is_unmeasured);
        // It may have been another stream's, which is a matter of a few shares, and to ask is not.
        is_known(self.share) || account.shares().any(is_known)
    }

    /// An allocation was made there, and what is reserved was measured after.
    pub(crate) fn know(self, address: u64, bytes: u64) {
        self.share.lock().know(address, bytes);
    }
}
