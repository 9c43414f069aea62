//! Virtual memory management: addresses and physical memory by themselves, and the maps between them.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use simgpu::memory::{Block, Kind, Physical, PhysicalOwner};
use simgpu::{Held, Member};

use crate::abi::{
    CUdeviceptr, CUerror, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
    CUresult, In, Out,
};
use crate::call::{Call, driver};
use crate::error::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::process::Process;

/// Sizes and addresses are multiples of this.
const GRANULARITY: u64 = 2 << 20;

const ALLOCATION_PINNED: u32 = 1;
const LOCATION_DEVICE: u32 = 1;
const LOCATION_HOST: u32 = 2;
const LOCATION_HOST_NUMA_CURRENT: u32 = 4;

/// Physical memory that the program made.
pub(crate) struct Handle {
    physical: Arc<Physical>,
    properties: CUmemAllocationProp,
    /// The device it is on, as the machine numbers it; `None` is the host.
    index: Option<usize>,
    /// Times the program holds it, and times it is mapped.
    held: AtomicU32,
    mapped: AtomicU32,
}

/// Takes the charge for physical memory back when it goes.
#[derive(Debug)]
struct Charge {
    member: &'static Member,
    index: Option<usize>,
}

impl PhysicalOwner for Charge {
    fn released(&self, size: u64) {
        match self.index {
            Some(index) => self.member.uncharge(index, Held::Physical, size),
            None => self.member.drop_host(Held::HostPhysical, size),
        }
    }
}

/// The device a location means; `None` is the host.
fn device_of(process: &Process, location: CUmemLocation) -> Result<Option<usize>, CUerror> {
    match location.kind {
        LOCATION_DEVICE => process
            .device(location.id)
            .map(|device| Some(device.index))
            .map_err(|_| INVALID_DEVICE),
        LOCATION_HOST..=LOCATION_HOST_NUMA_CURRENT => Ok(None),
        _ => Err(INVALID_VALUE),
    }
}

fn is_whole(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULARITY)
}

fn create(
    call: Call,
    out: Out<CUmemGenericAllocationHandle>,
    size: usize,
    properties: In<CUmemAllocationProp>,
    flags: u64,
) -> CUresult {
    let properties = properties.get()?;
    let size = size as u64;
    if out.is_null() || !is_whole(size) || flags != 0 || properties.kind != ALLOCATION_PINNED {
        return Err(INVALID_VALUE);
    }
    if properties.requested_handle_types != 0 {
        return Err(NOT_SUPPORTED);
    }
    let process = call.process;
    let index = device_of(process, properties.location)?;
    match index {
        Some(index) => crate::memory::charge(process, index, Held::Physical, size)?,
        None => process.member.hold_host(Held::HostPhysical, size),
    }
    let charge = Charge {
        member: process.member,
        index,
    };
    let physical = process
        .space
        .make_physical(size, Box::new(charge))
        .ok_or(OUT_OF_MEMORY)?;
    let (held, mapped) = (AtomicU32::new(1), AtomicU32::new(0));
    out.set(process.handles.insert(Handle {
        physical,
        properties,
        index,
        held,
        mapped,
    }) as u64)
}

impl Call {
    fn handle(&self, handle: CUmemGenericAllocationHandle) -> Result<Arc<Handle>, CUerror> {
        let number = usize::try_from(handle).map_err(|_| INVALID_VALUE)?;
        let object = self.process.handles.get(number, INVALID_VALUE)?;
        if object.held.load(Acquire) == 0 {
            Err(INVALID_VALUE)
        } else {
            Ok(object)
        }
    }
}

/// Forgets a handle that is neither held nor mapped any more.
fn let_go(process: &Process, number: usize, handle: &Handle) {
    if handle.held.load(Acquire) == 0 && handle.mapped.load(Acquire) == 0 {
        let _ = process.handles.remove(number, INVALID_VALUE);
    }
}

fn release(call: Call, number: CUmemGenericAllocationHandle) -> CUresult {
    let handle = call.handle(number)?;
    handle.held.fetch_sub(1, AcqRel);
    let_go(call.process, usize::try_from(number).unwrap_or(0), &handle);
    Ok(())
}

/// Whether a range lies within one reservation.
fn is_reserved(process: &Process, base: u64, size: u64) -> bool {
    let reservations = process.reservations.lock();
    let found = reservations.range(..=base).next_back();
    found.is_some_and(|(start, length)| base.checked_add(size).is_some_and(|end| end <= start + length))
}

fn map(
    call: Call,
    base: CUdeviceptr,
    size: usize,
    offset: usize,
    number: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    let handle = call.handle(number)?;
    let size = size as u64;
    let fits = is_whole(size) && base.is_multiple_of(GRANULARITY) && size <= handle.physical.size();
    if !fits || offset != 0 || flags != 0 || !is_reserved(call.process, base, size) {
        return Err(INVALID_VALUE);
    }
    let number = usize::try_from(number).unwrap_or(0);
    let space = call.process.space;
    if !space.map(
        base,
        size,
        &handle.physical,
        number,
        handle.index.unwrap_or(usize::MAX),
    ) {
        return Err(INVALID_VALUE);
    }
    handle.mapped.fetch_add(1, AcqRel);
    Ok(())
}

fn unmap(call: Call, base: CUdeviceptr, size: usize) -> CUresult {
    let blocks = call.process.space.unmap(base, size as u64).ok_or(INVALID_VALUE)?;
    for block in &blocks {
        let Kind::Mapped(number) = block.kind else {
            continue;
        };
        if let Ok(handle) = call.process.handles.get(number, INVALID_VALUE) {
            handle.mapped.fetch_sub(1, AcqRel);
            let_go(call.process, number, &handle);
        }
    }
    Ok(())
}

fn retain(call: Call, out: Out<CUmemGenericAllocationHandle>, address: u64) -> CUresult {
    let block: Block = call.process.space.find(address).ok_or(INVALID_VALUE)?;
    let Kind::Mapped(number) = block.kind else {
        return Err(INVALID_VALUE);
    };
    let handle = call.process.handles.get(number, INVALID_VALUE)?;
    out.set(number as u64)?;
    handle.held.fetch_add(1, AcqRel);
    Ok(())
}

fn reserve(
    call: Call,
    out: Out<CUdeviceptr>,
    size: usize,
    align: usize,
    wanted: CUdeviceptr,
    flags: u64,
) -> CUresult {
    let (size, align) = (size as u64, align as u64);
    if out.is_null() || !is_whole(size) || flags != 0 || !(align == 0 || align.is_power_of_two()) {
        return Err(INVALID_VALUE);
    }
    let base = call
        .process
        .space
        .reserve(size, align.max(GRANULARITY), wanted)
        .ok_or(OUT_OF_MEMORY)?;
    call.process.reservations.lock().insert(base, size);
    out.set(base)
}

fn unreserve(call: Call, base: CUdeviceptr, size: usize) -> CUresult {
    let size = size as u64;
    let mut reservations = call.process.reservations.lock();
    let is_mapped = || call.process.space.overlaps(base, size);
    if reservations.get(&base) != Some(&size) || is_mapped() {
        return Err(INVALID_VALUE);
    }
    reservations.remove(&base);
    call.process.space.unreserve(base, size);
    Ok(())
}

fn set_access(
    call: Call,
    base: CUdeviceptr,
    size: usize,
    list: In<CUmemAccessDesc>,
    count: usize,
) -> CUresult {
    const READ: u32 = 1;
    let list = list.list(count)?;
    for access in &list {
        device_of(call.process, access.location)?;
    }
    let accessible = list.iter().any(|access| access.flags & READ != 0);
    call.process
        .space
        .set_access(base, size as u64, accessible)
        .then_some(())
        .ok_or(INVALID_VALUE)
}

driver! {
    fn cuMemGetAllocationGranularity(granularity: Out<usize>, properties: In<CUmemAllocationProp>, option: u32) |call| {
        device_of(call.process, properties.get()?.location)?;
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        granularity.set(usize::try_from(GRANULARITY).unwrap_or(0))
    }
    fn cuMemAddressReserve(address: Out<CUdeviceptr>, size: usize, align: usize, wanted: CUdeviceptr, flags: u64) |call| {
        reserve(call, address, size, align, wanted, flags)
    }
    fn cuMemAddressFree(address: CUdeviceptr, size: usize) |call| { unreserve(call, address, size) }
    fn cuMemCreate(
        handle: Out<CUmemGenericAllocationHandle>, size: usize, properties: In<CUmemAllocationProp>, flags: u64,
    ) |call| {
        create(call, handle, size, properties, flags)
    }
    fn cuMemRelease(handle: CUmemGenericAllocationHandle) |call| { release(call, handle) }
    fn cuMemMap(address: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) |call| {
        map(call, address, size, offset, handle, flags)
    }
    fn cuMemUnmap(address: CUdeviceptr, size: usize) |call| { unmap(call, address, size) }
    fn cuMemSetAccess(address: CUdeviceptr, size: usize, list: In<CUmemAccessDesc>, count: usize) |call| {
        set_access(call, address, size, list, count)
    }
    fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, address: CUdeviceptr) |call| {
        device_of(call.process, location.get()?)?;
        let block = call.process.space.find(address).ok_or(INVALID_VALUE)?;
        flags.set(if block.accessible { 3 } else { 0 })
    }
    fn cuMemRetainAllocationHandle(handle: Out<CUmemGenericAllocationHandle>, address: u64) |call| {
        retain(call, handle, address)
    }
    fn cuMemGetAllocationPropertiesFromHandle(
        properties: Out<CUmemAllocationProp>, handle: CUmemGenericAllocationHandle,
    ) |call| {
        properties.set(call.handle(handle)?.properties)
    }
}
