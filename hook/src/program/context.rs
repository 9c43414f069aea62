//! A context of the program and its streams, as far as draining needs them.
//!
//! All work of a context is marked by an event of the context (`cuCtxRecordEvent`). Before CUDA 12.5 its
//! streams are marked instead: a marker on the legacy stream passes when all blocking streams have reached
//! it, per-thread default streams included (CUDA Driver API, "Stream synchronization behavior"); each
//! non-blocking stream needs its own marker. A thread that destroys a context or stream first removes it
//! here; the helper sets and queries markers under the context's lock, held for one driver call. So the
//! driver is never given a stale handle.
//!
//! The context of a green context counts as a part of a primary context: it has its own streams; everything
//! else, including the memory of its markers, belongs to the primary context. It may be current to one thread
//! at a time (`cuGreenCtxCreate`), the program's, so markers are set with the primary context current: on a
//! single stream, or on the whole green context with `cuGreenCtxRecordEvent`.

mod moment;
mod pending;

use std::sync::Arc;

use parking_lot::Mutex;

use super::marker::{Marker, Markers, is_over};
use crate::driver;
use crate::driver::cuda::{CUcontext, CUerror, CUgreenCtx, CUresult, CUstream};
use crate::driver::streams::{LEGACY, PER_THREAD, is_capturing, relaxed, stream};
use crate::shared::device::LocalDevice;

pub(crate) use self::moment::Moment;
pub(crate) use self::pending::{Left, Passed, PendingMarker, ask_all, ask_each};

#[derive(Debug, Default)]
struct Inner {
    /// Number of calls in progress that may destroy the context.
    leaving: u32,
    is_gone: bool,
    /// Number of `cuCtxAttach` holders, beyond the creator.
    attached: u32,
    /// Stream handles, and whether each needs its own marker.
    streams: Vec<(usize, bool)>,
    /// Pending markers of streams that were destroyed while busy.
    orphans: Vec<Marker>,
}

/// A context. Handles are stored as numbers and never dereferenced.
#[derive(Debug)]
pub(crate) struct Context {
    handle: usize,
    id: u32,
    pub(crate) local: LocalDevice,
    /// Primary context that a green context is a part of, and the `CUgreenCtx` handle; `None` for other
    /// contexts.
    base: Option<(Arc<Context>, usize)>,
    markers: Arc<Markers>,
    moments: moment::Spares,
    inner: Mutex<Inner>,
}

impl Context {
    pub(super) fn new(handle: usize, id: u32, local: LocalDevice) -> Self {
        Self {
            handle,
            id,
            local,
            base: None,
            markers: Arc::default(),
            moments: moment::Spares::default(),
            inner: Mutex::default(),
        }
    }

    /// Creates the context of a green context, a part of `base`.
    pub(super) fn new_part(handle: usize, id: u32, base: &Arc<Self>, green: usize) -> Self {
        Self {
            base: Some((Arc::clone(base), green)),
            markers: Arc::clone(&base.markers),
            ..Self::new(handle, id, base.local)
        }
    }

    /// Returns the context that owns allocations made in this one: the primary one for a part, otherwise
    /// itself.
    pub(crate) fn base(self: &Arc<Self>) -> &Arc<Self> {
        self.base.as_ref().map_or(self, |(base, _)| base)
    }

    pub(crate) fn is_part(&self) -> bool {
        self.base.is_some()
    }

    /// Returns the green context that this context belongs to.
    fn green(&self) -> Option<CUgreenCtx> {
        let (_, name) = self.base.as_ref()?;
        Some(CUgreenCtx::numbered(*name))
    }

    /// Returns whether this context belongs to the green context `green`.
    pub(super) fn is_green(&self, green: usize) -> bool {
        self.base.as_ref().is_some_and(|(_, name)| *name == green)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns the driver's last error that kept a marker from being set or polled; `None` if a poll has
    /// succeeded since.
    pub(crate) fn fault(&self) -> Option<CUerror> {
        self.markers.fault()
    }

    /// Sets a moment behind all that was submitted so far to a stream of this context, which the calling
    /// thread has current and uses now; `None` if that cannot be done now. Not to be called while any stream
    /// of the process is being captured.
    pub(crate) fn moment(self: &Arc<Self>, number: usize) -> Option<Moment> {
        // As in `mark_own`.
        let inner = self.inner.try_lock()?;
        if inner.is_gone || inner.leaving != 0 {
            return None;
        }
        let event = moment::record(&self.base().moments, stream(number))?;
        Some(Moment::new(self, event))
    }

    /// Returns the `CUcontext` handle as a number.
    pub(crate) fn handle(&self) -> usize {
        self.handle
    }

    /// Runs `body` with this context, or the one it is a part of, current. Returns `Yes` without running it
    /// if the context is gone, `NotYet` while a call that may destroy it is in progress.
    fn visit(&self, body: impl FnOnce(&mut Inner) -> Passed) -> Passed {
        let mut inner = self.inner.lock();
        if inner.is_gone {
            return Passed::Yes;
        }
        if inner.leaving != 0 {
            return Passed::NotYet;
        }
        let handle = self.base.as_ref().map_or(self.handle, |(base, _)| base.handle);
        let handle = CUcontext::numbered(handle);
        if let Err(error) = driver::cuCtxPushCurrent_v2(handle) {
            if is_over(error) {
                return Passed::Yes;
            }
            self.markers.note_fault(error);
            return Passed::NotYet;
        }
        let passed = relaxed(|| body(&mut inner));
        let _ = driver::cuCtxPopCurrent_v2(&mut CUcontext(std::ptr::null_mut()));
        passed
    }

    /// Runs `body` with this context, or the one it is a part of, current, and keeps it from being destroyed.
    /// Returns `None` if it is destroyed or a call that may destroy it is in progress.
    pub(crate) fn with_current<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        let mut result = None;
        self.visit(|_| {
            result = Some(body());
            Passed::Yes
        });
        result
    }

    /// Waits until all submitted work has completed. Called in a thread of the program, which keeps the
    /// context alive. Usually the context is current already: then no other call can fail.
    pub(crate) fn synchronize(&self) -> CUresult {
        let mut current = CUcontext(std::ptr::null_mut());
        if driver::cuCtxGetCurrent(&mut current).is_ok() && current.0.addr() == self.handle {
            return driver::cuCtxSynchronize();
        }
        driver::cuCtxPushCurrent_v2(CUcontext::numbered(self.handle))?;
        let result = driver::cuCtxSynchronize();
        let _ = driver::cuCtxPopCurrent_v2(&mut CUcontext(std::ptr::null_mut()));
        result
    }

    /// Marks the context as destroyed and returns the streams that it had.
    pub(super) fn end(&self) -> Vec<CUstream> {
        let streams = self.streams();
        let mut inner = self.inner.lock();
        inner.is_gone = true;
        inner.streams.clear();
        streams
    }

    /// Returns the streams that the program has made and not destroyed.
    pub(crate) fn streams(&self) -> Vec<CUstream> {
        let inner = self.inner.lock();
        inner.streams.iter().map(|(number, _)| stream(*number)).collect()
    }

    /// Returns whether the context has the stream.
    pub(super) fn has(&self, wanted: CUstream) -> bool {
        let number = wanted.0.addr();
        self.inner.lock().streams.iter().any(|entry| entry.0 == number)
    }

    /// Records that a call that may destroy the context begins.
    pub(crate) fn leave(&self) {
        self.inner.lock().leaving += 1;
    }

    /// Records that such a call ended without destroying the context.
    pub(crate) fn stay(&self) {
        let mut inner = self.inner.lock();
        inner.leaving = inner.leaving.saturating_sub(1);
    }

    /// Adds a holder.
    pub(crate) fn attach(&self) {
        self.inner.lock().attached += 1;
    }

    /// Removes a holder and returns whether it was the last.
    pub(crate) fn detach(&self) -> bool {
        let mut inner = self.inner.lock();
        let was_last = inner.attached == 0;
        inner.attached = inner.attached.saturating_sub(1);
        was_last
    }

    /// Adds a stream, and whether it needs its own marker.
    pub(crate) fn enter(&self, made: CUstream, needs_own: bool) {
        let mut inner = self.inner.lock();
        inner.take(made);
        // A part may have no default stream, whose marker could cover others.
        let needs_own = needs_own || self.is_part();
        inner.streams.push((made.0.expose_provenance(), needs_own));
    }

    /// Removes a stream before its destruction and leaves a marker if it is busy. Returns whether it needed
    /// its own, and what it leaves behind.
    pub(crate) fn take_out(self: &Arc<Self>, leaving: CUstream) -> (bool, Left) {
        let (mut needs_own, mut left) = (None, Left::Unknown);
        if is_capturing(leaving) == Some(false) {
            self.visit(|inner| {
                needs_own = inner.take(leaving);
                left = self.leave_marker(inner, leaving);
                Passed::Yes
            });
        }
        let needs_own = needs_own.or_else(|| self.inner.lock().take(leaving));
        (needs_own.unwrap_or(false), left)
    }
}

impl Inner {
    /// Removes a stream; returns whether it needed its own marker, `None` if unknown.
    fn take(&mut self, leaving: CUstream) -> Option<bool> {
        let found = self
            .streams
            .iter()
            .position(|entry| entry.0 == leaving.0.addr())?;
        Some(self.streams.swap_remove(found).1)
    }

    /// Returns whether the stream is known; default streams always are.
    fn has(&self, number: usize) -> bool {
        matches!(number, LEGACY | PER_THREAD) || self.streams.iter().any(|entry| entry.0 == number)
    }
}

#[cfg(test)]
impl Context {
    /// Creates a context whose markers are completed by [`Self::pass`].
    pub(super) fn by_hand() -> Arc<Self> {
        Arc::new(Self {
            markers: Arc::new(Markers::by_hand()),
            ..Self::new(0, 0, LocalDevice::of(0).unwrap())
        })
    }

    pub(super) fn pass(&self, marker: Marker) {
        self.markers.pass(marker);
    }
}
