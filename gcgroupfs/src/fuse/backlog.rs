//! A queue to a thread that clients can hold up, by keeping a directory's lock in the kernel: it takes so
//! many messages and no more. What is lost then costs little: the kernel finds out itself that a name has
//! gone, and watchers miss it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

/// Messages that wait at most. Ten thousand processes that end at once are told in full.
const MOST: usize = 64 << 10;

/// Makes a queue; `purpose` says in the log what is lost.
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

/// The end that is written.
#[derive(Debug)]
pub(super) struct Sender<T> {
    queue: mpsc::Sender<T>,
    nr: Arc<AtomicUsize>,
    purpose: &'static str,
    /// Whether the last message was lost.
    is_full: AtomicBool,
}

/// The end that is read.
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
                tracing::warn!("{} is held up: some is left out", self.purpose);
            }
            return false;
        }
        self.is_full.store(false, Relaxed);
        // The thread ends with the daemon.
        self.queue.send(message).is_ok()
    }
}

impl<T> Receiver<T> {
    /// Waits for the next message; none when there will be no more.
    pub(super) fn next(&self) -> Option<T> {
        let next = self.queue.recv().ok()?;
        self.nr.fetch_sub(1, Relaxed);
        Some(next)
    }

    /// Takes the next message if it is there.
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
    fn queue_takes_so_many_and_again_when_some_are_taken() {
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
