//! Virtual memory management: addresses and physical memory by themselves, and the maps between them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use simgpu::memory::{Block, HOST, Kind, Physical};
use simgpu::{Export, Held, Tag};

use crate::abi::{
    CUdeviceptr, CUerror, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
    CUresult, In, Out,
};
use crate::call::{Call, driver};
use crate::error::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::process::Process;
use crate::share::{Charge, POSIX_FILE_DESCRIPTOR};

/// Sizes and addresses are multiples of this.
pub(crate) const GRANULARITY: u64 = 2 << 20;

const ALLOCATION_PINNED: u32 = 1;
pub(crate) const LOCATION_DEVICE: u32 = 1;
pub(crate) const LOCATION_HOST: u32 = 2;
pub(crate) const LOCATION_HOST_NUMA: u32 = 3;
pub(crate) const LOCATION_HOST_NUMA_CURRENT: u32 = 4;

/// Physical memory that the program made or imported.
pub(crate) struct Handle {
    pub(crate) physical: Arc<Physical>,
    properties: CUmemAllocationProp,
    /// The device it is on, as the machine numbers it, or [`HOST`].
    device: usize,
    /// Times the program holds it, and times it is mapped.
    held: AtomicU32,
    mapped: AtomicU32,
    export: Option<Arc<Export>>,
}

impl Handle {
    /// Whether it may be exported as that type.
    pub(crate) fn allows(&self, handle_type: u32) -> bool {
        handle_type != 0 && self.properties.requested_handle_types & handle_type == handle_type
    }

    /// The device it is on, as the machine numbers it, or [`HOST`].
    pub(crate) fn device(&self) -> usize {
        self.device
    }

    /// Whether it was made for tiles of sparse arrays.
    pub(crate) fn is_tile_pool(&self) -> bool {
        const TILE_POOL: u16 = 1;
        self.properties.usage & TILE_POOL != 0
    }

    /// Counts something mapped onto it (1) or no longer (-1).
    pub(crate) fn count_map(&self, change: i32) {
        self.mapped.fetch_add(change.cast_unsigned(), AcqRel);
    }

    pub(crate) fn export(&self) -> Option<&Export> {
        self.export.as_deref()
    }
}

/// The device a location means, or [`HOST`].
pub(crate) fn device_of(process: &Process, location: CUmemLocation) -> Result<usize, CUerror> {
    match location.kind {
        LOCATION_DEVICE => process
            .device(location.id)
            .map(|device| device.index)
            .map_err(|_| INVALID_DEVICE),
        LOCATION_HOST | LOCATION_HOST_NUMA_CURRENT => Ok(HOST),
        LOCATION_HOST_NUMA if is_node(location.id) => Ok(HOST),
        _ => Err(INVALID_VALUE),
    }
}

/// Whether the host has that NUMA node. One without NUMA has node 0.
fn is_node(node: i32) -> bool {
    node == 0 || Path::new(&format!("/sys/devices/system/node/node{node}")).exists()
}

/// Where memory can be made: as documented, not on whatever node the thread is on.
fn place_for(process: &Process, location: CUmemLocation) -> Result<usize, CUerror> {
    if location.kind == LOCATION_HOST_NUMA_CURRENT {
        return Err(INVALID_VALUE);
    }
    device_of(process, location)
}

fn is_whole(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULARITY)
}

/// Makes physical memory that is charged to this process; with bytes that can be shared, if that is wanted.
pub(crate) fn make_physical(
    process: &'static Process,
    device: usize,
    kind: Held,
    size: u64,
    is_shareable: bool,
) -> Result<(Arc<Physical>, Option<Arc<Export>>), CUerror> {
    if device == HOST {
        process.member.hold_host(kind, size);
    } else {
        crate::memory::charge(process, device, kind, size)?;
    }
    make_charged(process, device, kind, size, is_shareable)
}

/// The same of what is charged already; where it cannot be made the charge is taken back.
pub(crate) fn make_charged(
    process: &'static Process,
    device: usize,
    kind: Held,
    size: u64,
    is_shareable: bool,
) -> Result<(Arc<Physical>, Option<Arc<Export>>), CUerror> {
    let take_back = || {
        if device == HOST {
            process.member.drop_host(kind, size);
        } else {
            process.member.uncharge(device, kind, size);
        }
        OUT_OF_MEMORY
    };
    let export = if is_shareable {
        let export = process.member.export(Tag::Memory, device, size);
        Some(Arc::new(export.map_err(|_| take_back())?))
    } else {
        None
    };
    let file = match &export {
        Some(export) => Some((export.file().map_err(|_| take_back())?, 0)),
        None => None,
    };
    let charge = Charge {
        member: process.member,
        device,
        kind: Some(kind),
        export: export.clone(),
    };
    let physical = process.space.make_physical(size, file, Box::new(charge));
    Ok((physical.ok_or_else(take_back)?, export))
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
    let types = properties.requested_handle_types;
    if out.is_null() || !is_whole(size) || flags != 0 || properties.kind != ALLOCATION_PINNED {
        return Err(INVALID_VALUE);
    }
    let device = place_for(call.process, properties.location)?;
    match types {
        0 => (),
        _ if properties.location.kind == LOCATION_HOST => return Err(INVALID_VALUE),
        POSIX_FILE_DESCRIPTOR => (),
        _ => return Err(NOT_SUPPORTED),
    }
    let kind = if device == HOST {
        Held::HostPhysical
    } else {
        Held::Physical
    };
    let (physical, export) = make_physical(call.process, device, kind, size, types != 0)?;
    out.set(add(call, physical, properties, device, export))
}

/// Makes a handle that the program holds once.
fn add(
    call: Call,
    physical: Arc<Physical>,
    properties: CUmemAllocationProp,
    device: usize,
    export: Option<Arc<Export>>,
) -> CUmemGenericAllocationHandle {
    let (held, mapped) = (AtomicU32::new(1), AtomicU32::new(0));
    call.process.handles.insert(Handle {
        physical,
        properties,
        device,
        held,
        mapped,
        export,
    }) as u64
}

/// Gives the program a handle of memory that it or another process has exported.
pub(crate) fn import(call: Call, export: Export) -> Result<CUmemGenericAllocationHandle, CUerror> {
    for (number, handle) in call.process.handles.all() {
        if handle
            .export
            .as_ref()
            .is_some_and(|ours| ours.serial() == export.serial())
        {
            handle.held.fetch_add(1, AcqRel);
            return Ok(number as u64);
        }
    }
    let (device, size) = (export.device(), export.size());
    let location = if device == HOST {
        CUmemLocation {
            kind: LOCATION_HOST_NUMA,
            id: 0,
        }
    } else {
        CUmemLocation {
            kind: LOCATION_DEVICE,
            id: call.process.ordinal(device).ok_or(NOT_SUPPORTED)?,
        }
    };
    let (physical, export) = map_shared(call, export)?;
    let properties = CUmemAllocationProp {
        kind: ALLOCATION_PINNED,
        requested_handle_types: POSIX_FILE_DESCRIPTOR,
        location,
        ..CUmemAllocationProp::default()
    };
    debug_assert_eq!(physical.size(), size);
    Ok(add(call, physical, properties, device, Some(export)))
}

/// Another process's memory in this one, charged to that one.
pub(crate) fn map_shared(call: Call, export: Export) -> Result<(Arc<Physical>, Arc<Export>), CUerror> {
    let size = export.size();
    let file = export.file().map_err(|_| OUT_OF_MEMORY)?;
    let export = Arc::new(export);
    let charge = Charge {
        member: call.process.member,
        device: export.device(),
        kind: None,
        export: Some(Arc::clone(&export)),
    };
    let physical = call
        .process
        .space
        .make_physical(size, Some((file, 0)), Box::new(charge));
    Ok((physical.ok_or(OUT_OF_MEMORY)?, export))
}

impl Call {
    pub(crate) fn handle(&self, handle: CUmemGenericAllocationHandle) -> Result<Arc<Handle>, CUerror> {
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
pub(crate) fn let_go(process: &Process, number: usize, handle: &Handle) {
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

/// The reservation that an address is in: start and length.
pub(crate) fn reservation(process: &Process, address: u64) -> Option<(u64, u64)> {
    let reservations = process.reservations.lock();
    let (&start, &length) = reservations.range(..=address).next_back()?;
    (address < start + length).then_some((start, length))
}

/// Whether a range lies within one reservation.
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
    let handle = call.handle(number)?;
    let size = size as u64;
    let fits = is_whole(size) && base.is_multiple_of(GRANULARITY) && size <= handle.physical.size();
    if !fits || offset != 0 || flags != 0 || !is_reserved(call.process, base, size) {
        return Err(INVALID_VALUE);
    }
    let number = usize::try_from(number).unwrap_or(0);
    let space = call.process.space;
    if !space.map(base, size, &handle.physical, number, handle.device) {
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

/// Sets what each location listed may do; what others may stays as it is. The host has no way to memory of a device.
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
    let done = space.set_access(base, size as u64, |access| {
        for &(device, flags) in &changes {
            access.set(device, flags);
        }
    });
    done.then_some(()).ok_or(INVALID_VALUE)
}

driver! {
    fn cuMemGetAllocationGranularity(granularity: Out<usize>, properties: In<CUmemAllocationProp>, option: u32) |call| {
        place_for(call.process, properties.get()?.location)?;
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
        let device = device_of(call.process, location.get()?)?;
        let block = call.process.space.find(address).ok_or(INVALID_VALUE)?;
        flags.set(block.access.of(device))
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
