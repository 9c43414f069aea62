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
use super::mark::{Sign, Signs};
use crate::cuda::{CUcontext, CUerror, CUresult, CUstream};
use crate::device::LocalDevice;
use crate::process::Process;
use crate::{cuda, driver};

/// `CU_STREAM_LEGACY`: also where the program was built for per-thread default streams.
pub(crate) const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: in the thread itself; for others a mark on the legacy stream covers it.
pub(crate) const PER_THREAD: usize = 2;

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
    orphans: Vec<Sign>,
}

/// One context. Handles are kept as numbers: to us they are only names.
#[derive(Debug)]
pub(crate) struct Context {
    handle: usize,
    id: u32,
    pub(crate) local: LocalDevice,
    signs: Signs,
    inner: Mutex<Inner>,
}

pub(crate) fn stream(number: usize) -> CUstream {
    CUstream(std::ptr::with_exposed_provenance_mut(number))
}

/// A place in a context's work: passed when all that was submitted before has ended.
#[derive(Debug)]
pub(crate) struct Mark {
    context: Arc<Context>,
    sign: Sign,
    /// Whether it was set on a stream that was destroyed after: then several may wait for it.
    is_orphan: bool,
    asked: u32,
}

/// Every so many askings in vain, whether the context can still run anything.
const DOUBT: u32 = 16;

/// What asking about a mark, or setting marks, came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    Yes,
    NotYet,
}

/// Whether an answer means that the context runs nothing any more: destroyed, or stopped by a fault for good.
pub(super) fn is_over(error: CUerror) -> bool {
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

    /// The driver's name for it, as a number.
    pub(crate) fn handle(&self) -> usize {
        self.handle
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

    /// Runs `body` with the context current and kept from being destroyed; `None` if it is gone or going.
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
                    && let Ok(sign) = self.signs.set(leaving)
                {
                    inner.orphans.push(sign);
                }
                Passed::Yes
            });
        }
        needs_own
            .or_else(|| self.inner.lock().take(leaving))
            .unwrap_or(false)
    }

    /// Marks all that is submitted now. They are added to `marks`; `NotYet` if not all could be set.
    pub(crate) fn mark(self: &Arc<Self>, marks: &mut Vec<Mark>) -> Passed {
        self.visit(|inner| {
            let own: Vec<usize> = inner
                .streams
                .iter()
                .filter(|entry| entry.1)
                .map(|entry| entry.0)
                .collect();
            self.mark_each(inner, std::iter::once(LEGACY).chain(own), marks)
        })
    }

    /// Marks what is submitted now to those of `streams` that there still are, and to those that are gone.
    pub(crate) fn mark_streams(self: &Arc<Self>, streams: &[usize], marks: &mut Vec<Mark>) -> Passed {
        self.visit(|inner| {
            self.signs.prepare();
            let known: Vec<usize> = streams
                .iter()
                .map(|stream| if *stream == PER_THREAD { LEGACY } else { *stream })
                .filter(|stream| inner.has(*stream))
                .collect();
            self.mark_each(inner, known.into_iter(), marks)
        })
    }

    fn mark_each(
        self: &Arc<Self>,
        inner: &Inner,
        streams: impl Iterator<Item = usize>,
        marks: &mut Vec<Mark>,
    ) -> Passed {
        let mut all = Passed::Yes;
        for number in streams {
            match self.signs.set(stream(number)) {
                Ok(sign) => marks.push(Mark::new(self, sign, false)),
                Err(error) if is_over(error) && is_idle(number) => {}
                Err(_) => all = Passed::NotYet,
            }
        }
        marks.extend(inner.orphans.iter().map(|sign| Mark::new(self, *sign, true)));
        all
    }

    /// Marks a stream of this context, which is the calling thread's current one; `None` if that cannot be done now.
    /// A stream that is being captured is not to be marked: the mark would become part of the graph.
    pub(crate) fn mark_own(self: &Arc<Self>, number: usize, is_in_use: bool) -> Option<Mark> {
        // Whoever holds the lock may be in the driver, behind work that waits for this thread.
        let inner = self.inner.try_lock()?;
        if inner.is_gone || inner.leaving != 0 || !(is_in_use || inner.has(number)) {
            return None;
        }
        let mut status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
        driver::cuStreamIsCapturing(stream(number), &mut status).ok()?;
        if status != cuda::CU_STREAM_CAPTURE_STATUS_NONE {
            return None;
        }
        let sign = self.signs.set(stream(number)).ok()?;
        Some(Mark::new(self, sign, false))
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

impl Mark {
    fn new(context: &Arc<Context>, sign: Sign, is_orphan: bool) -> Self {
        Self {
            context: Arc::clone(context),
            sign,
            is_orphan,
            asked: 0,
        }
    }

    /// Whether the work before the mark has ended. After `Yes`, the mark is spent.
    pub(crate) fn ask(&mut self) -> Passed {
        self.asked += 1;
        let is_word = matches!(self.sign, Sign::Word { .. });
        if is_word && !self.is_orphan {
            if self.context.signs.has_passed(self.sign) {
                self.context.signs.give_back(self.sign);
                return Passed::Yes;
            }
            if !self.asked.is_multiple_of(DOUBT) {
                return Passed::NotYet;
            }
        }
        let context = Arc::clone(&self.context);
        context.visit(|inner| {
            if self.is_orphan && !inner.orphans.contains(&self.sign) {
                return Passed::Yes;
            }
            let is_spent = context.signs.has_passed(self.sign) || is_word && Signs::are_dead();
            if !is_spent {
                return Passed::NotYet;
            }
            inner.orphans.retain(|orphan| *orphan != self.sign);
            context.signs.give_back(self.sign);
            Passed::Yes
        })
    }

    /// As [`Self::ask`], for a thread that must not wait for a lock or for the driver.
    pub(crate) fn has_passed(&self) -> bool {
        self.context.signs.has_passed(self.sign)
    }

    /// Gives up waiting for it.
    pub(crate) fn abandon(self) {
        if !self.is_orphan {
            self.context.signs.give_back(self.sign);
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
    pub(crate) fn known(&self, process: &Process, handle: CUcontext, local: LocalDevice) -> Arc<Context> {
        let (context, is_new) = self.found(handle, local);
        if is_new {
            self.tell(process);
        }
        context
    }

    /// Publishes how many contexts there are on each device; the daemon hears of the first and the last.
    pub(crate) fn tell(&self, process: &Process) {
        let mut counts = [0_u32; MAX_DEVICES];
        for context in self.list.lock().iter() {
            if let Some(count) = counts.get_mut(process.devices.index(context.local)) {
                *count += 1;
            }
        }
        let mut is_news = false;
        for (usage, count) in process.usage().devices.iter().zip(counts) {
            is_news |= (usage.nr_contexts.swap(count, Relaxed) == 0) != (count == 0);
        }
        if is_news {
            process.ring();
        }
    }

    /// The context of that handle, and whether it is new.
    fn found(&self, handle: CUcontext, local: LocalDevice) -> (Arc<Context>, bool) {
        let mut list = self.list.lock();
        let number = handle.0.expose_provenance();
        if let Some(context) = list.iter().find(|context| context.handle == number) {
            return (Arc::clone(context), false);
        }
        let inner = Inner {
            leaving: 0,
            is_gone: false,
            attached: 0,
            streams: Vec::new(),
            orphans: Vec::new(),
        };
        let id = self.next_id.fetch_add(1, Relaxed);
        let context = Arc::new(Context {
            handle: number,
            id,
            local,
            signs: Signs::default(),
            inner: Mutex::new(inner),
        });
        list.push(Arc::clone(&context));
        (context, true)
    }

    pub(crate) fn find(&self, handle: CUcontext) -> Option<Arc<Context>> {
        self.list
            .lock()
            .iter()
            .find(|context| context.handle == handle.0.addr())
            .cloned()
    }

    /// The context of that number, if it is still there.
    pub(crate) fn numbered(&self, id: u32) -> Option<Arc<Context>> {
        self.list.lock().iter().find(|context| context.id == id).cloned()
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

    /// The device of a stream that the program made, where it has contexts on several devices: elsewhere there is no need
    /// to wait for whoever marks one of them.
    pub(crate) fn device_of(&self, stream: CUstream) -> Option<LocalDevice> {
        if stream.0.addr() <= PER_THREAD || !self.are_on_several() {
            return None;
        }
        Some(self.holder(stream)?.local)
    }

    fn are_on_several(&self) -> bool {
        let list = self.list.lock();
        list.windows(2)
            .any(|pair| matches!(pair, [one, other] if one.local != other.local))
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
        self.tell(process);
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
        let first = contexts.known(process, handle(16), local);
        assert_eq!(contexts.known(process, handle(16), local).id(), first.id());
        assert_eq!(contexts.on(|device| device == local).len(), 1);
        let epoch = contexts.epoch();
        contexts.remove(process, &first);
        assert_ne!(contexts.epoch(), epoch);
        assert!(contexts.on(|_| true).is_empty());
        let told = |index: usize| process.usage().devices[index].nr_contexts.load(Relaxed);
        assert_eq!(told(process.devices.index(local)), 0);
        assert_ne!(contexts.known(process, handle(16), local).id(), first.id());
    }

    #[test]
    fn a_streams_device_is_told_where_there_are_several() {
        let process = Process::of_test(NO_LIMIT);
        let contexts = &process.contexts;
        let stream = |number: usize| CUstream(std::ptr::without_provenance_mut(number));
        let [first, second] = [0, 1].map(|number| LocalDevice::of(number).unwrap());
        contexts
            .known(process, handle(16), first)
            .enter(stream(64), false);
        contexts.known(process, handle(32), first);
        assert_eq!(contexts.device_of(stream(64)), None, "there is one device");
        contexts
            .known(process, handle(48), second)
            .enter(stream(80), true);
        assert_eq!(contexts.device_of(stream(64)), Some(first));
        assert_eq!(contexts.device_of(stream(80)), Some(second));
        assert_eq!(contexts.device_of(stream(0)), None, "the current context's");
        assert_eq!(contexts.device_of(stream(96)), None);
    }

    #[test]
    fn what_is_gone_holds_up_nobody_and_what_is_leaving_does() {
        let process = Process::of_test(NO_LIMIT);
        let context = process
            .contexts
            .known(process, handle(16), LocalDevice::of(0).unwrap());
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
        let mut mark = Mark::new(&context, Sign::Event(8), false);
        assert_eq!(mark.ask(), Passed::Yes);
    }
}
