//! The copy and set functions.

use std::sync::Arc;

use simgpu::memory::Kind;

use crate::abi::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUcontext, CUdeviceptr, CUerror, CUresult, CUstream, In,
};
use crate::bytes::{self, Copy, Endpoint, Fill, Side};
use crate::call::{Call, driver};
use crate::capture;
use crate::error::{INVALID_HANDLE, INVALID_VALUE};
use crate::op::Op;
use crate::stream::Stream;

/// Executes a copy in the order of the default stream and returns when it is done.
pub(crate) fn copy_now(call: Call, copy: &Copy) -> CUresult {
    let stream = call.stream(0)?;
    capture::check_wait(&stream)?;
    copy.check(call.process.space)?;
    if let Some(result) = copy_at_once(call, copy, &stream) {
        return result;
    }
    call.enqueue(&stream, Op::Copy(copy.clone()))?;
    wait(call, &stream)
}

/// Copies shorter than this are executed by the calling thread if nothing precedes them: handing them to
/// another thread takes longer.
const AT_ONCE_NS: u64 = 20_000;

/// Executes a copy immediately if it is shorter than [`AT_ONCE_NS`] and nothing precedes it.
fn copy_at_once(call: Call, copy: &Copy, stream: &Stream) -> Option<CUresult> {
    let ns = copy.cost(call.process).map_or(0, |(_, ns)| ns);
    if ns >= AT_ONCE_NS || !stream.engine.is_idle(stream.id) {
        return None;
    }
    call.process.member.count_copy(stream.engine.device(), ns);
    Some(copy.run(call.process.space))
}

/// Executes a copy in the order of a stream. The program's pageable memory is no longer accessed when this
/// returns.
pub(crate) fn copy_later(call: Call, mut copy: Copy, stream: CUstream) -> CUresult {
    let stream = call.stream(stream)?;
    copy.check(call.process.space)?;
    if capture::is_capturing(&stream) {
        return call.enqueue(&stream, Op::Copy(copy));
    }
    capture::check_legacy(&stream)?;
    if is_pageable(call, &copy.src) {
        if let Some(result) = copy_at_once(call, &copy, &stream) {
            return result;
        }
        copy.src = staged(&copy)?;
    }
    let must_wait = is_pageable(call, &copy.dst);
    call.enqueue(&stream, Op::Copy(copy))?;
    if must_wait { wait(call, &stream) } else { Ok(()) }
}

fn wait(call: Call, stream: &Stream) -> CUresult {
    stream.engine.wait(stream.id);
    call.context_of(stream.context)?.check_fault()
}

fn is_pageable(call: Call, side: &Side) -> bool {
    match side.endpoint {
        Endpoint::Host(address) => !call
            .process
            .space
            .find(address)
            .is_some_and(|block| block.kind == Kind::Registered),
        Endpoint::Space(_) | Endpoint::Staged(_) => false,
    }
}

/// Returns the source of a copy with the program's bytes read now.
fn staged(copy: &Copy) -> Result<Side, CUerror> {
    let Endpoint::Host(address) = copy.src.endpoint else {
        return Err(INVALID_VALUE);
    };
    let length = (copy.depth - 1) * copy.src.layer + (copy.height - 1) * copy.src.pitch + copy.width;
    let bytes = bytes::from_host(address, length);
    Ok(Side {
        endpoint: Endpoint::Staged(Arc::from(bytes)),
        ..copy.src.clone()
    })
}

impl Call {
    pub(crate) fn endpoint(&self, address: u64) -> Endpoint {
        Endpoint::of(self.process.space, address)
    }

    pub(crate) fn row(&self, dst: u64, src: u64, length: usize) -> Copy {
        Copy::row(self.endpoint(dst), self.endpoint(src), length as u64)
    }

    pub(crate) fn array_endpoint(&self, array: CUarray, offset: usize) -> Result<Endpoint, CUerror> {
        let array = self.process.arrays.get(array, INVALID_HANDLE)?;
        Ok(Endpoint::Space(array.base()? + offset as u64))
    }

    /// Returns the copy that a three-dimensional structure describes.
    pub(crate) fn copy_3d(&self, c: &CUDA_MEMCPY3D) -> Result<Copy, CUerror> {
        let extent = [c.width_in_bytes, c.height, c.depth];
        let dst = self.side(
            c.dst_memory_type,
            c.dst_host,
            c.dst_device,
            c.dst_array,
            c.dst_pitch,
            c.dst_height,
            [c.dst_x_in_bytes, c.dst_y, c.dst_z],
            extent,
        )?;
        let src = self.side(
            c.src_memory_type,
            c.src_host,
            c.src_device,
            c.src_array,
            c.src_pitch,
            c.src_height,
            [c.src_x_in_bytes, c.src_y, c.src_z],
            extent,
        )?;
        let size = |n: usize| n as u64;
        Ok(Copy {
            dst,
            src,
            width: size(c.width_in_bytes),
            height: size(c.height),
            depth: size(c.depth),
        })
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "one for each field of the driver's structure"
    )]
    fn side(
        &self,
        memory_type: u32,
        host: u64,
        device: CUdeviceptr,
        array: CUarray,
        pitch: usize,
        height: usize,
        [x, y, z]: [usize; 3],
        extent: [usize; 3],
    ) -> Result<Side, CUerror> {
        const HOST: u32 = 1;
        const DEVICE: u32 = 2;
        const ARRAY: u32 = 3;
        const UNIFIED: u32 = 4;
        let (base, pitch, layer) = match memory_type {
            HOST => (host, pitch as u64, (pitch * height.max(1)) as u64),
            DEVICE | UNIFIED => (device, pitch as u64, (pitch * height.max(1)) as u64),
            ARRAY => {
                let array = self.process.arrays.get(array, INVALID_HANDLE)?;
                if !array.contains([x, y, z], extent) {
                    return Err(INVALID_VALUE);
                }
                (array.base()?, array.pitch(), array.layer())
            }
            _ => return Err(INVALID_VALUE),
        };
        if base == 0 {
            return Err(INVALID_VALUE);
        }
        let offset = z as u64 * layer + y as u64 * pitch + x as u64;
        Ok(Side {
            endpoint: self.endpoint(base + offset),
            pitch,
            layer,
        })
    }

    pub(crate) fn copy_2d(&self, c: &CUDA_MEMCPY2D) -> Result<Copy, CUerror> {
        self.copy_3d(&CUDA_MEMCPY3D {
            src_x_in_bytes: c.src_x_in_bytes,
            src_y: c.src_y,
            src_memory_type: c.src_memory_type,
            src_host: c.src_host,
            src_device: c.src_device,
            src_array: c.src_array,
            src_pitch: if c.src_pitch == 0 {
                c.width_in_bytes
            } else {
                c.src_pitch
            },
            dst_x_in_bytes: c.dst_x_in_bytes,
            dst_y: c.dst_y,
            dst_memory_type: c.dst_memory_type,
            dst_host: c.dst_host,
            dst_device: c.dst_device,
            dst_array: c.dst_array,
            dst_pitch: if c.dst_pitch == 0 {
                c.width_in_bytes
            } else {
                c.dst_pitch
            },
            width_in_bytes: c.width_in_bytes,
            height: c.height,
            depth: 1,
            ..CUDA_MEMCPY3D::default()
        })
    }
}

driver! {
    fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) twin cuMemcpy_ptds null {} |call| {
        copy_now(call, &call.row(dst, src, bytes))
    }
    fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: u64, bytes: usize) twin cuMemcpyHtoD_v2_ptds null {} |call| {
        copy_now(call, &call.row(dst, src, bytes))
    }
    fn cuMemcpyDtoH_v2(dst: u64, src: CUdeviceptr, bytes: usize) twin cuMemcpyDtoH_v2_ptds null {} |call| {
        copy_now(call, &call.row(dst, src, bytes))
    }
    fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) twin cuMemcpyDtoD_v2_ptds null {} |call| {
        copy_later(call, call.row(dst, src, bytes), 0)
    }
    fn cuMemcpyPeer(dst: CUdeviceptr, _dst_context: CUcontext, src: CUdeviceptr, _src_context: CUcontext, bytes: usize) twin cuMemcpyPeer_ptds null {} |call| {
        copy_later(call, call.row(dst, src, bytes), 0)
    }
    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) twin cuMemcpyAsync_ptsz null {} |call| {
        copy_later(call, call.row(dst, src, bytes), stream)
    }
    fn cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: u64, bytes: usize, stream: CUstream) twin cuMemcpyHtoDAsync_v2_ptsz null {} |call| {
        copy_later(call, call.row(dst, src, bytes), stream)
    }
    fn cuMemcpyDtoHAsync_v2(dst: u64, src: CUdeviceptr, bytes: usize, stream: CUstream) twin cuMemcpyDtoHAsync_v2_ptsz null {} |call| {
        copy_later(call, call.row(dst, src, bytes), stream)
    }
    fn cuMemcpyDtoDAsync_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) twin cuMemcpyDtoDAsync_v2_ptsz null {} |call| {
        copy_later(call, call.row(dst, src, bytes), stream)
    }
    fn cuMemcpyPeerAsync(
        dst: CUdeviceptr, _dst_context: CUcontext, src: CUdeviceptr, _src_context: CUcontext, bytes: usize, stream: CUstream,
    ) twin cuMemcpyPeerAsync_ptsz null {} |call| {
        copy_later(call, call.row(dst, src, bytes), stream)
    }

    fn cuMemcpyDtoA_v2(dst: CUarray, offset: usize, src: CUdeviceptr, bytes: usize) twin cuMemcpyDtoA_v2_ptds null {} |call| {
        copy_later(call, Copy::row(call.array_endpoint(dst, offset)?, call.endpoint(src), bytes as u64), 0)
    }
    fn cuMemcpyAtoD_v2(dst: CUdeviceptr, src: CUarray, offset: usize, bytes: usize) twin cuMemcpyAtoD_v2_ptds null {} |call| {
        copy_later(call, Copy::row(call.endpoint(dst), call.array_endpoint(src, offset)?, bytes as u64), 0)
    }
    fn cuMemcpyHtoA_v2(dst: CUarray, offset: usize, src: u64, bytes: usize) twin cuMemcpyHtoA_v2_ptds null {} |call| {
        copy_now(call, &Copy::row(call.array_endpoint(dst, offset)?, call.endpoint(src), bytes as u64))
    }
    fn cuMemcpyAtoH_v2(dst: u64, src: CUarray, offset: usize, bytes: usize) twin cuMemcpyAtoH_v2_ptds null {} |call| {
        copy_now(call, &Copy::row(call.endpoint(dst), call.array_endpoint(src, offset)?, bytes as u64))
    }
    fn cuMemcpyAtoA_v2(dst: CUarray, dst_offset: usize, src: CUarray, src_offset: usize, bytes: usize) twin cuMemcpyAtoA_v2_ptds null {} |call| {
        let copy = Copy::row(call.array_endpoint(dst, dst_offset)?, call.array_endpoint(src, src_offset)?, bytes as u64);
        copy_later(call, copy, 0)
    }
    fn cuMemcpyHtoAAsync_v2(dst: CUarray, offset: usize, src: u64, bytes: usize, stream: CUstream) twin cuMemcpyHtoAAsync_v2_ptsz null {} |call| {
        copy_later(call, Copy::row(call.array_endpoint(dst, offset)?, call.endpoint(src), bytes as u64), stream)
    }
    fn cuMemcpyAtoHAsync_v2(dst: u64, src: CUarray, offset: usize, bytes: usize, stream: CUstream) twin cuMemcpyAtoHAsync_v2_ptsz null {} |call| {
        copy_later(call, Copy::row(call.endpoint(dst), call.array_endpoint(src, offset)?, bytes as u64), stream)
    }

    fn cuMemcpy2D_v2(copy: In<CUDA_MEMCPY2D>) twin cuMemcpy2D_v2_ptds null {} |call| { copy_now(call, &call.copy_2d(&copy.get()?)?) }
    fn cuMemcpy2DUnaligned_v2(copy: In<CUDA_MEMCPY2D>) twin cuMemcpy2DUnaligned_v2_ptds null {} |call| {
        copy_now(call, &call.copy_2d(&copy.get()?)?)
    }
    fn cuMemcpy2DAsync_v2(copy: In<CUDA_MEMCPY2D>, stream: CUstream) twin cuMemcpy2DAsync_v2_ptsz null {} |call| {
        copy_later(call, call.copy_2d(&copy.get()?)?, stream)
    }
    fn cuMemcpy3D_v2(copy: In<CUDA_MEMCPY3D>) twin cuMemcpy3D_v2_ptds null {} |call| {
        copy_now(call, &call.copy_3d(&copy.get()?)?)
    }
    fn cuMemcpy3DAsync_v2(copy: In<CUDA_MEMCPY3D>, stream: CUstream) twin cuMemcpy3DAsync_v2_ptsz null {} |call| {
        copy_later(call, call.copy_3d(&copy.get()?)?, stream)
    }
    fn cuMemcpy3DPeer(copy: In<CUDA_MEMCPY3D>) twin cuMemcpy3DPeer_ptds null {} |call| {
        copy_now(call, &call.copy_3d(&copy.get()?)?)
    }
    fn cuMemcpy3DPeerAsync(copy: In<CUDA_MEMCPY3D>, stream: CUstream) twin cuMemcpy3DPeerAsync_ptsz null {} |call| {
        copy_later(call, call.copy_3d(&copy.get()?)?, stream)
    }
}

pub(crate) fn fill(call: Call, fill: Fill, stream: CUstream) -> CUresult {
    let stream = call.stream(stream)?;
    fill.check(call.process.space)?;
    call.enqueue(&stream, Op::Fill(fill))
}

pub(crate) fn line(address: u64, value: u32, value_size: u64, width: usize) -> Fill {
    Fill {
        address,
        pitch: 0,
        value,
        value_size,
        width: width as u64,
        height: 1,
    }
}

pub(crate) fn area(
    address: u64,
    pitch: usize,
    value: u32,
    value_size: u64,
    width: usize,
    height: usize,
) -> Fill {
    Fill {
        address,
        pitch: pitch as u64,
        value,
        value_size,
        width: width as u64,
        height: height as u64,
    }
}

driver! {
    fn cuMemsetD8_v2(at: CUdeviceptr, value: u8, count: usize) twin cuMemsetD8_v2_ptds null {} |call| {
        fill(call, line(at, u32::from(value), 1, count), 0)
    }
    fn cuMemsetD16_v2(at: CUdeviceptr, value: u16, count: usize) twin cuMemsetD16_v2_ptds null {} |call| {
        fill(call, line(at, u32::from(value), 2, count), 0)
    }
    fn cuMemsetD32_v2(at: CUdeviceptr, value: u32, count: usize) twin cuMemsetD32_v2_ptds null {} |call| {
        fill(call, line(at, value, 4, count), 0)
    }
    fn cuMemsetD8Async(at: CUdeviceptr, value: u8, count: usize, stream: CUstream) twin cuMemsetD8Async_ptsz null {} |call| {
        fill(call, line(at, u32::from(value), 1, count), stream)
    }
    fn cuMemsetD16Async(at: CUdeviceptr, value: u16, count: usize, stream: CUstream) twin cuMemsetD16Async_ptsz null {} |call| {
        fill(call, line(at, u32::from(value), 2, count), stream)
    }
    fn cuMemsetD32Async(at: CUdeviceptr, value: u32, count: usize, stream: CUstream) twin cuMemsetD32Async_ptsz null {} |call| {
        fill(call, line(at, value, 4, count), stream)
    }
    fn cuMemsetD2D8_v2(at: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize) twin cuMemsetD2D8_v2_ptds null {} |call| {
        fill(call, area(at, pitch, u32::from(value), 1, width, height), 0)
    }
    fn cuMemsetD2D16_v2(at: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize) twin cuMemsetD2D16_v2_ptds null {} |call| {
        fill(call, area(at, pitch, u32::from(value), 2, width, height), 0)
    }
    fn cuMemsetD2D32_v2(at: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize) twin cuMemsetD2D32_v2_ptds null {} |call| {
        fill(call, area(at, pitch, value, 4, width, height), 0)
    }
    fn cuMemsetD2D8Async(at: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) twin cuMemsetD2D8Async_ptsz null {} |call| {
        fill(call, area(at, pitch, u32::from(value), 1, width, height), stream)
    }
    fn cuMemsetD2D16Async(at: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream) twin cuMemsetD2D16Async_ptsz null {} |call| {
        fill(call, area(at, pitch, u32::from(value), 2, width, height), stream)
    }
    fn cuMemsetD2D32Async(at: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream) twin cuMemsetD2D32Async_ptsz null {} |call| {
        fill(call, area(at, pitch, value, 4, width, height), stream)
    }
}
