//! The ledger of live allocations, by address or handle: size, kind, device and context. Independent of
//! limits.

use gcgroup_abi::{Kind, OTHER_DEVICE};
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use crate::shared::device::LocalDevice;

/// One allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Bytes.
    pub(crate) size: u64,
    /// Number of the context; for [`Kind::Pool`], of the pool.
    pub(crate) owner: u32,
    pub(crate) local: LocalDevice,
    /// The device slot in which the bytes are counted.
    index: u8,
    kind: Kind,
    /// Exponent of the size of the pages that are charged for the bytes; 0: the bytes are charged.
    shift: u8,
    /// Whether the memory is shared with another process.
    is_shared: bool,
}

impl Entry {
    pub(crate) fn new(kind: Kind, size: u64, local: LocalDevice, index: usize, owner: u32) -> Self {
        let mut entry = Self {
            size,
            owner,
            local,
            index: 0,
            kind,
            shift: 0,
            is_shared: false,
        };
        entry.set_index(index);
        entry
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.kind == kind
    }

    pub(crate) fn index(&self) -> usize {
        self.index.into()
    }

    pub(super) fn shift(&self) -> u8 {
        self.shift
    }

    pub(super) fn set_shift(&mut self, shift: u8) {
        self.shift = shift;
    }

    pub(crate) fn set_index(&mut self, index: usize) {
        self.index = u8::try_from(index.min(OTHER_DEVICE)).unwrap_or_default();
    }

    /// Returns whether the memory is shared with another process.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Marks the memory as shared with another process; returns whether it was not.
    pub(crate) fn share(&mut self) -> bool {
        !std::mem::replace(&mut self.is_shared, true)
    }

    /// Returns whether the bytes are charged one by one. A pool is charged as a whole.
    pub(crate) fn is_charged(&self) -> bool {
        let row = Kind::ALL.get(self.kind as usize);
        row.is_some_and(|(kind, _, is_charged)| *is_charged && *kind != Kind::Pool)
    }
}

/// Exponent of the number of shards.
const SHARDS: u32 = 4;

/// Live allocations by key, in shards with a lock each, so that threads rarely wait for each other.
#[derive(Debug, Default)]
pub(crate) struct Ledger([Shard; 1 << SHARDS]);

/// In a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(Mutex<HashMap<u64, Entry>>);

impl Ledger {
    fn shard(&self, key: u64) -> MutexGuard<'_, HashMap<u64, Entry>> {
        // Multiplied by 2^64 over the golden ratio: keys are multiples of powers of two.
        let number = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SHARDS);
        self.0[number as usize].0.lock()
    }

    /// Inserts the result of `entry`, which is called under the lock; returns the entry that was replaced.
    pub(crate) fn insert(&self, key: u64, entry: impl FnOnce() -> Entry) -> Option<Entry> {
        let mut table = self.shard(key);
        table.insert(key, entry())
    }

    pub(crate) fn remove(&self, key: u64) -> Option<Entry> {
        self.shard(key).remove(&key)
    }

    /// Returns the device of an entry.
    pub(crate) fn local(&self, key: u64) -> Option<LocalDevice> {
        Some(self.shard(key).get(&key)?.local)
    }

    /// Calls `change` with an entry, under the lock.
    pub(crate) fn change(&self, key: u64, change: impl FnOnce(&mut Entry)) {
        self.shard(key).get_mut(&key).map(change);
    }

    /// Removes and returns every entry that `is_wanted`, with its key.
    pub(crate) fn take_all(&self, is_wanted: impl Fn(&Entry) -> bool) -> Vec<(u64, Entry)> {
        let tables = self.0.iter().map(|shard| shard.0.lock());
        tables
            .flat_map(|mut table| table.extract_if(|_, entry| is_wanted(entry)).collect::<Vec<_>>())
            .collect()
    }

    /// Calls `change` with every entry, under the lock.
    pub(crate) fn each(&self, mut change: impl FnMut(&mut Entry)) {
        for shard in &self.0 {
            shard.0.lock().values_mut().for_each(&mut change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_charged_depends_on_the_kind() {
        for (kind, charged) in [
            (Kind::Linear, true),
            (Kind::Pool, false),
            (Kind::Host, false),
            (Kind::Ipc, false),
        ] {
            let entry = Entry::new(kind, 1, LocalDevice::of(0).unwrap(), 0, 0);
            assert_eq!(entry.is_charged(), charged, "{kind:?}");
        }
    }
}
