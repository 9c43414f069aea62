//! Blocks: what is known of the memory at a device address.

use std::sync::Arc;

use super::Space;

/// What a block of memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Device memory from the linear allocator.
    Linear,
    /// Device memory of an array.
    Array,
    /// Device memory from the pool of that handle.
    Pool(usize),
    /// Device memory of a graph.
    Graph,
    /// Memory that host and device both address.
    Managed,
    /// Page-locked host memory of the driver's.
    Host,
    /// Host memory of the program's, registered.
    Registered,
    /// Part of a reserved address range with the physical memory of that handle behind it.
    Mapped(usize),
}

/// A block of memory at a device address.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its first address.
    pub base: u64,
    /// Its length in bytes, as asked for.
    pub size: u64,
    /// What it is.
    pub kind: Kind,
    /// The device it was made for.
    pub device: usize,
    /// The context it was made in.
    pub context: u64,
    /// A number no other block of this process ever has.
    pub id: u64,
    /// Flags it was made with.
    pub flags: u32,
    /// Bytes charged to the device for it, to be taken back when it goes.
    pub charged: u64,
    /// Where its bytes are.
    pub(super) bytes: u64,
    /// The physical memory behind a mapped block, held by it.
    pub physical: Option<Arc<Physical>>,
    /// Whether it may be read and written.
    pub accessible: bool,
}

/// A run of bytes of this process that stand for device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where they are.
    pub bytes: *mut u8,
    /// How many.
    pub length: usize,
}

/// Physical memory without an address.
#[derive(Debug)]
pub struct Physical {
    pub(super) space: &'static Space,
    pub(super) bytes: u64,
    pub(super) size: u64,
    /// Told when the last holder lets go.
    pub(super) released: Box<dyn PhysicalOwner>,
}

/// Takes a charge for physical memory back.
pub trait PhysicalOwner: Send + Sync + std::fmt::Debug {
    /// The memory is gone.
    fn released(&self, size: u64);
}

impl Drop for Physical {
    fn drop(&mut self) {
        self.space.physical.give(self.bytes, self.size);
        self.released.released(self.size);
    }
}

impl Physical {
    /// Its length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

/// A block of ordinary memory, not charged for.
pub(super) fn block(base: u64, size: u64, kind: Kind, device: usize, context: u64, bytes: u64) -> Block {
    let (flags, charged, physical, accessible) = (0, 0, None, true);
    Block {
        base,
        size,
        kind,
        device,
        context,
        id: 0,
        flags,
        charged,
        bytes,
        physical,
        accessible,
    }
}
