//! A process that registers again takes its settings along, while others write them: an abstract model of the tree.
//!
//! The daemon's tree is no shared memory, and its lock is a plain one: what counts is which steps it spans.

use std::sync::Arc;

use crate::check;
use loom::sync::Mutex;
use loom::thread;

/// A process in the tree: the limit that holds for it, and the number of its registration.
#[derive(Debug, Clone, Copy)]
struct Process {
    limit: u64,
    registration: u32,
}

#[derive(Debug)]
struct Daemon {
    tree: Mutex<Process>,
    /// The last setting on file.
    journal: Mutex<u64>,
}

impl Daemon {
    fn new() -> Arc<Self> {
        let process = Process {
            limit: 1,
            registration: 1,
        };
        Arc::new(Self {
            tree: Mutex::new(process),
            journal: Mutex::new(1),
        })
    }

    /// A write: it holds in the tree, is put on file, and is then answered.
    fn write(&self, limit: u64) {
        self.tree.lock().unwrap().limit = limit;
        *self.journal.lock().unwrap() = limit;
    }

    /// Copies the settings, and joins with the copy when the lock has been released and taken again.
    fn register_in_two_steps(&self) {
        let saved = *self.tree.lock().unwrap();
        *self.tree.lock().unwrap() = Process {
            registration: saved.registration + 1,
            ..saved
        };
    }

    /// Copies and joins under one lock.
    fn register_in_one_step(&self) {
        let mut tree = self.tree.lock().unwrap();
        let saved = *tree;
        *tree = Process {
            registration: saved.registration + 1,
            ..saved
        };
    }
}

fn model(register: impl Fn(&Daemon) + Send + Sync + Copy + 'static) -> impl Fn() + Send + Sync {
    move || {
        let daemon = Daemon::new();
        let loop_ = daemon.clone();
        let registering = thread::spawn(move || register(&loop_));
        daemon.write(2);
        // The write has been answered.
        registering.join().unwrap();
        let process = *daemon.tree.lock().unwrap();
        assert_eq!(process.registration, 2);
        assert_eq!(
            process.limit,
            *daemon.journal.lock().unwrap(),
            "the tree has what is on file"
        );
        assert_eq!(process.limit, 2, "an answered write holds");
    }
}

#[test]
fn a_write_between_registrations_holds() {
    check(model(Daemon::register_in_one_step));
}

#[test]
#[should_panic(expected = "the tree has what is on file")]
fn a_copy_outside_of_the_lock_is_found() {
    check(model(Daemon::register_in_two_steps));
}
