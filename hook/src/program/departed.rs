//! Streams that were destroyed while something waits for their work, which runs on.
//!
//! A new stream may have the handle of a destroyed one, so each has a number that is never used again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::context::{Left, Passed};

#[derive(Debug, Default)]
pub(crate) struct Departed {
    next: AtomicU64,
    /// Streams whose work is not known to have completed, by number, each with its context.
    left: Mutex<HashMap<u64, (Left, u32)>>,
}

impl Departed {
    /// Adds a stream of a context that is about to be destroyed; returns its number.
    pub(crate) fn enter(&self, context: u32) -> u64 {
        let number = self.next.fetch_add(1, Relaxed);
        self.left.lock().insert(number, (Left::Unknown, context));
        number
    }

    /// Records what the stream leaves behind.
    pub(crate) fn leave(&self, number: u64, left: Left) {
        if let Some((known, _)) = self.left.lock().get_mut(&number) {
            *known = left;
        }
    }

    /// Removes a stream that nothing waits for.
    pub(crate) fn forget(&self, number: u64) {
        self.left.lock().remove(&number);
    }

    /// Returns whether the stream's work has completed, or its context is gone; `exists` tells which exist.
    pub(crate) fn has_passed(&self, number: u64, exists: impl FnOnce(u32) -> bool) -> bool {
        let left = self.left.lock().get(&number).cloned();
        let has_passed = match left {
            None | Some((Left::Nothing, _)) => true,
            Some((Left::Marker(mut marker), _)) => marker.ask() == Passed::Yes,
            Some((Left::Unknown, context)) => !exists(context),
        };
        if has_passed {
            self.forget(number);
        }
        has_passed
    }
}
