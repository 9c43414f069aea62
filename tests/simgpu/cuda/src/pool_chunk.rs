//! Chunks: addresses with memory that a pool reserves at a time and divides into blocks.

use std::sync::Arc;

use simgpu::memory::{HOST, Kind, Physical, Ranges};
use simgpu::{Export, Held};

use crate::physical;
use crate::process::Process;

/// Granularity of block sizes, in bytes.
pub(crate) const UNIT: u64 = 512;

/// Kind of memory that a pool reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backing {
    /// Device index on the machine, or [`HOST`].
    pub(crate) device: usize,
    /// For managed memory, the device that it is charged to: it goes there when it is used there.
    pub(crate) managed_on: Option<usize>,
    /// Whether the host can access its addresses.
    pub(crate) is_addressable: bool,
    /// Whether it can be shared with other processes.
    pub(crate) is_shareable: bool,
}

/// A chunk of a pool.
pub(crate) struct Chunk {
    backing: Backing,
    pub(crate) size: u64,
    pub(crate) used: u64,
    free: Ranges,
    /// The exported bytes, if they can be shared.
    shared: Option<(Arc<Physical>, Arc<Export>)>,
}

impl Backing {
    fn kind(self) -> Held {
        match self.managed_on {
            Some(_) => Held::Managed,
            None if self.device == HOST => Held::HostPool,
            None => Held::Pool,
        }
    }

    /// Returns the index of the device whose memory it takes, or [`HOST`].
    pub(crate) fn charged_to(self) -> usize {
        self.managed_on.unwrap_or(self.device)
    }

    fn try_charge(self, process: &Process, bytes: u64) -> bool {
        if self.charged_to() == HOST {
            process.member.hold_host(Held::HostPool, bytes);
            process.member.tell_host();
            return true;
        }
        process.member.try_charge(self.charged_to(), self.kind(), bytes)
    }

    fn uncharge(self, process: &Process, bytes: u64) {
        if self.charged_to() == HOST {
            process.member.drop_host(Held::HostPool, bytes);
        } else {
            process.member.uncharge(self.charged_to(), self.kind(), bytes);
        }
    }

    fn take(self, process: &Process, length: u64) -> Option<u64> {
        if self.is_addressable {
            process.space.take_shared(length)
        } else {
            process.space.take_linear(length)
        }
    }

    fn give(self, process: &Process, base: u64, length: u64) {
        if self.is_addressable {
            process.space.give_shared(base, length);
        } else {
            process.space.give_linear(base, length);
        }
    }
}

impl Chunk {
    /// Reserves memory for a chunk. Returns its first address and the chunk.
    pub(crate) fn reserve(process: &'static Process, backing: Backing, length: u64) -> Option<(u64, Chunk)> {
        if !backing.try_charge(process, length) {
            return None;
        }
        let Some(base) = backing.take(process, length) else {
            backing.uncharge(process, length);
            return None;
        };
        let shared = if backing.is_shareable {
            // On failure the charge has been dropped already.
            let made = physical::make_charged(process, backing.device, backing.kind(), length, true);
            let Ok((physical, Some(export))) = made else {
                backing.give(process, base, length);
                return None;
            };
            Some((physical, export))
        } else {
            None
        };
        let chunk = Chunk {
            backing,
            size: length,
            used: 0,
            free: Ranges::new(base, length),
            shared,
        };
        Some((base, chunk))
    }

    /// Frees the chunk's memory.
    pub(crate) fn release(self, process: &Process, base: u64) {
        self.backing.give(process, base, self.size);
        if self.shared.is_none() {
            self.backing.uncharge(process, self.size);
        }
    }

    /// Allocates a part of the chunk.
    pub(crate) fn take(&mut self, size: u64) -> Option<u64> {
        let at = self.free.take(size, UNIT)?;
        self.used += size;
        Some(at)
    }

    /// Frees a part of the chunk.
    pub(crate) fn give(&mut self, address: u64, size: u64) {
        self.free.give(address, size);
        self.used -= size;
    }

    /// Creates a block for an allocated part of the chunk at `base`.
    pub(crate) fn make_block(
        &self,
        process: &Process,
        base: u64,
        (address, size): (u64, u64),
        kind: Kind,
        context: u64,
    ) {
        let device = self.backing.device;
        match &self.shared {
            Some((physical, _)) => {
                let part = (physical, address - base);
                process
                    .space
                    .make_backed((address, size), kind, device, context, part);
            }
            None => process.space.make_within(address, size, kind, device, context),
        }
    }

    /// Returns the export through which other processes access the bytes.
    pub(crate) fn export(&self) -> Option<&Export> {
        self.shared.as_ref().map(|(_, export)| &**export)
    }
}
