//! Batched three-dimensional copies, of memory and of arrays.

use crate::abi::{CUDA_MEMCPY3D, CUarray, CUerror, CUresult, CUstream, In, Out};
use crate::batch::check_stream;
use crate::bytes::Copy;
use crate::call::{Call, driver};
use crate::copy::copy_later;
use crate::error::{INVALID_HANDLE, INVALID_VALUE};

/// `CUmemcpy3DOperand`. For a pointer: address, row length and layer height in elements, and a hint; for an
/// array: the array and an offset in elements.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    kind: u32,
    words: [u64; 4],
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Op3d {
    src: Operand,
    dst: Operand,
    /// In elements.
    extent: [usize; 3],
    order: u32,
    flags: u32,
}

const _: () = assert!(size_of::<Op3d>() == 112);

const POINTER: u32 = 1;
const ARRAY: u32 = 2;

/// An operand in the form of the older structure: memory type, address, array, pitch, height and position.
struct Side {
    memory_type: u32,
    address: u64,
    array: CUarray,
    pitch: usize,
    height: usize,
    at: [usize; 3],
}

fn size(word: u64) -> Result<usize, CUerror> {
    usize::try_from(word).map_err(|_| INVALID_VALUE)
}

/// Returns the bytes per element of an array; `None` for a pointer.
fn element(call: Call, operand: Operand) -> Result<Option<usize>, CUerror> {
    if operand.kind != ARRAY {
        return Ok(None);
    }
    let array = call.process.arrays.get(size(operand.words[0])?, INVALID_HANDLE)?;
    Ok(Some(array.element()))
}

fn side(operand: Operand, element: usize, extent: [usize; 3]) -> Result<Side, CUerror> {
    const OF_ARRAY: u32 = 3;
    const UNIFIED: u32 = 4;
    let [first, a, b, c] = operand.words;
    match operand.kind {
        POINTER => {
            // Zero row length and layer height mean contiguous rows and layers.
            let or = |word, otherwise| Ok(if word == 0 { otherwise } else { size(word)? });
            let (row, height) = (or(a, extent[0])?, or(b, extent[1])?);
            if row < extent[0] || height < extent[1] {
                return Err(INVALID_VALUE);
            }
            Ok(Side {
                memory_type: UNIFIED,
                address: first,
                array: 0,
                pitch: row.checked_mul(element).ok_or(INVALID_VALUE)?,
                height,
                at: [0; 3],
            })
        }
        ARRAY => Ok(Side {
            memory_type: OF_ARRAY,
            address: 0,
            array: size(first)?,
            pitch: 0,
            height: 0,
            at: [
                size(a)?.checked_mul(element).ok_or(INVALID_VALUE)?,
                size(b)?,
                size(c)?,
            ],
        }),
        _ => Err(INVALID_VALUE),
    }
}

impl Op3d {
    /// Returns the copy, checked.
    fn copy(&self, call: Call) -> Result<Copy, CUerror> {
        const OVERLAP: u32 = 1;
        if self.extent.contains(&0) || !(1..=3).contains(&self.order) || self.flags > OVERLAP {
            return Err(INVALID_VALUE);
        }
        let element = match (element(call, self.src)?, element(call, self.dst)?) {
            (Some(one), Some(other)) if one != other => return Err(INVALID_VALUE),
            (Some(one), _) | (None, Some(one)) => one,
            (None, None) => 1,
        };
        let (src, dst) = (
            side(self.src, element, self.extent)?,
            side(self.dst, element, self.extent)?,
        );
        let copy = call.copy_3d(&CUDA_MEMCPY3D {
            src_x_in_bytes: src.at[0],
            src_y: src.at[1],
            src_z: src.at[2],
            src_memory_type: src.memory_type,
            src_device: src.address,
            src_array: src.array,
            src_pitch: src.pitch,
            src_height: src.height,
            dst_x_in_bytes: dst.at[0],
            dst_y: dst.at[1],
            dst_z: dst.at[2],
            dst_memory_type: dst.memory_type,
            dst_device: dst.address,
            dst_array: dst.array,
            dst_pitch: dst.pitch,
            dst_height: dst.height,
            width_in_bytes: self.extent[0].checked_mul(element).ok_or(INVALID_VALUE)?,
            height: self.extent[1],
            depth: self.extent[2],
            ..CUDA_MEMCPY3D::default()
        })?;
        copy.check(call.process.space)?;
        Ok(copy)
    }
}

/// Executes the copies of a batch, or none if one is invalid; then stores its index.
fn copy(
    call: Call,
    count: usize,
    list: In<Op3d>,
    failed: Option<Out<usize>>,
    flags: u64,
    stream: CUstream,
) -> CUresult {
    let fail = |index| {
        if let Some(failed) = failed {
            failed.set_if(index);
        }
    };
    fail(usize::MAX);
    if count == 0 || flags != 0 {
        return Err(INVALID_VALUE);
    }
    check_stream(call, stream)?;
    let mut copies = Vec::new();
    for (index, one) in list.list(count)?.iter().enumerate() {
        copies.push(one.copy(call).inspect_err(|_| fail(index))?);
    }
    copies
        .into_iter()
        .try_for_each(|copy| copy_later(call, copy, stream))
}

driver! {
    fn cuMemcpy3DBatchAsync(count: usize, list: In<Op3d>, failed: Out<usize>, flags: u64, stream: CUstream) twin cuMemcpy3DBatchAsync_ptsz null {} |call| {
        copy(call, count, list, Some(failed), flags, stream)
    }
    fn cuMemcpy3DBatchAsync_v2(count: usize, list: In<Op3d>, flags: u64, stream: CUstream) twin cuMemcpy3DBatchAsync_v2_ptsz null {} |call| {
        copy(call, count, list, None, flags, stream)
    }
    fn cuMemcpy3DWithAttributesAsync(op: In<Op3d>, flags: u64, stream: CUstream) twin cuMemcpy3DWithAttributesAsync_ptsz null {} |call| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        copy_later(call, op.get()?.copy(call)?, stream)
    }
}
