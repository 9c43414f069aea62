//! Condition of the journal, as set by its owner and shown in the root's `gcgroup.events`.

use super::{Notice, Tree};

/// Condition of the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Storage {
    /// Whether there are settings that are not stored.
    pub is_degraded: bool,
    /// Number of damaged lines found at the daemon's start.
    pub nr_damaged: u64,
    /// Number of changes of the above.
    pub nr_changes: u64,
}

impl Tree {
    /// Sets the condition that the root shows, and wakes its pollers.
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
