//! Unused grants. A process that has freed memory and leaves more of a grant unused than it may rings, and
//! the daemon takes the grant back at its next check.

use super::{ProcessId, State, Tree};

/// Checks without anything to take back before a process is not checked any more. The hook does not ring
/// again within 40 ms, and checks are [`Tree::CHECK_UNUSED`] apart, so the second one sees what was freed
/// after the last ring.
const CHECKS: u8 = 2;

impl Tree {
    /// Time between two checks.
    pub const CHECK_UNUSED: std::time::Duration = std::time::Duration::from_millis(50);

    /// Returns whether there are processes to check.
    pub fn has_unused(&self) -> bool {
        !self.state.lock().unused.is_empty()
    }

    /// Takes back what processes leave unused.
    pub fn take_unused(&self) {
        self.state.lock().take_unused();
    }
}

impl State {
    /// Notes a process that leaves more of a grant unused than it may.
    pub(super) fn note_unused(&mut self, id: ProcessId) {
        if self.grants.has_unused(id) || self.swap_grants.has_unused(id) {
            self.unused.insert(id, CHECKS);
        }
    }

    fn take_unused(&mut self) {
        let Self {
            unused,
            grants,
            swap_grants,
            ..
        } = self;
        unused.retain(|id, left| {
            // Both are taken back.
            *left = match grants.take_unused(*id) | swap_grants.take_unused(*id) {
                true => CHECKS,
                false => left.saturating_sub(1),
            };
            *left > 0
        });
    }
}
