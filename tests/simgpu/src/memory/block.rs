//! Blocks: properties of the memory at a device address.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::arena::Arena;
use super::kept::Kept;

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
    /// Flags given at creation.
    pub flags: u32,
    /// Bytes charged to the device for the block, to be uncharged when it ends.
    pub charged: u64,
    /// Address of the bytes.
    pub(super) bytes: u64,
    /// Separately allocated physical memory behind the block, if any; the block holds it.
    pub physical: Option<Arc<Physical>>,
    /// Access rights of the devices and the host.
    pub access: Access,
}

/// Access rights to a block, read (1) and write (2): two bits per device, and two for the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u64);

impl Access {
    /// Full access for all devices and the host.
    pub const ALL: Access = Access(u64::MAX);

    fn shift(device: usize) -> usize {
        // At most 31 devices are told apart.
        if device == HOST { 62 } else { device.min(30) * 2 }
    }

    /// Returns the rights of a device, or of [`HOST`].
    pub fn of(self, device: usize) -> u64 {
        self.0 >> Access::shift(device) & 3
    }

    /// Sets the rights of a device, or of [`HOST`].
    pub fn set(&mut self, device: usize, flags: u64) {
        let shift = Access::shift(device);
        self.0 = self.0 & !(3 << shift) | (flags & 3) << shift;
    }

    /// Returns whether any device has any right.
    fn is_any(self) -> bool {
        self.0 & !(3 << Access::shift(HOST)) != 0
    }
}

impl Block {
    /// Returns whether the driver may access the block.
    pub fn is_accessible(&self) -> bool {
        self.access.is_any() || self.access.of(HOST) != 0
    }

    /// Returns whether the bytes are in host memory.
    pub fn is_on_host(&self) -> bool {
        self.device == HOST || matches!(self.kind, Kind::Host | Kind::Registered)
    }

    /// Returns the block's offset in its physical memory, in bytes.
    pub fn offset(&self) -> u64 {
        self.physical
            .as_ref()
            .map_or(0, |physical| self.bytes - physical.bytes)
    }
}

/// A contiguous range of this process's bytes that holds device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// First byte.
    pub bytes: *mut u8,
    /// Length in bytes.
    pub length: usize,
}

/// Physical memory without an address.
#[derive(Debug)]
pub struct Physical {
    /// Arena of its bytes, and the cache that they may go to when it is freed.
    pub(super) arena: &'static Arena,
    pub(super) kept: &'static Kept,
    pub(super) bytes: u64,
    pub(super) size: u64,
    /// File with the bytes and the offset in it, if they are not in the arena.
    pub(super) file: Option<(File, u64)>,
    /// Whether this is page-locked host memory, populated at creation.
    pub(super) is_pinned: bool,
    /// Notified when the last reference is dropped.
    pub(super) released: Box<dyn PhysicalOwner>,
}

/// Owner of physical memory, which drops the charge on its release.
pub trait PhysicalOwner: Send + Sync + std::fmt::Debug {
    /// Called when the memory has been released.
    fn released(&self, size: u64);
}

impl Drop for Physical {
    fn drop(&mut self) {
        if self.file.is_some() {
            self.arena.restore(self.bytes, self.size);
        }
        let can_stay = self.file.is_none() && !self.is_pinned;
        if !(can_stay && self.kept.keep(self.bytes, self.size)) {
            self.arena.give(self.bytes, self.size);
        }
        self.released.released(self.size);
    }
}

impl Physical {
    /// Returns the length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the file and the offset of the bytes, for mapping them.
    pub(super) fn place(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.file {
            Some((file, offset)) => Some((file.as_fd(), *offset)),
            None => self.arena.place_of(self.bytes),
        }
    }
}

/// Returns a block of ordinary memory, without a charge.
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
