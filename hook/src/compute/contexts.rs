//! The program's contexts and their streams, as far as somebody must wait for what was submitted to them.
//!
//! A mark on a context's legacy stream passes when all its blocking streams have come so far (the per-thread default
//! streams among them: CUDA Driver API, "Stream synchronization behavior"); a non-blocking stream needs its own.
//! Whoever destroys a context or stream first takes it out here; the helper marks and asks under the context's lock,
//! for as long as the one call takes. So it never names to the driver what is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use gcgroup_abi::MAX_DEVICES;
use parking_lot::Mutex;

use super::capture::Captures;
use crate::cuda::{CU_EVENT_DISABLE_TIMING, CUcontext, CUerror, CUevent, CUstream};
use crate::device::LocalDevice;
use crate::process::Process;
use crate::{cuda, driver};

/// `CU_STREAM_LEGACY`: also where the program was built for per-thread default streams.
const LEGACY: usize = 1;

#[derive(Debug)]
struct Inner {
    /// Calls under way that may destroy it.
    leaving: u32,
    is_gone: bool,
    /// Holders beyond the first.
    attached: u32,
    /// Streams by handle, and whether they need marks of their own.
    streams: Vec<(usize, bool)>,
    /// Marks on streams that were destroyed while busy, until they pass.
    orphans: Vec<usize>,
    /// Events that nobody waits for, to use again.
    events: Vec<usize>,
}

/// One context. Handles are kept as numbers: to us they are only names.
#[derive(Debug)]
pub(crate) struct Context {
    handle: usize,
    id: u32,
    pub(crate) local: LocalDevice,
    inner: Mutex<Inner>,
}

fn event(number: usize) -> CUevent {
    CUevent(std::ptr::with_exposed_provenance_mut(number))
}

fn stream(number: usize) -> CUstream {
    CUstream(std::ptr::with_exposed_provenance_mut(number))
}

/// A place in a context's work: passed when all that was submitted before has ended.
#[derive(Debug)]
pub(crate) struct Mark {
    context: Arc<Context>,
    event: usize,
    /// Whether it was set on a stream that was destroyed after: then several may wait for it.
    is_orphan: bool,
}

/// What asking about a mark, or setting marks, came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    Yes,
    NotYet,
}

/// Whether an answer means that the context runs nothing any more: destroyed, or stopped by a fault for good.
fn is_over(error: CUerror) -> bool {
    matches!(error.0.get(), 4 | 201 | 400 | 700 | 702 | 709 | 710 | 714..=719)
}

/// Whether a stream that cannot be marked (one of a green context's, say) has nothing left to do.
fn is_idle(number: usize) -> bool {
    number == LEGACY || driver::cuStreamQuery(stream(number)) != Err(CUerror::NOT_READY)
}

impl Context {
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Runs `body` with the context current, unless it is gone; `NotYet` while somebody destroys it.
    fn visit(&self, body: impl FnOnce(&mut Inner) -> Passed) -> Passed {
        let mut inner = self.inner.lock();
        if inner.is_gone {
            return Passed::Yes;
        }
        if inner.leaving != 0 {
            return Passed::NotYet;
        }
        let handle = CUcontext(std::ptr::with_exposed_provenance_mut(self.handle));
        if let Err(error) = driver::cuCtxPushCurrent_v2(handle) {
            return if is_over(error) {
                Passed::Yes
            } else {
                Passed::NotYet
            };
        }
        let mut mode = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
        let _ = driver::cuThreadExchangeStreamCaptureMode(&mut mode);
        let passed = body(&mut inner);
        let _ = driver::cuThreadExchangeStreamCaptureMode(&mut mode);
        let _ = driver::cuCtxPopCurrent_v2(&mut CUcontext(std::ptr::null_mut()));
        passed
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
        inner.streams.push((made.0.expose_provenance(), needs_own));
    }

    /// Takes a stream out that is to be destroyed, leaving a mark behind if it is busy; whether it needed its own.
    pub(crate) fn take_out(&self, leaving: CUstream) -> bool {
        let mut status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
        let is_capturing = driver::cuStreamIsCapturing(leaving, &mut status).is_err() || status != 0;
        let mut needs_own = None;
        if !is_capturing {
            self.visit(|inner| {
                needs_own = inner.take(leaving);
                if driver::cuStreamQuery(leaving) == Err(CUerror::NOT_READY)
                    && let Ok(event) = inner.record(leaving.0.addr())
                {
                    inner.orphans.push(event);
                }
                Passed::Yes
            });
        }
        needs_own
            .or_else(|| self.inner.lock().take(leaving))
            .unwrap_or(false)
    }

    /// Marks all that is submitted now. Events are added to `marks`; `NotYet` if not all could be set.
    pub(crate) fn mark(self: &Arc<Self>, marks: &mut Vec<Mark>) -> Passed {
        self.visit(|inner| {
            let own: Vec<usize> = inner
                .streams
                .iter()
                .filter(|entry| entry.1)
                .map(|entry| entry.0)
                .collect();
            let mut all = Passed::Yes;
            for stream in std::iter::once(LEGACY).chain(own) {
                match inner.record(stream) {
                    Ok(event) => {
                        marks.push(Mark {
                            context: Arc::clone(self),
                            event,
                            is_orphan: false,
                        });
                    }
                    Err(error) if is_over(error) && is_idle(stream) => {}
                    Err(_) => all = Passed::NotYet,
                }
            }
            for event in &inner.orphans {
                marks.push(Mark {
                    context: Arc::clone(self),
                    event: *event,
                    is_orphan: true,
                });
            }
            all
        })
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

    /// Sets a mark on a stream of the current context.
    fn record(&mut self, on: usize) -> Result<usize, CUerror> {
        let mut new = CUevent(std::ptr::null_mut());
        match self.events.pop() {
            Some(spare) => new = event(spare),
            None => driver::cuEventCreate(&mut new, CU_EVENT_DISABLE_TIMING)?,
        }
        let recorded = driver::cuEventRecord(new, stream(on));
        let number = new.0.expose_provenance();
        if recorded.is_err() {
            self.events.push(number);
        }
        recorded.map(|()| number)
    }
}

impl Mark {
    /// Whether the work before the mark has ended. After `Yes`, the mark is spent.
    pub(crate) fn ask(&self) -> Passed {
        self.context.visit(|inner| {
            if self.is_orphan && !inner.orphans.contains(&self.event) {
                return Passed::Yes;
            }
            match driver::cuEventQuery(event(self.event)) {
                Err(error) if !is_over(error) => return Passed::NotYet,
                _ => {}
            }
            inner.orphans.retain(|orphan| *orphan != self.event);
            inner.events.push(self.event);
            Passed::Yes
        })
    }

    /// Gives up waiting for it.
    pub(crate) fn abandon(self) {
        if !self.is_orphan {
            self.context.inner.lock().events.push(self.event);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Contexts {
    list: Mutex<Vec<Arc<Context>>>,
    /// Counts contexts that went: a handle seen before may be another's now.
    epoch: AtomicU32,
    next_id: AtomicU32,
    /// Handles of primary contexts, by device.
    primaries: [AtomicUsize; MAX_DEVICES],
    pub(crate) captures: Captures,
}

impl Contexts {
    pub(crate) fn new() -> Self {
        Self {
            list: Mutex::new(Vec::new()),
            epoch: AtomicU32::new(0),
            next_id: AtomicU32::new(1),
            primaries: [const { AtomicUsize::new(0) }; MAX_DEVICES],
            captures: Captures::default(),
        }
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Acquire)
    }

    /// The context of that handle, entered if it is new.
    pub(crate) fn known(&self, handle: CUcontext, local: LocalDevice) -> Arc<Context> {
        let mut list = self.list.lock();
        let number = handle.0.expose_provenance();
        if let Some(context) = list.iter().find(|context| context.handle == number) {
            return Arc::clone(context);
        }
        let inner = Inner {
            leaving: 0,
            is_gone: false,
            attached: 0,
            streams: Vec::new(),
            orphans: Vec::new(),
            events: Vec::new(),
        };
        let id = self.next_id.fetch_add(1, Relaxed);
        let context = Arc::new(Context {
            handle: number,
            id,
            local,
            inner: Mutex::new(inner),
        });
        list.push(Arc::clone(&context));
        context
    }

    pub(crate) fn find(&self, handle: CUcontext) -> Option<Arc<Context>> {
        self.list
            .lock()
            .iter()
            .find(|context| context.handle == handle.0.addr())
            .cloned()
    }

    /// Where the handle of the device's primary context is kept.
    pub(crate) fn primary(&self, local: LocalDevice) -> Option<&AtomicUsize> {
        self.primaries.get(usize::from(local.number()))
    }

    /// Every context on the devices that `wanted` names.
    pub(crate) fn on(&self, wanted: impl Fn(LocalDevice) -> bool) -> Vec<Arc<Context>> {
        self.list
            .lock()
            .iter()
            .filter(|context| wanted(context.local))
            .cloned()
            .collect()
    }

    /// The context of a stream.
    pub(crate) fn holder(&self, stream: CUstream) -> Option<Arc<Context>> {
        let has = |context: &&Arc<Context>| {
            context
                .inner
                .lock()
                .streams
                .iter()
                .any(|entry| entry.0 == stream.0.addr())
        };
        self.list.lock().iter().find(has).cloned()
    }

    /// The context is no more, and with it all it owned.
    pub(crate) fn remove(&self, process: &Process, context: &Arc<Context>) {
        let streams = {
            let mut inner = context.inner.lock();
            inner.is_gone = true;
            std::mem::take(&mut inner.streams)
        };
        for (number, _) in streams {
            self.captures.forget(stream(number));
        }
        self.list.lock().retain(|other| !Arc::ptr_eq(other, context));
        self.epoch.fetch_add(1, Release);
        process.memory.context_gone(process, context.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroup_abi::NO_LIMIT;

    fn handle(number: usize) -> CUcontext {
        CUcontext(std::ptr::without_provenance_mut(number))
    }

    #[test]
    fn a_context_is_one_until_it_goes_and_another_after() {
        let process = Process::of_test(NO_LIMIT);
        let contexts = &process.contexts;
        let local = LocalDevice::of(0).unwrap();
        let first = contexts.known(handle(16), local);
        assert_eq!(contexts.known(handle(16), local).id(), first.id());
        assert_eq!(contexts.on(|device| device == local).len(), 1);
        let epoch = contexts.epoch();
        contexts.remove(process, &first);
        assert_ne!(contexts.epoch(), epoch);
        assert!(contexts.on(|_| true).is_empty());
        assert_ne!(contexts.known(handle(16), local).id(), first.id());
    }

    #[test]
    fn what_is_gone_holds_up_nobody_and_what_is_leaving_does() {
        let process = Process::of_test(NO_LIMIT);
        let context = process.contexts.known(handle(16), LocalDevice::of(0).unwrap());
        let mut marks = Vec::new();
        context.leave();
        context.leave();
        context.stay();
        assert_eq!(
            context.mark(&mut marks),
            Passed::NotYet,
            "another call may destroy it yet"
        );
        process.contexts.remove(process, &context);
        assert_eq!(context.mark(&mut marks), Passed::Yes);
        assert!(marks.is_empty());
        assert_eq!(
            Mark {
                context,
                event: 8,
                is_orphan: false
            }
            .ask(),
            Passed::Yes
        );
    }
}
