//! Copies and fills: checked when they are submitted, executed in stream order.

use std::ptr;
use std::sync::Arc;

use simgpu::memory::{Chunk, HOST, Kind, Space};
use simgpu::{Quirk, Route};

use crate::abi::{CUDA_MEMCPY3D, CUresult};
use crate::error::{ILLEGAL_ADDRESS, INVALID_VALUE};
use crate::process::Process;

/// Source or destination of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    /// Memory of the program.
    Host(u64),
    /// An address of the unified address space.
    Space(u64),
    /// A copy of the program's memory, made at submission.
    Staged(Arc<[u8]>),
}

/// One side of a copy: distances `pitch` between rows and `layer` between layers, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) endpoint: Endpoint,
    pub(crate) pitch: u64,
    pub(crate) layer: u64,
}

/// A copy of `depth` layers of `height` rows of `width` bytes.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) dst: Side,
    pub(crate) src: Side,
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
}

/// A fill of rows with a value of one, two or four bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    pub(crate) value_size: u64,
    /// Values per row.
    pub(crate) width: u64,
    pub(crate) height: u64,
}

impl Copy {
    /// Returns the structure that describes the copy.
    pub(crate) fn described(&self) -> CUDA_MEMCPY3D {
        const HOST: u32 = 1;
        const DEVICE: u32 = 2;
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let [src, dst] = [&self.src, &self.dst].map(|side| match &side.endpoint {
            Endpoint::Space(address) => (DEVICE, 0, *address),
            Endpoint::Host(address) => (HOST, *address, 0),
            Endpoint::Staged(bytes) => (HOST, bytes.as_ptr() as u64, 0),
        });
        let rows = |side: &Side| size(side.layer.checked_div(side.pitch).unwrap_or(0));
        CUDA_MEMCPY3D {
            src_x_in_bytes: 0,
            src_y: 0,
            src_z: 0,
            src_lod: 0,
            src_memory_type: src.0,
            src_host: src.1,
            src_device: src.2,
            src_array: 0,
            src_context: 0,
            src_pitch: size(self.src.pitch),
            src_height: rows(&self.src),
            dst_x_in_bytes: 0,
            dst_y: 0,
            dst_z: 0,
            dst_lod: 0,
            dst_memory_type: dst.0,
            dst_host: dst.1,
            dst_device: dst.2,
            dst_array: 0,
            dst_context: 0,
            dst_pitch: size(self.dst.pitch),
            dst_height: rows(&self.dst),
            width_in_bytes: size(self.width),
            height: size(self.height),
            depth: size(self.depth),
        }
    }
}

impl Endpoint {
    /// Returns the place of an address, in the unified address space or the program's own memory.
    pub(crate) fn of(space: &Space, address: u64) -> Endpoint {
        if space.owns(address) {
            Endpoint::Space(address)
        } else {
            Endpoint::Host(address)
        }
    }

    fn is_on_host(&self, space: &Space) -> bool {
        match self {
            Endpoint::Host(_) | Endpoint::Staged(_) => true,
            Endpoint::Space(address) => space.find(*address).is_some_and(|block| block.is_on_host()),
        }
    }

    fn chunks(&self, space: &Space, offset: u64, length: u64) -> Option<Vec<Chunk>> {
        let whole = |address: u64| -> Option<Vec<Chunk>> {
            let bytes = address.checked_add(offset)? as *mut u8;
            Some(vec![Chunk {
                bytes,
                length: usize::try_from(length).ok()?,
            }])
        };
        match self {
            Endpoint::Host(address) => whole(*address),
            Endpoint::Staged(bytes) => whole(bytes.as_ptr() as u64),
            Endpoint::Space(address) => space.chunks(address.checked_add(offset)?, length),
        }
    }
}

impl Side {
    /// Returns a side of a copy with a single row.
    pub(crate) fn row(endpoint: Endpoint) -> Side {
        Side {
            endpoint,
            pitch: 0,
            layer: 0,
        }
    }
}

impl Copy {
    /// Returns a copy of `length` bytes in one row.
    pub(crate) fn row(dst: Endpoint, src: Endpoint, length: u64) -> Copy {
        Copy {
            dst: Side::row(dst),
            src: Side::row(src),
            width: length,
            height: 1,
            depth: 1,
        }
    }

    /// Returns the number of bytes copied.
    pub(crate) fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }

    /// Returns the route through a device and the duration in nanoseconds. `None`: copied by the host, or
    /// empty.
    pub(crate) fn cost(&self, process: &Process) -> Option<(Route, u64)> {
        let route = match (
            self.src.endpoint.is_on_host(process.space),
            self.dst.endpoint.is_on_host(process.space),
        ) {
            (true, true) => return None,
            (true, false) => Route::ToDevice,
            (false, true) => Route::ToHost,
            (false, false) => Route::OnDevice,
        };
        let ns = process.member.machine().config().copy_ns(route, self.bytes());
        (ns > 0).then_some((route, ns))
    }

    /// Checks that both sides exist completely; the program's own memory is not checked.
    pub(crate) fn check(&self, space: &Space) -> CUresult {
        if self.bytes() == 0 {
            return Ok(());
        }
        for side in [&self.dst, &self.src] {
            if matches!(side.endpoint, Endpoint::Host(0)) {
                return Err(INVALID_VALUE);
            }
            if Quirk::PageableCopies.is_on() && self.is_out_of_reach(space) {
                return Err(INVALID_VALUE);
            }
            if Quirk::MixedCopies.is_on() && self.is_mixed(side, space) {
                return Err(INVALID_VALUE);
            }
            for offset in [0, (self.depth - 1) * side.layer + (self.height - 1) * side.pitch] {
                side.endpoint
                    .chunks(space, offset, self.width)
                    .ok_or(INVALID_VALUE)?;
            }
        }
        Ok(())
    }

    /// Returns whether one side is the program's pageable memory, and the other one host memory of
    /// `cuMemCreate` to which processors have no access.
    fn is_out_of_reach(&self, space: &Space) -> bool {
        let is_pageable = |side: &Side| match side.endpoint {
            Endpoint::Host(address) => space.find(address).is_none(),
            _ => false,
        };
        let is_barred = |side: &Side| match side.endpoint {
            Endpoint::Space(address) => space.find(address).is_some_and(|block| {
                block.device == HOST && matches!(block.kind, Kind::Mapped(_)) && block.access.of(HOST) == 0
            }),
            _ => false,
        };
        let sides = [(&self.dst, &self.src), (&self.src, &self.dst)];
        sides
            .iter()
            .any(|(one, other)| is_pageable(one) && is_barred(other))
    }

    /// Returns whether a side begins in memory of the host and ends in memory of a device, or the other way
    /// round.
    fn is_mixed(&self, side: &Side, space: &Space) -> bool {
        let Endpoint::Space(first) = side.endpoint else {
            return false;
        };
        let last = (self.depth - 1) * side.layer + (self.height - 1) * side.pitch + self.width - 1;
        let is_host = |address| space.find(address).map(|block| block.device == HOST);
        is_host(first) != first.checked_add(last).and_then(is_host)
    }

    /// Copies the bytes.
    pub(crate) fn run(&self, space: &Space) -> CUresult {
        if self.bytes() == 0 {
            return Ok(());
        }
        for layer in 0..self.depth {
            for row in 0..self.height {
                let chunks = |side: &Side| {
                    let offset = layer * side.layer + row * side.pitch;
                    side.endpoint
                        .chunks(space, offset, self.width)
                        .ok_or(ILLEGAL_ADDRESS)
                };
                transfer(&chunks(&self.dst)?, &chunks(&self.src)?);
            }
        }
        Ok(())
    }
}

fn transfer(dst: &[Chunk], src: &[Chunk]) {
    let (mut dst, mut src) = (dst.iter().copied(), src.iter().copied());
    let (Some(mut to), Some(mut from)) = (dst.next(), src.next()) else {
        return;
    };
    loop {
        let length = to.length.min(from.length);
        // SAFETY: chunks are `length` bytes of an arena, which stays mapped, or of the program's memory,
        // which it guarantees to keep; the two may overlap.
        unsafe { ptr::copy(from.bytes, to.bytes, length) };
        match advance(to, length).or_else(|| dst.next()) {
            Some(next) => to = next,
            None => return,
        }
        match advance(from, length).or_else(|| src.next()) {
            Some(next) => from = next,
            None => return,
        }
    }
}

fn advance(chunk: Chunk, by: usize) -> Option<Chunk> {
    (chunk.length > by).then(|| Chunk {
        bytes: chunk.bytes.wrapping_add(by),
        length: chunk.length - by,
    })
}

impl Fill {
    /// Returns the nanoseconds of device time.
    pub(crate) fn cost(&self, process: &Process) -> u64 {
        let bytes = self
            .width
            .saturating_mul(self.value_size)
            .saturating_mul(self.height);
        process.member.machine().config().copy_ns(Route::OnDevice, bytes)
    }

    /// Checks that the destination exists completely.
    pub(crate) fn check(&self, space: &Space) -> CUresult {
        if !self.address.is_multiple_of(self.value_size)
            || (self.height > 1 && self.pitch < self.width * self.value_size)
        {
            return Err(INVALID_VALUE);
        }
        if self.width == 0 || self.height == 0 {
            return Ok(());
        }
        for row in [0, self.height - 1] {
            self.row(space, row).ok_or(INVALID_VALUE)?;
        }
        Ok(())
    }

    /// Writes the bytes.
    pub(crate) fn run(&self, space: &Space) -> CUresult {
        let value = self.value.to_le_bytes();
        let size = usize::try_from(self.value_size).unwrap_or(4);
        for row in 0..if self.width == 0 { 0 } else { self.height } {
            let mut phase = 0;
            for chunk in self.row(space, row).ok_or(ILLEGAL_ADDRESS)? {
                for index in 0..size.min(chunk.length) {
                    // SAFETY: within a chunk of an arena, which stays mapped.
                    unsafe { chunk.bytes.add(index).write(value[(phase + index) % size]) };
                }
                // Repeats the written bytes, doubling the length each time.
                let mut done = size;
                while done < chunk.length {
                    let more = done.min(chunk.length - done);
                    // SAFETY: both within the chunk; they do not overlap, because `more` is at most `done`.
                    unsafe { ptr::copy_nonoverlapping(chunk.bytes, chunk.bytes.add(done), more) };
                    done += more;
                }
                phase += chunk.length;
            }
        }
        Ok(())
    }

    fn row(&self, space: &Space, row: u64) -> Option<Vec<Chunk>> {
        let address = self.address.checked_add(row * self.pitch)?;
        match Endpoint::of(space, address) {
            Endpoint::Space(address) => space.chunks(address, self.width.checked_mul(self.value_size)?),
            // Registered memory belongs to the program, but the device may write it.
            _ => space.chunks(address, self.width.checked_mul(self.value_size)?),
        }
    }
}

/// Reads bytes of device memory.
pub(crate) fn read(space: &Space, address: u64, length: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(length).ok()?);
    for chunk in space.chunks(address, length)? {
        // SAFETY: a chunk of an arena, which stays mapped; every byte value is valid.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(chunk.bytes, chunk.length) });
    }
    Some(bytes)
}

/// Writes bytes to device memory. Returns `false` if not all of it exists.
pub(crate) fn write(space: &Space, address: u64, bytes: &[u8]) -> bool {
    let Some(chunks) = space.chunks(address, bytes.len() as u64) else {
        return false;
    };
    transfer(
        &chunks,
        &[Chunk {
            bytes: bytes.as_ptr().cast_mut(),
            length: bytes.len(),
        }],
    );
    true
}

/// Reads the program's own memory.
pub(crate) fn from_host(address: u64, length: u64) -> Vec<u8> {
    let length = usize::try_from(length).unwrap_or(0);
    let mut bytes = vec![0; length];
    // SAFETY: the program guarantees that a copy's source is readable.
    unsafe { ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), length) };
    bytes
}
