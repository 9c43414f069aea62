//! Deferred queue: requests run on a thread of its own, one of each user in turn, a user's own in order.
//! Deferring costs a request about 8 us.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::nodes::Nodes;

/// A request with its reply.
type Task = Box<dyn FnOnce(&Nodes) + Send>;

/// A queue of tasks. It holds at most one per thread that waits for a reply.
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
    /// Waits for the next task; `None` when the queue is closed and empty.
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

/// Order of users and tasks.
struct Turns<T> {
    /// Tasks by user; never an empty list.
    left: HashMap<u32, VecDeque<T>>,
    /// Users with tasks, the next first.
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
    fn users_take_turns_and_keep_their_own_order() {
        let mut turns = Turns::default();
        for (uid, what) in [(7, 1), (7, 2), (7, 3), (8, 4), (8, 5), (9, 6)] {
            turns.push(uid, what);
        }
        let mut done: Vec<i32> = (0..4).filter_map(|_| turns.next()).collect();
        // A user that returns waits for one task of each user already there.
        turns.push(9, 7);
        done.extend(std::iter::from_fn(|| turns.next()));
        assert_eq!(done, [1, 4, 6, 2, 5, 3, 7]);
        assert!(turns.left.is_empty() && turns.order.is_empty());
    }
}
