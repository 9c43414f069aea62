//! Virtual memory management: address reservations and mappings of physical memory.

use simgpu::memory::{HOST, Kind};
use simgpu::{Driver, Quirk};

use crate::abi::{
    CUdeviceptr, CUerror, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
    CUresult, In, Out,
};
use crate::call::{Call, driver};
use crate::error::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::host_location::is_node;
use crate::price::Price;
use crate::process::Process;
use crate::{null, physical};

/// Granularity of sizes and addresses, in bytes.
pub(crate) const GRANULARITY: u64 = 2 << 20;

pub(crate) const LOCATION_DEVICE: u32 = 1;
pub(crate) const LOCATION_HOST: u32 = 2;
pub(crate) const LOCATION_HOST_NUMA: u32 = 3;
pub(crate) const LOCATION_HOST_NUMA_CURRENT: u32 = 4;

/// Returns the device of a location, or [`HOST`].
pub(crate) fn device_of(process: &Process, location: CUmemLocation) -> Result<usize, CUerror> {
    match location.kind {
        LOCATION_DEVICE => process
            .device(location.id)
            .map(|device| device.index)
            .map_err(|_| INVALID_DEVICE),
        LOCATION_HOST | LOCATION_HOST_NUMA_CURRENT => Ok(HOST),
        LOCATION_HOST_NUMA if is_node(location.id) => Ok(HOST),
        kind if is_future(kind) => Ok(HOST),
        _ => Err(INVALID_VALUE),
    }
}

/// Returns whether this is the location type of `SIMGPU_FUTURE_LOCATION`, unknown to all headers.
fn is_future(kind: u32) -> bool {
    std::env::var("SIMGPU_FUTURE_LOCATION").is_ok_and(|future| future == kind.to_string())
}

/// Returns where memory is created; as documented, not on the thread's current NUMA node, and before CUDA
/// 12.2 only on devices.
pub(crate) fn place_for(process: &Process, location: CUmemLocation) -> Result<usize, CUerror> {
    let is_old = Driver::of_process().cuda_version < 12_020;
    if location.kind == LOCATION_HOST_NUMA_CURRENT || is_old && location.kind != LOCATION_DEVICE {
        return Err(INVALID_VALUE);
    }
    device_of(process, location)
}

pub(crate) fn is_whole(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULARITY)
}

/// Returns start and length of the reservation that contains an address.
pub(crate) fn reservation(process: &Process, address: u64) -> Option<(u64, u64)> {
    let reservations = process.reservations.lock();
    let (&start, &length) = reservations.range(..=address).next_back()?;
    (address < start + length).then_some((start, length))
}

/// Returns whether a range lies within one reservation.
fn is_reserved(process: &Process, base: u64, size: u64) -> bool {
    reservation(process, base)
        .is_some_and(|(start, length)| base.checked_add(size).is_some_and(|end| end <= start + length))
}

fn map(
    call: Call,
    base: CUdeviceptr,
    size: usize,
    offset: usize,
    number: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    let is_multicast = usize::try_from(number)
        .is_ok_and(|number| call.process.multicasts.get(number, INVALID_VALUE).is_ok());
    if is_multicast {
        return Err(NOT_SUPPORTED);
    }
    let handle = call.handle(number)?;
    let size = size as u64;
    let fits = is_whole(size) && base.is_multiple_of(GRANULARITY) && size <= handle.physical.size();
    if !fits || offset != 0 || flags != 0 || !is_reserved(call.process, base, size) {
        return Err(INVALID_VALUE);
    }
    let number = usize::try_from(number).unwrap_or(0);
    let space = call.process.space;
    if !space.map(base, size, &handle.physical, number, handle.device()) {
        return Err(INVALID_VALUE);
    }
    handle.count_map(1);
    Ok(())
}

fn unmap(call: Call, base: CUdeviceptr, size: usize) -> CUresult {
    let blocks = call.process.space.unmap(base, size as u64).ok_or(INVALID_VALUE)?;
    for block in &blocks {
        let Kind::Mapped(number) = block.kind else {
            continue;
        };
        if let Ok(handle) = call.process.handles.get(number, INVALID_VALUE) {
            handle.count_map(-1);
            physical::let_go(call.process, number, &handle);
        }
    }
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

/// Sets the access rights of each listed location and leaves others unchanged. The host cannot access a
/// device's memory.
fn set_access(
    call: Call,
    base: CUdeviceptr,
    size: usize,
    list: In<CUmemAccessDesc>,
    count: usize,
) -> CUresult {
    const READ_WRITE: u32 = 3;
    let list = list.list(count)?;
    let space = call.process.space;
    let blocks = space.mapped(base, size as u64).ok_or(INVALID_VALUE)?;
    let mut changes = Vec::new();
    for access in &list {
        let device = device_of(call.process, access.location)?;
        let is_out_of_reach = device == HOST && blocks.iter().any(|block| block.device != HOST);
        if !matches!(access.flags, 0 | 1 | READ_WRITE) || is_out_of_reach {
            return Err(INVALID_VALUE);
        }
        changes.push((device, u64::from(access.flags)));
    }
    if Quirk::RdmaRefused.is_on() && blocks.iter().any(|block| physical::is_for_rdma(call, block)) {
        return Err(NOT_SUPPORTED);
    }
    let done = space.set_access(base, size as u64, |access| {
        for &(device, flags) in &changes {
            access.set(device, flags);
        }
    });
    done.then_some(()).ok_or(INVALID_VALUE)
}

driver! {
    fn cuMemGetAllocationGranularity(granularity: Out<usize>, properties: In<CUmemAllocationProp>, option: u32)
    null { granularity.set_if(null::GRANULARITY) } |call| {
        place_for(call.process, properties.get()?.location)?;
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        granularity.set(usize::try_from(GRANULARITY).unwrap_or(0))
    }
    fn cuMemAddressReserve(address: Out<CUdeviceptr>, size: usize, align: usize, wanted: CUdeviceptr, flags: u64)
    null { null::reserve(address, size) } |call| {
        reserve(call, address, size, align, wanted, flags)
    }
    fn cuMemAddressFree(address: CUdeviceptr, size: usize) null {} |call| { unreserve(call, address, size) }
    fn cuMemMap(address: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) null {} |call| {
        map(call, address, size, offset, handle, flags)
    }
    fn cuMemUnmap(address: CUdeviceptr, size: usize) null {} |call| { unmap(call, address, size) }
    fn cuMemSetAccess(address: CUdeviceptr, size: usize, list: In<CUmemAccessDesc>, count: usize) null {} |call| {
        Price::SetAccess.wait(count as u64);
        set_access(call, address, size, list, count)
    }
    fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, address: CUdeviceptr) |call| {
        let device = device_of(call.process, location.get()?)?;
        let block = call.process.space.find(address).ok_or(INVALID_VALUE)?;
        flags.set(block.access.of(device))
    }
}
