//! Submissions that concern another device than the thread's current one: by their stream, by a context or
//! memory that they name, or by a node of a graph (`reach`).
//!
//! A thread checks only the gate of its current device. So while any device of a process with several devices
//! is frozen, every slot's gate leads to the slow path, which asks here what each call concerns. `Inside`
//! records the threads that were in the driver before, and the drain waits for these.
//!
//! Not examined: the levels of mipmapped arrays.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};

use gcgroup_abi::{Gate, OTHER_DEVICE, Submission};

use super::call::Call;
use super::named::{self, Named};
use super::slot::Bound;
use crate::driver;
use crate::driver::cuda::{
    CU_MEMORYTYPE_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUcontext,
    CUdeviceptr, CUstream,
};
use crate::process::Process;
use crate::shared::device::LocalDevice;

/// Returns the index of a frozen or held device other than `current` that the call concerns.
pub(super) fn closed(process: &Process, call: Call, stream: usize, current: usize) -> Option<usize> {
    let is_closed = |local: LocalDevice| {
        let index = process.devices.index(local);
        let is_closed = is_gate_frozen(process, index) || process.holds.word(index).is_some();
        (index != current && is_closed).then_some(index)
    };
    let of_context = |number: usize| {
        let handle = CUcontext(std::ptr::with_exposed_provenance_mut(number));
        Some(process.contexts.find(handle)?.local)
    };
    let of_stream = |stream: usize| {
        let handle = CUstream(std::ptr::with_exposed_provenance_mut(stream));
        Some(process.contexts.holder(handle)?.local)
    };
    let found = of_stream(stream)
        .into_iter()
        .chain(call.devices().iter())
        .find_map(is_closed);
    let (None, Some((names, arguments))) = (found, call.names()) else {
        return found;
    };
    let named = Named::of(names, arguments);
    let contexts = named.contexts().filter_map(of_context);
    let memory = named.memory().filter_map(|memory| device_of(process, memory));
    let streams = named.streams().filter_map(of_stream);
    contexts
        .chain(memory)
        .chain(streams)
        .chain(named.places())
        .find_map(is_closed)
}

/// Returns the devices of the memory that a `CUDA_MEMCPY3D` names; `word` reads a word of it at a byte
/// offset.
pub(super) fn devices_of_copy(
    process: &Process,
    word: impl Fn(usize) -> Option<usize>,
) -> impl Iterator<Item = LocalDevice> {
    named::memory_of_copy(word).filter_map(move |memory| device_of(process, memory))
}

/// Returns the device of an address or an array handle; `None` for host memory and for other values.
pub(super) fn device_of(process: &Process, address: usize) -> Option<LocalDevice> {
    // An array handle is not a device address.
    if let Some(local) = process.memory.arrays.local(address as u64) {
        return Some(local);
    }
    // Swapped memory still belongs to its device.
    if let Some(block) = process.swap.find(address as u64) {
        return Some(block.local);
    }
    let ask = |attribute| {
        let mut value = 0;
        driver::cuPointerGetAttribute(&mut value, attribute, CUdeviceptr(address as u64)).ok()?;
        Some(value)
    };
    if ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)? != CU_MEMORYTYPE_DEVICE as u64 {
        return None;
    }
    LocalDevice::of(i32::try_from(ask(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?).ok()?)
}

/// Returns whether any device of the process is frozen, so that submissions to others must be examined.
pub(super) fn is_any_frozen(process: &Process) -> bool {
    let known = process.control().nr_devices.load(Relaxed) as usize;
    (0..known.min(OTHER_DEVICE))
        .chain([OTHER_DEVICE])
        .any(|index| is_gate_frozen(process, index))
}

/// Returns whether all devices on which the process has contexts are frozen.
pub(crate) fn is_all_frozen(process: &Process) -> bool {
    let used = process.contexts.on(|_| true);
    let is_frozen = |local| is_gate_frozen(process, process.devices.index(local));
    used.iter().all(|context| is_frozen(context.local))
}

fn is_gate_frozen(process: &Process, index: usize) -> bool {
    let gate = process
        .control()
        .devices
        .get(index)
        .map(|device| device.gate.load(Acquire));
    gate.is_some_and(|word| Gate::from_word(word) == Gate::Frozen)
}

/// Snapshot of a thread that was inside submissions.
#[derive(Debug)]
pub(super) struct Inside {
    /// Address of its slot; slots never move.
    slot: usize,
    /// Entry counters by kind of submission.
    entered: [u64; Submission::COUNT],
}

impl Inside {
    /// Takes a snapshot; `None` if the thread is not inside a submission.
    pub(super) fn of(bound: Bound<'_>) -> Option<Self> {
        bound.is_inside().then(|| Self {
            slot: std::ptr::from_ref(bound.entrance).addr(),
            entered: bound.entrance.entered.each_ref().map(|count| count.load(Acquire)),
        })
    }

    /// Returns whether the slot's thread may still be inside one of these submissions.
    pub(super) fn is_still(&self, bound: Bound<'_>) -> bool {
        self.is_inside(bound) && !bound.is_dead()
    }

    fn is_inside(&self, bound: Bound<'_>) -> bool {
        // The thread may be inside a later submission: the exit counters have reached the recorded entries.
        let exited = bound.exits().map(|exited| exited.load(Acquire));
        let is_behind = |(exited, entered): (u64, &u64)| exited.wrapping_sub(*entered) >= 1 << 63;
        self.slot == std::ptr::from_ref(bound.entrance).addr()
            && bound.is_inside()
            && exited.zip(&self.entered).any(is_behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_submission_ended_is_out_despite_later_ones() {
        let process = Process::of_test(gcgroup_abi::NO_LIMIT);
        let local = LocalDevice::of(0).unwrap();
        let bound = process.slots.of_test(process, local, OTHER_DEVICE);
        assert!(Inside::of(bound).is_none());
        let entered = &bound.entrance.entered[Submission::Copy as usize];
        let exited = bound.thread.exited(Submission::Copy);
        entered.store(5, Relaxed);
        exited.store(4, Relaxed);
        let inside = Inside::of(bound).unwrap();
        assert!(inside.is_inside(bound));
        entered.store(6, Relaxed);
        exited.store(5, Relaxed);
        assert!(!inside.is_inside(bound), "this is a later submission");
        // The thread has withdrawn its entry, to wait at its gate.
        entered.store(4, Relaxed);
        exited.store(4, Relaxed);
        assert!(!inside.is_inside(bound));
    }
}
