//! One context of the program's and its streams, as far as somebody must wait for what was submitted to them.
//!
//! All that a context has is marked by an event of the context (`cuCtxRecordEvent`), or, before CUDA 12.5, by its streams:
//! a mark on its legacy stream passes when all its blocking streams have come so far (the per-thread default streams
//! among them: CUDA Driver API, "Stream synchronization behavior"); a non-blocking stream needs its own.
//! Whoever destroys a context or stream first takes it out here; the helper marks and asks under the context's lock,
//! for as long as the one call takes. So it never names to the driver what is gone.
//!
//! What other calls take for a green context is a part of a primary context: it has streams of its own, and all else,
//! what marks are set with too, is the primary's. It may be current to one thread at a time (`cuGreenCtxCreate`), the
//! program's, so it is marked with the primary one current: a stream by itself, all of it with `cuGreenCtxRecordEvent`.

mod marks;

use std::sync::Arc;

use parking_lot::Mutex;

use super::capture;
use super::mark::{Sign, Signs};
use crate::cuda::{CUcontext, CUerror, CUgreenCtx, CUresult, CUstream};
use crate::device::LocalDevice;
use crate::{cuda, driver};

pub(super) use self::marks::is_over;
pub(crate) use self::marks::{Mark, Passed, ask_all};

/// `CU_STREAM_LEGACY`: also where the program was built for per-thread default streams.
pub(crate) const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: in the thread itself; for others a mark on the legacy stream covers it.
pub(crate) const PER_THREAD: usize = 2;

#[derive(Debug, Default)]
struct Inner {
    /// Calls under way that may destroy it.
    leaving: u32,
    is_gone: bool,
    /// Holders beyond the first.
    attached: u32,
    /// Streams by handle, and whether they need marks of their own.
    streams: Vec<(usize, bool)>,
    /// Marks on streams that were destroyed while busy, until they pass.
    orphans: Vec<Sign>,
}

/// One context. Handles are kept as numbers: to us they are only names.
#[derive(Debug)]
pub(crate) struct Context {
    handle: usize,
    id: u32,
    pub(crate) local: LocalDevice,
    /// What it is a part of, and by which name, if it is a green context's.
    base: Option<(Arc<Context>, usize)>,
    signs: Arc<Signs>,
    inner: Mutex<Inner>,
}

pub(crate) fn stream(number: usize) -> CUstream {
    CUstream(std::ptr::with_exposed_provenance_mut(number))
}

impl Context {
    pub(super) fn new(handle: usize, id: u32, local: LocalDevice) -> Self {
        Self {
            handle,
            id,
            local,
            base: None,
            signs: Arc::default(),
            inner: Mutex::default(),
        }
    }

    /// What calls take for the green context of that name.
    pub(super) fn new_part(handle: usize, id: u32, base: &Arc<Self>, green: usize) -> Self {
        Self {
            base: Some((Arc::clone(base), green)),
            signs: Arc::clone(&base.signs),
            ..Self::new(handle, id, base.local)
        }
    }

    /// The context that owns what is made in this one, streams aside: itself, but for a green context's.
    pub(crate) fn base(self: &Arc<Self>) -> &Arc<Self> {
        self.base.as_ref().map_or(self, |(base, _)| base)
    }

    pub(crate) fn is_part(&self) -> bool {
        self.base.is_some()
    }

    /// The green context that it is.
    fn green(&self) -> Option<CUgreenCtx> {
        let (_, name) = self.base.as_ref()?;
        Some(CUgreenCtx(std::ptr::with_exposed_provenance_mut(*name)))
    }

    /// Whether it is the green context of that name.
    pub(super) fn is_green(&self, green: usize) -> bool {
        self.base.as_ref().is_some_and(|(_, name)| *name == green)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns the driver's last error that kept a mark from being set or from being looked at; `None` if a look has
    /// succeeded since.
    pub(super) fn fault(&self) -> Option<CUerror> {
        self.signs.fault()
    }

    /// The driver's name for it, as a number.
    pub(crate) fn handle(&self) -> usize {
        self.handle
    }

    /// Runs `body` with the context current, or the one that it is a part of, unless it is gone; `NotYet` while somebody
    /// destroys it.
    fn visit(&self, body: impl FnOnce(&mut Inner) -> Passed) -> Passed {
        let mut inner = self.inner.lock();
        if inner.is_gone {
            return Passed::Yes;
        }
        if inner.leaving != 0 {
            return Passed::NotYet;
        }
        let handle = self.base.as_ref().map_or(self.handle, |(base, _)| base.handle);
        let handle = CUcontext(std::ptr::with_exposed_provenance_mut(handle));
        if let Err(error) = driver::cuCtxPushCurrent_v2(handle) {
            if is_over(error) {
                return Passed::Yes;
            }
            self.signs.note_fault(error);
            return Passed::NotYet;
        }
        let mut mode = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
        let _ = driver::cuThreadExchangeStreamCaptureMode(&mut mode);
        let passed = body(&mut inner);
        let _ = driver::cuThreadExchangeStreamCaptureMode(&mut mode);
        let _ = driver::cuCtxPopCurrent_v2(&mut CUcontext(std::ptr::null_mut()));
        passed
    }

    /// Runs `body` with the context current, or the one that it is a part of, and kept from being destroyed; `None` if it is
    /// gone or going.
    pub(crate) fn with_current<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        let mut result = None;
        self.visit(|_| {
            result = Some(body());
            Passed::Yes
        });
        result
    }

    /// Waits until all that was submitted to it has ended. In a thread of the program's, which sees to it that the
    /// context stays.
    pub(crate) fn synchronize(&self) -> CUresult {
        let handle = CUcontext(std::ptr::with_exposed_provenance_mut(self.handle));
        driver::cuCtxPushCurrent_v2(handle)?;
        let result = driver::cuCtxSynchronize();
        let _ = driver::cuCtxPopCurrent_v2(&mut CUcontext(std::ptr::null_mut()));
        result
    }

    /// It is no more; the streams that it had.
    pub(super) fn end(&self) -> Vec<CUstream> {
        let mut inner = self.inner.lock();
        inner.is_gone = true;
        let streams = std::mem::take(&mut inner.streams);
        streams.into_iter().map(|(number, _)| stream(number)).collect()
    }

    /// Whether it has that stream.
    pub(super) fn has(&self, wanted: CUstream) -> bool {
        let number = wanted.0.addr();
        self.inner.lock().streams.iter().any(|entry| entry.0 == number)
    }

    /// Notes that a call begins that may destroy it.
    pub(crate) fn leave(&self) {
        self.inner.lock().leaving += 1;
    }

    /// That call did not destroy it.
    pub(crate) fn stay(&self) {
        let mut inner = self.inner.lock();
        inner.leaving = inner.leaving.saturating_sub(1);
    }

    /// One more holder.
    pub(crate) fn attach(&self) {
        self.inner.lock().attached += 1;
    }

    /// One holder less; whether it was the last.
    pub(crate) fn detach(&self) -> bool {
        let mut inner = self.inner.lock();
        let was_last = inner.attached == 0;
        inner.attached = inner.attached.saturating_sub(1);
        was_last
    }

    /// Enters a stream, and whether it needs marks of its own.
    pub(crate) fn enter(&self, made: CUstream, needs_own: bool) {
        let mut inner = self.inner.lock();
        inner.take(made);
        // A part may have no default stream, whose mark would do for others.
        let needs_own = needs_own || self.is_part();
        inner.streams.push((made.0.expose_provenance(), needs_own));
    }

    /// Takes a stream out that is to be destroyed, leaving a mark behind if it is busy; whether it needed its own.
    pub(crate) fn take_out(&self, leaving: CUstream) -> bool {
        let mut needs_own = None;
        if capture::is_capturing(leaving) == Some(false) {
            self.visit(|inner| {
                needs_own = inner.take(leaving);
                self.leave_mark(inner, leaving);
                Passed::Yes
            });
        }
        needs_own
            .or_else(|| self.inner.lock().take(leaving))
            .unwrap_or(false)
    }
}

impl Inner {
    /// Takes a stream out; whether it needed marks of its own, if it was there.
    fn take(&mut self, leaving: CUstream) -> Option<bool> {
        let found = self
            .streams
            .iter()
            .position(|entry| entry.0 == leaving.0.addr())?;
        Some(self.streams.swap_remove(found).1)
    }

    /// Whether there is such a stream, as far as we know.
    fn has(&self, number: usize) -> bool {
        matches!(number, LEGACY | PER_THREAD) || self.streams.iter().any(|entry| entry.0 == number)
    }
}

#[cfg(test)]
impl Context {
    /// One whose marks pass by hand.
    pub(super) fn by_hand() -> Arc<Self> {
        Arc::new(Self {
            signs: Arc::new(Signs::by_hand()),
            ..Self::new(0, 0, LocalDevice::of(0).unwrap())
        })
    }

    pub(super) fn pass(&self, sign: Sign) {
        self.signs.pass(sign);
    }
}
