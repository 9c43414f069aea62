//! Executes a step in both programs and updates the models.

use proptest::prelude::*;

use super::super::model::{Object, Way};
use super::super::step::{FREEING, NOWHERE, Step};
use super::super::{GROWTH, PLACE, PLACES, POOLS, VARIABLES};
use super::Twins;

/// Returns the bytes that the simulated driver uses for an array of rows of `width` bytes.
fn array_bytes(width: u64, rows: u64) -> u64 {
    let bytes = width.next_multiple_of(32) * rows.max(1);
    bytes.next_multiple_of(64 << 10)
}

/// Returns the bytes of a square mipmapped array with two 16-bit channels and `levels` levels.
fn mipmapped_bytes(width: u64, levels: u32) -> u64 {
    let widths = (0..levels).map(|level| (width >> level).max(1));
    widths.map(|width| array_bytes(4 * width, width)).sum()
}

impl Twins<'_> {
    pub(in super::super) fn go(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Linear(bytes) => {
                self.allocate(Way::Linear, bytes, bytes, |v| {
                    format!("cuMemAlloc_v2 &v{v} {bytes}")
                })?;
            }
            Step::Managed(bytes) => {
                self.allocate(Way::Managed, bytes, bytes, |v| {
                    format!("cuMemAllocManaged &v{v} {bytes} 1")
                })?;
            }
            Step::Pitched(width, rows) => {
                // The driver's padding is charged, but is not known in advance.
                let least = width.saturating_add(511).saturating_mul(rows);
                let made = self.allocate(Way::Linear, 0, least, |v| {
                    format!("cuMemAllocPitch_v2 &v{v} &pitch {width} {rows} 4")
                })?;
                if made.is_some() {
                    let pitch = self.governed.get("pitch");
                    if let Some(last) = self.model.blocks.last_mut() {
                        last.bytes = pitch * rows;
                    }
                }
            }
            Step::FromPool { pool, bytes, stream } => {
                let (pool, stream) = (pool % POOLS, stream % 3);
                let stream = if stream == 0 {
                    "0".to_owned()
                } else {
                    format!("$stream{stream}")
                };
                if !self.has_pool[pool] {
                    return Ok(());
                }
                let least = bytes.saturating_add(GROWTH);
                self.allocate(Way::Pool(pool), bytes, least, |v| match pool {
                    0 => format!("cuMemAllocAsync &v{v} {bytes} {stream}"),
                    _ => format!("cuMemAllocFromPoolAsync &v{v} {bytes} $pool{pool} {stream}"),
                })?;
            }
            Step::CreatePool(pool) => {
                let pool = 1 + pool % (POOLS - 1);
                if !self.has_pool[pool] && self.both(&format!("cuMemPoolCreate &pool{pool} &props"), None)? {
                    self.has_pool[pool] = true;
                }
            }
            Step::DestroyPool(pool) => {
                let pool = pool % POOLS;
                if self.has_pool[pool] && self.both(&format!("cuMemPoolDestroy $pool{pool}"), None)? {
                    self.has_pool[pool] = false;
                    self.model.pool_gone(pool);
                }
            }
            Step::Trim(pool, keep) => {
                let pool = pool % POOLS;
                if self.has_pool[pool] {
                    self.both(&format!("cuMemPoolTrimTo $pool{pool} {keep}"), None)?;
                }
            }
            Step::Threshold(pool, bytes) => {
                let pool = pool % POOLS;
                self.put("threshold", &[(0, 8, bytes)]);
                if self.has_pool[pool] {
                    self.both(&format!("cuMemPoolSetAttribute $pool{pool} 4 &threshold"), None)?;
                }
            }
            Step::Physical(bytes) => {
                let Some(v) = self.model.free_variable(VARIABLES) else {
                    return Ok(());
                };
                let call = format!("cuMemCreate &v{v} {bytes} &props 0");
                if self.both(&call, Some(bytes))? {
                    let (handles, mapped) = (vec![v], Vec::new());
                    self.model.objects.push(Object {
                        bytes,
                        handles,
                        mapped,
                    });
                }
            }
            Step::Map(number, place) => {
                let with_handle = |object: &&Object| !object.handles.is_empty();
                let count = self.model.objects.iter().filter(with_handle).count();
                if count == 0 {
                    return Ok(());
                }
                let place = place % PLACES;
                let object = self.model.objects.iter().filter(with_handle).nth(number % count);
                let (bytes, v) = object
                    .map(|object| (object.bytes, object.handles[0]))
                    .unwrap_or_default();
                let answer = self.at(place, |address| format!("cuMemMap {address} {bytes} 0 $v{v} 0"))?;
                let object = self
                    .model
                    .objects
                    .iter_mut()
                    .find(|object| object.handles.contains(&v));
                if let (true, Some(object)) = (answer, object) {
                    object.mapped.push(place);
                }
            }
            Step::Unmap(place, count) => {
                let place = place % PLACES;
                let count = count.min(PLACES - place);
                let there = |object: &Object| object.mapped.contains(&place);
                let one = self
                    .model
                    .objects
                    .iter()
                    .find(|object| there(object))
                    .map(|object| object.bytes);
                // Either one mapping as it was made, or everything at several consecutive addresses.
                let bytes = if count == 1 {
                    one.unwrap_or(PLACE)
                } else {
                    PLACE * count as u64
                };
                if self.at(place, |address| format!("cuMemUnmap {address} {bytes}"))? {
                    for object in &mut self.model.objects {
                        object.mapped.retain(|at| !(place..place + count).contains(at));
                    }
                    self.model.sweep();
                }
            }
            Step::Retain(place) => {
                let Some(v) = self.model.free_variable(VARIABLES) else {
                    return Ok(());
                };
                let place = place % PLACES;
                let answer = self.at(place, |address| {
                    format!("cuMemRetainAllocationHandle &v{v} {address}")
                })?;
                let object = self
                    .model
                    .objects
                    .iter_mut()
                    .find(|object| object.mapped.contains(&place));
                prop_assert_eq!(answer, object.is_some());
                if let Some(object) = object {
                    object.handles.push(v);
                }
            }
            Step::Release(number) => {
                let handles = self
                    .model
                    .objects
                    .iter()
                    .flat_map(|object| object.handles.iter().copied());
                let handles: Vec<usize> = handles.collect();
                if handles.is_empty() {
                    return Ok(());
                }
                let v = handles[number % handles.len()];
                if self.both(&format!("cuMemRelease $v{v}"), None)? {
                    for object in &mut self.model.objects {
                        object.handles.retain(|other| *other != v);
                    }
                    self.model.sweep();
                }
            }
            Step::Array(width, height) => {
                self.put("flat", &[(0, 8, width), (8, 8, height), (16, 4, 1), (20, 4, 1)]);
                self.array(Way::Array, array_bytes(width, height), |v| {
                    format!("cuArrayCreate_v2 &v{v} &flat")
                })?;
            }
            Step::Array3d(width, height, depth) => {
                let words = [
                    (0, 8, width),
                    (8, 8, height),
                    (16, 8, depth),
                    (24, 4, 0x20),
                    (28, 4, 4),
                    (32, 4, 0),
                ];
                self.put("deep", &words);
                self.array(
                    Way::Array,
                    array_bytes(16 * width, height.max(1) * depth.max(1)),
                    |v| format!("cuArray3DCreate_v2 &v{v} &deep"),
                )?;
            }
            Step::Mipmapped(width, levels) => {
                let words = [
                    (0, 8, width),
                    (8, 8, width),
                    (16, 8, 0),
                    (24, 4, 2),
                    (28, 4, 2),
                    (32, 4, 0),
                ];
                self.put("deep", &words);
                self.array(Way::Mipmapped, mipmapped_bytes(width, levels), |v| {
                    format!("cuMipmappedArrayCreate &v{v} &deep {levels}")
                })?;
            }
            Step::Host(bytes) => {
                self.allocate(Way::Host, bytes, u64::MAX, |v| {
                    format!("cuMemHostAlloc &v{v} {bytes} 0")
                })?;
            }
            Step::Register(bytes) => {
                let bytes = 1 + bytes as u64 % 512;
                self.allocate(Way::Registered, bytes, u64::MAX, |v| {
                    format!("cuMemHostRegister_v2 &v{v} {bytes} 0")
                })?;
            }
            Step::Free(number) => self.free(number, Self::freeing)?,
            Step::FreeTwice(number) => {
                let count = self.model.blocks.len();
                if count != 0 {
                    let call = Self::freeing(self.model.blocks[number % count]);
                    self.free(number, Self::freeing)?;
                    self.both(&call, None)?;
                }
            }
            Step::FreeWrongly(number, how) => {
                self.free(number, |block| {
                    let sigil = if block.way == Way::Registered { '&' } else { '$' };
                    FREEING[how % FREEING.len()].replace("{}", &format!("{sigil}v{}", block.variable))
                })?;
                // Memory freed on a stream, outside pools, stays charged until a thread waits for the stream.
                self.both("cuStreamSynchronize 0", None)?;
            }
            Step::FreeUnknown(address, how) => {
                let call = FREEING[how % FREEING.len()].replace("{}", &address.to_string());
                self.both(&call, None)?;
            }
            Step::Nowhere(which) => {
                let words = [(0, 8, 64), (8, 8, 64), (16, 4, 1), (20, 4, 1)];
                self.put("flat", &words);
                self.both(NOWHERE[which % NOWHERE.len()], Some(GROWTH))?;
            }
            Step::Synchronize(which) => {
                let call = [
                    "cuCtxSynchronize",
                    "cuStreamSynchronize 0",
                    "cuStreamSynchronize $stream1",
                ];
                self.both(call[which % 3], None)?;
                self.is_loose &= which % 3 != 0;
            }
            Step::SecondContext => {
                // It takes nothing, and is refused while a limit is exceeded.
                if !self.has_second && self.both("cuCtxCreate_v2 &second 0 0", Some(0))? {
                    (self.has_second, self.in_second) = (true, true);
                }
            }
            Step::OtherContext => {
                let to_second = self.has_second && !self.in_second;
                let name = if to_second { "second" } else { "context" };
                self.both(&format!("cuCtxSetCurrent ${name}"), None)?;
                self.in_second = to_second;
            }
            Step::DestroySecondContext => {
                if self.has_second {
                    self.both("cuCtxDestroy_v2 $second", None)?;
                    self.both("cuCtxSetCurrent $context", None)?;
                    (self.has_second, self.in_second) = (false, false);
                    self.model.second_context_gone();
                }
            }
            Step::Limit(limit) => {
                let current = self.dir.number("memory.current");
                let text = limit.map_or("max".to_owned(), |limit| limit.to_string());
                self.dir.write("memory.limit", text);
                self.dir.write("memory.peak", 0);
                self.limit = limit;
                self.was_loose = self.is_loose;
                self.most_growth = 0;
                self.most = limit.map_or(u64::MAX, |limit| limit.max(current));
            }
        }
        Ok(())
    }
}
