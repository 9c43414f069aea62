//! Linear, pitched, managed and host memory.

use simgpu::Held;
use simgpu::memory::{Block, Kind, is_small, page};

use crate::abi::{CUdeviceptr, CUerror, CUresult, Out};
use crate::call::{Call, driver};
use crate::context::Context;
use crate::error::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, NOT_FOUND, OUT_OF_MEMORY,
};
use crate::process::Process;
use crate::{capture, graph_memory, null, pool};

/// Alignment of rows of pitched memory, in bytes.
pub(crate) const PITCH: usize = 512;

/// Charges a device; if it is full, first frees the unused chunks of the process's pools.
pub(crate) fn charge(process: &Process, device: usize, kind: Held, bytes: u64) -> Result<(), CUerror> {
    if process.member.try_charge(device, kind, bytes) {
        return Ok(());
    }
    pool::give_up_unused(process, device);
    process
        .member
        .try_charge(device, kind, bytes)
        .then_some(())
        .ok_or(OUT_OF_MEMORY)
}

/// Returns the accounting kind of a block.
fn held(kind: Kind) -> Held {
    match kind {
        Kind::Managed => Held::Managed,
        Kind::Array => Held::Array,
        _ => Held::Linear,
    }
}

/// Allocates a block of device memory, linear or for an array.
pub(crate) fn allocate(
    call: Call,
    context: &Context,
    kind: Kind,
    bytes: usize,
) -> Result<CUdeviceptr, CUerror> {
    capture::check_unsafe()?;
    let bytes = u64::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes > 0)
        .ok_or(INVALID_VALUE)?;
    let charge = |bytes| charge(call.process, context.index, held(kind), bytes);
    let space = call.process.space;
    if is_small(bytes) {
        let made = space.make_small(bytes, kind, context.index, context.owner(), || charge(page()))?;
        return made.ok_or(OUT_OF_MEMORY);
    }
    let lost = bytes.checked_next_multiple_of(page()).ok_or(OUT_OF_MEMORY)?;
    charge(lost)?;
    let made = space.make_device(bytes, kind, context.index, context.owner(), lost);
    made.ok_or_else(|| {
        call.process.member.uncharge(context.index, held(kind), lost);
        OUT_OF_MEMORY
    })
}

/// Allocates a block of linear device memory with a 32-bit address.
pub(crate) fn allocate_low(call: Call, bytes: u32) -> Result<CUdeviceptr, CUerror> {
    let context = call.context()?;
    capture::check_unsafe()?;
    let bytes = u64::from(bytes);
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let lost = bytes.next_multiple_of(page());
    charge(call.process, context.index, Held::Linear, lost)?;
    let space = call.process.space;
    let made = space.make_low(bytes, context.index, context.owner(), lost);
    made.ok_or_else(|| {
        call.process.member.uncharge(context.index, Held::Linear, lost);
        OUT_OF_MEMORY
    })
}

/// Frees the block at an address if `wanted` accepts it. Returns whether there was one.
pub(crate) fn free_block(
    process: &'static Process,
    address: CUdeviceptr,
    wanted: impl Fn(&Block) -> bool,
) -> bool {
    let Some(block) = process.space.remove(address, wanted) else {
        return false;
    };
    end(process, &block);
    true
}

/// Frees all blocks of a context.
pub(crate) fn free_all_of(process: &'static Process, context: u64) {
    let owned = |block: &Block| {
        block.context == context
            && matches!(
                block.kind,
                Kind::Linear | Kind::Array | Kind::Managed | Kind::Host | Kind::Registered
            )
    };
    process
        .space
        .remove_all(owned)
        .iter()
        .for_each(|block| end(process, block));
    for (kind, device) in process.space.release_kept_pages(context) {
        process.member.uncharge(device, held(kind), page());
    }
}

fn end(process: &'static Process, block: &Block) {
    match block.kind {
        Kind::Linear => crate::ipc::end_linear(process, block, Held::Linear),
        Kind::Host => {
            process.member.drop_host(Held::HostPinned, block.size);
            process.space.release(block);
        }
        kind => {
            let regained = block.charged + process.space.release(block);
            process.member.uncharge(block.device, held(kind), regained);
        }
    }
}

pub(crate) fn free(call: Call, address: CUdeviceptr) -> CUresult {
    if address == 0 {
        return Ok(());
    }
    capture::check_unsafe()?;
    let block = call
        .process
        .space
        .find(address)
        .filter(|block| block.base == address)
        .ok_or(INVALID_VALUE)?;
    match block.kind {
        Kind::Linear | Kind::Managed | Kind::Pool(_) | Kind::Graph => (),
        Kind::Array | Kind::Host | Kind::Registered | Kind::Mapped(_) | Kind::Imported => {
            return Err(INVALID_VALUE);
        }
    }
    // Work that may still use the memory completes first.
    if let Ok(context) = call.context_of(usize::try_from(block.context).unwrap_or(0)) {
        context.wait();
    }
    match block.kind {
        Kind::Pool(_) => pool::free_now(call.process, address),
        Kind::Graph => {
            return graph_memory::free(call.process, address)
                .then_some(())
                .ok_or(INVALID_VALUE);
        }
        _ => drop(free_block(call.process, address, |found| found.id == block.id)),
    }
    Ok(())
}

pub(crate) fn allocate_host(call: Call, out: Out<u64>, bytes: usize, flags: u32) -> CUresult {
    let context = call.context()?;
    capture::check_unsafe()?;
    let bytes = u64::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes > 0 && !out.is_null())
        .ok_or(INVALID_VALUE)?;
    let made = call
        .process
        .space
        .make_shared(bytes, Kind::Host, context.index, context.owner(), 0, flags);
    out.set(made.ok_or(OUT_OF_MEMORY)?)?;
    call.process.member.hold_host(Held::HostPinned, bytes);
    call.process.member.tell_host();
    Ok(())
}

fn register(call: Call, address: u64, bytes: usize, flags: u32) -> CUresult {
    let context = call.context()?;
    let size = u64::try_from(bytes)
        .ok()
        .filter(|&size| size > 0 && address != 0)
        .ok_or(INVALID_VALUE)?;
    let space = call.process.space;
    if space.owns(address) {
        return Err(INVALID_VALUE);
    }
    space
        .register(address, size, context.index, context.owner(), flags)
        .then_some(())
        .ok_or(HOST_MEMORY_ALREADY_REGISTERED)
}

fn info(call: Call, free: Out<usize>, total: Out<usize>) -> CUresult {
    let context = call.context()?;
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    free.set_if(size(call.process.member.free(context.index)));
    total.set_if(size(call.process.on_machine(context.device)?.memory_total()));
    Ok(())
}

fn pitched(
    call: Call,
    address: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> CUresult {
    let context = call.context()?;
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) || address.is_null() || pitch.is_null() {
        return Err(INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(PITCH).ok_or(OUT_OF_MEMORY)?;
    let bytes = row.checked_mul(height).ok_or(OUT_OF_MEMORY)?;
    address.set_if(allocate(call, &context, Kind::Linear, bytes)?);
    pitch.set(row)
}

fn managed(call: Call, address: Out<CUdeviceptr>, bytes: usize, flags: u32) -> CUresult {
    let context = call.context()?;
    capture::check_unsafe()?;
    let bytes = u64::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes > 0 && !address.is_null())
        .ok_or(INVALID_VALUE)?;
    if !matches!(flags, 1 | 2 | 4) {
        return Err(INVALID_VALUE);
    }
    charge(call.process, context.index, Held::Managed, bytes)?;
    let made =
        call.process
            .space
            .make_shared(bytes, Kind::Managed, context.index, context.owner(), bytes, flags);
    let made = made.ok_or_else(|| {
        call.process.member.uncharge(context.index, Held::Managed, bytes);
        OUT_OF_MEMORY
    })?;
    address.set(made)
}

pub(crate) fn range(call: Call, base: Out<CUdeviceptr>, size: Out<usize>, address: CUdeviceptr) -> CUresult {
    call.context()?;
    let block = call.process.space.find(address).ok_or(NOT_FOUND)?;
    base.set_if(block.base);
    size.set_if(usize::try_from(block.size).unwrap_or(usize::MAX));
    Ok(())
}

driver! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) null { null::info(free, total) } |call| { info(call, free, total) }
    fn cuMemAlloc_v2(address: Out<CUdeviceptr>, bytes: usize) null { null::allocate(address, bytes) } |call| {
        let context = call.context()?;
        if address.is_null() {
            return Err(INVALID_VALUE);
        }
        address.set(allocate(call, &context, Kind::Linear, bytes)?)
    }
    fn cuMemAllocPitch_v2(
        address: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize, element: u32,
    ) null { pitch.set_if(width); null::allocate(address, width.saturating_mul(height)) } |call| {
        pitched(call, address, pitch, width, height, element)
    }
    fn cuMemAllocManaged(address: Out<CUdeviceptr>, bytes: usize, flags: u32) null { null::allocate(address, bytes) } |call| {
        managed(call, address, bytes, flags)
    }
    fn cuMemFree_v2(address: CUdeviceptr) null {} |call| { free(call, address) }

    fn cuMemAllocHost_v2(out: Out<u64>, bytes: usize) |call| { allocate_host(call, out, bytes, 0) }
    fn cuMemHostAlloc(out: Out<u64>, bytes: usize, flags: u32) null { null::allocate(out, bytes) } |call| {
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        allocate_host(call, out, bytes, flags)
    }
    fn cuMemFreeHost(address: u64) null {} |call| {
        capture::check_unsafe()?;
        free_block(call.process, address, |block| block.kind == Kind::Host).then_some(()).ok_or(INVALID_VALUE)
    }
    fn cuMemHostRegister(address: u64, bytes: usize, flags: u32) |call| { register(call, address, bytes, flags) }
    fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) |call| { register(call, address, bytes, flags) }
    fn cuMemHostUnregister(address: u64) |call| {
        let is_it = |block: &Block| block.kind == Kind::Registered;
        free_block(call.process, address, is_it).then_some(()).ok_or(HOST_MEMORY_NOT_REGISTERED)
    }
    fn cuMemHostGetDevicePointer_v2(device: Out<CUdeviceptr>, address: u64, _flags: u32) |call| {
        let block = call.process.space.find(address).ok_or(INVALID_VALUE)?;
        match block.kind {
            Kind::Host | Kind::Registered | Kind::Managed => device.set(address),
            _ => Err(INVALID_VALUE),
        }
    }
    fn cuMemHostGetFlags(flags: Out<u32>, address: u64) |call| {
        flags.set(call.process.space.find(address).filter(|block| block.kind == Kind::Host).ok_or(INVALID_VALUE)?.flags)
    }

    fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, size: Out<usize>, address: CUdeviceptr) |call| {
        range(call, base, size, address)
    }
}
