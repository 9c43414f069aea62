//! Submissions that concern another device than the thread's current one: by their stream, by a context or
//! memory that they name, or because they launch a graph, whose nodes may be on any device.
//!
//! A thread checks only the gate of its current device. So while any device of a process with several devices
//! is frozen, every slot's gate leads to the slow path, which asks here what each call concerns. `Inside`
//! records the threads that were in the driver before, and the drain waits for these.
//!
//! Not examined: the levels of mipmapped arrays.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};

use gcgroup_abi::{Gate, OTHER_DEVICE};

use super::Compute;
use super::call::Call;
use super::named::Named;
use crate::driver;
use crate::driver::cuda::{
    CU_MEMORYTYPE_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUcontext,
    CUdeviceptr, CUstream,
};
use crate::shared::device::LocalDevice;

/// Returns the device of an address or array handle that the hook knows better than the driver: an array
/// handle is not a device address, and swapped memory still belongs to its device.
pub(crate) type KnownMemory<'a> = &'a dyn Fn(u64) -> Option<LocalDevice>;

/// Returns the index of a frozen or held device other than `current` that the call concerns.
pub(super) fn closed(
    compute: &Compute,
    known: KnownMemory<'_>,
    call: Call,
    stream: usize,
    current: usize,
) -> Option<usize> {
    let is_closed = |local: LocalDevice| {
        let index = compute.session.devices.index(local);
        let is_closed = is_gate_frozen(compute, index) || compute.holds.word(index).is_some();
        (index != current && is_closed).then_some(index)
    };
    let of_context = |number: usize| {
        let handle = CUcontext::numbered(number);
        Some(compute.program.contexts.find(handle)?.local)
    };
    let of_stream = |stream: usize| {
        let handle = CUstream::numbered(stream);
        Some(compute.program.contexts.holder(handle)?.local)
    };
    if let Some(found) = of_stream(stream).and_then(is_closed) {
        return Some(found);
    }
    let Some((names, arguments)) = call.names() else {
        let used = compute.program.contexts.on(|_| true);
        return used.iter().find_map(|context| is_closed(context.local));
    };
    let named = Named::of(names, arguments);
    let contexts = named.contexts().filter_map(of_context);
    let memory = named.memory().filter_map(|memory| device_of(known, memory));
    let streams = named.streams().filter_map(of_stream);
    contexts
        .chain(memory)
        .chain(streams)
        .chain(named.places())
        .find_map(is_closed)
}

/// Returns the device of an address or an array handle; `None` for host memory and for other values.
fn device_of(known: KnownMemory<'_>, address: usize) -> Option<LocalDevice> {
    if let Some(local) = known(address as u64) {
        return Some(local);
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
pub(super) fn is_any_frozen(compute: &Compute) -> bool {
    let known = compute.control().nr_devices.load(Relaxed) as usize;
    (0..known.min(OTHER_DEVICE))
        .chain([OTHER_DEVICE])
        .any(|index| is_gate_frozen(compute, index))
}

/// Returns whether all devices on which the process has contexts are frozen.
pub(crate) fn is_all_frozen(compute: &Compute) -> bool {
    let used = compute.program.contexts.on(|_| true);
    let is_frozen = |local| is_gate_frozen(compute, compute.session.devices.index(local));
    used.iter().all(|context| is_frozen(context.local))
}

fn is_gate_frozen(compute: &Compute, index: usize) -> bool {
    let gate = compute
        .control()
        .devices
        .get(index)
        .map(|device| device.gate.load(Acquire));
    gate.is_some_and(|word| Gate::from_word(word) == Gate::Frozen)
}
