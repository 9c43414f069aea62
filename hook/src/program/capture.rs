//! Stream captures in progress. A launch into a captured stream does not run, so it passes a frozen gate.
//! A marker is never set on a captured stream: it would become part of the graph.
//!
//! A capture cannot *begin* at a frozen gate, and a drain completes only after all captures have ended. So at
//! a drained gate there are none, and every submission waits. The thread that began a capture is known, but
//! not which stream a launch goes to: if several threads capture, all but one of them may wait until the
//! thaw.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::driver::cuda::CUstream;

#[derive(Debug, Default)]
pub(crate) struct Captures {
    /// Captured stream and id of the thread that began the capture.
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

    pub(crate) fn begin(&self, stream: CUstream, tid: u32) {
        self.change(|list| list.push((stream.0.addr(), tid)));
    }

    /// Ends a capture of `stream`: the one that `tid` began, otherwise any. All threads' per-thread default
    /// streams have the same handle.
    pub(crate) fn end(&self, stream: CUstream, tid: u32) {
        self.change(|list| {
            let stream = stream.0.addr();
            let own = list.iter().position(|entry| *entry == (stream, tid));
            if let Some(found) = own.or_else(|| list.iter().position(|entry| entry.0 == stream)) {
                list.swap_remove(found);
            }
        });
    }

    /// Removes the captures of a destroyed stream.
    pub(crate) fn forget(&self, stream: CUstream) {
        if self.count.load(Relaxed) != 0 {
            self.change(|list| list.retain(|entry| entry.0 != stream.0.addr()));
        }
    }

    /// Returns whether thread `tid` has a capture in progress.
    pub(crate) fn is_by(&self, tid: u32) -> bool {
        self.count.load(Relaxed) != 0 && self.under_way.lock().iter().any(|entry| entry.1 == tid)
    }

    /// Returns whether any thread has a capture in progress.
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Runs `body` unless a capture is in progress; no capture begins while it runs.
    pub(crate) fn unless_any<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        let under_way = self.under_way.lock();
        under_way.is_empty().then(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(number: usize) -> CUstream {
        CUstream(std::ptr::without_provenance_mut(number))
    }

    #[test]
    fn capture_is_by_the_thread_that_began_it() {
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
    fn captures_destroyed_stream_is_removed() {
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
