//! Processes whose hook has another version or lacks something, so that each is logged once however often it
//! tries to register.

use std::collections::HashSet;

use crate::journal::Key;

/// Capacity; when it is reached, the set is cleared and processes are logged once more.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Faulty(HashSet<Key>);

impl Faulty {
    /// Adds a process and returns whether it was not in the set.
    pub(super) fn insert(&mut self, key: Key) -> bool {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_new_once_and_the_set_is_bounded() {
        let key = |pid| Key { pid, start_time: 5 };
        let mut faulty = Faulty::default();
        assert!(faulty.insert(key(1)) && !faulty.insert(key(1)));
        assert!(faulty.insert(Key {
            pid: 1,
            start_time: 6
        }));
        for pid in 0..100_000 {
            faulty.insert(key(pid));
        }
        assert!(faulty.0.len() <= MOST);
    }
}
