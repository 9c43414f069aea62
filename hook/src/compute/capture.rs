//! Streams that are being captured: a launch into one runs nothing, so it passes a frozen gate; a mark would spoil it.
//!
//! A capture may not *begin* at a frozen gate, and a drain is over only when those under way have ended. So at a drained
//! gate there are none, and every submission waits. Which thread began a capture is known, not into which stream a
//! launch goes: a program that captures from several threads has all but one of them wait until the thaw.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;

use super::gate;
use crate::cuda::{CU_STREAM_CAPTURE_STATUS_NONE, CUresult, CUstream};
use crate::interpose::Next;
use crate::process::{self, Process};
use crate::{driver, sys};

#[derive(Debug, Default)]
pub(crate) struct Captures {
    /// Each stream with the thread that began it.
    under_way: Mutex<Vec<(usize, u32)>>,
    count: AtomicU32,
}

impl Captures {
    fn change(&self, change: impl FnOnce(&mut Vec<(usize, u32)>)) {
        let mut under_way = self.under_way.lock();
        change(&mut under_way);
        self.count
            .store(u32::try_from(under_way.len()).unwrap_or(u32::MAX), Relaxed);
    }

    fn begin(&self, stream: CUstream, tid: u32) {
        self.change(|list| list.push((stream.0.addr(), tid)));
    }

    /// Ends the capture of that stream, which that thread began unless another did: with the per-thread default
    /// stream, many have the same handle.
    fn end(&self, stream: CUstream, tid: u32) {
        self.change(|list| {
            let stream = stream.0.addr();
            let own = list.iter().position(|entry| *entry == (stream, tid));
            if let Some(found) = own.or_else(|| list.iter().position(|entry| entry.0 == stream)) {
                list.swap_remove(found);
            }
        });
    }

    /// Forgets a stream that is destroyed.
    pub(crate) fn forget(&self, stream: CUstream) {
        if self.count.load(Relaxed) != 0 {
            self.change(|list| list.retain(|entry| entry.0 != stream.0.addr()));
        }
    }

    /// Whether that thread has a capture under way.
    pub(crate) fn is_by(&self, tid: u32) -> bool {
        self.count.load(Relaxed) != 0 && self.under_way.lock().iter().any(|entry| entry.1 == tid)
    }

    /// Whether anybody has one under way.
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Runs `body` unless a capture is under way; none begins meanwhile.
    pub(crate) fn unless_any<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        let under_way = self.under_way.lock();
        under_way.is_empty().then(body)
    }
}

/// Whether what is submitted to a stream now becomes part of a graph, and so does not run; `None` if the driver does not
/// say.
pub(crate) fn is_capturing(stream: CUstream) -> Option<bool> {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    driver::cuStreamIsCapturing(stream, &mut status).ok()?;
    Some(status != CU_STREAM_CAPTURE_STATUS_NONE)
}

/// `cuStreamBeginCapture` and its like.
pub(crate) fn begin(stream: CUstream, next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    let captures = &process.contexts.captures;
    let tid = sys::gettid();
    gate::hold(
        process,
        || captures.begin(stream, tid),
        || captures.end(stream, tid),
    );
    // What is submitted to it is not to be counted, and only the cold path asks.
    process.slots.watch(process, true);
    next().inspect_err(|_| {
        captures.end(stream, tid);
        is_over(process);
    })
}

/// Lets the helper have submissions take the short way again.
fn is_over(process: &Process) {
    process.line.wake();
}

/// `cuStreamEndCapture`: the capture is over, also if it was not valid; not, if another thread had to end it.
pub(crate) fn end(stream: CUstream, next: Next<'_>) -> CUresult {
    let result = next();
    let Some(process) = process::get() else {
        return result;
    };
    if is_capturing(stream) != Some(true) {
        process.contexts.captures.end(stream, sys::gettid());
        process.slots.current(process).inspect(|bound| bound.discount());
        is_over(process);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(number: usize) -> CUstream {
        CUstream(std::ptr::without_provenance_mut(number))
    }

    #[test]
    fn a_capture_is_the_threads_that_began_it() {
        let captures = Captures::default();
        captures.begin(stream(2), 10);
        captures.begin(stream(2), 11);
        assert!(captures.is_by(10) && captures.is_by(11) && !captures.is_by(12));
        captures.end(stream(2), 11);
        assert!(captures.is_by(10) && !captures.is_by(11));
        captures.end(stream(2), 12);
        assert!(!captures.is_by(10), "another thread may end it");
        assert_eq!(captures.unless_any(|| 1), Some(1));
    }

    #[test]
    fn a_destroyed_stream_captures_nothing() {
        let captures = Captures::default();
        captures.begin(stream(2), 10);
        captures.begin(stream(3), 10);
        assert_eq!(captures.unless_any(|| 1), None);
        captures.forget(stream(3));
        assert_eq!(captures.unless_any(|| 1), None);
        captures.forget(stream(2));
        assert_eq!(captures.unless_any(|| 1), Some(1));
    }
}
