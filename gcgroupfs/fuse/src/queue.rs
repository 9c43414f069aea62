//! Deferred queue: requests run on a thread of its own, one of each user in turn, a user's own in order.
//! Deferring costs a request about 8 us.

use std::io;
use std::sync::Arc;
use std::thread;

use gcgroupfs_model::user_queue::UserQueue;
use parking_lot::{Condvar, Mutex};

use super::nodes::Nodes;

/// A request with its reply.
type Task = Box<dyn FnOnce(&Nodes) + Send>;

/// A queue of tasks. It holds at most one per thread that waits for a reply.
pub(super) struct Queue(Arc<Shared>);

#[derive(Default)]
struct Shared {
    tasks: Mutex<Tasks>,
    changed: Condvar,
}

#[derive(Default)]
struct Tasks {
    left: UserQueue<Task>,
    is_closed: bool,
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
        self.0.tasks.lock().left.push(uid, Box::new(task));
        self.0.changed.notify_one();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.tasks.lock().is_closed = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    /// Waits for the next task; `None` when the queue is closed and empty.
    fn next(&self) -> Option<Task> {
        let mut tasks = self.tasks.lock();
        loop {
            match tasks.left.pop() {
                None if !tasks.is_closed => self.changed.wait(&mut tasks),
                next => return next,
            }
        }
    }
}
