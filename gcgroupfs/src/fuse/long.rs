//! Requests that may take long, since they look at everything there is: at the totals of thousands of processes, or at their
//! names. Nobody else is to wait for many of them, so whoever has taken too much of the loop's time with such goes on behind
//! the loop, for a while.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::nodes::Nodes;
use super::queue::Queue;
use crate::share::Shares;

/// What is answered faster than this counts for nothing: to hand it over would cost the loop about as much.
const SHORT: Duration = Duration::from_micros(30);

/// What a user may take of the loop's time at once.
const ADVANCE: Duration = Duration::from_millis(1);

pub(super) struct Long {
    nodes: Arc<Nodes>,
    queue: Queue,
    shares: Mutex<Shares>,
}

impl Long {
    pub(super) fn start(nodes: Arc<Nodes>) -> io::Result<Self> {
        Ok(Self {
            queue: Queue::start("fuse-long", nodes.clone())?,
            nodes,
            shares: Mutex::new(Shares::new(ADVANCE)),
        })
    }

    /// Carries out a user's request, here and now unless the user has had too much of that.
    pub(super) fn run(&self, uid: u32, request: impl FnOnce(&Nodes) + Send + 'static) {
        let (user, begun) = ((uid, false), Instant::now());
        if !self.shares.lock().allows(user, begun) {
            return self.behind(uid, request);
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

    /// Carries out a user's request behind the loop. At least half of the time nobody there has the tree's lock.
    pub(super) fn behind(&self, uid: u32, request: impl FnOnce(&Nodes) + Send + 'static) {
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
