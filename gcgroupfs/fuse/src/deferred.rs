//! Deferral of long requests: those that read totals or names of thousands of processes. A user that has
//! taken too much of the loop's time with them continues on a deferred thread, so that others do not wait.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::nodes::Nodes;
use super::queue::Queue;
use gcgroupfs_model::share::Shares;

/// Requests answered faster than this do not count: deferring would cost the loop about as much.
const SHORT: Duration = Duration::from_micros(30);

/// Loop time that a user may take at once.
const ADVANCE: Duration = Duration::from_millis(1);

pub(super) struct Deferred {
    nodes: Arc<Nodes>,
    queue: Queue,
    shares: Mutex<Shares>,
}

impl Deferred {
    pub(super) fn start(nodes: Arc<Nodes>) -> io::Result<Self> {
        Ok(Self {
            queue: Queue::start("fuse-deferred", nodes.clone())?,
            nodes,
            shares: Mutex::new(Shares::new(ADVANCE)),
        })
    }

    /// Runs a user's request now, or defers it if the user has taken too much time.
    pub(super) fn run(&self, uid: u32, request: impl FnOnce(&Nodes) + Send + 'static) {
        let (user, begun) = ((uid, false), Instant::now());
        if !self.shares.lock().allows(user, begun) {
            return self.defer(uid, request);
        }
        request(&self.nodes);
        let now = Instant::now();
        let taken = now.duration_since(begun);
        if taken > SHORT {
            let mut shares = self.shares.lock();
            shares.take(user, taken, now);
            shares.tidy(now);
        }
    }

    /// Runs a user's request on the deferred thread, followed by a pause of the same length without the
    /// tree's lock.
    pub(super) fn defer(&self, uid: u32, request: impl FnOnce(&Nodes) + Send + 'static) {
        self.queue.push(uid, |nodes| {
            let begun = Instant::now();
            request(nodes);
            let taken = begun.elapsed();
            if taken > SHORT {
                thread::sleep(taken);
            }
        });
    }
}
