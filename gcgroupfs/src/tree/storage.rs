//! How well settings are stored, as somebody else says: shown in the root's `gcgroup.events`.

use super::{Notice, Tree};

/// What is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Storage {
    /// Whether there are settings that the next daemon would not have.
    pub is_degraded: bool,
    /// Damaged lines that were found when the daemon started.
    pub nr_damaged: u64,
    /// How often any of that has changed.
    pub nr_changes: u64,
}

impl Tree {
    /// Sets what the root shows of how settings are stored, and wakes who polls it.
    pub fn set_storage(&self, is_degraded: bool, nr_damaged: u64) {
        let mut state = self.state.lock();
        let before = state.storage;
        if (before.is_degraded, before.nr_damaged) == (is_degraded, nr_damaged) {
            return;
        }
        state.storage = Storage {
            is_degraded,
            nr_damaged,
            nr_changes: before.nr_changes + 1,
        };
        drop(state);
        self.tell(&[Notice::RootEvents]);
    }
}
