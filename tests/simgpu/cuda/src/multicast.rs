//! Multicast objects: memory of several devices bound to one range.
//!
//! The object holds bound memory even if all other references are released. The instructions that reach all
//! devices at once are not simulated, so an object cannot be mapped: only they could use the mapping.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use simgpu::memory::{HOST, Kind};

use crate::abi::{CUdevice, CUdeviceptr, CUerror, CUmemGenericAllocationHandle, CUresult, In, Out};
use crate::call::{Call, driver};
use crate::error::{ILLEGAL_STATE, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::physical::Handle;
use crate::sparse::Held;
use crate::vmm::GRANULARITY;

/// `CUmulticastObjectProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    nr_devices: u32,
    size: usize,
    handle_types: u64,
    flags: u64,
}

/// A multicast object.
pub(crate) struct Multicast {
    nr_devices: usize,
    size: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Devices of the team, by index on the machine.
    team: Vec<usize>,
    /// Length and memory, by device and offset in the object.
    bound: BTreeMap<(usize, u64), (u64, Held)>,
}

fn check(properties: In<Properties>) -> Result<Properties, CUerror> {
    let wish = properties.get()?;
    let is_sound = wish.nr_devices > 0 && wish.size > 0 && wish.flags == 0;
    if !is_sound {
        return Err(INVALID_VALUE);
    }
    if wish.handle_types != 0 {
        return Err(NOT_SUPPORTED);
    }
    Ok(wish)
}

fn create(call: Call, out: Out<CUmemGenericAllocationHandle>, properties: In<Properties>) -> CUresult {
    let wish = check(properties)?;
    let (nr_devices, size) = (wish.nr_devices as usize, wish.size as u64);
    if out.is_null() || !size.is_multiple_of(GRANULARITY) || nr_devices > call.process.devices.len() {
        return Err(INVALID_VALUE);
    }
    out.set(call.process.multicasts.insert(Multicast {
        nr_devices,
        size,
        state: Mutex::default(),
    }) as u64)
}

/// Releases a multicast object and all memory bound to it. Returns whether the handle was that of one.
pub(crate) fn release(call: Call, handle: CUmemGenericAllocationHandle) -> bool {
    let handle = usize::try_from(handle).unwrap_or(0);
    call.process.multicasts.remove(handle, INVALID_VALUE).is_ok()
}

impl Call {
    fn multicast(&self, handle: CUmemGenericAllocationHandle) -> Result<Arc<Multicast>, CUerror> {
        let handle = usize::try_from(handle).map_err(|_| INVALID_VALUE)?;
        self.process.multicasts.get(handle, INVALID_VALUE)
    }
}

fn add_device(call: Call, handle: CUmemGenericAllocationHandle, device: CUdevice) -> CUresult {
    let multicast = call.multicast(handle)?;
    let index = call.process.device(device)?.index;
    let mut state = multicast.state.lock();
    if state.team.contains(&index) || state.team.len() == multicast.nr_devices {
        return Err(INVALID_VALUE);
    }
    state.team.push(index);
    Ok(())
}

/// Arguments of a bind: offset in the object, memory and offset in it, length.
struct Binding {
    place: usize,
    number: usize,
    memory: Arc<Handle>,
    offset: u64,
    size: usize,
    flags: u64,
}

fn bind(
    call: Call,
    handle: CUmemGenericAllocationHandle,
    device: Option<CUdevice>,
    wish: Binding,
) -> CUresult {
    let multicast = call.multicast(handle)?;
    let memory = wish.memory;
    let (place, size) = (wish.place as u64, wish.size as u64);
    let fits = |offset: u64, whole: u64| offset.checked_add(size).is_some_and(|end| end <= whole);
    let is_aligned = [place, wish.offset, size]
        .iter()
        .all(|n| n.is_multiple_of(GRANULARITY));
    let is_sound =
        is_aligned && size > 0 && fits(place, multicast.size) && fits(wish.offset, memory.physical.size());
    if !is_sound || wish.flags != 0 || memory.device() == HOST {
        return Err(INVALID_VALUE);
    }
    if let Some(device) = device
        && call.process.device(device)?.index != memory.device()
    {
        return Err(INVALID_DEVICE);
    }
    let mut state = multicast.state.lock();
    // The real driver waits for the rest of the team; a single-threaded program would then wait forever.
    if state.team.len() < multicast.nr_devices {
        return Err(ILLEGAL_STATE);
    }
    if !state.team.contains(&memory.device()) {
        return Err(INVALID_DEVICE);
    }
    let of_device = state
        .bound
        .range((memory.device(), 0)..=(memory.device(), u64::MAX));
    if of_device
        .into_iter()
        .any(|((_, at), (length, _))| place < at + length && *at < place + size)
    {
        return Err(INVALID_VALUE);
    }
    let key = (memory.device(), place);
    state
        .bound
        .insert(key, (size, Held::new(call.process, wish.number, memory)));
    Ok(())
}

fn bind_address(
    call: Call,
    handle: CUmemGenericAllocationHandle,
    device: Option<CUdevice>,
    place: usize,
    address: CUdeviceptr,
    (size, flags): (usize, u64),
) -> CUresult {
    let block = call.process.space.find(address).ok_or(INVALID_VALUE)?;
    let Kind::Mapped(number) = block.kind else {
        return Err(INVALID_VALUE);
    };
    // The program may have released the handle already: mapped memory is held.
    let binding = Binding {
        place,
        number,
        memory: call.process.handles.get(number, INVALID_VALUE)?,
        offset: block.offset() + (address - block.base),
        size,
        flags,
    };
    bind(call, handle, device, binding)
}

/// Returns the binding of memory by its handle.
fn of_handle(
    call: Call,
    place: usize,
    memory: CUmemGenericAllocationHandle,
    offset: usize,
    (size, flags): (usize, u64),
) -> Result<Binding, CUerror> {
    Ok(Binding {
        place,
        number: usize::try_from(memory).map_err(|_| INVALID_VALUE)?,
        memory: call.handle(memory)?,
        offset: offset as u64,
        size,
        flags,
    })
}

fn unbind(
    call: Call,
    handle: CUmemGenericAllocationHandle,
    device: CUdevice,
    place: usize,
    size: usize,
) -> CUresult {
    let multicast = call.multicast(handle)?;
    let index = call.process.device(device)?.index;
    let mut state = multicast.state.lock();
    let key = (index, place as u64);
    if state
        .bound
        .get(&key)
        .is_none_or(|(length, _)| *length != size as u64)
    {
        return Err(INVALID_VALUE);
    }
    let gone = state.bound.remove(&key);
    drop(state);
    drop(gone);
    Ok(())
}

driver! {
    fn cuMulticastCreate(out: Out<CUmemGenericAllocationHandle>, properties: In<Properties>) |call| {
        create(call, out, properties)
    }
    fn cuMulticastAddDevice(handle: CUmemGenericAllocationHandle, device: CUdevice) |call| { add_device(call, handle, device) }
    fn cuMulticastBindMem(
        handle: CUmemGenericAllocationHandle, place: usize, memory: CUmemGenericAllocationHandle, offset: usize, size: usize,
        flags: u64,
    ) |call| {
        bind(call, handle, None, of_handle(call, place, memory, offset, (size, flags))?)
    }
    fn cuMulticastBindMem_v2(
        handle: CUmemGenericAllocationHandle, device: CUdevice, place: usize, memory: CUmemGenericAllocationHandle,
        offset: usize, size: usize, flags: u64,
    ) |call| {
        bind(call, handle, Some(device), of_handle(call, place, memory, offset, (size, flags))?)
    }
    fn cuMulticastBindAddr(
        handle: CUmemGenericAllocationHandle, place: usize, address: CUdeviceptr, size: usize, flags: u64,
    ) |call| {
        bind_address(call, handle, None, place, address, (size, flags))
    }
    fn cuMulticastBindAddr_v2(
        handle: CUmemGenericAllocationHandle, device: CUdevice, place: usize, address: CUdeviceptr, size: usize, flags: u64,
    ) |call| {
        bind_address(call, handle, Some(device), place, address, (size, flags))
    }
    fn cuMulticastUnbind(handle: CUmemGenericAllocationHandle, device: CUdevice, place: usize, size: usize) |call| {
        unbind(call, handle, device, place, size)
    }
    fn cuMulticastGetGranularity(granularity: Out<usize>, properties: In<Properties>, option: u32) |_| {
        check(properties)?;
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        granularity.set(usize::try_from(GRANULARITY).unwrap_or(0))
    }
}
