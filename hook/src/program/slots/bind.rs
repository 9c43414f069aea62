//! Binds the calling thread to a slot on its current device: its own, one of a thread that has ended, or a
//! new one.

use std::ptr;
use std::sync::atomic::{Ordering::Relaxed, Ordering::Release};

use super::Slots;
use crate::driver::cuda::CUcontext;
use crate::driver::streams::{PER_THREAD, stream};
use crate::driver::{self, thread};
use crate::program::contexts::Contexts;
use crate::program::slot::{Bound, HeapSlot, leave_behind, settle};
use crate::shared::device::LocalDevice;
use crate::shared::session::Session;
use crate::sys;

impl Slots {
    /// Returns the calling thread's slot, taking one if needed; `None` without a current context.
    #[inline]
    pub(crate) fn bind<'a>(&'a self, session: &'a Session, contexts: &Contexts) -> Option<Bound<'a>> {
        self.current(session)
            .or_else(|| self.bind_anew(session, contexts))
    }

    /// Returns the slot for a submission to `stream`. Only default streams need a current context (CUDA
    /// Driver API, `cuLaunchKernel`): without one, the thread counts on the stream's device.
    pub(crate) fn bind_on<'a>(
        &'a self,
        session: &'a Session,
        contexts: &Contexts,
        number: usize,
    ) -> Option<Bound<'a>> {
        self.bind(session, contexts)
            .or_else(|| self.bind_to(session, contexts, number))
    }

    /// Returns a slot without binding the thread to it, so that its next submission takes this path again.
    #[cold]
    #[inline(never)]
    fn bind_to<'a>(&'a self, session: &'a Session, contexts: &Contexts, number: usize) -> Option<Bound<'a>> {
        if number <= PER_THREAD {
            return None;
        }
        let context = contexts.holder(stream(number))?;
        let index = session.devices.index(context.local);
        let bound = self.take(session, sys::gettid(), context.local, index);
        bound.state.context.store(context.id(), Relaxed);
        bound.state.owner.store(context.base().id(), Relaxed);
        bound.state.handle.store(0, Relaxed);
        Some(bound)
    }

    #[cold]
    #[inline(never)]
    fn bind_anew<'a>(&'a self, session: &'a Session, contexts: &Contexts) -> Option<Bound<'a>> {
        self.rebind(session, contexts, current_context()?)
    }

    /// Moves the calling thread to the slot of its current device, because its context may have changed.
    pub(crate) fn moved(&self, session: &Session, contexts: &Contexts) {
        let Some(context) = current_context() else {
            return thread::set_slot(thread::unbound());
        };
        let epoch = contexts.epoch();
        let is_same = |bound: &Bound<'_>| {
            bound.state.handle.load(Relaxed) == context.0.addr() && bound.state.epoch.load(Relaxed) == epoch
        };
        if !self.current(session).is_some_and(|bound| is_same(&bound)) {
            thread::set_slot(thread::unbound());
            self.rebind(session, contexts, context);
        }
    }

    fn rebind<'a>(
        &'a self,
        session: &'a Session,
        contexts: &Contexts,
        context: CUcontext,
    ) -> Option<Bound<'a>> {
        let epoch = contexts.epoch();
        let mut device = 0;
        driver::cuCtxGetDevice(&mut device).ok()?;
        let local = LocalDevice::of(device)?;
        let index = session.devices.learn(session.control(), local);
        let is_new = contexts.find(context).is_none();
        let known = contexts.known(session, context, local);
        if is_new {
            // The daemon has a new context to measure.
            session.ring();
        }
        let bound = self.take(session, sys::gettid(), local, index);
        bound.state.context.store(known.id(), Relaxed);
        bound.state.owner.store(known.base().id(), Relaxed);
        bound.state.handle.store(context.0.addr(), Relaxed);
        bound.state.epoch.store(epoch, Relaxed);
        thread::set_slot(ptr::from_ref(bound.entrance).cast_mut());
        Some(bound)
    }

    /// Returns the slot of a thread on a device, taking one if needed.
    pub(super) fn take<'a>(
        &'a self,
        session: &'a Session,
        tid: u32,
        local: LocalDevice,
        index: usize,
    ) -> Bound<'a> {
        let is_own = |bound: &Bound<'_>| {
            bound.state.tid.load(Relaxed) == tid
                && bound.state.local.load(Relaxed) == u32::from(local.number())
        };
        // A slot with this thread's id was taken by it, or by an ended thread with the same id: no other
        // thread touches it.
        if let Some(own) = self.in_block(session).find(is_own) {
            return own;
        }
        let mut heap_slots = self.heap_slots.lock();
        if let Some(own) = heap_slots.iter().map(|heap_slot| heap_slot.bound()).find(is_own) {
            return own;
        }
        let free = self
            .free(session, index)
            .or_else(|| self.fresh(session))
            .or_else(|| {
                self.release_dead(session);
                self.free(session, index)
            })
            .or_else(|| {
                heap_slots
                    .iter()
                    .map(|heap_slot| heap_slot.bound())
                    .find(Bound::is_dead)
            });
        let bound = free.unwrap_or_else(|| {
            let heap_slot = HeapSlot::new();
            heap_slots.push(heap_slot);
            heap_slot.bound()
        });
        self.give(session, bound, tid, local, index);
        bound
    }

    /// Returns a slot of the block whose thread has ended, preferably one of the same device, whose counts
    /// may stay.
    fn free<'a>(&'a self, session: &'a Session, index: usize) -> Option<Bound<'a>> {
        let is_free = |bound: &Bound<'_>| bound.state.tid.load(Relaxed) == 0;
        self.in_block(session)
            .find(|bound| is_free(bound) && bound.index() == index)
            .or_else(|| self.in_block(session).find(is_free))
    }

    /// Returns a slot of the block that has never been used.
    fn fresh<'a>(&'a self, session: &'a Session) -> Option<Bound<'a>> {
        let usage = session.usage();
        let used = self.nr_used.load(Relaxed);
        let bound = self.numbered(usage, used as usize)?;
        bound.lead();
        // Set before others can see the slot: a slot in preparation belongs to no thread.
        bound.state.tid.store(u32::MAX, Relaxed);
        self.nr_used.store(used + 1, Release);
        usage.nr_threads.store(used + 1, Release);
        Some(bound)
    }

    fn release_dead(&self, session: &Session) {
        for bound in self.in_block(session).filter(Bound::is_dead) {
            settle(bound);
            bound.state.tid.store(0, Release);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a slot has of its thread")]
    fn give(&self, session: &Session, bound: Bound<'_>, tid: u32, local: LocalDevice, index: usize) {
        settle(bound);
        let moves = bound.index() != index;
        match (bound.heap_slot, session.usage().devices.get(bound.index())) {
            (Some(heap_slot), Some(device)) => heap_slot.fold(device),
            (None, Some(device)) if moves => leave_behind(bound, device),
            _ => {}
        }
        bound.state.local.store(u32::from(local.number()), Relaxed);
        self.point(session, bound, index);
        bound.state.tid.store(tid, Release);
    }
}

fn current_context() -> Option<CUcontext> {
    let mut context = CUcontext::NULL;
    driver::cuCtxGetCurrent(&mut context).ok()?;
    (!context.is_null()).then_some(context)
}

#[cfg(test)]
impl Slots {
    /// Returns the calling thread's slot on a device as if it had been bound.
    pub(crate) fn of_test<'a>(&'a self, session: &'a Session, local: LocalDevice, index: usize) -> Bound<'a> {
        self.take(session, sys::gettid(), local, index)
    }
}
