//! Batched copies.

use simgpu::StreamKind;

use crate::abi::{CUdeviceptr, CUerror, CUmemLocation, CUresult, CUstream, In, Out};
use crate::call::{Call, driver};
use crate::copy::copy_later;
use crate::error::INVALID_VALUE;

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CopyAttributes {
    /// `CUmemcpySrcAccessOrder`: in stream order, during the call, or any.
    order: u32,
    src_hint: CUmemLocation,
    dst_hint: CUmemLocation,
    flags: u32,
}

const _: () = assert!(size_of::<CopyAttributes>() == 24);

/// Refuses the legacy stream, as the batch functions do.
pub(crate) fn check_stream(call: Call, stream: CUstream) -> CUresult {
    if call.stream(stream)?.kind == StreamKind::Legacy {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

/// Checks the start indices of sections in a batch: the first is 0, they ascend and lie within the batch.
pub(crate) fn check_indexes(indexes: &[usize], count: usize) -> CUresult {
    let is_sound = indexes.first() == Some(&0)
        && indexes.is_sorted_by(|one, next| one < next)
        && indexes.last().is_some_and(|&last| last < count);
    is_sound.then_some(()).ok_or(INVALID_VALUE)
}

/// Arguments of a batch of copies.
struct Batch {
    dsts: In<CUdeviceptr>,
    srcs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    attributes: In<CopyAttributes>,
    indexes: In<usize>,
    nr_attributes: usize,
}

/// Executes the copies of a batch, or none if one is invalid; then stores its index, if known.
fn copy(call: Call, batch: &Batch, failed: Out<usize>, stream: CUstream) -> CUresult {
    const NONE_IN_PARTICULAR: usize = usize::MAX;
    failed.set_if(NONE_IN_PARTICULAR);
    let count = batch.count;
    if count == 0 || batch.nr_attributes > count {
        return Err(INVALID_VALUE);
    }
    check_stream(call, stream)?;
    check_indexes(&batch.indexes.list(batch.nr_attributes)?, count)?;
    for attributes in batch.attributes.list(batch.nr_attributes)? {
        check_attributes(attributes)?;
    }
    let sides = batch.dsts.list(count)?.into_iter().zip(batch.srcs.list(count)?);
    let rows = sides.zip(batch.sizes.list(count)?);
    let copies: Vec<_> = rows
        .map(|((dst, src), bytes)| call.row(dst, src, bytes))
        .collect();
    for (index, copy) in copies.iter().enumerate() {
        if copy.bytes() == 0 || copy.check(call.process.space).is_err() {
            failed.set_if(index);
            return Err(INVALID_VALUE);
        }
    }
    copies
        .into_iter()
        .try_for_each(|copy| copy_later(call, copy, stream))
}

fn check_attributes(attributes: CopyAttributes) -> Result<(), CUerror> {
    const OVERLAP: u32 = 1;
    if !(1..=3).contains(&attributes.order) || attributes.flags > OVERLAP {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

/// Returns a null out-pointer.
fn nowhere<T>() -> Out<T> {
    crate::abi::Raw(std::ptr::null_mut()).as_out()
}

driver! {
    fn cuMemcpyBatchAsync(
        dsts: In<CUdeviceptr>, srcs: In<CUdeviceptr>, sizes: In<usize>, count: usize, attributes: In<CopyAttributes>,
        indexes: In<usize>, nr_attributes: usize, failed: Out<usize>, stream: CUstream,
    ) twin cuMemcpyBatchAsync_ptsz null {} |call| {
        copy(call, &Batch { dsts, srcs, sizes, count, attributes, indexes, nr_attributes }, failed, stream)
    }
    fn cuMemcpyBatchAsync_v2(
        dsts: In<CUdeviceptr>, srcs: In<CUdeviceptr>, sizes: In<usize>, count: usize, attributes: In<CopyAttributes>,
        indexes: In<usize>, nr_attributes: usize, stream: CUstream,
    ) twin cuMemcpyBatchAsync_v2_ptsz null {} |call| {
        copy(call, &Batch { dsts, srcs, sizes, count, attributes, indexes, nr_attributes }, nowhere(), stream)
    }
    fn cuMemcpyWithAttributesAsync(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, attributes: In<CopyAttributes>, stream: CUstream,
    ) twin cuMemcpyWithAttributesAsync_ptsz null {} |call| {
        check_attributes(attributes.get()?)?;
        copy_later(call, call.row(dst, src, bytes), stream)
    }
}
