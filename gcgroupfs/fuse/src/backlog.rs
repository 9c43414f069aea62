//! A bounded queue to a thread that clients can block by holding a directory's lock in the kernel. A lost
//! message costs little: the kernel discovers later that a name is gone, and watchers miss the event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

/// Capacity in messages, enough for ten thousand processes that end at once.
const MOST: usize = 64 << 10;

/// Creates a queue; `purpose` describes lost messages in the log.
pub(super) fn backlog<T>(purpose: &'static str) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    let nr = Arc::new(AtomicUsize::new(0));
    let sender = Sender {
        queue: sender,
        nr: nr.clone(),
        purpose,
        is_full: AtomicBool::new(false),
    };
    (sender, Receiver { queue: receiver, nr })
}

/// Sending end.
#[derive(Debug)]
pub(super) struct Sender<T> {
    queue: mpsc::Sender<T>,
    nr: Arc<AtomicUsize>,
    purpose: &'static str,
    /// Whether the last message was lost.
    is_full: AtomicBool,
}

/// Receiving end.
#[derive(Debug)]
pub(super) struct Receiver<T> {
    queue: mpsc::Receiver<T>,
    nr: Arc<AtomicUsize>,
}

impl<T> Sender<T> {
    /// Adds a message, and returns whether there was room for it. Never waits.
    pub(super) fn send(&self, message: T) -> bool {
        let has_room = self.nr.fetch_add(1, Relaxed) < MOST;
        if !has_room {
            self.nr.fetch_sub(1, Relaxed);
            if !self.is_full.swap(true, Relaxed) {
                tracing::warn!("{} is blocked: messages are dropped", self.purpose);
            }
            return false;
        }
        self.is_full.store(false, Relaxed);
        // The receiving thread ends only with the daemon.
        self.queue.send(message).is_ok()
    }
}

impl<T> Receiver<T> {
    /// Waits for the next message; returns `None` once no more can come.
    pub(super) fn next(&self) -> Option<T> {
        let next = self.queue.recv().ok()?;
        self.nr.fetch_sub(1, Relaxed);
        Some(next)
    }

    /// Returns the next message if there is one.
    pub(super) fn try_next(&self) -> Option<T> {
        let next = self.queue.try_recv().ok()?;
        self.nr.fetch_sub(1, Relaxed);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_accepts_messages_after_some_are_taken() {
        let (sender, receiver) = backlog("test");
        assert_eq!((0..2 * MOST).filter(|n| sender.send(*n)).count(), MOST);
        assert_eq!((receiver.next(), receiver.try_next()), (Some(0), Some(1)));
        assert_eq!((0..MOST).filter(|n| sender.send(*n)).count(), 2);
        drop(sender);
        let mut nr = 0;
        while receiver.next().is_some() {
            nr += 1;
        }
        assert_eq!(nr, MOST);
    }
}
