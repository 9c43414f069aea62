//! Reserved addresses, physical memory and mappings.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::block::{Access, Block, HOST, Kind, Physical, PhysicalOwner, block};
use super::space::{Blocks, Space};

impl Space {
    /// Reserves addresses, at `wanted` if possible.
    pub fn reserve(&self, size: u64, align: u64, wanted: u64) -> Option<u64> {
        if wanted != 0 && self.reserved.take_at(wanted, size) {
            return Some(wanted);
        }
        self.reserved.take(size, align)
    }

    /// Frees reserved addresses.
    pub fn unreserve(&self, base: u64, size: u64) {
        self.reserved.give(base, size);
    }

    /// Creates physical memory that is already charged; `owner` is notified on its release. The bytes are
    /// those of `file` from an offset on, or else private.
    pub fn make_physical(
        &'static self,
        size: u64,
        file: Option<(File, u64)>,
        owner: Box<dyn PhysicalOwner>,
    ) -> Option<Arc<Physical>> {
        let kept = file.is_none().then(|| self.kept.take(size)).flatten();
        let bytes = kept.or_else(|| self.physical.take(size, 4096))?;
        self.lay_out(bytes, size, file, owner)
    }

    fn lay_out(
        &'static self,
        bytes: u64,
        size: u64,
        file: Option<(File, u64)>,
        owner: Box<dyn PhysicalOwner>,
    ) -> Option<Arc<Physical>> {
        if let Some((file, offset)) = &file
            && let Err(error) = self.physical.lay(bytes, size, (file.as_fd(), *offset))
        {
            eprintln!("simgpu: shared memory: {error}");
            self.physical.give(bytes, size);
            return None;
        }
        Some(Arc::new(Physical {
            arena: &self.physical,
            kept: &self.kept,
            bytes,
            size,
            file,
            is_pinned: false,
            released: owner,
        }))
    }

    /// Creates page-locked host memory: as `make_physical`, but its pages are populated now and freed with
    /// it.
    pub fn make_pinned(
        &'static self,
        size: u64,
        file: Option<(File, u64)>,
        owner: Box<dyn PhysicalOwner>,
    ) -> Option<Arc<Physical>> {
        let bytes = self.physical.take(size, 4096)?;
        let mut physical = self.lay_out(bytes, size, file, owner)?;
        let fresh = Arc::get_mut(&mut physical)?;
        fresh.is_pinned = true;
        self.physical.populate(fresh.bytes, size);
        Some(physical)
    }

    /// Maps the beginning of physical memory at reserved addresses. Fails if something is mapped there
    /// already.
    pub fn map(&self, base: u64, size: u64, physical: &Arc<Physical>, handle: usize, device: usize) -> bool {
        if self.overlaps(base, size) {
            return false;
        }
        let block = block(base, size, Kind::Mapped(handle), device, 0, physical.bytes);
        self.insert(Block {
            physical: Some(Arc::clone(physical)),
            access: Access::default(),
            ..block
        });
        true
    }

    /// Removes the mapped blocks of a range, which must cover it exactly.
    pub fn unmap(&self, base: u64, size: u64) -> Option<Vec<Block>> {
        let mut blocks = self.blocks.write();
        let bases = blocks.exactly(base, size)?;
        let gone: Vec<Block> = bases
            .iter()
            .filter_map(|base| blocks.by_base.remove(base))
            .collect();
        for block in gone.iter().filter(|block| block.access.of(HOST) != 0) {
            self.reserved.restore(block.base, block.size);
        }
        Some(gone)
    }

    /// Changes the access rights of the mapped blocks of a range, which must cover it exactly.
    pub fn set_access(&self, base: u64, size: u64, change: impl Fn(&mut Access)) -> bool {
        let mut blocks = self.blocks.write();
        let Some(bases) = blocks.exactly(base, size) else {
            return false;
        };
        for base in bases {
            if let Some(block) = blocks.by_base.get_mut(&base) {
                let before = block.access.of(HOST) != 0;
                change(&mut block.access);
                let after = block.access.of(HOST) != 0;
                let place = block.physical.as_ref().and_then(|physical| physical.place());
                match (before, after, place) {
                    (false, true, Some(place)) => {
                        if let Err(error) = self.reserved.lay(block.base, block.size, place) {
                            eprintln!("simgpu: memory for the host: {error}");
                        }
                    }
                    (true, false, _) => self.reserved.restore(block.base, block.size),
                    _ => (),
                }
            }
        }
        true
    }

    /// Returns the mapped blocks of a range, which must cover it exactly.
    pub fn mapped(&self, base: u64, size: u64) -> Option<Vec<Block>> {
        let blocks = self.blocks.read();
        let bases = blocks.exactly(base, size)?;
        Some(
            bases
                .iter()
                .filter_map(|base| blocks.by_base.get(base).cloned())
                .collect(),
        )
    }
}

impl Blocks {
    /// Returns the bases of the mapped blocks of a range, if they cover it exactly and without holes.
    fn exactly(&self, base: u64, size: u64) -> Option<Vec<u64>> {
        let end = base.checked_add(size)?;
        let mut at = base;
        let mut bases = Vec::new();
        while at < end {
            let block = self
                .by_base
                .get(&at)
                .filter(|block| matches!(block.kind, Kind::Mapped(_)))?;
            bases.push(at);
            at += block.size;
        }
        (at == end && size > 0).then_some(bases)
    }
}
