//! Memory of the host that processes are about to take for their moves. MemAvailable shows memory when it is
//! taken, so two processes that look at once would count the same bytes twice. Each one states what it is
//! about to take, and is told what the others have stated before it.
//!
//! Nobody holds a lock, and nobody can: a claim of a process that is stopped, or that lies, is counted for
//! [`LASTS`].

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use super::{Notice, ProcessId, State, enforce};

/// How long a claim is counted. The hook uses an answer for half of that.
const LASTS: Duration = Duration::from_secs(2);

/// The claims that have been answered, with the times of the answers.
#[derive(Debug, Default)]
pub(super) struct HostClaims(BTreeMap<ProcessId, Instant>);

impl HostClaims {
    pub(super) fn remove(&mut self, id: ProcessId) {
        self.0.remove(&id);
    }
}

impl State {
    /// Answers the last claim of a process, unless it has been answered.
    pub(super) fn answer_claim(&mut self, id: ProcessId, now: Instant, notices: &mut Vec<Notice>) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let number = process.usage().host_request.load(Acquire);
        if number == process.control().host_answer.load(Relaxed) {
            return;
        }
        let mut others = 0_u64;
        self.host_claims.0.retain(|other, since| {
            let claimant = self.processes.get(other);
            let bytes = claimant.map_or(0, |process| process.usage().host_claim.load(Relaxed));
            let counts = bytes != 0 && *other != id && now.saturating_duration_since(*since) < LASTS;
            if counts {
                others = others.saturating_add(bytes);
            }
            counts
        });
        self.host_claims.0.insert(id, now);
        enforce::answer_claim(process, number, others);
        notices.push(Notice::Ring(id));
    }
}
