//! Handles of objects. Never pointers, so that a stale or invalid handle causes an error instead of a crash.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::RwLock;

use crate::abi::CUerror;

/// Objects of one type by their handles.
pub(crate) struct Registry<T> {
    kind: usize,
    next: AtomicUsize,
    objects: RwLock<HashMap<usize, Arc<T>>>,
}

impl<T> Registry<T> {
    /// Creates an empty registry; `kind` distinguishes its handles from those of other registries.
    pub(crate) fn new(kind: usize) -> Self {
        Registry {
            kind,
            next: AtomicUsize::new(1),
            objects: RwLock::default(),
        }
    }

    /// Reserves a handle for an object that does not exist yet.
    pub(crate) fn reserve(&self) -> usize {
        // Shaped like a heap address: aligned, and far from the small numbers with special meanings.
        (self.kind << 40) | (self.next.fetch_add(1, Relaxed) << 4)
    }

    pub(crate) fn insert_at(&self, handle: usize, object: Arc<T>) {
        self.objects.write().insert(handle, object);
    }

    pub(crate) fn insert(&self, object: T) -> usize {
        let handle = self.reserve();
        self.insert_at(handle, Arc::new(object));
        handle
    }

    pub(crate) fn get(&self, handle: usize, otherwise: CUerror) -> Result<Arc<T>, CUerror> {
        self.objects.read().get(&handle).cloned().ok_or(otherwise)
    }

    pub(crate) fn remove(&self, handle: usize, otherwise: CUerror) -> Result<Arc<T>, CUerror> {
        self.objects.write().remove(&handle).ok_or(otherwise)
    }

    /// Removes all objects that `wanted` accepts.
    pub(crate) fn remove_all(&self, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.objects.write();
        let handles: Vec<usize> = objects
            .iter()
            .filter(|(_, object)| wanted(object))
            .map(|(handle, _)| *handle)
            .collect();
        handles
            .iter()
            .filter_map(|handle| objects.remove(handle))
            .collect()
    }

    /// Returns all objects in the order of creation.
    pub(crate) fn all(&self) -> Vec<(usize, Arc<T>)> {
        let objects = self.objects.read();
        let mut all: Vec<_> = objects
            .iter()
            .map(|(handle, object)| (*handle, Arc::clone(object)))
            .collect();
        all.sort_by_key(|(handle, _)| *handle);
        all
    }
}
