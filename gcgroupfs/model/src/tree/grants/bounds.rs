//! Bounds in bytes, on single devices and on all together.

use std::collections::BTreeMap;

use gcgroup_abi::NO_LIMIT;

use super::Position;

/// Bounds by position in bytes.
#[derive(Debug, Default)]
pub(super) struct Bounds(BTreeMap<Position, u64>);

impl Bounds {
    /// Returns the bound at a position; `NO_LIMIT` if there is none.
    pub(super) fn get(&self, position: Position) -> u64 {
        self.0.get(&position).copied().unwrap_or(NO_LIMIT)
    }

    /// Sets the bound at a position; `NO_LIMIT` removes it.
    pub(super) fn set(&mut self, position: Position, bytes: u64) {
        match bytes {
            NO_LIMIT => self.0.remove(&position),
            bytes => self.0.insert(position, bytes),
        };
    }

    /// Returns whether memory on that device counts towards a bound.
    pub(super) fn concern(&self, at: usize) -> bool {
        self.0.contains_key(&Some(at)) || self.0.contains_key(&None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
