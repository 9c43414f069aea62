//! Blocks: properties of the memory at a device address.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::Space;

/// Device number of host memory.
pub const HOST: usize = usize::MAX;

/// Type of a block of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Device memory from the linear allocator.
    Linear,
    /// Device memory of an array.
    Array,
    /// Memory from the pool with this handle.
    Pool(usize),
    /// Device memory of a graph.
    Graph,
    /// Memory that host and device both address.
    Managed,
    /// Page-locked host memory allocated by the driver.
    Host,
    /// Host memory of the program, registered.
    Registered,
    /// Part of a reserved address range, backed by the physical memory with this handle.
    Mapped(usize),
    /// Device memory of another process.
    Imported,
}

/// A block of memory at a device address.
#[derive(Clone, Debug)]
pub struct Block {
    /// First address.
    pub base: u64,
    /// Length in bytes, as requested.
    pub size: u64,
    /// Type of the block.
    pub kind: Kind,
    /// Device of the memory, or [`HOST`].
    pub device: usize,
    /// Context in which it was created.
    pub context: u64,
    /// Number unique among all blocks of this process.
    pub id: u64,
    /// Flags it was made with.
    pub flags: u32,
    /// Bytes charged to the device for it, to be taken back when it goes.
    pub charged: u64,
    /// Where its bytes are.
    pub(super) bytes: u64,
    /// The physical memory behind it where that has a life of its own, held by the block.
    pub physical: Option<Arc<Physical>>,
    /// Who may read and write it.
    pub access: Access,
}

/// Who may read (1) and write (2) a block: two bits for each device, and for the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u64);

impl Access {
    /// Everybody.
    pub const ALL: Access = Access(u64::MAX);

    fn shift(device: usize) -> usize {
        // More devices than half the bits are not simulated.
        if device == HOST { 62 } else { device.min(30) * 2 }
    }

    /// What a device, or [`HOST`], may do.
    pub fn of(self, device: usize) -> u64 {
        self.0 >> Access::shift(device) & 3
    }

    /// Allows a device, or [`HOST`], this much.
    pub fn set(&mut self, device: usize, flags: u64) {
        let shift = Access::shift(device);
        self.0 = self.0 & !(3 << shift) | (flags & 3) << shift;
    }

    /// Whether any device may do anything.
    fn is_any(self) -> bool {
        self.0 & !(3 << Access::shift(HOST)) != 0
    }
}

impl Block {
    /// Whether the driver may read and write it.
    pub fn is_accessible(&self) -> bool {
        self.access.is_any() || self.access.of(HOST) != 0
    }

    /// Whether its bytes are in host memory.
    pub fn is_on_host(&self) -> bool {
        self.device == HOST || matches!(self.kind, Kind::Host | Kind::Registered)
    }

    /// How far into its physical memory it begins.
    pub fn offset(&self) -> u64 {
        self.physical
            .as_ref()
            .map_or(0, |physical| self.bytes - physical.bytes)
    }
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
    /// Where the bytes are if not in the arena: a file, from its beginning or from a place in it.
    pub(super) file: Option<(File, u64)>,
    /// Whether its pages are the host's, taken when it was made.
    pub(super) is_pinned: bool,
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
        if self.file.is_some() {
            self.space.physical.restore(self.bytes, self.size);
        }
        let can_stay = self.file.is_none() && !self.is_pinned;
        if !(can_stay && self.space.kept.keep(self.bytes, self.size)) {
            self.space.physical.give(self.bytes, self.size);
        }
        self.released.released(self.size);
    }
}

impl Physical {
    /// Its length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where its bytes are, for whoever maps them.
    pub(super) fn place(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.file {
            Some((file, offset)) => Some((file.as_fd(), *offset)),
            None => self.space.physical.place_of(self.bytes),
        }
    }
}

/// A block of ordinary memory, not charged for.
pub(super) fn block(base: u64, size: u64, kind: Kind, device: usize, context: u64, bytes: u64) -> Block {
    let (flags, charged, physical) = (0, 0, None);
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
        access: Access::ALL,
    }
}
