//! What the kernel does, as models see it.

use gcgroup_abi::sync::Ordering::SeqCst;
use gcgroup_abi::sync::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

/// membarrier(2) with `MEMBARRIER_CMD_PRIVATE_EXPEDITED`, for one other thread.
///
/// The kernel has each thread that runs pass a full barrier at some moment between the call and its return, and a thread that
/// does not run has passed one when it was switched out. So the other thread calls [`Self::interrupt`] wherever that may
/// come: between any two accesses that the model is about.
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
        // The objects behind them are made before threads are.
        barrier.asked.load(Relaxed);
        barrier.passed.load(Relaxed);
        barrier
    }

    /// Returns when the other thread has passed a barrier.
    pub(crate) fn all_threads(&self) {
        self.asked.store(1, Release);
        while self.passed.load(Acquire) == 0 {
            thread::yield_now();
        }
    }

    /// The other thread may be interrupted here.
    pub(crate) fn interrupt(&self) {
        if self.asked.load(Acquire) == 1 && self.passed.load(Relaxed) == 0 {
            fence(SeqCst);
            self.passed.store(1, Release);
        }
    }

    /// The other thread runs no more: what it has done is visible to whoever asks.
    pub(crate) fn end(&self) {
        self.passed.store(1, Release);
    }
}

/// futex(2): the queue of one word.
///
/// The kernel reads the word under the lock of the queue, and a waker takes that lock after the word has changed.
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

    /// Sleeps while `word` is `expected` and nobody has woken the queue since. Without the limit of time that the callers
    /// have: a model must end without it.
    pub(crate) fn wait(&self, word: &AtomicU32, expected: u32) {
        let queue = self.queue.lock().expect("no thread panics with it");
        if word.load(Relaxed) != expected {
            return;
        }
        drop(self.woken.wait(queue).expect("no thread panics with it"));
    }

    /// Wakes everybody who sleeps.
    pub(crate) fn wake(&self) {
        *self.queue.lock().expect("no thread panics with it") += 1;
        self.woken.notify_all();
    }
}

/// A socket that has something to be read or not, as poll(2) sees it: a doorbell, or the line to the helper.
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

    /// Sleeps until something is there, and leaves it there.
    pub(crate) fn poll(&self) {
        let mut is_there = self.is_there.lock().expect("no thread panics with it");
        while !*is_there {
            is_there = self.posted.wait(is_there).expect("no thread panics with it");
        }
    }

    /// Reads all that is there.
    pub(crate) fn hear(&self) {
        *self.is_there.lock().expect("no thread panics with it") = false;
    }
}
