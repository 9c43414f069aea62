//! Simulation of kernel functions for models.

use gcgroup_abi::sync::Ordering::SeqCst;
use gcgroup_abi::sync::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

/// membarrier(2) with `MEMBARRIER_CMD_PRIVATE_EXPEDITED`, for one other thread.
///
/// The kernel makes each running thread pass a full barrier between the call and its return; a thread that
/// does not run has passed one when it was switched out. So the other thread calls [`Self::interrupt`]
/// wherever that can happen: between any two accesses that the model is about.
#[derive(Debug)]
pub(crate) struct Barrier {
    asked: AtomicU32,
    passed: AtomicU32,
}

impl Barrier {
    pub(crate) fn new() -> Self {
        let barrier = Self {
            asked: AtomicU32::new(0),
            passed: AtomicU32::new(0),
        };
        // loom must know its objects before threads start.
        barrier.asked.load(Relaxed);
        barrier.passed.load(Relaxed);
        barrier
    }

    /// Returns after the other thread has passed a barrier.
    pub(crate) fn all_threads(&self) {
        self.asked.store(1, Release);
        while self.passed.load(Acquire) == 0 {
            thread::yield_now();
        }
    }

    /// Passes a barrier if one is requested; called where the other thread may be interrupted.
    pub(crate) fn interrupt(&self) {
        if self.asked.load(Acquire) == 1 && self.passed.load(Relaxed) == 0 {
            fence(SeqCst);
            self.passed.store(1, Release);
        }
    }

    /// Records that the other thread has ended: what it has done is visible after a barrier.
    pub(crate) fn end(&self) {
        self.passed.store(1, Release);
    }
}

/// futex(2): the wait queue of one word.
///
/// The kernel reads the word under the queue's lock, and a waker takes that lock after the word has changed.
#[derive(Debug)]
pub(crate) struct Futex {
    queue: Mutex<u32>,
    woken: Condvar,
}

impl Futex {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::new(0),
            woken: Condvar::new(),
        }
    }

    /// Sleeps while `word` is `expected`, until the queue is woken. Without the callers' time limit: a model
    /// must end without it.
    pub(crate) fn wait(&self, word: &AtomicU32, expected: u32) {
        let queue = self.queue.lock().expect("no thread panics with it");
        if word.load(Relaxed) != expected {
            return;
        }
        drop(self.woken.wait(queue).expect("no thread panics with it"));
    }

    /// Wakes all sleeping threads.
    pub(crate) fn wake(&self) {
        *self.queue.lock().expect("no thread panics with it") += 1;
        self.woken.notify_all();
    }
}

/// A socket as poll(2) sees it, readable or not: a doorbell, or the line to the helper.
#[derive(Debug)]
pub(crate) struct Event {
    is_there: Mutex<bool>,
    posted: Condvar,
}

impl Event {
    pub(crate) fn new() -> Self {
        Self {
            is_there: Mutex::new(false),
            posted: Condvar::new(),
        }
    }

    pub(crate) fn post(&self) {
        *self.is_there.lock().expect("no thread panics with it") = true;
        self.posted.notify_all();
    }

    /// Sleeps until the socket is readable, and reads nothing.
    pub(crate) fn poll(&self) {
        let mut is_there = self.is_there.lock().expect("no thread panics with it");
        while !*is_there {
            is_there = self.posted.wait(is_there).expect("no thread panics with it");
        }
    }

    /// Reads everything.
    pub(crate) fn hear(&self) {
        *self.is_there.lock().expect("no thread panics with it") = false;
    }
}
