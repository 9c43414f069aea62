//! A stream that something waits for.
//!
//! Its handle says which it is, but for the default streams: each context has its own, and of those that are a thread's each
//! thread. Who has waited for one of them has not waited for another of the same number.

use std::num::NonZero;

use crate::compute::capture;
use crate::compute::context::{LEGACY, PER_THREAD};
use crate::cuda::{CU_STREAM_CAPTURE_MODE_RELAXED, CUerror, CUstream};
use crate::driver;
use crate::process::Process;
use crate::sys;

/// Two words, none or some, that go from call to call in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stream {
    handle: NonZero<usize>,
    /// Of a default stream the context's number and, if it is a thread's, the thread's id; else nothing.
    of: u64,
}

impl Stream {
    /// The stream of that handle, in the calling thread.
    #[inline]
    pub(super) fn of(process: &Process, handle: usize) -> Self {
        Self {
            // By the first number after none the legacy stream goes too.
            handle: NonZero::new(handle).unwrap_or(NonZero::<usize>::MIN),
            of: if handle <= PER_THREAD {
                Self::default_of(process, handle)
            } else {
                0
            },
        }
    }

    #[inline(never)]
    fn default_of(process: &Process, handle: usize) -> u64 {
        let bound = process.slots.bind(process);
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

    /// Whether it is a default stream, of one of these contexts.
    pub(super) fn is_default_of(self, contexts: &[u32]) -> bool {
        self.handle() <= PER_THREAD && contexts.contains(&self.context())
    }

    /// Spreads streams.
    #[inline]
    pub(super) fn hash(self) -> usize {
        let number = (self.handle() as u64 ^ self.of).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(number >> 48).unwrap_or(0)
    }

    /// Whether it has done all that it was given, as far as the calling thread can ask.
    pub(super) fn has_passed(self, process: &Process) -> bool {
        if self == Self::of(process, self.handle()) {
            return has_passed(process, self.handle());
        }
        if self.handle() != LEGACY {
            return false;
        }
        let Some(context) = process.contexts.numbered(self.context()) else {
            return true;
        };
        if context.is_part() {
            // Its default stream can be asked about only where it is current: by the threads that use it.
            return false;
        }
        let passed = context.with_current(|| has_passed(process, LEGACY));
        passed == Some(true)
    }
}

/// Whether a stream has done all that it was given; those that are not the program's any more have.
pub(super) fn has_passed(process: &Process, stream: usize) -> bool {
    let handle = CUstream(std::ptr::with_exposed_provenance_mut(stream));
    if stream > PER_THREAD && process.contexts.holder(handle).is_none() {
        return true;
    }
    // A capture of the program's own must not notice.
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    let _ = driver::cuThreadExchangeStreamCaptureMode(&mut mode);
    let passed = capture::is_capturing(handle) == Some(false)
        && driver::cuStreamQuery(handle) != Err(CUerror::NOT_READY);
    let _ = driver::cuThreadExchangeStreamCaptureMode(&mut mode);
    passed
}

#[cfg(test)]
impl Stream {
    pub(super) fn of_test(handle: usize) -> Self {
        let handle = NonZero::new(handle).unwrap();
        Self { handle, of: 0 }
    }
}
