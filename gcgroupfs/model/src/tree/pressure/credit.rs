//! Credit of requesters: a requester that repeatedly leaves freed memory unused is refused for 1 to 64 s.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::tree::ProcessId;

/// Time within which a requester must use the freed memory.
const USE: Duration = Duration::from_secs(1);

/// Unused grants in a row that a process, and all processes of a user, may have: another process may have
/// been faster.
const MOST_UNUSED: u32 = 3;
const MOST_UNUSED_OF_USER: u32 = 12;

/// Time for which a requester is refused after that; doubles each time, up to 2^6 times.
const REFUSAL: Duration = Duration::from_secs(1);
const MOST_DOUBLED: u32 = 6;

/// Least time between two requests of a user, where NVML shows their effect and where it does not.
const PAUSE: Duration = Duration::from_millis(50);
const BLIND_PAUSE: Duration = Duration::from_millis(250);

/// A requester: the process, and its user.
type Who = (ProcessId, u32);

#[derive(Debug, Default)]
pub(super) struct Credits {
    processes: HashMap<ProcessId, Credit>,
    users: HashMap<u32, Credit>,
    /// Freed memory that requesters are expected to use.
    expected: Vec<Expected>,
}

#[derive(Debug, Default)]
struct Credit {
    /// Unused grants in a row.
    nr_unused: u32,
    refused_until: Option<Instant>,
    last: Option<Instant>,
}

#[derive(Debug)]
struct Expected {
    who: Who,
    device: usize,
    /// The requester has used the memory once it holds so many bytes.
    held: u64,
    until: Instant,
}

impl Credit {
    fn is_refused(&self, now: Instant) -> bool {
        self.refused_until.is_some_and(|until| now < until)
    }

    fn count_unused(&mut self, most: u32, now: Instant) {
        self.nr_unused = self.nr_unused.saturating_add(1);
        if let Some(beyond) = self.nr_unused.checked_sub(most) {
            self.refused_until = Some(now + REFUSAL * (1 << beyond.min(MOST_DOUBLED)));
        }
    }
}

impl Credits {
    pub(super) fn is_refused(&self, (process, user): Who, now: Instant) -> bool {
        let credits = [self.processes.get(&process), self.users.get(&user)];
        credits.into_iter().flatten().any(|credit| credit.is_refused(now))
    }

    /// Returns whether the user's last request was long enough ago; if so, records this one.
    pub(super) fn is_its_turn(&mut self, (_, user): Who, can_see: bool, now: Instant) -> bool {
        let pause = if can_see { PAUSE } else { BLIND_PAUSE };
        let credit = self.users.entry(user).or_default();
        let is_soon = |last: Instant| now.saturating_duration_since(last) < pause;
        if credit.last.is_some_and(is_soon) {
            return false;
        }
        credit.last = Some(now);
        true
    }

    /// Records that the requester is expected to hold `held` bytes within [`USE`].
    pub(super) fn expect(&mut self, who: Who, device: usize, held: u64, now: Instant) {
        self.expected.push(Expected {
            who,
            device,
            held,
            until: now + USE,
        });
    }

    /// Returns the devices on which a use is expected.
    pub(super) fn devices(&self) -> impl Iterator<Item = usize> {
        self.expected.iter().map(|expected| expected.device)
    }

    /// Checks what requesters hold on a device, where that is known.
    pub(super) fn judge(&mut self, device: usize, held: impl Fn(ProcessId) -> Option<u64>, now: Instant) {
        let Self {
            processes,
            users,
            expected,
        } = self;
        expected.retain(|one| {
            let (process, user) = one.who;
            if one.device != device {
                return true;
            }
            let is_used = held(process).is_none_or(|held| held >= one.held);
            if !is_used && now < one.until {
                return true;
            }
            if is_used {
                processes.remove(&process);
                users.entry(user).or_default().nr_unused = 0;
            } else {
                processes
                    .entry(process)
                    .or_default()
                    .count_unused(MOST_UNUSED, now);
                users
                    .entry(user)
                    .or_default()
                    .count_unused(MOST_UNUSED_OF_USER, now);
            }
            false
        });
        let is_soon = |last: Instant| now.saturating_duration_since(last) < BLIND_PAUSE;
        users.retain(|_, user| user.nr_unused > 0 || user.last.is_some_and(is_soon));
    }

    /// Drops the record of a process that has left; its user's stays.
    pub(super) fn forget(&mut self, process: ProcessId) {
        self.processes.remove(&process);
    }
}
