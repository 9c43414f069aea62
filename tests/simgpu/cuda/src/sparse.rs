//! Arrays whose memory is mapped later: sparse arrays tile by tile, arrays with deferred mapping as a whole.
//!
//! A mapping holds its physical memory. The bytes of a tile are stored with the array, not in the tile pool:
//! two arrays never share bytes, and a tile is zero when it is mapped.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use simgpu::Work;

use crate::abi::{
    CUarray, CUerror, CUmemGenericAllocationHandle, CUmipmappedArray, CUresult, CUstream, In, Out,
};
use crate::array::{Array, Mipmap, WHOLE};
use crate::bytes::Fill;
use crate::call::{Call, driver};
use crate::capture;
use crate::error::{INVALID_HANDLE, INVALID_VALUE};
use crate::physical::{self, Handle};
use crate::process::Process;

/// Bytes of a tile.
const TILE: u64 = WHOLE as u64;

/// `CUarrayMapInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MapInfo {
    resource_type: u32,
    resource: usize,
    subresource_type: u32,
    /// Level, layer, offset and extent in elements; for a mip tail: layer, offset and size in bytes.
    subresource: Subresource,
    operation: u32,
    handle_type: u32,
    handle: CUmemGenericAllocationHandle,
    offset: u64,
    device_mask: u32,
    flags: u32,
    reserved: [u32; 2],
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Subresource {
    level: u32,
    layer: u32,
    at: [u32; 3],
    extent: [u32; 3],
}

/// `CUDA_ARRAY_SPARSE_PROPERTIES`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    tile: [u32; 3],
    tail_first_level: u32,
    tail_size: u64,
    flags: u32,
    reserved: [u32; 4],
}

const _: () = assert!(size_of::<MapInfo>() == 96 && size_of::<Properties>() == 48);

const OF_ARRAY: u32 = 0;
const OF_MIPMAP: u32 = 1;
const SPARSE_LEVEL: u32 = 0;
const MIP_TAIL: u32 = 1;
const MAP: u32 = 1;
const UNMAP: u32 = 2;
const SINGLE_TAIL: u32 = 1;

/// Mapped tiles, by level, layer and position of the first element; the mip tail has a level number above all
/// others.
#[derive(Default)]
pub(crate) struct Tiles(Mutex<BTreeMap<TileKey, Held>>);

type TileKey = (u32, u32, [u32; 3]);
const TAIL: u32 = u32::MAX;

/// Reference to physical memory by a mapping.
pub(crate) struct Held {
    process: &'static Process,
    number: usize,
    handle: Arc<Handle>,
}

impl Held {
    pub(crate) fn new(process: &'static Process, number: usize, handle: Arc<Handle>) -> Held {
        handle.count_map(1);
        Held {
            process,
            number,
            handle,
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.handle.count_map(-1);
        physical::let_go(self.process, self.number, &self.handle);
    }
}

/// Returns a tile's extent in elements, for elements of `element` bytes.
fn tile(element: usize, is_solid: bool) -> Option<[u32; 3]> {
    Some(match (element, is_solid) {
        (1, false) => [256, 256, 1],
        (2, false) => [256, 128, 1],
        (4, false) => [128, 128, 1],
        (8, false) => [128, 64, 1],
        (16, false) => [64, 64, 1],
        (1, true) => [64, 32, 32],
        (2, true) => [32, 32, 32],
        (4, true) => [32, 32, 16],
        (8, true) => [32, 16, 16],
        (16, true) => [16, 16, 16],
        _ => return None,
    })
}

impl Array {
    fn tile(&self) -> Option<[u32; 3]> {
        tile(self.element(), self.is_solid())
    }
}

/// A checked map or unmap operation.
enum Change {
    /// An array with deferred mapping, as a whole.
    Whole(Arc<Array>, Option<(Held, u64)>),
    /// Tiles of a sparse array: the array, the owner of the tiles (the array or its mipmapped array), and
    /// their positions.
    Tiles(Option<Arc<Array>>, Arc<Tiles>, Vec<TileKey>, Option<Memory>),
}

/// A handle to which tiles are mapped.
type Memory = (&'static Process, usize, Arc<Handle>);

/// Checks one operation for a stream of a context on a device.
fn check(call: Call, info: &MapInfo, stream: CUstream) -> Result<Change, CUerror> {
    let device = call.context_of(call.stream(stream)?.context)?;
    let one_bit = u32::try_from(device.device)
        .ok()
        .and_then(|ordinal| 1_u32.checked_shl(ordinal));
    if Some(info.device_mask) != one_bit || info.flags != 0 || info.reserved != [0; 2] {
        return Err(INVALID_VALUE);
    }
    let memory = match info.operation {
        MAP if info.handle_type == 0 => {
            let handle = call.handle(info.handle)?;
            if handle.device() != device.index {
                return Err(INVALID_VALUE);
            }
            let number = usize::try_from(info.handle).map_err(|_| INVALID_VALUE)?;
            Some((call.process, number, handle))
        }
        UNMAP if info.handle == 0 => None,
        _ => return Err(INVALID_VALUE),
    };
    match info.resource_type {
        OF_ARRAY => {
            let array = call.array(info.resource).map_err(|_| INVALID_HANDLE)?;
            if array.is_deferred() {
                let fits = |handle: &Handle| {
                    let end = info.offset.checked_add(array.bytes());
                    info.offset.is_multiple_of(TILE) && end.is_some_and(|end| end <= handle.physical.size())
                };
                if memory.as_ref().is_some_and(|(.., handle)| !fits(handle)) {
                    return Err(INVALID_VALUE);
                }
                let held = memory.map(|(process, number, handle)| Held::new(process, number, handle));
                return Ok(Change::Whole(array, held.map(|held| (held, info.offset))));
            }
            let tiles = array.tiles().ok_or(INVALID_VALUE)?;
            of_level(info, &array, 0, tiles, memory)
        }
        OF_MIPMAP => {
            let mipmap = call.process.mipmaps.get(info.resource, INVALID_HANDLE)?;
            let tiles = mipmap.tiles.clone().ok_or(INVALID_VALUE)?;
            if info.subresource_type == MIP_TAIL {
                // For a mip tail the subresource begins with its layer.
                let place = (TAIL, info.subresource.level, [0; 3]);
                check_memory(memory.as_ref(), info.offset, 1)?;
                return Ok(Change::Tiles(None, tiles, vec![place], memory));
            }
            let level = info.subresource.level;
            let array = usize::try_from(level)
                .ok()
                .and_then(|level| mipmap.levels.get(level));
            let array = call.array(*array.ok_or(INVALID_VALUE)?)?;
            of_level(info, &array, level, tiles, memory)
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Checks an operation on tiles of one level.
fn of_level(
    info: &MapInfo,
    array: &Arc<Array>,
    level: u32,
    tiles: Arc<Tiles>,
    memory: Option<Memory>,
) -> Result<Change, CUerror> {
    let Subresource {
        level: asked,
        layer,
        at,
        extent,
    } = info.subresource;
    let tile = array.tile().ok_or(INVALID_VALUE)?;
    let size = array.extent();
    let is_whole = (0..3).all(|i| {
        let end = at[i].checked_add(extent[i]);
        let ends_well = end.is_some_and(|end| end.is_multiple_of(tile[i]) || end == size[i]);
        at[i].is_multiple_of(tile[i]) && extent[i] > 0 && ends_well && end.is_some_and(|end| end <= size[i])
    });
    if info.subresource_type != SPARSE_LEVEL || asked != level || layer >= array.layers() || !is_whole {
        return Err(INVALID_VALUE);
    }
    let count = |i: usize| extent[i].div_ceil(tile[i]);
    let mut places = Vec::new();
    for z in 0..count(2) {
        for y in 0..count(1) {
            for x in 0..count(0) {
                let first = [at[0] + x * tile[0], at[1] + y * tile[1], at[2] + z * tile[2]];
                places.push((level, layer, first));
            }
        }
    }
    check_memory(memory.as_ref(), info.offset, places.len())?;
    Ok(Change::Tiles(Some(Arc::clone(array)), tiles, places, memory))
}

/// Checks that this many tiles fit into a tile pool from an offset on.
fn check_memory(memory: Option<&Memory>, offset: u64, tiles: usize) -> CUresult {
    let Some((.., handle)) = memory else {
        return Ok(());
    };
    let end = (tiles as u64)
        .checked_mul(TILE)
        .and_then(|bytes| offset.checked_add(bytes));
    let fits = end.is_some_and(|end| end <= handle.physical.size());
    (handle.is_tile_pool() && offset.is_multiple_of(TILE) && fits)
        .then_some(())
        .ok_or(INVALID_VALUE)
}

impl Change {
    /// Executes the operation in stream order.
    fn run(self, process: &'static Process) {
        match self {
            Change::Whole(array, memory) => array.place(memory),
            Change::Tiles(array, tiles, places, memory) => {
                for place in places {
                    if let Some(array) = &array {
                        array.wipe(process, place);
                    }
                    let held = memory
                        .as_ref()
                        .map(|(process, number, handle)| Held::new(process, *number, Arc::clone(handle)));
                    let mut tiles = tiles.0.lock();
                    let before = match held {
                        Some(held) => tiles.insert(place, held),
                        None => tiles.remove(&place),
                    };
                    drop(tiles);
                    drop(before);
                }
            }
        }
    }
}

impl Array {
    /// Zeroes a tile.
    fn wipe(&self, process: &Process, (_, layer, at): TileKey) {
        let (Some(tile), Ok(base)) = (self.tile(), self.base()) else {
            return;
        };
        let size = self.extent();
        let until = |i: usize| (at[i] + tile[i]).min(size[i]);
        let element = self.element() as u64;
        for z in at[2]..until(2) {
            // Layers and slices have the same layout.
            let slice = u64::from(z + layer) * self.layer();
            let _ = Fill {
                address: base + slice + u64::from(at[1]) * self.pitch() + u64::from(at[0]) * element,
                pitch: self.pitch(),
                value: 0,
                value_size: 1,
                width: u64::from(until(0) - at[0]) * element,
                height: u64::from(until(1) - at[1]),
            }
            .run(process.space);
        }
    }
}

fn map(call: Call, list: In<MapInfo>, count: u32, stream: CUstream) -> CUresult {
    let target = call.stream(stream)?;
    capture::check_wait(&target)?;
    let process = call.process;
    let list = list.list(usize::try_from(count).unwrap_or(0))?;
    let changes = list.iter().map(|info| check(call, info, stream));
    let changes = changes.collect::<Result<Vec<_>, _>>()?;
    let work = changes.into_iter().map(|change| {
        Work::Do(Box::new(move |_| {
            change.run(process);
        }))
    });
    target.engine.submit(target.id, work);
    Ok(())
}

fn of_array(out: Out<Properties>, array: &Array) -> CUresult {
    array.tiles().ok_or(INVALID_VALUE)?;
    out.set(Properties {
        tile: array.tile().ok_or(INVALID_VALUE)?,
        tail_first_level: 0,
        tail_size: 0,
        flags: 0,
        reserved: [0; 4],
    })
}

/// Returns the properties; the mip tail consists of the levels that are smaller than a tile in any direction.
fn of_mipmap(call: Call, out: Out<Properties>, mipmap: &Mipmap) -> CUresult {
    mipmap.tiles.as_ref().ok_or(INVALID_VALUE)?;
    let levels: Vec<_> = mipmap
        .levels
        .iter()
        .map(|level| call.array(*level))
        .collect::<Result<_, _>>()?;
    let tile = levels
        .first()
        .and_then(|level| level.tile())
        .ok_or(INVALID_VALUE)?;
    let is_small = |level: &Arc<Array>| (0..3).any(|i| level.extent()[i] < tile[i]);
    let first = levels.iter().position(is_small).unwrap_or(levels.len());
    let tail: u64 = levels[first..].iter().map(|level| level.bytes()).sum();
    out.set(Properties {
        tile,
        tail_first_level: u32::try_from(first).unwrap_or(u32::MAX),
        tail_size: tail.next_multiple_of(TILE),
        flags: SINGLE_TAIL,
        reserved: [0; 4],
    })
}

driver! {
    fn cuMemMapArrayAsync(list: In<MapInfo>, count: u32, stream: CUstream) twin cuMemMapArrayAsync_ptsz |call| {
        map(call, list, count, stream)
    }
    fn cuArrayGetSparseProperties(out: Out<Properties>, array: CUarray) |call| {
        of_array(out, &*call.array(array)?)
    }
    fn cuMipmappedArrayGetSparseProperties(out: Out<Properties>, mipmap: CUmipmappedArray) |call| {
        of_mipmap(call, out, &*call.process.mipmaps.get(mipmap, INVALID_HANDLE)?)
    }
}
