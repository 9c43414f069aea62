//! Pools shared between processes: one allocates, the others import its blocks.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use simgpu::memory::{Kind, Physical};
use simgpu::{Export, Tag};

use crate::abi::{CUdeviceptr, CUmemLocation, CUmemoryPool, CUresult, In, Out, Raw};
use crate::call::{Call, driver};
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::physical;
use crate::pool::{Pool, Sharing, Wish};
use crate::pool_chunk::Backing;
use crate::share::{self, POSIX_FILE_DESCRIPTOR};
use crate::vmm::LOCATION_DEVICE;

/// State of an imported pool.
pub(crate) struct Imported {
    /// The pool, held.
    export: Export,
    /// Its chunks, by serial, while imported blocks of them exist.
    chunks: Mutex<HashMap<u64, Weak<Physical>>>,
}

/// `CUmemPoolPtrExportData`, opaque outside this driver.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PointerData {
    pool: u64,
    chunk: u64,
    offset: u64,
    size: u64,
    reserved: [u64; 4],
}

const _: () = assert!(size_of::<PointerData>() == 64);

const ALLOCATION_PINNED: u32 = 1;

fn export(call: Call, out: Raw, pool: CUmemoryPool, handle_type: u32, flags: u64) -> CUresult {
    let pool = call.pool(pool)?;
    if flags != 0 || out.is_null() || handle_type != POSIX_FILE_DESCRIPTOR {
        return Err(INVALID_VALUE);
    }
    match &pool.sharing {
        Sharing::Exported(export) => share::export_to(out, export),
        Sharing::None | Sharing::Imported(_) => Err(INVALID_VALUE),
    }
}

fn import(call: Call, out: Out<CUmemoryPool>, handle: Raw, handle_type: u32, flags: u64) -> CUresult {
    if out.is_null() || flags != 0 {
        return Err(INVALID_VALUE);
    }
    if handle_type != POSIX_FILE_DESCRIPTOR {
        return Err(NOT_SUPPORTED);
    }
    let export = share::import_from(call, handle, Tag::Pool)?;
    let device = call.process.member.number_of(export.device());
    let wish = Wish {
        backing: Backing {
            device,
            managed_on: None,
            is_addressable: false,
            is_shareable: false,
        },
        location: CUmemLocation {
            kind: LOCATION_DEVICE,
            id: call.process.ordinal(device).ok_or(NOT_SUPPORTED)?,
        },
        allocation_type: ALLOCATION_PINNED,
        max_size: 0,
    };
    let imported = Imported {
        export,
        chunks: Mutex::default(),
    };
    let handle = call.process.pools.reserve();
    let pool = Pool::new(handle, wish, false, Sharing::Imported(imported));
    call.process.pools.insert_at(handle, Arc::new(pool));
    out.set(handle)
}

fn export_pointer(call: Call, out: Out<PointerData>, address: CUdeviceptr) -> CUresult {
    let block = call.process.space.find(address).ok_or(INVALID_VALUE)?;
    let Kind::Pool(handle) = block.kind else {
        return Err(INVALID_VALUE);
    };
    let pool = call.process.pools.get(handle, INVALID_VALUE)?;
    let Sharing::Exported(export) = &pool.sharing else {
        return Err(INVALID_VALUE);
    };
    let (chunk, offset) = pool.export_of(block.base).ok_or(INVALID_VALUE)?;
    out.set(PointerData {
        pool: export.serial(),
        chunk,
        offset,
        size: block.size,
        reserved: [0; 4],
    })
}

impl Imported {
    /// Returns the memory of a chunk.
    fn chunk(&self, call: Call, serial: u64) -> Result<Arc<Physical>, crate::abi::CUerror> {
        let mut chunks = self.chunks.lock();
        if let Some(known) = chunks.get(&serial).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let machine = call.process.member.machine();
        let export = machine.open_export(serial, Tag::Memory);
        let (physical, _) = physical::map_shared(call, export.map_err(|_| INVALID_VALUE)?)?;
        chunks.insert(serial, Arc::downgrade(&physical));
        Ok(physical)
    }
}

fn import_pointer(
    call: Call,
    out: Out<CUdeviceptr>,
    handle: CUmemoryPool,
    data: In<PointerData>,
) -> CUresult {
    let pool = call.pool(handle)?;
    let data = data.get()?;
    let Sharing::Imported(imported) = &pool.sharing else {
        return Err(INVALID_VALUE);
    };
    if out.is_null() || data.pool != imported.export.serial() {
        return Err(INVALID_VALUE);
    }
    let physical = imported.chunk(call, data.chunk)?;
    let end = data.offset.checked_add(data.size);
    if end.is_none_or(|end| end > physical.size()) {
        return Err(INVALID_VALUE);
    }
    let context = call.context().map_or(0, |context| context.owner());
    let device = pool.wish.backing.device;
    let kind = Kind::Pool(handle);
    let space = call.process.space;
    let made = space.make_imported(data.size, kind, device, context, &physical, data.offset);
    let address = made.ok_or(OUT_OF_MEMORY)?;
    pool.count_imported(data.size);
    out.set(address)
}

driver! {
    fn cuMemPoolExportToShareableHandle(out: Raw, pool: CUmemoryPool, handle_type: u32, flags: u64) |call| {
        export(call, out, pool, handle_type, flags)
    }
    fn cuMemPoolImportFromShareableHandle(pool: Out<CUmemoryPool>, handle: Raw, handle_type: u32, flags: u64) |call| {
        import(call, pool, handle, handle_type, flags)
    }
    fn cuMemPoolExportPointer(out: Out<PointerData>, address: CUdeviceptr) |call| { export_pointer(call, out, address) }
    fn cuMemPoolImportPointer(address: Out<CUdeviceptr>, pool: CUmemoryPool, data: In<PointerData>) |call| {
        import_pointer(call, address, pool, data)
    }
}
