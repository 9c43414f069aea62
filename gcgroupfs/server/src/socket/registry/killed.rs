//! Killing processes: registered ones, those that execute another program, and those that register later.

use std::collections::HashMap;

use gcgroupfs_model::tree::{Doomed, GroupId};
use nix::errno::Errno;
use tracing::{info, warn};

use super::Registry;
use crate::journal::Key;

/// Groups whose processes were killed, and when, in ticks since boot.
#[derive(Debug, Default)]
pub(super) struct Killed(HashMap<GroupId, u64>);

impl Killed {
    /// Returns whether a process that registers in the group started before its processes were killed. The
    /// ticks of both times are equal in a process that started within 10 ms of that: it lives.
    fn includes(&self, group: GroupId, start_time: u64) -> bool {
        self.0.get(&group).is_some_and(|killed| start_time < *killed)
    }
}

impl Registry {
    /// Kills processes, as was requested at `time` (ticks since boot), and from now on those that started
    /// before and register in one of the groups.
    pub(in super::super) fn kill(&mut self, doomed: &Doomed, time: u64) {
        self.killed.0.retain(|group, _| self.tree.is_group(*group));
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
    /// after it had started.
    pub(super) fn kill_late(&mut self, number: u64, key: Key, group: Option<GroupId>) {
        if group.is_some_and(|group| self.killed.includes(group, key.start_time)) {
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
            Ok(()) => info!("{pid} was killed by gcgroup.kill"),
            Err(Errno::ESRCH) => {}
            Err(errno) => warn!("{pid} cannot be killed: {errno}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_started_before_the_kill_are_included() {
        let killed = Killed(HashMap::from([(GroupId(7), 100)]));
        for (group, start_time, is_included) in
            [(7, 99, true), (7, 100, false), (7, 101, false), (8, 1, false)]
        {
            assert_eq!(
                killed.includes(GroupId(group), start_time),
                is_included,
                "{start_time}"
            );
        }
    }
}
