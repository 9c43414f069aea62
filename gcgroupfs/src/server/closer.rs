//! Closes what strangers have sent or may have sent.
//!
//! close(2) of a descriptor that a stranger chose may wait as long as the stranger likes: for a file on the
//! stranger's own FUSE mount it waits for an answer, for a TCP socket that lingers on an acknowledgement. Closing a
//! connection closes whatever lies unread in it too. So the event loop never closes such descriptors; threads do
//! that have nothing else to do.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing::warn;

/// A thread that has been closing one thing for longer is given up on, and another takes its place.
const PATIENCE: Duration = Duration::from_millis(200);

/// The most threads. When all are stuck, things wait to be closed, and so, in time, do new connections.
const MAX_THREADS: usize = 32;

/// How many things may wait before no new connections are accepted.
const CROWDED: usize = 1024;

/// Something whose drop may take for ever: descriptors.
type Doomed = Box<dyn Debug + Send>;

#[derive(Debug, Default)]
pub struct Closer {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Doomed>,
    nr_threads: usize,
    nr_idle: usize,
    /// When a thread last began or ended closing something.
    progress: Option<Instant>,
    stopping: bool,
}

impl Closer {
    /// Drops `doomed` on another thread.
    pub fn close(&self, doomed: impl Debug + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.queue.push_back(Box::new(doomed));
        let stuck = state.nr_idle == 0 && state.progress.is_none_or(|last| last.elapsed() > PATIENCE);
        if stuck && state.nr_threads < MAX_THREADS {
            state.nr_threads += 1;
            state.progress = Some(Instant::now());
            let shared = self.shared.clone();
            let spawned = thread::Builder::new()
                .name("closer".into())
                .spawn(move || shared.work());
            if let Err(error) = spawned {
                state.nr_threads -= 1;
                warn!("cannot start a thread to close descriptors: {error}");
            }
            if state.nr_threads == MAX_THREADS {
                warn!("descriptors that clients sent cannot be closed: no more threads to wait for them");
            }
        }
        drop(state);
        self.shared.arrived.notify_one();
    }

    /// Whether so much waits to be closed that nothing more should be let in.
    pub fn is_crowded(&self) -> bool {
        self.shared.state.lock().queue.len() >= CROWDED
    }
}

impl Drop for Closer {
    /// Lets the threads end when they can; does not wait for them.
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.arrived.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(doomed) = state.queue.pop_front() {
                state.progress = Some(Instant::now());
                drop(state);
                drop(doomed);
                state = self.state.lock();
                state.progress = Some(Instant::now());
            } else if state.stopping {
                return;
            } else {
                state.nr_idle += 1;
                self.arrived.wait(&mut state);
                state.nr_idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Reports its drop, having waited for leave.
    #[derive(Debug)]
    struct Stuck(Receiver<()>);

    impl Drop for Stuck {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[derive(Debug)]
    struct Reports(Sender<()>);

    impl Drop for Reports {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }

    #[test]
    fn what_does_not_close_holds_up_neither_the_caller_nor_what_comes_after() {
        let closer = Closer::default();
        let (_never, stuck) = channel();
        closer.close(Stuck(stuck));
        let (sender, closed) = channel();
        let deadline = Instant::now() + Duration::from_secs(60);
        // What is handed over after the thread has been given up on gets another.
        loop {
            closer.close(Reports(sender.clone()));
            if closed.recv_timeout(PATIENCE).is_ok() {
                break;
            }
            assert!(Instant::now() < deadline);
        }
    }

    #[test]
    fn threads_are_reused() {
        let closer = Closer::default();
        let (sender, closed) = channel();
        for _ in 0..100 {
            closer.close(Reports(sender.clone()));
            closed.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert!(closer.shared.state.lock().nr_threads < MAX_THREADS);
    }
}
