//! Numbers of objects by user, for bounds per user.

use std::collections::HashMap;

#[derive(Debug, Default)]
pub struct UserCounts {
    /// Users without objects have no entry.
    by_uid: HashMap<u32, usize>,
    total: usize,
}

impl UserCounts {
    /// Returns the number of the user's objects.
    pub fn of(&self, uid: u32) -> usize {
        self.by_uid.get(&uid).copied().unwrap_or(0)
    }

    /// Returns the number of all users' objects.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Counts one more object of the user.
    pub fn add(&mut self, uid: u32) {
        self.total += 1;
        *self.by_uid.entry(uid).or_default() += 1;
    }

    /// Counts one object of the user less; no effect if it has none.
    pub fn remove(&mut self, uid: u32) {
        let Some(count) = self.by_uid.get_mut(&uid) else {
            return;
        };
        self.total -= 1;
        *count -= 1;
        if *count == 0 {
            self.by_uid.remove(&uid);
        }
    }

    /// Returns whether no user has any.
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty() && self.total == 0
    }
}
