//! Requests to notice the ends of processes: the kernel reports them on another thread than the one that
//! needs to know.

use super::{Notice, Tree};

/// Requests, and how many of them have been answered.
#[derive(Debug, Default)]
pub(super) struct Ends {
    asked: u64,
    noticed: u64,
}

impl Tree {
    /// Requests that the end of every process that has ended by now is noticed. Returns the number of the
    /// request, for [`has_noticed_ends`](Self::has_noticed_ends).
    pub fn ask_ends(&self) -> u64 {
        let asked = {
            let mut state = self.state.lock();
            state.ends.asked += 1;
            state.ends.asked
        };
        self.tell(&[Notice::EndsAsked]);
        asked
    }

    /// Returns the number of requests so far.
    pub fn nr_ends_asked(&self) -> u64 {
        self.state.lock().ends.asked
    }

    /// Answers the first `asked` requests: the processes that had ended have left.
    pub fn answer_ends(&self, asked: u64) {
        self.state.lock().ends.noticed = asked;
    }

    /// Returns whether a request has been answered.
    pub fn has_noticed_ends(&self, request: u64) -> bool {
        self.state.lock().ends.noticed >= request
    }
}
