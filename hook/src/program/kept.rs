//! Words that the memory engine caches for a thread.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

/// Part of a thread's slot, in cache lines of its own, since each use writes it. Used by the slot's thread
/// only.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Kept {
    /// The pool used last.
    pub(crate) pool: AtomicPtr<()>,
    /// The key by which it was found, and the number of changes at that time.
    pub(crate) key: AtomicU64,
    pub(crate) changes: AtomicUsize,
    /// The list of all reserves.
    pub(crate) all: AtomicPtr<()>,
}

impl Kept {
    pub(crate) const fn new() -> Self {
        Self {
            pool: AtomicPtr::new(null_mut()),
            key: AtomicU64::new(0),
            changes: AtomicUsize::new(0),
            all: AtomicPtr::new(null_mut()),
        }
    }
}
