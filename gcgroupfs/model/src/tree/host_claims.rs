//! Claims of host memory that processes are about to take for their moves. MemAvailable falls only once
//! memory is taken, so two processes that read it at once would count the same bytes twice. Each process
//! states what it is about to take, and is told what others have stated before.
//!
//! No process can hold a lock for that: the claim of a process that is stopped, or lies, counts for
//! [`LASTS`].

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Notice, ProcessId, State, enforce};

/// How long a claim counts. The hook uses an answer for half of that.
const LASTS: Duration = Duration::from_secs(2);

/// Answered claims, with the times of the answers since boot.
#[derive(Debug, Default)]
pub(super) struct HostClaims(BTreeMap<ProcessId, Duration>);

impl HostClaims {
    pub(super) fn remove(&mut self, id: ProcessId) {
        self.0.remove(&id);
    }
}

impl State {
    /// Answers a process's last claim at `now`, the time since boot, unless it has been answered.
    pub(super) fn answer_claim(&mut self, id: ProcessId, now: Duration, notices: &mut Vec<Notice>) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let number = process.usage().host_request();
        if number == process.control().host_answer.load(Relaxed) {
            return;
        }
        let host_memory = self.devices.host.memory;
        let mut others = 0_u64;
        self.host_claims.0.retain(|other, since| {
            let claimant = self.processes.get(other);
            let bytes = claimant.map_or(0, |process| process.usage().host_claim(host_memory));
            let counts = bytes != 0 && *other != id && now.saturating_sub(*since) < LASTS;
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
