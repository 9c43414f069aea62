//! The program's contexts, their devices, and the resources that end with them.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use gcgroup_abi::MAX_DEVICES;
use parking_lot::Mutex;

use super::capture::Captures;
use super::context::Context;
use super::departed::Departed;
use crate::driver::cuda::{CUcontext, CUgreenCtx, CUstream};
use crate::driver::streams::PER_THREAD;
use crate::shared::device::LocalDevice;
use crate::shared::session::Session;

#[derive(Debug)]
pub(crate) struct Contexts {
    list: Mutex<Vec<Arc<Context>>>,
    /// Counts destroyed contexts, because their handles may be reused.
    epoch: AtomicU32,
    /// Whether the program has contexts on several devices.
    are_on_several: AtomicBool,
    next_id: AtomicU32,
    /// Handles of primary contexts, indexed by device.
    primaries: [AtomicUsize; MAX_DEVICES],
    pub(crate) captures: Captures,
    pub(crate) departed: Departed,
}

impl Contexts {
    pub(crate) fn new() -> Self {
        Self {
            list: Mutex::new(Vec::new()),
            epoch: AtomicU32::new(0),
            are_on_several: AtomicBool::new(false),
            next_id: AtomicU32::new(1),
            primaries: [const { AtomicUsize::new(0) }; MAX_DEVICES],
            captures: Captures::default(),
            departed: Departed::default(),
        }
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Acquire)
    }

    /// Returns the context with that handle, adding it if it is new.
    pub(crate) fn known(&self, session: &Session, handle: CUcontext, local: LocalDevice) -> Arc<Context> {
        let (context, is_new) = self.found(handle, local);
        if is_new {
            self.tell(session);
        }
        context
    }

    /// Publishes the number of contexts on each device, and rings the daemon for the first and the last.
    pub(crate) fn tell(&self, session: &Session) {
        let mut counts = [0_u32; MAX_DEVICES];
        {
            let list = self.list.lock();
            for context in list.iter().filter(|context| !context.is_part()) {
                if let Some(count) = counts.get_mut(session.devices.index(context.local)) {
                    *count += 1;
                }
            }
            let differ = |pair: &[Arc<Context>]| matches!(pair, [one, other] if one.local != other.local);
            self.are_on_several.store(list.windows(2).any(differ), Relaxed);
        }
        let mut is_news = false;
        for (usage, count) in session.usage().devices.iter().zip(counts) {
            is_news |= (usage.nr_contexts.swap(count, Relaxed) == 0) != (count == 0);
        }
        if is_news {
            session.ring();
        }
    }

    /// Returns the context with that handle, and whether it is new.
    fn found(&self, handle: CUcontext, local: LocalDevice) -> (Arc<Context>, bool) {
        self.found_or(handle, |number, id| Context::new(number, id, local))
    }

    fn found_or(&self, handle: CUcontext, make: impl FnOnce(usize, u32) -> Context) -> (Arc<Context>, bool) {
        let mut list = self.list.lock();
        let number = handle.0.expose_provenance();
        if let Some(context) = list.iter().find(|context| context.handle() == number) {
            return (Arc::clone(context), false);
        }
        let id = self.next_id.fetch_add(1, Relaxed);
        let context = Arc::new(make(number, id));
        list.push(Arc::clone(&context));
        (context, true)
    }

    /// Adds and returns the context with `handle` that stands for a green context in calls.
    pub(crate) fn enter_part(&self, handle: CUcontext, base: &Arc<Context>, green: CUgreenCtx) {
        let green = green.0.expose_provenance();
        self.found_or(handle, |number, id| Context::new_part(number, id, base, green));
    }

    /// Returns the context that stands for a green context in calls.
    pub(crate) fn green(&self, green: CUgreenCtx) -> Option<Arc<Context>> {
        let list = self.list.lock();
        list.iter()
            .find(|context| context.is_green(green.0.addr()))
            .cloned()
    }

    /// Returns the context and its parts (green contexts).
    pub(crate) fn family(&self, context: &Arc<Context>) -> Vec<Arc<Context>> {
        let list = self.list.lock();
        let is_of_it =
            |other: &&Arc<Context>| Arc::ptr_eq(other, context) || Arc::ptr_eq(other.base(), context);
        list.iter().filter(is_of_it).cloned().collect()
    }

    pub(crate) fn find(&self, handle: CUcontext) -> Option<Arc<Context>> {
        self.list
            .lock()
            .iter()
            .find(|context| context.handle() == handle.0.addr())
            .cloned()
    }

    /// Returns the context with that number, if it still exists.
    pub(crate) fn numbered(&self, id: u32) -> Option<Arc<Context>> {
        self.list
            .lock()
            .iter()
            .find(|context| context.id() == id)
            .cloned()
    }

    /// Returns where the handle of the device's primary context is stored.
    pub(crate) fn primary(&self, local: LocalDevice) -> Option<&AtomicUsize> {
        self.primaries.get(usize::from(local.number()))
    }

    /// Returns all contexts on the devices that `wanted` selects.
    pub(crate) fn on(&self, wanted: impl Fn(LocalDevice) -> bool) -> Vec<Arc<Context>> {
        self.list
            .lock()
            .iter()
            .filter(|context| wanted(context.local))
            .cloned()
            .collect()
    }

    /// Returns the context of a stream.
    pub(crate) fn holder(&self, stream: CUstream) -> Option<Arc<Context>> {
        self.list
            .lock()
            .iter()
            .find(|context| context.has(stream))
            .cloned()
    }

    /// Returns whether the program has contexts on several devices.
    pub(crate) fn are_on_several(&self) -> bool {
        self.are_on_several.load(Relaxed)
    }

    /// Returns the device of a stream that the program made, if it has contexts on several devices. Otherwise
    /// returns `None`, so that no lock held by a marking thread is waited for.
    pub(crate) fn device_of(&self, stream: CUstream) -> Option<LocalDevice> {
        if stream.0.addr() <= PER_THREAD || !self.are_on_several() {
            return None;
        }
        Some(self.holder(stream)?.local)
    }

    /// Removes a destroyed context with its parts and streams. The memory that it owned is not handled here.
    pub(crate) fn remove(&self, session: &Session, context: &Arc<Context>) {
        for gone in self.family(context) {
            for stream in gone.end() {
                self.captures.forget(stream);
            }
            self.list.lock().retain(|other| !Arc::ptr_eq(other, &gone));
        }
        self.epoch.fetch_add(1, Release);
        self.tell(session);
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::Passed;
    use super::*;
    use gcgroup_abi::NO_LIMIT;

    fn handle(number: usize) -> CUcontext {
        CUcontext(std::ptr::without_provenance_mut(number))
    }

    #[test]
    fn reused_context_handle_is_new_context() {
        let (session, contexts) = (Session::of_test(NO_LIMIT), Contexts::new());
        let local = LocalDevice::of(0).unwrap();
        let first = contexts.known(session, handle(16), local);
        assert_eq!(contexts.known(session, handle(16), local).id(), first.id());
        assert_eq!(contexts.on(|device| device == local).len(), 1);
        let epoch = contexts.epoch();
        contexts.remove(session, &first);
        assert_ne!(contexts.epoch(), epoch);
        assert!(contexts.on(|_| true).is_empty());
        let told = |index: usize| session.usage().devices[index].nr_contexts.load(Relaxed);
        assert_eq!(told(session.devices.index(local)), 0);
        assert_ne!(contexts.known(session, handle(16), local).id(), first.id());
    }

    #[test]
    fn stream_device_is_known_with_several_devices() {
        let (session, contexts) = (Session::of_test(NO_LIMIT), Contexts::new());
        let stream = |number: usize| CUstream(std::ptr::without_provenance_mut(number));
        let [first, second] = [0, 1].map(|number| LocalDevice::of(number).unwrap());
        contexts
            .known(session, handle(16), first)
            .enter(stream(64), false);
        contexts.known(session, handle(32), first);
        assert_eq!(contexts.device_of(stream(64)), None, "there is one device");
        contexts
            .known(session, handle(48), second)
            .enter(stream(80), true);
        assert_eq!(contexts.device_of(stream(64)), Some(first));
        assert_eq!(contexts.device_of(stream(80)), Some(second));
        assert_eq!(contexts.device_of(stream(0)), None, "the current context's");
        assert_eq!(contexts.device_of(stream(96)), None);
    }

    #[test]
    fn only_leaving_context_delays_markers() {
        let (session, contexts) = (Session::of_test(NO_LIMIT), Contexts::new());
        let context = contexts.known(session, handle(16), LocalDevice::of(0).unwrap());
        let mut markers = Vec::new();
        context.leave();
        context.leave();
        context.stay();
        assert_eq!(
            context.mark(&mut markers),
            Passed::NotYet,
            "another call may destroy it yet"
        );
        contexts.remove(session, &context);
        assert_eq!(context.mark(&mut markers), Passed::Yes);
        assert!(markers.is_empty());
    }

    fn green(number: usize) -> CUgreenCtx {
        CUgreenCtx(std::ptr::without_provenance_mut(number))
    }

    #[test]
    fn green_context_is_a_part_and_goes_with_its_primary() {
        let (session, contexts) = (Session::of_test(NO_LIMIT), Contexts::new());
        let local = LocalDevice::of(0).unwrap();
        let base = contexts.known(session, handle(16), local);
        contexts.enter_part(handle(32), &base, green(48));
        contexts.enter_part(handle(64), &base, green(80));
        let part = contexts.green(green(48)).unwrap();
        assert_eq!(part.base().id(), base.id());
        assert_eq!(contexts.find(handle(32)).unwrap().id(), part.id());
        assert_eq!(contexts.family(&base).len(), 3);
        assert_eq!(contexts.family(&part).len(), 1);
        let told = session.usage().devices[session.devices.index(local)]
            .nr_contexts
            .load(Relaxed);
        assert_eq!(told, 1, "only the primary context counts");
        contexts.remove(session, &part);
        assert_eq!(contexts.family(&base).len(), 2);
        assert!(contexts.green(green(48)).is_none());
        contexts.remove(session, &base);
        assert!(contexts.on(|_| true).is_empty());
        assert_eq!(part.mark(&mut Vec::new()), Passed::Yes);
    }
}
