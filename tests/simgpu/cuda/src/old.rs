//! Functions from before CUDA 3.2, when an address had 32 bits: still exported, but not called by newer
//! programs. The real driver's behavior in a 64-bit process is not documented; here they work on memory with
//! addresses below 4 GiB and return only values that fit.

use crate::abi::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUdevice, CUerror, CUmodule, CUresult,
    CUstream, In, Out, Raw, Text,
};
use crate::bytes::Copy;
use crate::call::{Call, driver};
use crate::copy::{area, copy_later, copy_now, fill, line};
use crate::error::INVALID_VALUE;
use crate::memory::{self, PITCH};
use crate::{array, module};

type Address = u32;
type Size = u32;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Side2d {
    x: Size,
    y: Size,
    memory_type: u32,
    host: u64,
    device: Address,
    array: CUarray,
    pitch: Size,
}

/// `CUDA_MEMCPY2D_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Copy2d {
    src: Side2d,
    dst: Side2d,
    width: Size,
    height: Size,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Side3d {
    x: Size,
    y: Size,
    z: Size,
    level: Size,
    memory_type: u32,
    host: u64,
    device: Address,
    array: CUarray,
    reserved: usize,
    pitch: Size,
    height: Size,
}

/// `CUDA_MEMCPY3D_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Copy3d {
    src: Side3d,
    dst: Side3d,
    width: Size,
    height: Size,
    depth: Size,
}

/// `CUDA_ARRAY_DESCRIPTOR_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    width: Size,
    height: Size,
    format: u32,
    num_channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Descriptor3d {
    width: Size,
    height: Size,
    depth: Size,
    format: u32,
    num_channels: u32,
    flags: u32,
}

const _: () = {
    assert!(size_of::<Side2d>() == 48 && size_of::<Copy2d>() == 104);
    assert!(size_of::<Side3d>() == 64 && size_of::<Copy3d>() == 144);
};

fn wide(size: Size) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Converts a size, saturating at the largest representable one.
fn narrow(size: u64) -> Size {
    Size::try_from(size).unwrap_or(Size::MAX)
}

/// Converts an address, if it fits in 32 bits.
fn low(address: u64) -> Result<Address, CUerror> {
    Address::try_from(address).map_err(|_| INVALID_VALUE)
}

impl Copy2d {
    fn copy(&self, call: Call) -> Result<Copy, CUerror> {
        let Copy2d {
            src,
            dst,
            width,
            height,
        } = *self;
        call.copy_2d(&CUDA_MEMCPY2D {
            src_x_in_bytes: wide(src.x),
            src_y: wide(src.y),
            src_memory_type: src.memory_type,
            src_host: src.host,
            src_device: u64::from(src.device),
            src_array: src.array,
            src_pitch: wide(src.pitch),
            dst_x_in_bytes: wide(dst.x),
            dst_y: wide(dst.y),
            dst_memory_type: dst.memory_type,
            dst_host: dst.host,
            dst_device: u64::from(dst.device),
            dst_array: dst.array,
            dst_pitch: wide(dst.pitch),
            width_in_bytes: wide(width),
            height: wide(height),
        })
    }
}

impl Copy3d {
    fn copy(&self, call: Call) -> Result<Copy, CUerror> {
        let Copy3d {
            src,
            dst,
            width,
            height,
            depth,
        } = *self;
        call.copy_3d(&CUDA_MEMCPY3D {
            src_x_in_bytes: wide(src.x),
            src_y: wide(src.y),
            src_z: wide(src.z),
            src_lod: wide(src.level),
            src_memory_type: src.memory_type,
            src_host: src.host,
            src_device: u64::from(src.device),
            src_array: src.array,
            src_context: 0,
            src_pitch: wide(src.pitch),
            src_height: wide(src.height),
            dst_x_in_bytes: wide(dst.x),
            dst_y: wide(dst.y),
            dst_z: wide(dst.z),
            dst_lod: wide(dst.level),
            dst_memory_type: dst.memory_type,
            dst_host: dst.host,
            dst_device: u64::from(dst.device),
            dst_array: dst.array,
            dst_context: 0,
            dst_pitch: wide(dst.pitch),
            dst_height: wide(dst.height),
            width_in_bytes: wide(width),
            height: wide(height),
            depth: wide(depth),
        })
    }
}

fn row(call: Call, dst: u64, src: u64, bytes: Size) -> Copy {
    call.row(dst, src, wide(bytes))
}

fn pitched(
    call: Call,
    out: Out<Address>,
    pitch: Out<Size>,
    width: Size,
    height: Size,
    element: u32,
) -> CUresult {
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) || out.is_null() || pitch.is_null() {
        return Err(INVALID_VALUE);
    }
    let row = Size::try_from(wide(width).next_multiple_of(PITCH)).map_err(|_| INVALID_VALUE)?;
    let bytes = row.checked_mul(height).ok_or(INVALID_VALUE)?;
    out.set_if(low(memory::allocate_low(call, bytes)?)?);
    pitch.set(row)
}

/// Calls the 64-bit function with local out-pointers, and returns the values if they fit.
fn range(call: Call, base: Out<Address>, size: Out<Size>, address: Address) -> CUresult {
    let (mut wide_base, mut wide_size) = (0_u64, 0_usize);
    let places = (Raw((&raw mut wide_base).cast()), Raw((&raw mut wide_size).cast()));
    memory::range(call, places.0.as_out(), places.1.as_out(), u64::from(address))?;
    base.set_if(low(wide_base)?);
    size.set_if(narrow(wide_size as u64));
    Ok(())
}

fn global(call: Call, out: Out<Address>, bytes: Out<Size>, module: CUmodule, name: &str) -> CUresult {
    let (mut address, mut size) = (0_u64, 0_usize);
    let places = (Raw((&raw mut address).cast()), Raw((&raw mut size).cast()));
    module::get_global(call, module, name, places.0.as_out(), places.1.as_out())?;
    bytes.set_if(narrow(size as u64));
    out.set_if(low(address)?);
    Ok(())
}

driver! {
    fn cuDeviceTotalMem(bytes: Out<Size>, device: CUdevice) |call| {
        bytes.set(narrow(call.process.on_machine(device)?.memory_total()))
    }
    fn cuMemGetInfo(free: Out<Size>, total: Out<Size>) |call| {
        let context = call.context()?;
        free.set_if(narrow(call.process.member.free(context.index)));
        total.set_if(narrow(call.process.on_machine(context.device)?.memory_total()));
        Ok(())
    }
    fn cuMemAlloc(address: Out<Address>, bytes: Size) |call| {
        if address.is_null() {
            return Err(INVALID_VALUE);
        }
        address.set(low(memory::allocate_low(call, bytes)?)?)
    }
    fn cuMemAllocPitch(address: Out<Address>, pitch: Out<Size>, width: Size, height: Size, element: u32) |call| {
        pitched(call, address, pitch, width, height, element)
    }
    fn cuMemFree(address: Address) |call| { memory::free(call, u64::from(address)) }
    fn cuMemGetAddressRange(base: Out<Address>, size: Out<Size>, address: Address) |call| { range(call, base, size, address) }
    fn cuMemAllocHost(out: Out<u64>, bytes: Size) |call| { memory::allocate_host(call, out, wide(bytes), 0) }
    fn cuMemHostGetDevicePointer(device: Out<Address>, address: u64, _flags: u32) |call| {
        call.process.space.find(address).ok_or(INVALID_VALUE)?;
        device.set(low(address)?)
    }
    fn cuModuleGetGlobal(address: Out<Address>, bytes: Out<Size>, module: CUmodule, name: Text) |call| {
        global(call, address, bytes, module, name.get()?)
    }

    fn cuMemcpyHtoD(dst: Address, src: u64, bytes: Size) |call| { copy_now(call, &row(call, u64::from(dst), src, bytes)) }
    fn cuMemcpyDtoH(dst: u64, src: Address, bytes: Size) |call| { copy_now(call, &row(call, dst, u64::from(src), bytes)) }
    fn cuMemcpyDtoD(dst: Address, src: Address, bytes: Size) |call| {
        copy_later(call, row(call, u64::from(dst), u64::from(src), bytes), 0)
    }
    fn cuMemcpyHtoDAsync(dst: Address, src: u64, bytes: Size, stream: CUstream) |call| {
        copy_later(call, row(call, u64::from(dst), src, bytes), stream)
    }
    fn cuMemcpyDtoHAsync(dst: u64, src: Address, bytes: Size, stream: CUstream) |call| {
        copy_later(call, row(call, dst, u64::from(src), bytes), stream)
    }
    fn cuMemcpyDtoDAsync(dst: Address, src: Address, bytes: Size, stream: CUstream) |call| {
        copy_later(call, row(call, u64::from(dst), u64::from(src), bytes), stream)
    }
    fn cuMemcpyDtoA(dst: CUarray, offset: Size, src: Address, bytes: Size) |call| {
        let dst = call.array_endpoint(dst, wide(offset))?;
        copy_later(call, Copy::row(dst, call.endpoint(u64::from(src)), u64::from(bytes)), 0)
    }
    fn cuMemcpyAtoD(dst: Address, src: CUarray, offset: Size, bytes: Size) |call| {
        let src = call.array_endpoint(src, wide(offset))?;
        copy_later(call, Copy::row(call.endpoint(u64::from(dst)), src, u64::from(bytes)), 0)
    }
    fn cuMemcpyHtoA(dst: CUarray, offset: Size, src: u64, bytes: Size) |call| {
        copy_now(call, &Copy::row(call.array_endpoint(dst, wide(offset))?, call.endpoint(src), u64::from(bytes)))
    }
    fn cuMemcpyAtoH(dst: u64, src: CUarray, offset: Size, bytes: Size) |call| {
        copy_now(call, &Copy::row(call.endpoint(dst), call.array_endpoint(src, wide(offset))?, u64::from(bytes)))
    }
    fn cuMemcpyAtoA(dst: CUarray, dst_offset: Size, src: CUarray, src_offset: Size, bytes: Size) |call| {
        let (dst, src) = (call.array_endpoint(dst, wide(dst_offset))?, call.array_endpoint(src, wide(src_offset))?);
        copy_later(call, Copy::row(dst, src, u64::from(bytes)), 0)
    }
    fn cuMemcpyHtoAAsync(dst: CUarray, offset: Size, src: u64, bytes: Size, stream: CUstream) |call| {
        copy_later(call, Copy::row(call.array_endpoint(dst, wide(offset))?, call.endpoint(src), u64::from(bytes)), stream)
    }
    fn cuMemcpyAtoHAsync(dst: u64, src: CUarray, offset: Size, bytes: Size, stream: CUstream) |call| {
        copy_later(call, Copy::row(call.endpoint(dst), call.array_endpoint(src, wide(offset))?, u64::from(bytes)), stream)
    }
    fn cuMemcpy2D(copy: In<Copy2d>) |call| { copy_now(call, &copy.get()?.copy(call)?) }
    fn cuMemcpy2DUnaligned(copy: In<Copy2d>) |call| { copy_now(call, &copy.get()?.copy(call)?) }
    fn cuMemcpy2DAsync(copy: In<Copy2d>, stream: CUstream) |call| { copy_later(call, copy.get()?.copy(call)?, stream) }
    fn cuMemcpy3D(copy: In<Copy3d>) |call| { copy_now(call, &copy.get()?.copy(call)?) }
    fn cuMemcpy3DAsync(copy: In<Copy3d>, stream: CUstream) |call| { copy_later(call, copy.get()?.copy(call)?, stream) }

    fn cuMemsetD8(at: Address, value: u8, count: Size) |call| {
        fill(call, line(u64::from(at), u32::from(value), 1, wide(count)), 0)
    }
    fn cuMemsetD16(at: Address, value: u16, count: Size) |call| {
        fill(call, line(u64::from(at), u32::from(value), 2, wide(count)), 0)
    }
    fn cuMemsetD32(at: Address, value: u32, count: Size) |call| { fill(call, line(u64::from(at), value, 4, wide(count)), 0) }
    fn cuMemsetD2D8(at: Address, pitch: Size, value: u8, width: Size, height: Size) |call| {
        fill(call, area(u64::from(at), wide(pitch), u32::from(value), 1, wide(width), wide(height)), 0)
    }
    fn cuMemsetD2D16(at: Address, pitch: Size, value: u16, width: Size, height: Size) |call| {
        fill(call, area(u64::from(at), wide(pitch), u32::from(value), 2, wide(width), wide(height)), 0)
    }
    fn cuMemsetD2D32(at: Address, pitch: Size, value: u32, width: Size, height: Size) |call| {
        fill(call, area(u64::from(at), wide(pitch), value, 4, wide(width), wide(height)), 0)
    }

    fn cuArrayCreate(array: Out<CUarray>, descriptor: In<Descriptor>) |call| {
        let Descriptor { width, height, format, num_channels } = descriptor.get()?;
        let (width, height) = (wide(width), wide(height));
        array::create(call, array, CUDA_ARRAY3D_DESCRIPTOR { width, height, depth: 0, format, num_channels, flags: 0 })
    }
    fn cuArray3DCreate(array: Out<CUarray>, descriptor: In<Descriptor3d>) |call| {
        let Descriptor3d { width, height, depth, format, num_channels, flags } = descriptor.get()?;
        let (width, height, depth) = (wide(width), wide(height), wide(depth));
        array::create(call, array, CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags })
    }
    fn cuArrayGetDescriptor(descriptor: Out<Descriptor>, array: CUarray) |call| {
        let CUDA_ARRAY3D_DESCRIPTOR { width, height, format, num_channels, .. } = call.array(array)?.descriptor;
        let (width, height) = (narrow(width as u64), narrow(height as u64));
        descriptor.set(Descriptor { width, height, format, num_channels })
    }
    fn cuArray3DGetDescriptor(descriptor: Out<Descriptor3d>, array: CUarray) |call| {
        let CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags } = call.array(array)?.descriptor;
        let [width, height, depth] = [width, height, depth].map(|size| narrow(size as u64));
        descriptor.set(Descriptor3d { width, height, depth, format, num_channels, flags })
    }
}
