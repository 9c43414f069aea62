//! Physical memory: held by handles and mappings, and released with the last of them.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use simgpu::memory::{Block, HOST, Kind, Physical};
use simgpu::{Export, Held, Tag};

use crate::abi::{
    CUerror, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation, CUresult, In, Out,
};
use crate::call::{Call, driver};
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::process::Process;
use crate::share::{Charge, POSIX_FILE_DESCRIPTOR};
use crate::vmm::{LOCATION_DEVICE, LOCATION_HOST, LOCATION_HOST_NUMA, is_whole, place_for};
use crate::{host_location, multicast, null};

const ALLOCATION_PINNED: u32 = 1;

/// Physical memory that the program created or imported.
pub(crate) struct Handle {
    pub(crate) physical: Arc<Physical>,
    properties: CUmemAllocationProp,
    /// Number of the device in `Member`, or [`HOST`].
    device: usize,
    /// Numbers of the program's references and of the mappings.
    held: AtomicU32,
    mapped: AtomicU32,
    export: Option<Arc<Export>>,
}

impl Handle {
    /// Returns whether it may be exported as this handle type.
    pub(crate) fn allows(&self, handle_type: u32) -> bool {
        handle_type != 0 && self.properties.requested_handle_types & handle_type == handle_type
    }

    /// Returns the number of the device in `Member`, or [`HOST`].
    pub(crate) fn device(&self) -> usize {
        self.device
    }

    /// Returns whether it was created for tiles of sparse arrays.
    pub(crate) fn is_tile_pool(&self) -> bool {
        const TILE_POOL: u16 = 1;
        self.properties.usage & TILE_POOL != 0
    }

    /// Counts a mapping added (1) or removed (-1).
    pub(crate) fn count_map(&self, change: i32) {
        self.mapped.fetch_add(change.cast_unsigned(), AcqRel);
    }

    pub(crate) fn export(&self) -> Option<&Export> {
        self.export.as_deref()
    }
}

/// Creates physical memory charged to this process; its bytes can be shared if requested.
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
    let made = make_charged(process, device, kind, size, is_shareable);
    if device == HOST {
        process.member.tell_host();
    }
    made
}

/// Creates physical memory that is already charged; drops the charge on failure.
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
    let space = process.space;
    let physical = match device {
        HOST => space.make_pinned(size, file, Box::new(charge)),
        _ => space.make_physical(size, file, Box::new(charge)),
    };
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
    if device == HOST {
        host_location::check(properties.location)?;
    }
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

/// Creates a handle with one reference of the program.
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

/// Returns a handle of memory that this or another process has exported.
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
    let (device, size) = (call.process.member.number_of(export.device()), export.size());
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

/// Maps another process's memory, which stays charged to that process.
pub(crate) fn map_shared(call: Call, export: Export) -> Result<(Arc<Physical>, Arc<Export>), CUerror> {
    let size = export.size();
    let file = export.file().map_err(|_| OUT_OF_MEMORY)?;
    let export = Arc::new(export);
    let charge = Charge {
        member: call.process.member,
        device: call.process.member.number_of(export.device()),
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

/// Returns whether a block is mapped memory that was created for network adapters.
pub(crate) fn is_for_rdma(call: Call, block: &Block) -> bool {
    let Kind::Mapped(number) = block.kind else {
        return false;
    };
    let handle = call.process.handles.get(number, INVALID_VALUE);
    handle.is_ok_and(|handle| handle.properties.gpu_direct_rdma_capable != 0)
}

/// Removes a handle that is neither held nor mapped any more.
pub(crate) fn let_go(process: &Process, number: usize, handle: &Handle) {
    if handle.held.load(Acquire) == 0 && handle.mapped.load(Acquire) == 0 {
        let _ = process.handles.remove(number, INVALID_VALUE);
    }
}

fn release(call: Call, number: CUmemGenericAllocationHandle) -> CUresult {
    if multicast::release(call, number) {
        return Ok(());
    }
    let handle = call.handle(number)?;
    handle.held.fetch_sub(1, AcqRel);
    let_go(call.process, usize::try_from(number).unwrap_or(0), &handle);
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

driver! {
    fn cuMemCreate(
        handle: Out<CUmemGenericAllocationHandle>, size: usize, properties: In<CUmemAllocationProp>, flags: u64,
    ) null { null::name(handle) } |call| {
        create(call, handle, size, properties, flags)
    }
    fn cuMemRelease(handle: CUmemGenericAllocationHandle) null {} |call| { release(call, handle) }
    fn cuMemRetainAllocationHandle(handle: Out<CUmemGenericAllocationHandle>, address: u64) |call| {
        retain(call, handle, address)
    }
    fn cuMemGetAllocationPropertiesFromHandle(
        properties: Out<CUmemAllocationProp>, handle: CUmemGenericAllocationHandle,
    ) |call| {
        properties.set(call.handle(handle)?.properties)
    }
}
