//! A queue of which users take turns, one item each, so that many items of one user do not delay those of
//! others.

use std::collections::{HashMap, VecDeque};

#[derive(Debug)]
pub struct UserQueue<T> {
    /// Items by user, in their order; never an empty list.
    by_uid: HashMap<u32, VecDeque<T>>,
    /// Users with items, in the order of their turns.
    users: VecDeque<u32>,
}

impl<T> Default for UserQueue<T> {
    fn default() -> Self {
        Self {
            by_uid: HashMap::new(),
            users: VecDeque::new(),
        }
    }
}

impl<T> UserQueue<T> {
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Returns whether another user has items.
    pub fn has_others(&self, uid: u32) -> bool {
        self.users.iter().any(|other| *other != uid)
    }

    /// Adds an item after the user's other items.
    pub fn push(&mut self, uid: u32, item: T) {
        let items = self.by_uid.entry(uid).or_default();
        if items.is_empty() {
            self.users.push_back(uid);
        }
        items.push_back(item);
    }

    /// Removes and returns the first item of the user whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        let uid = self.users.pop_front()?;
        let items = self.by_uid.get_mut(&uid)?;
        let item = items.pop_front();
        if items.is_empty() {
            self.by_uid.remove(&uid);
        } else {
            self.users.push_back(uid);
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_and_keep_their_own_order() {
        let mut queue = UserQueue::default();
        for (uid, item) in [(7, 1), (7, 2), (7, 3), (8, 4), (8, 5), (9, 6)] {
            queue.push(uid, item);
        }
        let mut done: Vec<i32> = (0..4).filter_map(|_| queue.pop()).collect();
        // A user that returns waits for one item of each user already there.
        queue.push(9, 7);
        done.extend(std::iter::from_fn(|| queue.pop()));
        assert_eq!(done, [1, 4, 6, 2, 5, 3, 7]);
        assert!(queue.is_empty() && queue.by_uid.is_empty());
    }

    #[test]
    fn user_with_one_item_waits_for_one_of_each_other() {
        let mut queue = UserQueue::default();
        (0..1000).for_each(|item| queue.push(1, item));
        (1000..2000).for_each(|item| queue.push(2, item));
        assert_eq!(queue.pop(), Some(0));
        assert!(queue.has_others(1) && queue.has_others(3));
        queue.push(3, 7000);
        let next: Vec<u64> = std::iter::from_fn(|| queue.pop()).take(4).collect();
        assert_eq!(next, [1000, 1, 7000, 1001]);
        while queue.pop().is_some() {}
        assert!(queue.is_empty() && queue.by_uid.is_empty());
        queue.push(1, 1);
        assert!(!queue.has_others(1));
    }
}
