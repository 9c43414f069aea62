//! What is where in a process's unified address space, and the way from a device address to bytes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use super::arena::{Arena, Bytes};
use super::block::{Block, Chunk, Kind, Physical, PhysicalOwner, block};
use super::kept::Kept;

/// Addresses of device memory. They cannot be dereferenced: the bytes are elsewhere.
const LINEAR: usize = 4 << 40;
/// Addresses for `cuMemAddressReserve`.
const VIRTUAL: usize = 16 << 40;
/// Physical memory.
const PHYSICAL: usize = 4 << 40;
/// Managed memory and page-locked host memory.
const SHARED: usize = 4 << 40;

/// Alignment of what is allocated.
const ALIGN: u64 = 512;

/// The unified address space of a process.
#[derive(Debug)]
pub struct Space {
    /// Names and bytes of device memory, in step.
    linear: Arena,
    bytes: Arena,
    pub(super) reserved: Arena,
    pub(super) physical: Arena,
    pub(super) kept: Kept,
    /// What host and device both address.
    shared: Arena,
    /// Names of device memory that fit in 32 bits, from the first such on.
    low: OnceLock<Option<Arena>>,
    pub(super) blocks: RwLock<Blocks>,
}

/// Who is not told when physical memory goes: the block it is behind is what is charged.
#[derive(Debug)]
struct Nobody;

impl PhysicalOwner for Nobody {
    fn released(&self, _: u64) {}
}

#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub(super) by_base: BTreeMap<u64, Block>,
    next_id: u64,
}

impl Space {
    /// Reserves the addresses.
    pub fn new() -> io::Result<Space> {
        Ok(Space {
            linear: Arena::reserve(LINEAR, Bytes::None)?,
            bytes: Arena::reserve(LINEAR, Bytes::Shared)?,
            reserved: Arena::reserve(VIRTUAL, Bytes::None)?,
            physical: Arena::reserve(PHYSICAL, Bytes::Shared)?,
            kept: Kept::from_env(),
            shared: Arena::reserve(SHARED, Bytes::Private)?,
            low: OnceLock::new(),
            blocks: RwLock::default(),
        })
    }

    /// Makes a block of device memory, already charged for.
    pub fn make_device(
        &self,
        size: u64,
        kind: Kind,
        device: usize,
        context: u64,
        charged: u64,
    ) -> Option<u64> {
        let base = self.linear.take(size, ALIGN)?;
        let bytes = self.bytes_of(base);
        self.insert(Block {
            charged,
            ..block(base, size, kind, device, context, bytes)
        });
        Some(base)
    }

    /// Makes a block of linear device memory, already charged for, at addresses of 32 bits.
    pub fn make_low(&'static self, size: u64, device: usize, context: u64, charged: u64) -> Option<u64> {
        let low = self.low.get_or_init(Arena::low).as_ref()?;
        let physical = self.make_physical(size.next_multiple_of(4096), None, Box::new(Nobody))?;
        let base = low.take(size, ALIGN)?;
        self.insert(Block {
            charged,
            physical: Some(Arc::clone(&physical)),
            ..block(base, size, Kind::Linear, device, context, physical.bytes)
        });
        Some(base)
    }

    fn is_low(&self, address: u64) -> bool {
        let low = self.low.get().and_then(Option::as_ref);
        low.is_some_and(|low| low.contains(address))
    }

    /// Where the bytes of device memory are.
    fn bytes_of(&self, linear: u64) -> u64 {
        linear - self.linear.start() + self.bytes.start()
    }

    /// The file that the bytes of a block of linear memory are in, and where in it.
    pub fn place_of(&self, block: &Block) -> Option<(BorrowedFd<'_>, u64)> {
        if self.bytes.contains(block.bytes) {
            self.bytes.place_of(block.bytes)
        } else {
            None
        }
    }

    /// Addresses for a pool to make blocks in.
    pub fn take_linear(&self, size: u64) -> Option<u64> {
        self.linear.take(size, 2 << 20)
    }

    /// Gives back what `take_linear` gave, when no block is left in it.
    pub fn give_linear(&self, base: u64, size: u64) {
        self.bytes.discard(self.bytes_of(base), size);
        self.linear.give(base, size);
    }

    /// Makes a block at addresses that `take_linear` or `take_shared` gave, of a pool or a graph.
    pub fn make_within(&self, base: u64, size: u64, kind: Kind, device: usize, context: u64) {
        let bytes = if self.shared.contains(base) {
            base
        } else {
            self.bytes_of(base)
        };
        self.insert(block(base, size, kind, device, context, bytes));
    }

    /// Makes a block at addresses that `take_linear` gave, with a part of physical memory behind it.
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

    /// Makes a block of another process's memory: `size` bytes that begin so far into the physical memory.
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

    /// Addresses that the host can use too, for a pool to make blocks in.
    pub fn take_shared(&self, size: u64) -> Option<u64> {
        self.shared.take(size, 2 << 20)
    }

    /// Gives back what `take_shared` gave, when no block is left in it.
    pub fn give_shared(&self, base: u64, size: u64) {
        self.shared.give(base, size);
    }

    /// Makes a block that host and device both address.
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

    /// Takes the program's own memory in. Fails if any of it already is.
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

    /// Takes a block out that begins at `base` and that `wanted` agrees to. Its addresses are free for
    /// others when `release` has been called on it.
    pub fn remove(&self, base: u64, wanted: impl Fn(&Block) -> bool) -> Option<Block> {
        let mut blocks = self.blocks.write();
        if !blocks.by_base.get(&base).is_some_and(wanted) {
            return None;
        }
        blocks.by_base.remove(&base)
    }

    /// Takes out all blocks that `wanted` agrees to.
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

    /// Gives the addresses and bytes of a removed block back. Those of a pool are its pool's, those of
    /// registered memory the program's, those of a mapping the reservation's.
    pub fn release(&self, block: &Block) {
        match block.kind {
            Kind::Linear if self.is_low(block.base) => {
                if let Some(Some(low)) = self.low.get() {
                    low.give(block.base, block.size.max(1));
                }
            }
            Kind::Linear | Kind::Array => {
                self.bytes.discard(block.bytes, block.size);
                self.linear.give(block.base, block.size.max(1));
            }
            Kind::Imported => self.release_imported(block),
            Kind::Managed | Kind::Host => self.shared.give(block.base, block.size.next_multiple_of(4096)),
            Kind::Pool(_) | Kind::Graph | Kind::Registered | Kind::Mapped(_) => (),
        }
    }

    /// Gives back the addresses of a removed block that was made for another process's memory.
    pub fn release_imported(&self, block: &Block) {
        self.linear.give(block.base, block.size.max(1));
    }

    /// The block that an address is in.
    pub fn find(&self, address: u64) -> Option<Block> {
        self.blocks.read().find(address).cloned()
    }

    /// Whether an address is one of this space's, in use or not: never the program's own memory.
    pub fn owns(&self, address: u64) -> bool {
        [&self.linear, &self.reserved, &self.shared]
            .iter()
            .any(|arena| arena.contains(address))
            || self.is_low(address)
    }

    /// Where the bytes of device memory are; `None` if not all of it is there and accessible.
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

    /// Whether there is a block in any part of a range.
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
    fn an_address_leads_to_its_bytes_and_no_further_than_its_block() {
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
    fn one_physical_memory_can_be_mapped_twice_and_side_by_side() {
        let space = space();
        let unit = 2 << 20;
        let physical = space.make_physical(unit, None, Box::new(Nobody)).unwrap();
        let base = space.reserve(2 * unit, unit, 0).unwrap();
        assert!(space.map(base, unit, &physical, 7, 0));
        assert!(space.map(base + unit, unit, &physical, 7, 0));
        assert!(!space.map(base, unit, &physical, 7, 0));
        assert_eq!(space.chunks(base, 1), None, "no access yet");
        assert!(space.set_access(base, 2 * unit, |access| access.set(0, 3)));
        let chunks = space.chunks(base + unit - 8, 16).unwrap();
        assert_eq!(chunks.len(), 2);
        assert_eq!(chunks[1].bytes as u64 + unit - 8, chunks[0].bytes as u64);
        assert!(space.unmap(base, unit / 2).is_none());
        assert_eq!(space.unmap(base, 2 * unit).unwrap().len(), 2);
    }
}
