//! Connections that have something to read, by user: users take turns, one packet each, so that many
//! connections of one user do not delay those of others.

use std::collections::{HashMap, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Numbers of the connections of each user, without empty queues.
    queues: HashMap<u32, VecDeque<u64>>,
    /// Users in the order of their turns.
    users: VecDeque<u32>,
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Returns whether another user waits.
    pub(super) fn has_others(&self, uid: u32) -> bool {
        self.users.iter().any(|other| *other != uid)
    }

    /// Adds a connection of the user at the end of the user's queue.
    pub(super) fn push(&mut self, uid: u32, number: u64) {
        let queue = self.queues.entry(uid).or_default();
        if queue.is_empty() {
            self.users.push_back(uid);
        }
        queue.push_back(number);
    }

    /// Removes and returns the next connection of the user whose turn it is.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let uid = self.users.pop_front()?;
        let queue = self.queues.get_mut(&uid)?;
        let number = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&uid);
        } else {
            self.users.push_back(uid);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_with_one_connection_waits_for_one_of_each_other() {
        let mut turns = Turns::default();
        (0..1000).for_each(|number| turns.push(1, number));
        (1000..2000).for_each(|number| turns.push(2, number));
        assert_eq!(turns.pop(), Some(0));
        assert!(turns.has_others(1) && turns.has_others(3));
        turns.push(3, 7000);
        let next: Vec<u64> = std::iter::from_fn(|| turns.pop()).take(4).collect();
        assert_eq!(next, [1000, 1, 7000, 1001]);
        while turns.pop().is_some() {}
        assert!(turns.is_empty() && turns.queues.is_empty());
        turns.push(1, 1);
        assert!(!turns.has_others(1));
    }
}
