//! User objects: resources of the program that graphs keep alive.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::abi::{CUerror, CUgraph, CUresult, Out, Raw};
use crate::call::{Call, driver};
use crate::error::INVALID_VALUE;
use crate::process;

/// An object of the program, destroyed by the program's function with the last reference.
pub(crate) struct UserObject {
    handle: usize,
    object: Raw,
    destroy: extern "C" fn(Raw),
}

// SAFETY: the object is only passed back to the program, whose function must be callable on any thread.
unsafe impl Sync for UserObject {}

impl Drop for UserObject {
    fn drop(&mut self) {
        if let Ok(process) = process::get() {
            let _ = process.user_objects.remove(self.handle, INVALID_VALUE);
        }
        (self.destroy)(self.object);
    }
}

/// An object by its handle, which is valid while any reference exists.
pub(crate) struct Held {
    object: Weak<UserObject>,
    /// References owned by the program.
    own: Mutex<Vec<Arc<UserObject>>>,
}

impl Held {
    fn object(&self) -> Result<Arc<UserObject>, CUerror> {
        self.object.upgrade().ok_or(INVALID_VALUE)
    }
}

impl Call {
    fn held(&self, handle: usize) -> Result<Arc<Held>, CUerror> {
        self.process.user_objects.get(handle, INVALID_VALUE)
    }
}

fn create(
    call: Call,
    out: Out<usize>,
    object: Raw,
    destroy: Option<extern "C" fn(Raw)>,
    count: u32,
) -> CUresult {
    let destroy = destroy
        .filter(|_| !out.is_null() && count > 0)
        .ok_or(INVALID_VALUE)?;
    let handle = call.process.user_objects.reserve();
    let object = Arc::new(UserObject {
        handle,
        object,
        destroy,
    });
    let own = Mutex::new((0..count).map(|_| Arc::clone(&object)).collect());
    call.process.user_objects.insert_at(
        handle,
        Arc::new(Held {
            object: Arc::downgrade(&object),
            own,
        }),
    );
    out.set(handle)
}

/// Takes `count` references from a list; they are dropped after its lock is released.
fn take(
    list: &Mutex<Vec<Arc<UserObject>>>,
    object: &Arc<UserObject>,
    count: u32,
) -> Result<Vec<Arc<UserObject>>, CUerror> {
    let mut list = list.lock();
    let places = list
        .iter()
        .enumerate()
        .filter(|(_, other)| Arc::ptr_eq(other, object))
        .map(|(place, _)| place);
    let places: Vec<usize> = places
        .take(usize::try_from(count).unwrap_or(usize::MAX))
        .collect();
    if places.len() as u64 != u64::from(count) {
        return Err(INVALID_VALUE);
    }
    Ok(places
        .into_iter()
        .rev()
        .map(|place| list.swap_remove(place))
        .collect())
}

fn give_to_graph(call: Call, graph: CUgraph, handle: usize, count: u32, flags: u32) -> CUresult {
    const MOVE: u32 = 1;
    if count == 0 || flags > MOVE {
        return Err(INVALID_VALUE);
    }
    let graph = call.graph(graph)?;
    let held = call.held(handle)?;
    let object = held.object()?;
    if flags == MOVE {
        take(&held.own, &object, count)?;
    }
    graph
        .objects
        .lock()
        .extend((0..count).map(|_| Arc::clone(&object)));
    Ok(())
}

driver! {
    fn cuUserObjectCreate(out: Out<usize>, object: Raw, destroy: Option<extern "C" fn(Raw)>, count: u32, _flags: u32) |call| {
        create(call, out, object, destroy, count)
    }
    fn cuUserObjectRetain(object: usize, count: u32) |call| {
        let held = call.held(object)?;
        let object = held.object()?;
        held.own.lock().extend((0..count).map(|_| Arc::clone(&object)));
        Ok(())
    }
    fn cuUserObjectRelease(object: usize, count: u32) |call| {
        let held = call.held(object)?;
        take(&held.own, &held.object()?, count).map(drop)
    }
    fn cuGraphRetainUserObject(graph: CUgraph, object: usize, count: u32, flags: u32) |call| {
        give_to_graph(call, graph, object, count, flags)
    }
    fn cuGraphReleaseUserObject(graph: CUgraph, object: usize, count: u32) |call| {
        let graph = call.graph(graph)?;
        take(&graph.objects, &call.held(object)?.object()?, count).map(drop)
    }
}
