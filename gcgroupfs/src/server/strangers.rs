//! Processes whose hook speaks another version, so that each is told of once however often it asks.

use std::collections::HashSet;

use crate::journal::Key;

/// How many are remembered. Beyond, they are all forgotten, and told of once more.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub struct Strangers(HashSet<Key>);

impl Strangers {
    /// Whether this one is met for the first time.
    pub fn meets(&mut self, key: Key) -> bool {
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
    fn each_is_met_once_and_memory_ends() {
        let key = |pid| Key { pid, start_time: 5 };
        let mut strangers = Strangers::default();
        assert!(strangers.meets(key(1)) && !strangers.meets(key(1)));
        assert!(strangers.meets(Key {
            pid: 1,
            start_time: 6
        }));
        for pid in 0..100_000 {
            strangers.meets(key(pid));
        }
        assert!(strangers.0.len() <= MOST);
    }
}
