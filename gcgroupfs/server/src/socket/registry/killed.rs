//! Killing processes: registered ones, those that execute another program, and those that register later.

use std::collections::HashMap;

use gcgroupfs_model::tree::{Doomed, GroupId};
use nix::errno::Errno;
use tracing::{info, warn};

use super::Registry;
use crate::host;
use crate::journal::Key;

/// Seconds after a kill in which processes that started before it are killed when they register.
const LATE_SECONDS: u64 = 60;

/// Groups whose processes were killed, and when, in ticks since boot.
#[derive(Debug, Default)]
pub(super) struct Killed(HashMap<GroupId, u64>);

impl Killed {
    /// Returns whether a process that registers in the group at `now` started before its processes were
    /// killed, at most [`LATE_SECONDS`] ago. The ticks of both times are equal in a process that started
    /// within 10 ms of that: it lives.
    fn includes(&self, group: GroupId, start_time: u64, now: u64) -> bool {
        let killed = self.0.get(&group);
        killed.is_some_and(|killed| start_time < *killed && is_recent(*killed, now))
    }
}

/// Returns whether a kill at `killed` still concerns processes that register at `now`, both in ticks.
fn is_recent(killed: u64, now: u64) -> bool {
    now.saturating_sub(killed) <= LATE_SECONDS * host::ticks_per_second()
}

impl Registry {
    /// Kills processes, as was requested at `time` (ticks since boot), and for [`LATE_SECONDS`] those that
    /// started before and register in one of the groups.
    pub(in super::super) fn kill(&mut self, doomed: &Doomed, time: u64) {
        let recent = |killed: &u64| is_recent(*killed, time);
        self.killed
            .0
            .retain(|group, killed| recent(killed) && self.tree.is_group(*group));
        let groups = doomed.groups.iter().map(|group| (*group, time));
        self.killed.0.extend(groups);
        for number in self.live.numbers() {
            let Some(known) = self.live.get_mut(number) else {
                continue;
            };
            let is_doomed = match &known.registration {
                Some(registration) => doomed.processes.contains(&registration.id),
                None => {
                    let saved = self.unregistered.get(known.key);
                    let group = saved.and_then(|saved| saved.group);
                    group.is_some_and(|group| doomed.groups.contains(&group))
                }
            };
            if is_doomed {
                self.kill_one(number);
            }
        }
    }

    /// Kills a process that has just registered for the first time, if its group's processes were killed
    /// after it had started, and not long ago.
    pub(super) fn kill_late(&mut self, number: u64, key: Key, group: Option<GroupId>) {
        if group.is_some_and(|group| {
            self.killed
                .includes(group, key.start_time, host::ticks_since_boot())
        }) {
            self.kill_one(number);
        }
    }

    fn kill_one(&mut self, number: u64) {
        let Some(known) = self.live.get_mut(number) else {
            return;
        };
        let (pid, uid) = (known.key.pid, known.uid());
        let killed = known.kill();
        if !self.may_log_of(uid) {
            return;
        }
        match killed {
            Ok(()) => info!("{pid} was killed: by gcgroup.kill, a lease or memory.oom.group"),
            Err(Errno::ESRCH) => {}
            Err(errno) => warn!("{pid} cannot be killed: {errno}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_started_before_a_recent_kill_are_included() {
        let killed = Killed(HashMap::from([(GroupId(7), 100)]));
        let last = 100 + LATE_SECONDS * host::ticks_per_second();
        for (group, start_time, now, is_included) in [
            (7, 99, 100, true),
            (7, 100, 100, false),
            (7, 101, 101, false),
            (8, 1, 100, false),
            (7, 99, last, true),
            (7, 99, last + 1, false),
        ] {
            assert_eq!(
                killed.includes(GroupId(group), start_time, now),
                is_included,
                "{start_time} at {now}"
            );
        }
    }
}
