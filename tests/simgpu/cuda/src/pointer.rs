//! Queries about addresses.

use simgpu::Quirk;
use simgpu::memory::{Block, HOST, Kind};

use crate::abi::{CUdeviceptr, CUerror, CUresult, In, Raw};
use crate::call::{Call, driver};
use crate::error::{INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED};
use crate::share::POSIX_FILE_DESCRIPTOR;
use crate::{physical, vmm};

/// `CUmemorytype`.
const TYPE_HOST: u32 = 1;
const TYPE_DEVICE: u32 = 2;

const RANGE_START: u32 = 11;
const RANGE_SIZE: u32 = 12;
const MAPPED: u32 = 13;

/// `CU_POINTER_ATTRIBUTE_P2P_TOKENS`: registers memory with a network adapter.
const P2P_TOKENS: u32 = 5;

/// Returns whether network adapters can use a block.
fn is_for_rdma(call: Call, block: &Block) -> bool {
    let is_offered = Quirk::Rdma.is_on() || Quirk::RdmaRefused.is_on();
    is_offered && (block.kind == Kind::Linear || physical::is_for_rdma(call, block))
}

/// Stores one pointer attribute with its size.
fn attribute(call: Call, data: Raw, attribute: u32, address: CUdeviceptr) -> CUresult {
    let Some(block) = call.process.space.find(address) else {
        return of_reserved(call, data, attribute, address);
    };
    let host = match block.kind {
        Kind::Host | Kind::Registered | Kind::Managed => Some(address),
        _ => (block.device == HOST && block.access.of(HOST) != 0).then_some(address),
    };
    let memory_type = if block.is_on_host() {
        TYPE_HOST
    } else {
        TYPE_DEVICE
    };
    match attribute {
        1 => data.as_out::<u64>().set(block.context),
        2 => data.as_out::<u32>().set(memory_type),
        3 => data.as_out::<u64>().set(address),
        4 => data.as_out::<u64>().set(host.ok_or(INVALID_VALUE)?),
        6 => data.as_out::<u32>().set(0),
        7 => data.as_out::<u64>().set(block.id),
        8 => data.as_out::<u8>().set(u8::from(block.kind == Kind::Managed)),
        9 => data
            .as_out::<i32>()
            .set(call.process.ordinal(block.device).unwrap_or(-1)),
        10 => data.as_out::<u8>().set(u8::from(block.kind == Kind::Linear)),
        RANGE_START => data.as_out::<u64>().set(range(call, &block).0),
        RANGE_SIZE => data.as_out::<u64>().set(range(call, &block).1),
        MAPPED => data.as_out::<u8>().set(1),
        14 => data.as_out::<u64>().set(u64::from(handle_types(call, &block))),
        P2P_TOKENS if is_for_rdma(call, &block) => data.as_out::<[u64; 2]>().set([block.id, 1]),
        15 => data.as_out::<u8>().set(u8::from(is_for_rdma(call, &block))),
        16 => data.as_out::<u32>().set(access(call, &block)?),
        17 => data.as_out::<usize>().set(match block.kind {
            Kind::Pool(pool) => pool,
            _ => 0,
        }),
        18 => data.as_out::<u64>().set(block.size),
        19 => data.as_out::<u64>().set(block.base),
        20 => data.as_out::<u64>().set(match block.kind {
            // The number of the physical memory, wherever it is mapped.
            Kind::Mapped(handle) => handle as u64,
            _ => block.id,
        }),
        21 => data.as_out::<u8>().set(0),
        22 => data.as_out::<i32>().set(-1),
        _ => Err(INVALID_VALUE),
    }
}

/// Stores an attribute of a reserved address without a mapping.
fn of_reserved(call: Call, data: Raw, attribute: u32, address: CUdeviceptr) -> CUresult {
    let (start, size) = vmm::reservation(call.process, address).ok_or(INVALID_VALUE)?;
    match attribute {
        RANGE_START => data.as_out::<u64>().set(start),
        RANGE_SIZE => data.as_out::<u64>().set(size),
        MAPPED => data.as_out::<u8>().set(0),
        _ => Err(INVALID_VALUE),
    }
}

/// Returns start and size of a block's addresses; for a mapping, those of the whole reservation.
fn range(call: Call, block: &Block) -> (u64, u64) {
    let of_block = (block.base, block.size);
    match block.kind {
        Kind::Mapped(_) => vmm::reservation(call.process, block.base).unwrap_or(of_block),
        _ => of_block,
    }
}

/// Returns the handle types as which a block can be exported.
fn handle_types(call: Call, block: &Block) -> u32 {
    match block.kind {
        Kind::Mapped(handle) => {
            let handle = call.process.handles.get(handle, INVALID_VALUE);
            let is_shareable = handle.is_ok_and(|handle| handle.allows(POSIX_FILE_DESCRIPTOR));
            u32::from(is_shareable) * POSIX_FILE_DESCRIPTOR
        }
        _ => 0,
    }
}

/// Returns the access rights of the current context's device.
fn access(call: Call, block: &Block) -> Result<u32, CUerror> {
    let device = call.context()?.index;
    u32::try_from(block.access.of(device)).map_err(|_| INVALID_VALUE)
}

/// Returns whether the thread has no current context.
fn is_without_context(call: Call) -> bool {
    call.context().is_err_and(|error| error == INVALID_CONTEXT)
}

fn zero(data: Raw, attribute: u32) -> CUresult {
    match attribute {
        2 | 6 | 16 => data.as_out::<u32>().set(0),
        9 => data.as_out::<i32>().set(-2),
        22 => data.as_out::<i32>().set(-1),
        8 | 10 | MAPPED | 15 | 21 => data.as_out::<u8>().set(0),
        _ => data.as_out::<u64>().set(0),
    }
}

driver! {
    fn cuPointerGetAttribute(data: Raw, attr: u32, address: CUdeviceptr) |call| {
        if is_without_context(call) {
            return Err(INVALID_CONTEXT);
        }
        attribute(call, data, attr, address)
    }
    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, data: In<*mut std::ffi::c_void>, address: CUdeviceptr) |call| {
        let count = usize::try_from(count).unwrap_or(0);
        for (attr, place) in attributes.list(count)?.into_iter().zip(data.list(count)?) {
            // As documented: attributes that do not apply, or of an unknown address, read as zero.
            if attribute(call, Raw(place), attr, address).is_err() {
                zero(Raw(place), attr)?;
            }
        }
        Ok(())
    }
    fn cuPointerSetAttribute(_value: Raw, _attribute: u32, address: CUdeviceptr) |call| {
        let block = call.process.space.find(address).ok_or(INVALID_VALUE)?;
        match block.kind {
            Kind::Mapped(_) if Quirk::VmmAttributes.is_on() => Err(NOT_SUPPORTED),
            _ => Ok(()),
        }
    }
}
