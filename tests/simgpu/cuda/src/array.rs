//! Arrays and mipmapped arrays.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use simgpu::memory::Kind;

use crate::abi::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUcontext,
    CUdevice, CUerror, CUmipmappedArray, CUresult, In, Out,
};
use crate::call::{Call, driver};
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::memory;
use crate::process::Process;

/// Rows begin at multiples of this, arrays are multiples of that: a simple stand-in for tiling.
const ROW: usize = 32;
const WHOLE: usize = 64 << 10;

const LAYERED: u32 = 1;
const CUBEMAP: u32 = 4;
const SPARSE: u32 = 0x40;
const DEFERRED_MAPPING: u32 = 0x80;

/// An array, or a level of a mipmapped array.
pub(crate) struct Array {
    process: &'static Process,
    pub(crate) context: CUcontext,
    pub(crate) descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    /// Where its bytes are; `None` until memory is mapped.
    base: Option<u64>,
    /// Whether its memory goes with it: not so for a level.
    owns: AtomicBool,
}

/// A mipmapped array.
pub(crate) struct Mipmap {
    levels: Vec<CUarray>,
    pub(crate) context: CUcontext,
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    process: &'static Process,
    base: Option<u64>,
}

impl Array {
    pub(crate) fn base(&self) -> Result<u64, CUerror> {
        self.base.ok_or(INVALID_HANDLE)
    }

    /// Bytes from one row to the next.
    pub(crate) fn pitch(&self) -> u64 {
        pitch(&self.descriptor).unwrap_or(0) as u64
    }

    /// Whether a box of bytes, rows and layers that begins at a place in bytes, rows and layers is all in it.
    pub(crate) fn contains(&self, at: [usize; 3], extent: [usize; 3]) -> bool {
        let row = element(&self.descriptor).unwrap_or(0) * self.descriptor.width;
        let size = [row, self.descriptor.height.max(1), self.descriptor.depth.max(1)];
        (0..3).all(|i| at[i].checked_add(extent[i]).is_some_and(|end| end <= size[i]))
    }

    /// Bytes from one layer to the next.
    pub(crate) fn layer(&self) -> u64 {
        self.pitch() * self.descriptor.height.max(1) as u64
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if let (Some(base), true) = (self.base, self.owns.load(Relaxed)) {
            memory::free_block(self.process, base, |block| block.kind == Kind::Array);
        }
    }
}

impl Drop for Mipmap {
    fn drop(&mut self) {
        for level in &self.levels {
            let _ = self.process.arrays.remove(*level, INVALID_HANDLE);
        }
        if let Some(base) = self.base {
            memory::free_block(self.process, base, |block| block.kind == Kind::Array);
        }
    }
}

/// Bytes of one element, by `CUarray_format` and channels.
fn element(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Option<usize> {
    let channel = match descriptor.format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return None,
    };
    let channels = usize::try_from(descriptor.num_channels).ok()?;
    matches!(channels, 1 | 2 | 4).then_some(channel * channels)
}

fn pitch(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Option<usize> {
    element(descriptor)?
        .checked_mul(descriptor.width)?
        .checked_next_multiple_of(ROW)
}

/// Bytes an array takes on the device.
fn size(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Option<usize> {
    let rows = descriptor.height.max(1).checked_mul(descriptor.depth.max(1))?;
    pitch(descriptor)?
        .checked_mul(rows)?
        .checked_next_multiple_of(WHOLE)
}

fn check(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> CUresult {
    if descriptor.flags & SPARSE != 0 {
        return Err(NOT_SUPPORTED);
    }
    let is_flat = descriptor.height > 0 || descriptor.depth == 0 || descriptor.flags & LAYERED != 0;
    let is_cube = descriptor.flags & CUBEMAP == 0 || descriptor.depth.is_multiple_of(6);
    let sound = descriptor.width > 0 && is_flat && is_cube && element(descriptor).is_some();
    sound.then_some(()).ok_or(INVALID_VALUE)
}

pub(crate) fn create(call: Call, out: Out<CUarray>, descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> CUresult {
    let context = call.context()?;
    check(&descriptor)?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let bytes = size(&descriptor).ok_or(OUT_OF_MEMORY)?;
    let base = match descriptor.flags & DEFERRED_MAPPING {
        0 => Some(memory::allocate(call, &context, Kind::Array, bytes)?),
        _ => None,
    };
    let owns = AtomicBool::new(true);
    out.set(call.process.arrays.insert(Array {
        process: call.process,
        context: context.handle,
        descriptor,
        base,
        owns,
    }))
}

fn of_two_dimensions(descriptor: &CUDA_ARRAY_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    let CUDA_ARRAY_DESCRIPTOR {
        width,
        height,
        format,
        num_channels,
    } = *descriptor;
    CUDA_ARRAY3D_DESCRIPTOR {
        width,
        height,
        depth: 0,
        format,
        num_channels,
        flags: 0,
    }
}

/// What the levels of a mipmapped array are.
fn levels(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, count: u32) -> Vec<CUDA_ARRAY3D_DESCRIPTOR> {
    let half = |size: usize, level: u32| if size == 0 { 0 } else { (size >> level).max(1) };
    let depth = |level| {
        if descriptor.flags & LAYERED != 0 {
            descriptor.depth
        } else {
            half(descriptor.depth, level)
        }
    };
    let level = |level| CUDA_ARRAY3D_DESCRIPTOR {
        width: half(descriptor.width, level),
        height: half(descriptor.height, level),
        depth: depth(level),
        ..*descriptor
    };
    (0..count).map(level).collect()
}

fn mipmap_size(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, count: u32) -> Option<usize> {
    levels(descriptor, count)
        .iter()
        .map(size)
        .try_fold(0_usize, |sum, size| sum.checked_add(size?))
}

fn create_mipmap(
    call: Call,
    out: Out<CUmipmappedArray>,
    descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>,
    count: u32,
) -> CUresult {
    let context = call.context()?;
    let descriptor = descriptor.get()?;
    check(&descriptor)?;
    let largest = descriptor.width.max(descriptor.height).max(descriptor.depth);
    if out.is_null() || count == 0 || count > largest.ilog2() + 1 {
        return Err(INVALID_VALUE);
    }
    let bytes = mipmap_size(&descriptor, count).ok_or(OUT_OF_MEMORY)?;
    let base = match descriptor.flags & DEFERRED_MAPPING {
        0 => Some(memory::allocate(call, &context, Kind::Array, bytes)?),
        _ => None,
    };
    let mut at = base;
    let mut handles = Vec::new();
    for descriptor in levels(&descriptor, count) {
        let owns = AtomicBool::new(false);
        handles.push(call.process.arrays.insert(Array {
            process: call.process,
            context: context.handle,
            descriptor,
            base: at,
            owns,
        }));
        at = at.map(|at| at + size(&descriptor).unwrap_or(0) as u64);
    }
    out.set(call.process.mipmaps.insert(Mipmap {
        levels: handles,
        context: context.handle,
        descriptor,
        process: call.process,
        base,
    }))
}

/// As the driver documents it: only for arrays whose memory is mapped later.
fn requirements(
    out: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    descriptor: &CUDA_ARRAY3D_DESCRIPTOR,
    size: Option<usize>,
) -> CUresult {
    if descriptor.flags & DEFERRED_MAPPING == 0 {
        return Err(INVALID_VALUE);
    }
    out.set(CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: size.ok_or(INVALID_VALUE)?,
        alignment: WHOLE,
        reserved: [0; 4],
    })
}

impl Call {
    pub(crate) fn array(&self, array: CUarray) -> Result<Arc<Array>, CUerror> {
        self.process.arrays.get(array, INVALID_HANDLE)
    }
}

driver! {
    fn cuArrayCreate_v2(array: Out<CUarray>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>) |call| {
        create(call, array, of_two_dimensions(&descriptor.get()?))
    }
    fn cuArray3DCreate_v2(array: Out<CUarray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>) |call| {
        create(call, array, descriptor.get()?)
    }
    fn cuArrayGetDescriptor_v2(descriptor: Out<CUDA_ARRAY_DESCRIPTOR>, array: CUarray) |call| {
        let CUDA_ARRAY3D_DESCRIPTOR { width, height, format, num_channels, .. } = call.array(array)?.descriptor;
        descriptor.set(CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels })
    }
    fn cuArray3DGetDescriptor_v2(descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>, array: CUarray) |call| {
        descriptor.set(call.array(array)?.descriptor)
    }
    fn cuArrayDestroy(array: CUarray) |call| {
        if !call.array(array)?.owns.load(Relaxed) {
            return Err(INVALID_HANDLE);
        }
        call.process.arrays.remove(array, INVALID_HANDLE).map(|_| ())
    }
    fn cuArrayGetMemoryRequirements(out: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>, array: CUarray, device: CUdevice) |call| {
        call.process.device(device)?;
        let array = call.array(array)?;
        requirements(out, &array.descriptor, size(&array.descriptor))
    }
    fn cuMipmappedArrayCreate(mipmap: Out<CUmipmappedArray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>, levels: u32) |call| {
        create_mipmap(call, mipmap, descriptor, levels)
    }
    fn cuMipmappedArrayGetLevel(array: Out<CUarray>, mipmap: CUmipmappedArray, level: u32) |call| {
        let mipmap = call.process.mipmaps.get(mipmap, INVALID_HANDLE)?;
        let level = usize::try_from(level).ok().and_then(|level| mipmap.levels.get(level)).ok_or(INVALID_VALUE)?;
        array.set(*level)
    }
    fn cuMipmappedArrayDestroy(mipmap: CUmipmappedArray) |call| {
        call.process.mipmaps.remove(mipmap, INVALID_HANDLE).map(|_| ())
    }
    fn cuMipmappedArrayGetMemoryRequirements(
        out: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>, mipmap: CUmipmappedArray, device: CUdevice,
    ) |call| {
        call.process.device(device)?;
        let mipmap = call.process.mipmaps.get(mipmap, INVALID_HANDLE)?;
        let count = u32::try_from(mipmap.levels.len()).map_err(|_| INVALID_VALUE)?;
        requirements(out, &mipmap.descriptor, mipmap_size(&mipmap.descriptor, count))
    }
}
