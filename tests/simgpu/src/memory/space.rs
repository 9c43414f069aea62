//! A process's unified address space: its blocks, and the translation of device addresses to bytes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use super::arena::{Arena, Bytes};
use super::block::{Block, Chunk, Kind, Physical, PhysicalOwner, block};
use super::kept::Kept;
use super::pages::{Pages, page};

/// Size of the address range of device memory. The addresses cannot be dereferenced: the bytes are elsewhere.
const LINEAR: usize = 4 << 40;
/// Size of the address range for `cuMemAddressReserve`.
const VIRTUAL: usize = 16 << 40;
/// Size of the arena of physical memory.
const PHYSICAL: usize = 4 << 40;
/// Size of the address range of managed and page-locked host memory.
const SHARED: usize = 4 << 40;

/// Alignment of allocations, in bytes.
const ALIGN: u64 = 512;

/// The unified address space of a process.
#[derive(Debug)]
pub struct Space {
    /// Addresses and bytes of device memory, at equal offsets.
    linear: Arena,
    bytes: Arena,
    pages: Pages,
    pub(super) reserved: Arena,
    pub(super) physical: Arena,
    pub(super) kept: Kept,
    /// Memory that host and device both address.
    shared: Arena,
    /// Device addresses that fit in 32 bits, reserved on first use.
    low: OnceLock<Option<Arena>>,
    pub(super) blocks: RwLock<Blocks>,
}

/// Owner of physical memory whose release needs no action, because the block backed by it is charged.
#[derive(Debug)]
struct NoOwner;

impl PhysicalOwner for NoOwner {
    fn released(&self, _: u64) {}
}

#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub(super) by_base: BTreeMap<u64, Block>,
    next_id: u64,
}

impl Space {
    /// Reserves the address ranges.
    pub fn new() -> io::Result<Space> {
        Ok(Space {
            linear: Arena::reserve(LINEAR, Bytes::None)?,
            bytes: Arena::reserve(LINEAR, Bytes::Shared)?,
            pages: Pages::default(),
            reserved: Arena::reserve(VIRTUAL, Bytes::None)?,
            physical: Arena::reserve(PHYSICAL, Bytes::Shared)?,
            kept: Kept::from_env(),
            shared: Arena::reserve(SHARED, Bytes::Private)?,
            low: OnceLock::new(),
            blocks: RwLock::default(),
        })
    }

    /// Creates a block of device memory that is already charged.
    pub fn make_device(
        &self,
        size: u64,
        kind: Kind,
        device: usize,
        context: u64,
        charged: u64,
    ) -> Option<u64> {
        let base = self.linear.take(size.max(charged), ALIGN.max(page()))?;
        let bytes = self.bytes_of(base);
        self.insert(Block {
            charged,
            ..block(base, size, kind, device, context, bytes)
        });
        Some(base)
    }

    /// Creates a small block in a shared page. A new page is taken if `charge` succeeds.
    pub fn make_small<E>(
        &self,
        size: u64,
        kind: Kind,
        device: usize,
        context: u64,
        charge: impl FnOnce() -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let of = (kind, device, context);
        let made = self.pages.take(&self.linear, size, of, charge)?;
        if let Some(base) = made {
            self.make_within(base, size, kind, device, context);
        }
        Ok(made)
    }

    /// Frees the empty pages that a destroyed context has kept. Returns the kind and the device of each.
    pub fn release_kept_pages(&self, context: u64) -> Vec<(Kind, usize)> {
        self.pages.give_kept(&self.linear, context)
    }

    /// Creates a block of linear device memory that is already charged, at a 32-bit address.
    pub fn make_low(&'static self, size: u64, device: usize, context: u64, charged: u64) -> Option<u64> {
        let low = self.low.get_or_init(Arena::low).as_ref()?;
        let physical = self.make_physical(size.next_multiple_of(4096), None, Box::new(NoOwner))?;
        let base = low.take(size, ALIGN)?;
        self.insert(Block {
            charged,
            physical: Some(Arc::clone(&physical)),
            ..block(base, size, Kind::Linear, device, context, physical.bytes)
        });
        Some(base)
    }

    /// Returns the arenas that hold the bytes of device memory.
    pub(super) fn arenas(&self) -> [&Arena; 2] {
        [&self.bytes, &self.physical]
    }

    fn is_low(&self, address: u64) -> bool {
        let low = self.low.get().and_then(Option::as_ref);
        low.is_some_and(|low| low.contains(address))
    }

    /// Returns the address of the bytes behind a device address.
    fn bytes_of(&self, linear: u64) -> u64 {
        linear - self.linear.start() + self.bytes.start()
    }

    /// Returns the file that contains the bytes of a block of linear memory, and the offset in it.
    pub fn place_of(&self, block: &Block) -> Option<(BorrowedFd<'_>, u64)> {
        if self.bytes.contains(block.bytes) {
            self.bytes.place_of(block.bytes)
        } else {
            None
        }
    }

    /// Reserves addresses in which a pool creates blocks.
    pub fn take_linear(&self, size: u64) -> Option<u64> {
        self.linear.take(size, 2 << 20)
    }

    /// Returns addresses reserved by `take_linear`, which contain no block any more.
    pub fn give_linear(&self, base: u64, size: u64) {
        self.bytes.discard(self.bytes_of(base), size);
        self.linear.give(base, size);
    }

    /// Creates a block of a pool or a graph at addresses reserved by `take_linear` or `take_shared`.
    pub fn make_within(&self, base: u64, size: u64, kind: Kind, device: usize, context: u64) {
        let bytes = if self.shared.contains(base) {
            base
        } else {
            self.bytes_of(base)
        };
        self.insert(block(base, size, kind, device, context, bytes));
    }

    /// Creates a block at addresses reserved by `take_linear`, backed by a part of physical memory.
    pub fn make_backed(
        &self,
        (base, size): (u64, u64),
        kind: Kind,
        device: usize,
        context: u64,
        (physical, offset): (&Arc<Physical>, u64),
    ) {
        self.insert(Block {
            physical: Some(Arc::clone(physical)),
            ..block(base, size, kind, device, context, physical.bytes + offset)
        });
    }

    /// Creates a block for another process's memory: `size` bytes from `offset` of the physical memory.
    pub fn make_imported(
        &self,
        size: u64,
        kind: Kind,
        device: usize,
        context: u64,
        physical: &Arc<Physical>,
        offset: u64,
    ) -> Option<u64> {
        let base = self.linear.take(size, ALIGN)?;
        self.make_backed((base, size), kind, device, context, (physical, offset));
        Some(base)
    }

    /// Reserves addresses that the host can use too, in which a pool creates blocks.
    pub fn take_shared(&self, size: u64) -> Option<u64> {
        self.shared.take(size, 2 << 20)
    }

    /// Returns addresses reserved by `take_shared`, which contain no block any more.
    pub fn give_shared(&self, base: u64, size: u64) {
        self.shared.give(base, size);
    }

    /// Creates a block that host and device both address.
    pub fn make_shared(
        &self,
        size: u64,
        kind: Kind,
        device: usize,
        context: u64,
        charged: u64,
        flags: u32,
    ) -> Option<u64> {
        let base = self.shared.take(size.next_multiple_of(4096), 4096)?;
        self.insert(Block {
            charged,
            flags,
            ..block(base, size, kind, device, context, base)
        });
        Some(base)
    }

    /// Registers the program's own memory. Fails if any of it is registered already.
    pub fn register(&self, base: u64, size: u64, device: usize, context: u64, flags: u32) -> bool {
        if self.overlaps(base, size) {
            return false;
        }
        self.insert(Block {
            flags,
            ..block(base, size, Kind::Registered, device, context, base)
        });
        true
    }

    /// Removes the block at `base` if `wanted` accepts it. Its addresses become free when `release` is called
    /// on it.
    pub fn remove(&self, base: u64, wanted: impl Fn(&Block) -> bool) -> Option<Block> {
        let mut blocks = self.blocks.write();
        if !blocks.by_base.get(&base).is_some_and(wanted) {
            return None;
        }
        blocks.by_base.remove(&base)
    }

    /// Removes all blocks that `wanted` accepts.
    pub fn remove_all(&self, wanted: impl Fn(&Block) -> bool) -> Vec<Block> {
        let mut blocks = self.blocks.write();
        let bases: Vec<u64> = blocks
            .by_base
            .values()
            .filter(|block| wanted(block))
            .map(|block| block.base)
            .collect();
        bases
            .iter()
            .filter_map(|base| blocks.by_base.remove(base))
            .collect()
    }

    /// Frees the addresses and bytes of a removed block. Those of a pool, of registered memory and of a
    /// mapping belong to the pool, the program and the reservation. Returns the bytes of a shared page that
    /// the device regains.
    pub fn release(&self, block: &Block) -> u64 {
        match block.kind {
            Kind::Linear if self.is_low(block.base) => {
                if let Some(Some(low)) = self.low.get() {
                    low.give(block.base, block.size.max(1));
                }
            }
            Kind::Linear | Kind::Array => {
                self.bytes.discard(block.bytes, block.size);
                if let Some(regained) = self.pages.give(&self.linear, block.base, block.size) {
                    return regained;
                }
                self.linear.give(block.base, block.size.max(block.charged).max(1));
            }
            Kind::Imported => self.release_imported(block),
            Kind::Managed | Kind::Host => self.shared.give(block.base, block.size.next_multiple_of(4096)),
            Kind::Pool(_) | Kind::Graph | Kind::Registered | Kind::Mapped(_) => (),
        }
        0
    }

    /// Frees the addresses of a removed block of another process's memory.
    pub fn release_imported(&self, block: &Block) {
        self.linear.give(block.base, block.size.max(1));
    }

    /// Returns the block that contains an address.
    pub fn find(&self, address: u64) -> Option<Block> {
        self.blocks.read().find(address).cloned()
    }

    /// Returns whether an address belongs to this space, in use or not; never true for the program's own
    /// memory.
    pub fn owns(&self, address: u64) -> bool {
        [&self.linear, &self.reserved, &self.shared]
            .iter()
            .any(|arena| arena.contains(address))
            || self.is_low(address)
    }

    /// Returns where the bytes of device memory are; `None` if a part is missing or not accessible.
    pub fn chunks(&self, address: u64, length: u64) -> Option<Vec<Chunk>> {
        let blocks = self.blocks.read();
        let mut chunks = Vec::with_capacity(1);
        let (mut at, end) = (address, address.checked_add(length)?);
        while at < end {
            let block = blocks.find(at).filter(|block| block.is_accessible())?;
            let upto = end.min(block.base + block.size);
            let bytes = block.bytes + (at - block.base);
            chunks.push(Chunk {
                bytes: bytes as *mut u8,
                length: usize::try_from(upto - at).ok()?,
            });
            at = upto;
        }
        Some(chunks)
    }

    /// Returns whether a block lies in any part of a range.
    pub fn overlaps(&self, base: u64, size: u64) -> bool {
        let blocks = self.blocks.read();
        let end = base.saturating_add(size);
        blocks
            .by_base
            .range(..end)
            .next_back()
            .is_some_and(|(_, block)| block.base + block.size > base)
    }

    pub(super) fn insert(&self, block: Block) {
        let mut blocks = self.blocks.write();
        blocks.next_id += 1;
        let id = blocks.next_id;
        blocks.by_base.insert(block.base, Block { id, ..block });
    }
}

impl Blocks {
    fn find(&self, address: u64) -> Option<&Block> {
        let (_, block) = self.by_base.range(..=address).next_back()?;
        (address < block.base + block.size).then_some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> &'static Space {
        Box::leak(Box::new(Space::new().unwrap()))
    }

    #[test]
    fn address_resolves_to_bytes_within_its_block_only() {
        let space = space();
        let base = space.make_device(1000, Kind::Linear, 0, 1, 1000).unwrap();
        assert_eq!(space.chunks(base + 10, 990).unwrap().len(), 1);
        assert_eq!(space.chunks(base + 10, 991), None);
        assert_ne!(space.chunks(base, 1).unwrap()[0].bytes as u64, base);
        let block = space.remove(base, |_| true).unwrap();
        space.release(&block);
        assert_eq!(space.chunks(base, 1), None);
    }

    #[test]
    fn physical_memory_can_be_mapped_twice_and_side_by_side() {
        let space = space();
        let unit = 2 << 20;
        let physical = space.make_physical(unit, None, Box::new(NoOwner)).unwrap();
        let base = space.reserve(2 * unit, unit, 0).unwrap();
        assert!(space.map(base, unit, &physical, 7, 0));
        assert!(space.map(base + unit, unit, &physical, 7, 0));
        assert!(!space.map(base, unit, &physical, 7, 0));
        assert_eq!(space.chunks(base, 1), None, "a new mapping is accessible");
        assert!(space.set_access(base, 2 * unit, |access| access.set(0, 3)));
        let chunks = space.chunks(base + unit - 8, 16).unwrap();
        assert_eq!(chunks.len(), 2);
        assert_eq!(chunks[1].bytes as u64 + unit - 8, chunks[0].bytes as u64);
        assert!(space.unmap(base, unit / 2).is_none());
        assert_eq!(space.unmap(base, 2 * unit).unwrap().len(), 2);
    }
}
