//! Account of one memory pool: what is charged for it, and whether the next allocation makes it grow.
//!
//! The account is divided into shares by stream, so that threads with different streams do not contend.
//! Allocations, frees and waits look into their stream's share first; a share may use the part of the pool's
//! spare bytes that it was given. The sums of what is charged and measured (`whole`) are consulted only if
//! that does not suffice.
//!
//! Independent of the driver and of limits.

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

/// Smallest growth of a pool, bytes: the size of a page of device memory.
const LEAST_GROWTH: u64 = 2 << 20;
/// Growth that drivers have been seen to use, bytes.
const USUAL_GROWTH: u64 = 32 << 20;

/// Shares of a pool, made on demand, and the number of places that are searched for a stream's own share.
const SHARES: usize = 16;
const LOOKS: usize = 4;

/// Memory has been freed since the driver last could shrink the pool. New allocations do not count: at the
/// last measurement their memory was free as well, and the driver kept it.
const HAS_FREED: u32 = 1;
/// A freed allocation that is not new waits for a stream; it is freed then without a call.
const HAS_WAITING: u32 = 2;
/// An allocation did not fit into the spare bytes although their sum sufficed. Until a stream has been waited
/// for or the pool has shrunk, only a waiting block of exactly the size is relied on.
const IS_SCATTERED: u32 = 4;
/// The pool is destroyed and has no live allocation.
const IS_OVER: u32 = 8;
/// Live and waiting bytes exceed the reserved size, so spare bytes of a share may be counted twice.
const IS_SHORT: u32 = 16;
/// States in which any wait has something to do.
const IS_RESTLESS: u32 = HAS_FREED | HAS_WAITING | IS_SCATTERED | IS_OVER;

#[derive(Debug)]
pub(crate) struct Account {
    /// Bits `HAS_FREED` to `IS_SHORT`.
    state: AtomicU32,
    /// The pool's handle is destroyed; the pool lives until its last allocation is freed.
    is_destroyed: AtomicBool,
    /// Set once a growth has been observed; the learnt step in bytes. Written only under the lock of `whole`,
    /// as are the fields below.
    is_seen: AtomicBool,
    growth: AtomicU64,
    /// Reserved size at the last measurement, bytes.
    reserved: AtomicU64,
    /// Number of measurements begun, and the number of the last one settled; older ones are void.
    begun: AtomicU64,
    settled: AtomicU64,
    shares: [OnceLock<Owned>; SHARES],
    whole: Lock<Sums>,
}

/// A share and the stream for which it was made.
#[derive(Debug)]
struct Owned {
    stream: Stream,
    share: Box<Shared>,
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

    /// Locks the sums of what is charged and measured. Shares may be locked while they are held; a thread
    /// that holds a share must take no other lock.
    pub(crate) fn lock(&self) -> Whole<'_> {
        Whole::new(self, self.whole.lock())
    }

    #[inline]
    fn is(&self, state: u32) -> bool {
        self.state.load(Relaxed) & state != 0
    }

    /// Sets or clears a state. Writes only on a change, since all threads read the word.
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

    /// Returns place number `look` of those where a stream's share may be.
    #[inline]
    fn place(&self, stream: Stream, look: usize) -> &OnceLock<Owned> {
        &self.shares[stream.hash().wrapping_add(look) % SHARES]
    }

    /// Returns a stream's own share if it is in the first place, where most are.
    #[inline]
    fn own_share(&self, stream: Stream) -> Option<&Shared> {
        let owned = self.place(stream, 0).get()?;
        (owned.stream == stream).then_some(&*owned.share)
    }

    /// Returns a stream's share: its own, or one shared with other streams. Shares are never removed, so the
    /// answer does not change.
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

    /// Makes a share. Holds `whole`, so that no measurement runs meanwhile: either the measurement sees the
    /// share, or the share sees the measurement.
    #[cold]
    fn new_share(&self, stream: Stream) -> Owned {
        let _whole = self.whole.lock();
        Owned {
            stream,
            share: Box::default(),
        }
    }

    /// Returns a stream's share if it has been made.
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

    /// Returns the view of the account for one stream.
    #[inline]
    pub(crate) fn on(&self, stream: Stream) -> OnStream<'_> {
        OnStream {
            account: self,
            share: self.share(stream),
            stream,
        }
    }

    /// Returns the reserved size at the last measurement, bytes.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// Returns the bytes by which the pool is expected to grow for an allocation of `bytes`.
    pub(crate) fn foretold(&self, bytes: u64) -> u64 {
        let growth = self.growth.load(Relaxed);
        bytes.checked_next_multiple_of(growth).unwrap_or(u64::MAX)
    }

    /// Returns the least possible growth for an allocation of `bytes`; `None` once a growth has been
    /// observed.
    pub(crate) fn hoped(&self, bytes: u64) -> Option<u64> {
        (!self.is_seen.load(Relaxed)).then(|| bytes.checked_next_multiple_of(LEAST_GROWTH))?
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Relaxed)
    }

    /// Marks the pool destroyed, or clears the mark if destroying it failed.
    pub(crate) fn set_destroyed(&self, is_destroyed: bool) {
        self.is_destroyed.store(is_destroyed, Relaxed);
        self.lock().look_whether_over();
    }

    /// Returns whether the pool may have become smaller, after a call in which the driver could release free
    /// memory.
    pub(crate) fn may_have_shrunk(&self) -> bool {
        self.is(HAS_FREED | HAS_WAITING)
    }

    /// Notes that the driver may now keep less than at the last measurement.
    pub(crate) fn may_keep_less(&self) {
        self.set(HAS_FREED, true);
    }

    /// Returns whether waiting for any stream may change the account.
    #[inline]
    pub(crate) fn is_restless(&self) -> bool {
        self.is(IS_RESTLESS)
    }

    /// Settles the frees that wait for a stream that has been waited for. For pools that are not restless.
    #[inline]
    pub(crate) fn passed(&self, stream: Stream) {
        self.known_share(stream).inspect(|share| share.pass(stream));
    }

    /// Ends an allocation, at once or when `stream` reaches the free; returns whether the pool is over with
    /// it. Address 0: unknown.
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

    /// Ends an allocation when `stream` reaches the free; returns whether the memory is known to be new.
    #[inline]
    fn end_on(&self, address: u64, bytes: u64, stream: Stream) -> bool {
        let share = self.share(stream);
        let ended = share.change(|share| {
            let is_its = share.take_new(address);
            // An allocation is not treated as new if the pool has to be measured anyway.
            let is_decided = is_its || self.is(HAS_FREED);
            is_decided.then(|| share.end_on(bytes, stream, is_its))
        });
        ended.unwrap_or_else(|| self.end_elsewhere(share, address, bytes, stream))
    }

    /// Ends an allocation that is recorded in another stream's share, or is not new.
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
        // Any share will do: only the sum over shares counts.
        self.shares().next().inspect(|share| share.lock().end(bytes));
        false
    }

    /// Undoes an allocation for which the pool grew although that was not expected.
    pub(crate) fn mistaken(&self, bytes: u64, stream: Stream) {
        self.set(IS_SCATTERED, true);
        self.end(0, bytes, Some(stream));
    }
}

/// A pool's account seen from one stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnStream<'a> {
    account: &'a Account,
    share: &'a Shared,
    stream: Stream,
}

impl OnStream<'_> {
    /// Begins an allocation of `bytes`.
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

    /// Returns whether the allocation at `address` lies in a range known to be reserved, so that the reserved
    /// size need not be measured.
    #[inline]
    pub(crate) fn is_known(self, address: u64, bytes: u64, begun: Begun) -> bool {
        let account = self.account;
        // A measurement in progress may or may not see the allocation.
        let is_unmeasured = || {
            account.settled.load(Relaxed) == begun.measurements
                && account.begun.load(Relaxed) == begun.measurements
        };
        let is_known = |share: &Shared| share.lock().is_known(address, bytes, is_unmeasured);
        // The range may be in another stream's share; searching the shares is cheaper than asking the driver.
        is_known(self.share) || account.shares().any(is_known)
    }

    /// Records that the range is reserved: it was allocated and the pool was measured afterwards.
    pub(crate) fn know(self, address: u64, bytes: u64) {
        self.share.lock().know(address, bytes);
    }
}
