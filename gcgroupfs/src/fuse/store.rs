//! Puts on file what was written, and carries out changes of the tree's shape, on a thread of its own: what has changed is
//! on file before who changed it is answered, and nobody who only reads is to wait for a disk. The hand-over costs a write
//! about 8 us.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use super::nodes::Nodes;

/// What one request asks for, up to the answer.
type Task = Box<dyn FnOnce(&Nodes) + Send>;

/// Takes tasks, to be carried out in order. There are never more than there are threads that write.
pub(super) struct Stores(Sender<Task>);

impl Stores {
    /// Starts the thread that writes.
    pub(super) fn start(nodes: Arc<Nodes>) -> io::Result<Self> {
        let (sender, receiver) = channel::<Task>();
        thread::Builder::new()
            .name("fuse-store".to_owned())
            .spawn(move || {
                for task in receiver {
                    task(&nodes);
                }
            })?;
        Ok(Self(sender))
    }

    pub(super) fn push(&self, task: impl FnOnce(&Nodes) + Send + 'static) {
        // Without the thread, the task is dropped with its reply, which then says EIO.
        let _ = self.0.send(Box::new(task));
    }
}
