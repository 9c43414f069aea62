//! The ledger of live allocations, by address or handle: size, kind, device and context.
//!
//! Divided into shards by a hash of the key, so that threads seldom contend; 24 bytes per entry. Independent
//! of limits.

use gcgroup_abi::{Kind, OTHER_DEVICE};
use parking_lot::{Mutex, MutexGuard};

use super::key::{self, Table};
use crate::shared::device::LocalDevice;

/// One allocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Bytes.
    pub(crate) size: u64,
    /// Number of the context; for [`Kind::Pool`], of the pool.
    pub(crate) owner: u32,
    pub(crate) local: LocalDevice,
    /// The device slot in which the bytes are counted, and the flag [`SHARED`].
    index: u8,
    /// Index into [`Kind::ALL`], which is smaller than a [`Kind`].
    kind: u8,
    /// Exponent of the size of the pages that are charged for the bytes; 0: the bytes are charged.
    shift: u8,
}

/// Flag in `index`: the memory is shared with another process.
const SHARED: u8 = 1 << 7;
const _: () = assert!(OTHER_DEVICE < SHARED as usize);

impl Entry {
    pub(crate) fn new(kind: Kind, size: u64, local: LocalDevice, index: usize, owner: u32) -> Self {
        let kind = u8::try_from(kind as usize).unwrap_or(0);
        let mut entry = Self {
            size,
            owner,
            local,
            index: 0,
            kind,
            shift: 0,
        };
        entry.set_index(index);
        entry
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        Kind::ALL
            .get(usize::from(self.kind))
            .map_or(Kind::Linear, |(kind, ..)| *kind)
    }

    /// Returns whether the entry is of that kind; cheaper than comparing [`Self::kind`].
    #[inline]
    pub(crate) fn is(&self, kind: Kind) -> bool {
        usize::from(self.kind) == kind as usize
    }

    pub(crate) fn index(&self) -> usize {
        usize::from(self.index & !SHARED)
    }

    #[inline]
    pub(super) fn shift(&self) -> u8 {
        self.shift
    }

    #[inline]
    pub(super) fn set_shift(&mut self, shift: u8) {
        self.shift = shift;
    }

    pub(crate) fn set_index(&mut self, index: usize) {
        let index = u8::try_from(index.min(OTHER_DEVICE)).unwrap_or_default();
        self.index = self.index & SHARED | index;
    }

    /// Returns whether the memory is shared with another process.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.index & SHARED != 0
    }

    /// Marks the memory as shared with another process; returns whether it was not.
    pub(crate) fn share(&mut self) -> bool {
        let is_new = !self.is_shared();
        self.index |= SHARED;
        is_new
    }

    /// Returns whether the bytes are charged one by one. A pool is charged as a whole.
    #[inline]
    pub(crate) fn is_charged(&self) -> bool {
        CHARGED >> (self.kind & 31) & 1 != 0
    }
}

/// Kinds whose allocations are charged one by one: bit i stands for `Kind::ALL[i]`.
const CHARGED: u32 = {
    let (mut kinds, mut at) = (0, 0);
    while at < Kind::ALL.len() {
        let (kind, _, is_charged) = Kind::ALL[at];
        if is_charged && !matches!(kind, Kind::Pool) {
            kinds |= 1 << at;
        }
        at += 1;
    }
    kinds
};

/// A shard with a cache line of its own.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Shard(Mutex<Table<Entry>>);

#[derive(Debug)]
pub(crate) struct Ledger {
    shards: Box<[Shard]>,
}

impl Ledger {
    /// Makes a ledger; `shards` is rounded up to a power of two.
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            shards: (0..shards.next_power_of_two())
                .map(|_| Shard::default())
                .collect(),
        }
    }

    /// Locks the shard of a key.
    #[inline(always)]
    fn shard(&self, key: u64) -> Option<MutexGuard<'_, Table<Entry>>> {
        let number = key::shard(key, self.shards.len());
        self.shards.get(number).map(|shard| shard.0.lock())
    }

    /// Inserts the result of `entry`, which is called under the shard's lock; returns the entry that was
    /// replaced.
    #[inline]
    pub(crate) fn insert(&self, key: u64, entry: impl FnOnce() -> Entry) -> Option<Entry> {
        let mut table = self.shard(key)?;
        table.insert(key, entry())
    }

    #[inline]
    pub(crate) fn remove(&self, key: u64) -> Option<Entry> {
        self.shard(key)?.remove(&key)
    }

    /// Returns the device of an entry.
    pub(crate) fn local(&self, key: u64) -> Option<LocalDevice> {
        Some(self.shard(key)?.get(&key)?.local)
    }

    /// Calls `change` with an entry, under its shard's lock.
    pub(crate) fn change(&self, key: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(mut table) = self.shard(key) {
            table.get_mut(&key).map(change);
        }
    }

    /// Removes and returns every entry that `is_wanted`, with its key.
    pub(crate) fn take_all(&self, is_wanted: impl Fn(&Entry) -> bool) -> Vec<(u64, Entry)> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut table = shard.0.lock();
            taken.extend(table.extract_if(|_, entry| is_wanted(entry)));
        }
        taken
    }

    /// Calls `change` with every entry, under its shard's lock.
    pub(crate) fn each(&self, mut change: impl FnMut(&mut Entry)) {
        for shard in &self.shards {
            shard.0.lock().values_mut().for_each(&mut change);
        }
    }
}

const _: () = assert!(size_of::<(u64, Entry)>() == 24 && size_of::<Shard>() == 64);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn entry(size: u64, owner: u32) -> Entry {
        Entry::new(Kind::Linear, size, LocalDevice::of(0).unwrap(), 0, owner)
    }

    #[test]
    fn random_operations_agree_with_a_map() {
        let ledger = Ledger::new(8);
        let mut model = HashMap::new();
        let mut random = 1_u64;
        let rounds = if cfg!(miri) { 500 } else { 20_000 };
        for _ in 0..rounds {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let key = 0x7f00_0000_0000 + (random % 500) * 512;
            match random >> 60 {
                0..9 => assert_eq!(
                    ledger.insert(key, || entry(random, 0)),
                    model.insert(key, entry(random, 0))
                ),
                9..15 => assert_eq!(ledger.remove(key), model.remove(&key)),
                _ => {
                    let limit = random / 4;
                    let mut taken = ledger.take_all(|entry| entry.size < limit);
                    let mut expected: Vec<_> = model.extract_if(|_, entry| entry.size < limit).collect();
                    taken.sort_by_key(|(key, _)| *key);
                    expected.sort_by_key(|(key, _)| *key);
                    assert_eq!(taken, expected);
                }
            }
        }
        let mut left = 0;
        ledger.each(|_| left += 1);
        assert_eq!(left, model.len());
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn consecutive_blocks_spread_over_all_shards() {
        let ledger = Ledger::new(64);
        for number in 0..64_000 {
            ledger.insert(0x7f12_0000_0000 + number * (2 << 20), || entry(1, 1));
        }
        for shard in &ledger.shards {
            let live = shard.0.lock().len();
            assert!(
                (700..1300).contains(&live),
                "{live} of 64000 entries in one of 64 shards"
            );
        }
    }

    /// The worst case is just after every shard has grown.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn a_live_block_takes_at_most_64_bytes() {
        let ledger = Ledger::new(64);
        for number in 1..=200_000_u64 {
            ledger.insert(0x7f12_0000_0000 + number * 512, || entry(1, 1));
            if number.is_multiple_of(20_000) {
                let shards = ledger.shards.iter();
                let bytes: usize = shards.map(|shard| shard.0.lock().allocation_size()).sum();
                let each = bytes as u64 / number;
                assert!(each <= 64, "{each} bytes per entry with {number} entries");
            }
        }
    }

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
