//! Hash tables by address or handle.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;

/// Table whose keys are addresses or handles.
pub(super) type Table<V> = HashMap<u64, V, BuildHasherDefault<KeyHasher>>;

#[derive(Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 << 8 | u64::from(*byte));
        }
    }

    #[inline(always)]
    fn write_u64(&mut self, key: u64) {
        self.0 = hash(key);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Handles below this are consecutive numbers, not addresses.
const SMALL: u64 = 1 << 20;

/// Returns the same number for neighbours.
#[inline(always)]
fn neighbours(key: u64) -> u64 {
    key >> if key < SMALL { 3 } else { 14 }
}

/// Returns the hash of a handle, which may be a small number or a pointer, or of an address. Neighbours get
/// near places in the table: they are likely used one after the other, and near places are likely in the
/// cache.
#[inline(always)]
fn hash(key: u64) -> u64 {
    let product = u128::from(neighbours(key) ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15_u128;
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let region = (product >> 64) as u64 ^ product as u64;
    // Each key of a region has a place of its own. Keys that differ by the driver's smallest allocation, or
    // by the likely size of its handle objects, are nearest.
    let within = (key >> 9 & 0x1f) + 37 * (key >> 4 & 0x1f) + 1193 * (key & 0xf);
    // The highest seven bits tell keys in one place apart.
    let tag = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
    region.wrapping_add(within) & (u64::MAX >> 7) | tag << 57
}

/// Returns the shard of a key, of a number that is a power of two up to 65536. Neighbours share one.
#[inline(always)]
pub(super) fn shard(key: u64, shards: usize) -> usize {
    // Cheaper than the hash, which the table computes anyway.
    (neighbours(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize & (shards - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_hash_to_adjacent_places() {
        let hashes: Vec<u64> = (0..16)
            .map(|number| hash(0x7f12_3456_0000 + number * 512))
            .collect();
        for pair in hashes.windows(2) {
            assert_eq!((pair[1] & 0xffff).wrapping_sub(pair[0] & 0xffff) & 0xffff, 1);
            assert_ne!(pair[0] >> 57, pair[1] >> 57);
        }
    }

    #[test]
    fn hash_spreads_small_and_large_keys() {
        for step in [1_u64, 8, 64, 4096, 2 << 20, 1 << 32] {
            let mut counts = [0_u32; 256];
            for number in 0..25_600 {
                counts[(hash(number * step) & 0xff) as usize] += 1;
            }
            assert!(
                counts.iter().all(|count| (20..400).contains(count)),
                "{step}: {counts:?}"
            );
        }
    }

    /// Threads must not contend for one shard because their keys are similar.
    #[test]
    fn keys_of_all_sizes_spread_over_the_shards() {
        for step in [1_u64, 8, 64, 512, 4096, 2 << 20, 1 << 32] {
            let mut shards = [0_u32; 16];
            for number in 1..=25_600 {
                shards[shard(number * step, 16)] += 1;
            }
            assert!(
                shards.iter().all(|count| (1000..2600).contains(count)),
                "{step}: {shards:?}"
            );
        }
    }
}
