//! Processes whose hook has another version or lacks something. Each is logged once, however often it tries
//! to register.

use std::collections::HashSet;

use crate::journal::Key;

/// Capacity; when it is reached, the set is cleared and processes are logged once more.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct LoggedOnce(HashSet<Key>);

impl LoggedOnce {
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
        let mut logged = LoggedOnce::default();
        assert!(logged.insert(key(1)) && !logged.insert(key(1)));
        assert!(logged.insert(Key {
            pid: 1,
            start_time: 6
        }));
        for pid in 0..100_000 {
            logged.insert(key(pid));
        }
        assert!(logged.0.len() <= MOST);
    }
}
