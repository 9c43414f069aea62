//! Waits until the server has noticed the ends of processes.

use std::thread;
use std::time::{Duration, Instant};

use super::Nodes;

/// Longest wait for the server to notice the ends of processes, and the pause between two looks. The server
/// needs one turn of its loop, which takes microseconds unless it stores something.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(100);

impl Nodes {
    /// Waits until the ends of processes up to now have been noticed, at most [`PATIENCE`].
    pub(super) fn notice_ends(&self) {
        let request = self.tree.ask_ends();
        let until = Instant::now() + PATIENCE;
        while !self.tree.has_noticed_ends(request) && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }
}
