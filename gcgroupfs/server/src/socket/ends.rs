//! Wakes the event loop when another thread needs the ends of processes to be noticed.

use std::io::Write;
use std::os::unix::net::UnixStream;

use gcgroupfs_model::tree::{Listener, Notice};

/// Wakes the event loop. Its turn handles every end that the kernel has reported by then.
#[derive(Debug)]
pub(super) struct EndsWaker(UnixStream);

impl EndsWaker {
    pub(super) fn new(waker: UnixStream) -> Self {
        Self(waker)
    }
}

impl Listener for EndsWaker {
    fn notice(&self, notice: &Notice) {
        if *notice == Notice::EndsAsked {
            // If the socket is full, the loop has been woken already.
            let _ = (&self.0).write(&[0]);
        }
    }
}
