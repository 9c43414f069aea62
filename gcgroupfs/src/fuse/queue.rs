//! Requests that are carried out on a thread of its own, since others are not to wait for them: one of each user in turn, a
//! user's own in order. The hand-over costs a request about 8 us.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::nodes::Nodes;

/// What one request asks for, up to the answer.
type Task = Box<dyn FnOnce(&Nodes) + Send>;

/// Takes tasks. There are never more than there are threads that wait for their answers.
pub(super) struct Queue(Arc<Shared>);

#[derive(Default)]
struct Shared {
    turns: Mutex<Turns<Task>>,
    changed: Condvar,
}

impl Queue {
    /// Starts the thread.
    pub(super) fn start(name: &str, nodes: Arc<Nodes>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let queue = Self(shared.clone());
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Some(task) = shared.next() {
                task(&nodes);
            }
        })?;
        Ok(queue)
    }

    pub(super) fn push(&self, uid: u32, task: impl FnOnce(&Nodes) + Send + 'static) {
        self.0.turns.lock().push(uid, Box::new(task));
        self.0.changed.notify_one();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.turns.lock().is_over = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    /// Waits for the next; none when all has been done and there will be no more.
    fn next(&self) -> Option<Task> {
        let mut turns = self.turns.lock();
        loop {
            match turns.next() {
                None if !turns.is_over => self.changed.wait(&mut turns),
                next => return next,
            }
        }
    }
}

/// Whose turn it is.
struct Turns<T> {
    /// What is left to be done for each user; for nobody nothing.
    left: HashMap<u32, VecDeque<T>>,
    /// Those users, the next first.
    order: VecDeque<u32>,
    is_over: bool,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            left: HashMap::new(),
            order: VecDeque::new(),
            is_over: false,
        }
    }
}

impl<T> Turns<T> {
    fn push(&mut self, uid: u32, what: T) {
        let left = self.left.entry(uid).or_default();
        if left.is_empty() {
            self.order.push_back(uid);
        }
        left.push_back(what);
    }

    fn next(&mut self) -> Option<T> {
        let uid = self.order.pop_front()?;
        let left = self.left.get_mut(&uid)?;
        let next = left.pop_front();
        if left.is_empty() {
            self.left.remove(&uid);
        } else {
            self.order.push_back(uid);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_turn_and_what_one_asks_for_keeps_its_order() {
        let mut turns = Turns::default();
        for (uid, what) in [(7, 1), (7, 2), (7, 3), (8, 4), (8, 5), (9, 6)] {
            turns.push(uid, what);
        }
        let mut done: Vec<i32> = (0..4).filter_map(|_| turns.next()).collect();
        // Who comes again waits for those who are there, and no longer.
        turns.push(9, 7);
        done.extend(std::iter::from_fn(|| turns.next()));
        assert_eq!(done, [1, 4, 6, 2, 5, 3, 7]);
        assert!(turns.left.is_empty() && turns.order.is_empty());
    }
}
