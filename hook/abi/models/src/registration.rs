//! A process that registers again keeps its settings while others write them: an abstract model of the tree.
//!
//! The daemon's tree is not shared memory and its lock is a mutex: the model checks which steps the lock
//! spans.

use std::sync::Arc;

use crate::check;
use loom::sync::Mutex;
use loom::thread;

/// A process in the tree: its limit, and the number of its registration.
#[derive(Debug, Clone, Copy)]
struct Process {
    limit: u64,
    registration: u32,
}

#[derive(Debug)]
struct Daemon {
    tree: Mutex<Process>,
    /// The last recorded setting.
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

    /// Writes a setting: changes the tree, records it, then returns to the writer.
    fn write(&self, limit: u64) {
        self.tree.lock().unwrap().limit = limit;
        *self.journal.lock().unwrap() = limit;
    }

    /// Copies the settings, releases the lock, and registers with the copy under the lock taken again.
    fn register_in_two_steps(&self) {
        let saved = *self.tree.lock().unwrap();
        *self.tree.lock().unwrap() = Process {
            registration: saved.registration + 1,
            ..saved
        };
    }

    /// Copies the settings and registers under one lock.
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
        // From here on the write has been answered.
        registering.join().unwrap();
        let process = *daemon.tree.lock().unwrap();
        assert_eq!(process.registration, 2);
        assert_eq!(
            process.limit,
            *daemon.journal.lock().unwrap(),
            "the tree has what is recorded"
        );
        assert_eq!(process.limit, 2, "an answered write holds");
    }
}

#[test]
fn write_during_registration_holds() {
    check(model(Daemon::register_in_one_step));
}

#[test]
#[should_panic(expected = "the tree has what is recorded")]
fn copy_outside_the_lock_is_found() {
    check(model(Daemon::register_in_two_steps));
}
