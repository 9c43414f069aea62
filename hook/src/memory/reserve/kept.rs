//! The pool that a thread has used last, and the list of all: to find them anew takes locks that all threads want, and to hold
//! them meanwhile takes counts that they all write.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::Reserve;
use crate::compute::slots::Own;

/// Part of a thread's slot, in cache lines of its own: it is written with each use.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Kept {
    /// One hold of an `Arc`, or null.
    pool: AtomicPtr<Reserve>,
    /// By what it was found, and when: [`Reserves::changes`](super::Reserves).
    key: AtomicU64,
    changes: AtomicUsize,
    /// Another hold, or null.
    all: AtomicPtr<All>,
}

/// All reserves, as they were after so many changes.
#[derive(Debug)]
pub(super) struct All {
    pub(super) changes: usize,
    pub(super) list: Vec<Arc<Reserve>>,
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

/// The list that the thread has kept, if there were no changes since. It has none meanwhile, as above.
#[inline]
pub(super) fn kept_list(place: Option<&Own<'_, Kept>>, changes: usize) -> Option<Arc<All>> {
    let kept = place?;
    let all = kept.all.load(Relaxed);
    // SAFETY: null, or what `keep_list` left here, a hold that nobody drops but this thread, whose own this is.
    if unsafe { all.as_ref() }?.changes != changes {
        return None;
    }
    kept.all.store(null_mut(), Relaxed);
    // SAFETY: the hold that was left here.
    Some(unsafe { Arc::from_raw(all) })
}

/// Leaves a list for the thread's next call.
#[inline]
pub(super) fn keep_list(place: Option<&Own<'_, Kept>>, all: Arc<All>) {
    let Some(kept) = place else { return };
    let before = kept.all.load(Relaxed);
    kept.all.store(Arc::into_raw(all).cast_mut(), Relaxed);
    if !before.is_null() {
        // SAFETY: a hold that was left here, as above.
        drop(unsafe { Arc::from_raw(before) });
    }
}

/// A pool in use, which its thread has for the next call after.
#[derive(Debug)]
pub(crate) struct Used<'a> {
    pool: ManuallyDrop<Arc<Reserve>>,
    place: Option<Own<'a, Kept>>,
}

impl<'a> Used<'a> {
    /// The pool that the thread has kept if `is_it`, by the key that it was found by; `changes` are those until now.
    #[inline]
    pub(super) fn kept(
        place: Option<Own<'a, Kept>>,
        changes: usize,
        is_it: impl FnOnce(u64, &Reserve) -> bool,
    ) -> Option<Self> {
        let kept = place.as_deref()?;
        let pool = kept.pool.load(Relaxed);
        // SAFETY: null, or what `keep` left here, a hold that nobody drops but this thread, whose own this is.
        let reserve = unsafe { pool.as_ref() }?;
        if kept.changes.load(Relaxed) != changes || !is_it(kept.key.load(Relaxed), reserve) {
            return None;
        }
        // Nothing is here meanwhile: a call from a signal's handler finds its own.
        kept.pool.store(null_mut(), Relaxed);
        Some(Self {
            // SAFETY: the hold that was left here.
            pool: ManuallyDrop::new(unsafe { Arc::from_raw(pool) }),
            place,
        })
    }

    /// One that was found by that key, before which there were so many `changes`.
    pub(super) fn found(place: Option<Own<'a, Kept>>, changes: usize, key: u64, pool: Arc<Reserve>) -> Self {
        if let Some(kept) = place.as_deref() {
            kept.key.store(key, Relaxed);
            kept.changes.store(changes, Relaxed);
        }
        Self {
            pool: ManuallyDrop::new(pool),
            place,
        }
    }
}

impl Deref for Used<'_> {
    type Target = Arc<Reserve>;

    #[inline]
    fn deref(&self) -> &Arc<Reserve> {
        &self.pool
    }
}

impl Drop for Used<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: not used any more.
        let mut pool = unsafe { ManuallyDrop::take(&mut self.pool) };
        if let Some(kept) = self.place.as_deref() {
            let before = kept.pool.load(Relaxed);
            kept.pool.store(Arc::into_raw(pool).cast_mut(), Relaxed);
            if before.is_null() {
                return;
            }
            // SAFETY: a hold that was left here, as above.
            pool = unsafe { Arc::from_raw(before) };
        }
        drop(pool);
    }
}
