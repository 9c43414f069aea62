//! Submissions of a simulated process at the gate: the hook's estimates and its patience.

use gcgroup_abi::{Gate, UNKNOWN_COST};

use super::{CHARGED, Cost, Kernel, Player, UNKNOWN};
use crate::arbiter::tests::played::{MSEC, USEC};

/// The hook's least patience, nanoseconds.
const PATIENCE: u64 = 5 * MSEC;

impl Player {
    pub(super) fn cost(&self, length: u64) -> Cost {
        self.costs.get(&length).copied().unwrap_or(UNKNOWN)
    }

    /// Returns the hook's estimate of the queued work, nanoseconds; `None` if it does not know how long that
    /// takes.
    fn estimate(&self, now: u64) -> Option<u64> {
        let mut sum = 0;
        for (index, kernel) in self.queue.iter().enumerate() {
            let cost = self.cost(kernel.length);
            let ran = if index == 0 { now - kernel.since } else { 0 };
            if !cost.is_known || ran > 2 * cost.nsec {
                return None;
            }
            sum += cost.nsec.saturating_sub(ran);
        }
        Some(sum)
    }

    /// Returns the patience of a thread that waits for room, nanoseconds.
    fn patience(&self) -> u64 {
        let is_known = self.queue.iter().all(|kernel| self.cost(kernel.length).is_known);
        let longest = self
            .queue
            .iter()
            .map(|kernel| self.cost(kernel.length).nsec)
            .max();
        match longest.filter(|_| is_known) {
            Some(longest) => (2 * longest).min(self.order.patience),
            None => self.order.patience,
        }
        .max(PATIENCE)
    }

    /// Submits what the gate lets pass (20 ms of work if it is open). Returns when to look again, if that is
    /// before the queue changes.
    pub(in crate::arbiter::tests) fn submit(&mut self, now: u64) -> Option<u64> {
        while self.wants(now) {
            let length = self.kernels[self.next].min(self.left);
            let gate = match self.is_frozen(now) {
                true => Gate::Frozen,
                false => self.order.gate,
            };
            let (waited, patience) = match gate {
                Gate::Frozen => {
                    self.waiting = None;
                    (0, self.frozen_until - now)
                }
                Gate::Throttled => (self.waited(gate, now), self.order.patience),
                Gate::Run | Gate::Track if self.queue.iter().map(|one| one.left).sum::<u64>() < 20 * MSEC => {
                    (0, 0)
                }
                Gate::Run | Gate::Track => {
                    self.waiting = None;
                    return None;
                }
                Gate::Arbitrate => {
                    let window = self.order.window;
                    let cost = self.cost(length);
                    let limit = match cost.is_known {
                        true => window.saturating_sub(cost.nsec).max(window * 3 / 4),
                        false => 0,
                    };
                    let room = match self.queue.is_empty() {
                        _ if !self.fits(length, now) => None,
                        true => Some(0),
                        false => self.estimate(now).map(|left| left.saturating_sub(limit)),
                    };
                    match room {
                        Some(0) => (0, 0),
                        _ => {
                            let waited = self.waited(gate, now);
                            let left = self.patience().saturating_sub(waited);
                            (0, left.min(room.unwrap_or(left).max(20 * USEC)).min(left))
                        }
                    }
                }
            };
            if waited < patience {
                return Some(now + (patience - waited));
            }
            self.push(now, length);
        }
        self.waiting = None;
        None
    }

    /// Returns whether a submission ends before a process of higher priority is expected.
    fn fits(&mut self, length: u64, now: u64) -> bool {
        let until = self.order.gap_until;
        if self.gap.0 != until {
            self.gap = (until, now);
        }
        let (all, left) = (until.saturating_sub(self.gap.1), until.saturating_sub(now));
        match (self.cost(length).nsec, self.estimate(now)) {
            _ if until == 0 => true,
            (cost, Some(0)) if cost > all / 4 * 3 => left >= all / 2,
            (cost, Some(queued)) => queued + cost <= left,
            (_, None) => false,
        }
    }

    /// Returns how long a thread has waited at the gate; it begins to wait there now if it does not.
    fn waited(&mut self, gate: Gate, now: u64) -> u64 {
        match self.waiting {
            Some((at, since)) if at == gate => now - since,
            _ => {
                self.waiting = Some((gate, now));
                0
            }
        }
    }

    fn push(&mut self, now: u64, length: u64) {
        self.waiting = None;
        if let Some((length, took, before)) = self.unsettled.take().filter(|_| self.queue.is_empty()) {
            let charged = self.charged - before;
            if charged >= CHARGED {
                self.costs.insert(
                    length,
                    Cost {
                        nsec: took.min(charged),
                        is_known: true,
                        ..UNKNOWN
                    },
                );
            }
        }
        self.next = (self.next + 1) % self.kernels.len();
        self.left -= length;
        let cost = self.cost(length).nsec;
        self.queued_until = match self.estimate(now) {
            Some(left) => now + left + cost,
            None => now + cost,
        };
        let sampled = self.sampled.get(&length).copied();
        self.submitted += sampled.unwrap_or(UNKNOWN_COST + cost);
        self.queue.push_back(Kernel {
            length,
            left: length,
            since: now,
            is_shared: false,
            charged: self.queue.is_empty().then_some(self.charged),
        });
    }
}
