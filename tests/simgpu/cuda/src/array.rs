//! Arrays and mipmapped arrays.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use simgpu::memory::Kind;

use crate::abi::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUcontext,
    CUdevice, CUerror, CUmipmappedArray, CUresult, In, Out,
};
use crate::call::{Call, driver};
use crate::context::Context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY};
use crate::process::Process;
use crate::sparse::{Held, Tiles};
use crate::{memory, null};

/// Rows are aligned to `ROW` bytes, arrays to `WHOLE`: a simple substitute for tiling.
const ROW: usize = 32;
pub(crate) const WHOLE: usize = 64 << 10;

const LAYERED: u32 = 1;
const CUBEMAP: u32 = 4;
const SPARSE: u32 = 0x40;
const DEFERRED_MAPPING: u32 = 0x80;

/// An array, or a level of a mipmapped array.
pub(crate) struct Array {
    process: &'static Process,
    pub(crate) context: CUcontext,
    pub(crate) descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    base: Mutex<Base>,
    /// Mapped tiles of a sparse array.
    tiles: Option<Arc<Tiles>>,
    /// Whether it owns its memory; false for a level.
    owns: AtomicBool,
}

/// Location of an array's bytes.
enum Base {
    /// No memory yet.
    None,
    At(u64),
    /// At addresses of the array's own, backed by mapped memory.
    Mapped(u64, Held),
}

/// A mipmapped array.
pub(crate) struct Mipmap {
    pub(crate) levels: Vec<CUarray>,
    /// Mapped tiles of a sparse one, for all levels.
    pub(crate) tiles: Option<Arc<Tiles>>,
    pub(crate) context: CUcontext,
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    process: &'static Process,
    base: Option<u64>,
}

impl Array {
    pub(crate) fn base(&self) -> Result<u64, CUerror> {
        match &*self.base.lock() {
            Base::None => Err(INVALID_HANDLE),
            Base::At(at) | Base::Mapped(at, _) => Ok(*at),
        }
    }

    /// Returns whether its memory is mapped later, as a whole.
    pub(crate) fn is_deferred(&self) -> bool {
        self.descriptor.flags & DEFERRED_MAPPING != 0 && self.owns.load(Relaxed)
    }

    /// Returns its own tiles, if it is sparse and not a level.
    pub(crate) fn tiles(&self) -> Option<Arc<Tiles>> {
        self.tiles.clone()
    }

    /// Returns the bytes per element.
    pub(crate) fn element(&self) -> usize {
        element(&self.descriptor).unwrap_or(0)
    }

    /// Returns the size of the whole array in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        size(&self.descriptor).unwrap_or(0) as u64
    }

    /// Returns whether it is three-dimensional rather than layered.
    pub(crate) fn is_solid(&self) -> bool {
        self.descriptor.depth > 0 && self.descriptor.flags & LAYERED == 0
    }

    /// Returns the elements in each direction; depth 1 for a layered array.
    pub(crate) fn extent(&self) -> [u32; 3] {
        let depth = if self.is_solid() { self.descriptor.depth } else { 1 };
        [self.descriptor.width, self.descriptor.height.max(1), depth]
            .map(|size| u32::try_from(size).unwrap_or(u32::MAX))
    }

    /// Returns the number of layers.
    pub(crate) fn layers(&self) -> u32 {
        let layers = if self.is_solid() {
            1
        } else {
            self.descriptor.depth.max(1)
        };
        u32::try_from(layers).unwrap_or(u32::MAX)
    }

    /// Maps memory for the whole array, from an offset in the memory on, or unmaps it.
    pub(crate) fn place(&self, memory: Option<(Held, u64)>) {
        let space = self.process.space;
        let bytes = self.bytes();
        let new = memory.and_then(|(held, offset)| {
            let at = space.take_linear(bytes)?;
            let handle = held.handle();
            let behind = (&handle.physical, offset);
            space.make_backed((at, bytes), Kind::Array, handle.device(), 0, behind);
            Some(Base::Mapped(at, held))
        });
        let old = std::mem::replace(&mut *self.base.lock(), new.unwrap_or(Base::None));
        self.end(old);
    }

    fn end(&self, base: Base) {
        let space = self.process.space;
        match base {
            Base::At(at) if self.owns.load(Relaxed) => {
                memory::free_block(self.process, at, |block| block.kind == Kind::Array);
            }
            Base::Mapped(at, held) => {
                drop(space.remove(at, |block| block.kind == Kind::Array));
                space.give_linear(at, self.bytes());
                drop(held);
            }
            Base::None | Base::At(_) => (),
        }
    }

    /// Returns the bytes from one row to the next.
    pub(crate) fn pitch(&self) -> u64 {
        pitch(&self.descriptor).unwrap_or(0) as u64
    }

    /// Returns whether a box, with position and extent in bytes, rows and layers, lies within the array.
    pub(crate) fn contains(&self, at: [usize; 3], extent: [usize; 3]) -> bool {
        let row = element(&self.descriptor).unwrap_or(0) * self.descriptor.width;
        let size = [row, self.descriptor.height.max(1), self.descriptor.depth.max(1)];
        (0..3).all(|i| at[i].checked_add(extent[i]).is_some_and(|end| end <= size[i]))
    }

    /// Returns the bytes from one layer to the next.
    pub(crate) fn layer(&self) -> u64 {
        self.pitch() * self.descriptor.height.max(1) as u64
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        let base = std::mem::replace(self.base.get_mut(), Base::None);
        self.end(base);
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

/// Returns the bytes per element, by `CUarray_format` and channels.
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

/// Returns the size of an array on the device in bytes.
fn size(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Option<usize> {
    let rows = descriptor.height.max(1).checked_mul(descriptor.depth.max(1))?;
    pitch(descriptor)?
        .checked_mul(rows)?
        .checked_next_multiple_of(WHOLE)
}

fn check(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> CUresult {
    // As documented: two-dimensional, with layers or not, or three-dimensional; not together with deferred
    // mapping.
    let is_sparse = descriptor.flags & SPARSE != 0;
    if is_sparse && (descriptor.height == 0 || descriptor.flags & DEFERRED_MAPPING != 0) {
        return Err(INVALID_VALUE);
    }
    let is_flat = descriptor.height > 0 || descriptor.depth == 0 || descriptor.flags & LAYERED != 0;
    let is_cube = descriptor.flags & CUBEMAP == 0 || descriptor.depth.is_multiple_of(6);
    let sound = descriptor.width > 0 && is_flat && is_cube && element(descriptor).is_some();
    sound.then_some(()).ok_or(INVALID_VALUE)
}

/// Allocates memory for an array, unless it is mapped later; a sparse array gets only addresses.
fn reserve(call: Call, context: &Context, flags: u32, bytes: usize) -> Result<Option<u64>, CUerror> {
    if flags & DEFERRED_MAPPING != 0 {
        return Ok(None);
    }
    if flags & SPARSE == 0 {
        return memory::allocate(call, context, Kind::Array, bytes).map(Some);
    }
    let space = call.process.space;
    let made = space.make_device(bytes as u64, Kind::Array, context.index, context.owner(), 0);
    made.map(Some).ok_or(OUT_OF_MEMORY)
}

/// Creates the table of tiles for a sparse array.
fn tiles(flags: u32) -> Option<Arc<Tiles>> {
    (flags & SPARSE != 0).then(Arc::default)
}

fn at(base: Option<u64>) -> Mutex<Base> {
    Mutex::new(base.map_or(Base::None, Base::At))
}

pub(crate) fn create(call: Call, out: Out<CUarray>, descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> CUresult {
    let context = call.context()?;
    check(&descriptor)?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let bytes = size(&descriptor).ok_or(OUT_OF_MEMORY)?;
    let base = reserve(call, &context, descriptor.flags, bytes)?;
    let owns = AtomicBool::new(true);
    out.set(call.process.arrays.insert(Array {
        process: call.process,
        context: context.base().handle,
        descriptor,
        base: at(base),
        tiles: tiles(descriptor.flags),
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

/// Returns the descriptors of the levels of a mipmapped array.
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
    let base = reserve(call, &context, descriptor.flags, bytes)?;
    let mut next = base;
    let mut handles = Vec::new();
    for descriptor in levels(&descriptor, count) {
        let owns = AtomicBool::new(false);
        handles.push(call.process.arrays.insert(Array {
            process: call.process,
            context: context.base().handle,
            descriptor,
            base: at(next),
            tiles: None,
            owns,
        }));
        next = next.map(|at| at + size(&descriptor).unwrap_or(0) as u64);
    }
    out.set(call.process.mipmaps.insert(Mipmap {
        levels: handles,
        tiles: tiles(descriptor.flags),
        context: context.base().handle,
        descriptor,
        process: call.process,
        base,
    }))
}

/// Returns memory requirements; as documented, only for arrays whose memory is mapped later.
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
    fn cuArrayCreate_v2(array: Out<CUarray>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>) null { null::name(array) } |call| {
        create(call, array, of_two_dimensions(&descriptor.get()?))
    }
    fn cuArray3DCreate_v2(array: Out<CUarray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>) null { null::name(array) } |call| {
        create(call, array, descriptor.get()?)
    }
    fn cuArrayGetDescriptor_v2(descriptor: Out<CUDA_ARRAY_DESCRIPTOR>, array: CUarray) |call| {
        let CUDA_ARRAY3D_DESCRIPTOR { width, height, format, num_channels, .. } = call.array(array)?.descriptor;
        descriptor.set(CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels })
    }
    fn cuArray3DGetDescriptor_v2(descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>, array: CUarray) |call| {
        descriptor.set(call.array(array)?.descriptor)
    }
    fn cuArrayDestroy(array: CUarray) null {} |call| {
        if !call.array(array)?.owns.load(Relaxed) {
            return Err(INVALID_HANDLE);
        }
        call.process.arrays.remove(array, INVALID_HANDLE).map(|_| ())
    }
    fn cuArrayGetMemoryRequirements(out: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>, array: CUarray, device: CUdevice)
    null { null::requirements(out) } |call| {
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
