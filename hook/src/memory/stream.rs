//! Identity of a stream that something waits for.
//!
//! A handle identifies a stream, except for default streams: each context has its own legacy stream, and each
//! of its threads its own per-thread stream. A destroyed stream whose work runs on has a number instead.

use std::num::NonZero;
use std::sync::atomic::Ordering::SeqCst;

use super::Memory;
use crate::driver;
use crate::driver::cuda::CUstream;
use crate::driver::streams::{LEGACY, PER_THREAD, is_capturing, relaxed};
use crate::program::Program;
use crate::program::context::Left;
use crate::sys;

/// Stream identity, passed in two registers; `Option<Stream>` has the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stream {
    handle: NonZero<usize>,
    /// For a default stream the context's number and, if it is a per-thread stream, the thread's id; for
    /// [`DEPARTED`] the stream's number; otherwise 0.
    of: u64,
}

/// In place of the handles of destroyed streams; no stream has it.
const DEPARTED: NonZero<usize> = NonZero::new(PER_THREAD + 1).unwrap();

impl Stream {
    /// Returns the stream of a handle, as used by the calling thread.
    #[inline]
    pub(crate) fn of(program: &Program, handle: usize) -> Self {
        Self {
            // Handle 0 is the legacy stream, whose other handle is 1.
            handle: NonZero::new(handle).unwrap_or(NonZero::<usize>::MIN),
            of: if handle <= PER_THREAD {
                Self::default_of(program, handle)
            } else {
                0
            },
        }
    }

    #[inline(never)]
    fn default_of(program: &Program, handle: usize) -> u64 {
        let bound = program.bind();
        let context = bound.map_or(0, |bound| bound.context());
        let tid = || bound.map_or_else(sys::gettid, |bound| bound.tid());
        let tid = if handle == PER_THREAD { tid() } else { 0 };
        u64::from(context) << 32 | u64::from(tid)
    }

    fn handle(self) -> usize {
        self.handle.get()
    }

    fn context(self) -> u32 {
        u32::try_from(self.of >> 32).unwrap_or(0)
    }

    /// Returns whether it is a default stream of one of these contexts.
    pub(crate) fn is_default_of(self, contexts: &[u32]) -> bool {
        self.handle() <= PER_THREAD && contexts.contains(&self.context())
    }

    /// Returns whether a wait for it may end: the calling thread can ask the driver, and it does not capture.
    pub(crate) fn may_pass(self, program: &Program) -> bool {
        if self.handle == DEPARTED {
            return true;
        }
        if self == Self::of(program, self.handle()) {
            return is_capturing(CUstream::numbered(self.handle())) == Some(false);
        }
        self.handle() == LEGACY
    }

    /// Returns whether all its work is known to have completed, as far as the calling thread can ask the
    /// driver.
    pub(crate) fn has_passed(self, program: &Program) -> bool {
        if self.handle == DEPARTED {
            let contexts = &program.contexts;
            let exists = |context| contexts.numbered(context).is_some();
            return contexts.departed.has_passed(self.of, exists);
        }
        if self == Self::of(program, self.handle()) {
            return has_passed(program, self.handle());
        }
        if self.handle() != LEGACY {
            return false;
        }
        let Some(context) = program.contexts.numbered(self.context()) else {
            return true;
        };
        if context.is_part() {
            // Its default stream can be queried only by threads to which it is current.
            return false;
        }
        let passed = context.with_current(|| has_passed(program, LEGACY));
        passed == Some(true)
    }
}

/// A call in the order of a stream, with its number among those of the process that something waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) stream: Stream,
    pub(super) number: u64,
}

/// Streams that have reached every call up to a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reached<'a> {
    pub(super) streams: &'a [Stream],
    pub(super) last: u64,
}

impl Reached<'_> {
    pub(super) fn has(&self, order: &Order) -> bool {
        order.number <= self.last && self.streams.contains(&order.stream)
    }
}

impl Memory {
    /// Numbers a call on a stream that the driver has accepted.
    pub(crate) fn ordered(&self, stream: Stream) -> Order {
        Order {
            stream,
            number: self.nr_ordered.fetch_add(1, SeqCst) + 1,
        }
    }

    /// Returns the number of the last call. A wait or query that begins afterwards tells of no later one.
    pub(crate) fn last_ordered(&self) -> u64 {
        self.nr_ordered.load(SeqCst)
    }

    /// Settles the frees that streams have reached; returns whether there may have been any.
    pub(crate) fn settle_passed(&self) -> bool {
        let last = self.last_ordered();
        let mut streams = self.freeing.waits_for();
        streams.extend(self.physical.waits_for());
        streams.extend(self.reserves.waits_for());
        streams.sort_unstable();
        streams.dedup();
        // Streams are queried without a lock. Another thread may free on them meanwhile.
        streams.retain(|stream| stream.has_passed(self.program));
        if streams.is_empty() {
            return false;
        }
        let reached = Reached {
            streams: &streams,
            last,
        };
        self.freeing.passed(self, |order| reached.has(order));
        self.physical(|physical, gone| physical.passed(reached, gone));
        self.reserves.passed(self, reached);
        true
    }

    /// Has everything that waits for a stream wait for what it leaves behind. Runs `take_out`, which removes
    /// the stream and returns that: a stream that is not known any more counts as passed.
    pub(crate) fn stream_leaves(&self, leaving: CUstream, context: u32, take_out: impl FnOnce() -> Left) {
        let departed = &self.program.contexts.departed;
        let number = departed.enter(context);
        let stream = Stream::of(self.program, leaving.0.addr());
        let instead = Stream {
            handle: DEPARTED,
            of: number,
        };
        let waits = [
            self.freeing.replace(stream, instead),
            self.reserves.replace(stream, instead),
            self.physical.replace(stream, instead),
        ];
        departed.leave(number, take_out());
        if waits == [false; 3] {
            departed.forget(number);
        }
    }
}

/// Returns whether a stream's work has completed, which includes streams that ended with their context.
fn has_passed(program: &Program, stream: usize) -> bool {
    let handle = CUstream::numbered(stream);
    if stream > PER_THREAD && program.contexts.holder(handle).is_none() {
        return true;
    }
    relaxed(|| is_capturing(handle) == Some(false) && driver::cuStreamQuery(handle).is_ok())
}

#[cfg(test)]
impl Stream {
    pub(crate) fn of_test(handle: usize) -> Self {
        let handle = NonZero::new(handle).unwrap();
        Self { handle, of: 0 }
    }

    pub(crate) fn order_of_test(self, number: u64) -> Order {
        Order { stream: self, number }
    }
}
