//! How far requesters are believed: one that has others give way and takes nothing of it is refused for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::tree::ProcessId;

/// How long a requester may take to take what was made free.
const USE: Duration = Duration::from_secs(1);

/// How often in a row a process, and all of a user's, may take nothing: others may have been faster.
const MOST_UNUSED: u32 = 3;
const MOST_UNUSED_OF_USER: u32 = 12;

/// How long a requester is refused then; doubled each time, up to 2^6 times that.
const REFUSAL: Duration = Duration::from_secs(1);
const MOST_DOUBLED: u32 = 6;

/// The time between two of a user's requests, where NVML shows what becomes of them and where it does not.
const PAUSE: Duration = Duration::from_millis(50);
const BLIND_PAUSE: Duration = Duration::from_millis(250);

/// A requester: the process, and its user.
type Who = (ProcessId, u32);

#[derive(Debug, Default)]
pub(super) struct Credits {
    processes: HashMap<ProcessId, Credit>,
    users: HashMap<u32, Credit>,
    /// What was made free and is to be taken.
    expected: Vec<Expected>,
}

#[derive(Debug, Default)]
struct Credit {
    /// How often in a row nothing was taken.
    nr_unused: u32,
    refused_until: Option<Instant>,
    last: Option<Instant>,
}

#[derive(Debug)]
struct Expected {
    who: Who,
    device: usize,
    /// It has taken it when it holds so much.
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

    /// Whether the user's last request was long enough ago. Then this one counts as the last.
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

    /// Room was made: the requester is expected to hold so much soon.
    pub(super) fn expect(&mut self, who: Who, device: usize, held: u64, now: Instant) {
        self.expected.push(Expected {
            who,
            device,
            held,
            until: now + USE,
        });
    }

    /// The devices on which something is expected.
    pub(super) fn devices(&self) -> impl Iterator<Item = usize> {
        self.expected.iter().map(|expected| expected.device)
    }

    /// Looks at what requesters hold on a device, where that is known.
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

    /// A process has left; its user has not.
    pub(super) fn forget(&mut self, process: ProcessId) {
        self.processes.remove(&process);
    }
}
