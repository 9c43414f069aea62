//! Per-thread cache of the pool used last and of the list of all reserves. Finding them otherwise takes locks
//! and reference counts that all threads write.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Reserve;
use crate::program::kept::Kept;
use crate::program::slots::Own;

/// All reserves as of a number of changes.
#[derive(Debug)]
pub(super) struct All {
    pub(super) changes: usize,
    pub(super) list: Vec<Arc<Reserve>>,
}

/// Takes the list that the thread has cached, if it is up to date. The slot is empty until it is put back.
#[inline]
pub(super) fn kept_list(place: Option<&Own<'_, Kept>>, changes: usize) -> Option<Arc<All>> {
    let kept = place?;
    let all = kept.all.load(Relaxed).cast::<All>();
    // SAFETY: null, or a reference that `keep_list` stored. Only this thread, the slot's owner, can drop it.
    if unsafe { all.as_ref() }?.changes != changes {
        return None;
    }
    kept.all.store(null_mut(), Relaxed);
    // SAFETY: the stored reference, whose ownership passes to the caller.
    Some(unsafe { Arc::from_raw(all) })
}

/// Stores a list for the thread's next call.
#[inline]
pub(super) fn keep_list(place: Option<&Own<'_, Kept>>, all: Arc<All>) {
    let Some(kept) = place else { return };
    let before = kept.all.load(Relaxed).cast::<All>();
    kept.all.store(Arc::into_raw(all).cast_mut().cast(), Relaxed);
    if !before.is_null() {
        // SAFETY: a stored reference, whose ownership passes here.
        drop(unsafe { Arc::from_raw(before) });
    }
}

/// A pool in use; stored for the thread's next call when dropped.
#[derive(Debug)]
pub(crate) struct Used<'a> {
    pool: ManuallyDrop<Arc<Reserve>>,
    place: Option<Own<'a, Kept>>,
}

impl<'a> Used<'a> {
    /// Takes the pool that the thread has cached, if it is up to date and `is_it` accepts its key and the
    /// pool. `changes`: the present number of changes.
    #[inline]
    pub(crate) fn kept(
        place: Option<Own<'a, Kept>>,
        changes: usize,
        is_it: impl FnOnce(u64, &Reserve) -> bool,
    ) -> Option<Self> {
        let kept = place.as_deref()?;
        let pool = kept.pool.load(Relaxed).cast::<Reserve>();
        // SAFETY: null, or a reference that `drop` stored. Only this thread, the slot's owner, can drop it.
        let reserve = unsafe { pool.as_ref() }?;
        if kept.changes.load(Relaxed) != changes || !is_it(kept.key.load(Relaxed), reserve) {
            return None;
        }
        // The slot stays empty meanwhile: a call from a signal handler searches for itself.
        kept.pool.store(null_mut(), Relaxed);
        Some(Self {
            // SAFETY: the stored reference, whose ownership passes here.
            pool: ManuallyDrop::new(unsafe { Arc::from_raw(pool) }),
            place,
        })
    }

    /// Wraps a pool that was found by `key`, with the number of `changes` before the search.
    pub(crate) fn found(place: Option<Own<'a, Kept>>, changes: usize, key: u64, pool: Arc<Reserve>) -> Self {
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
        // SAFETY: `self.pool` is not used again.
        let mut pool = unsafe { ManuallyDrop::take(&mut self.pool) };
        if let Some(kept) = self.place.as_deref() {
            let before = kept.pool.load(Relaxed).cast::<Reserve>();
            kept.pool.store(Arc::into_raw(pool).cast_mut().cast(), Relaxed);
            if before.is_null() {
                return;
            }
            // SAFETY: a stored reference, whose ownership passes here.
            pool = unsafe { Arc::from_raw(before) };
        }
        drop(pool);
    }
}
