//! Killing processes: registered ones, those that execute another program, and those that register later.

use std::collections::HashMap;

use gcgroupfs_model::event::Event;
use gcgroupfs_model::tree::{Caller, Doomed, GroupId, KillCause, Killer};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use tracing::{info, warn};

use super::Registry;
use crate::host;
use crate::journal::Key;

/// Seconds after a kill in which processes that started before it are killed when they register.
const LATE_SECONDS: u64 = 60;

/// Groups whose processes were killed, the uids of the users for whom, and why and when (ticks since boot)
/// that was last done.
#[derive(Debug, Default)]
pub(super) struct Killed(HashMap<(GroupId, u32), (KillCause, u64)>);

impl Killed {
    /// Returns the users for whom the group's processes were killed, at most [`LATE_SECONDS`] ago, after a
    /// process had started that registers there at `now`. The ticks of both times are equal in a process that
    /// started within 10 ms of that: it lives.
    fn killers(&self, group: GroupId, start_time: u64, now: u64) -> Vec<Killer> {
        let concerns = |killed, time| killed == group && start_time < time && is_recent(time, now);
        let kills = self.0.iter();
        let kills = kills.filter(|((killed, _), (_, time))| concerns(*killed, *time));
        kills
            .map(|((_, uid), (cause, _))| Killer {
                uid: *uid,
                cause: *cause,
            })
            .collect()
    }
}

/// Returns the signal that is sent.
fn signal(killer: Killer) -> Signal {
    match killer.cause {
        KillCause::Terminate(_) => Signal::SIGTERM,
        KillCause::Write(_) | KillCause::Lease | KillCause::OomGroup => Signal::SIGKILL,
    }
}

/// Returns whether a kill at `killed` still concerns processes that register at `now`, both in ticks.
fn is_recent(killed: u64, now: u64) -> bool {
    now.saturating_sub(killed) <= LATE_SECONDS * host::ticks_per_second()
}

impl Registry {
    /// Kills processes for a user, as was requested at `time` (ticks since boot), and for [`LATE_SECONDS`]
    /// those that started before and register in one of the groups. SIGTERM is sent to registered processes
    /// only.
    pub(in super::super) fn kill(&mut self, doomed: &Doomed, killer: Killer, time: u64) {
        self.killed
            .0
            .retain(|(group, _), (_, killed)| is_recent(*killed, time) && self.tree.is_group(*group));
        let is_final = signal(killer) == Signal::SIGKILL;
        let groups = doomed.groups.iter().filter(|_| is_final);
        let groups = groups.map(|group| ((*group, killer.uid), (killer.cause, time)));
        self.killed.0.extend(groups);
        for number in self.live.numbers() {
            let Some(known) = self.live.get_mut(number) else {
                continue;
            };
            let is_doomed = match &known.registration {
                Some(registration) => doomed.processes.contains(&registration.id),
                None if !is_final => false,
                None => {
                    let saved = self.unregistered.get(known.key);
                    let group = saved.and_then(|saved| saved.group);
                    group.is_some_and(|group| doomed.groups.contains(&group))
                }
            };
            if is_doomed {
                self.kill_one(number, killer);
            }
        }
    }

    /// Kills a process that has just registered for the first time, if its group's processes were killed
    /// after it had started, and not long ago.
    pub(super) fn kill_late(&mut self, number: u64, key: Key, group: Option<GroupId>) {
        let Some(group) = group else { return };
        let now = host::ticks_since_boot();
        for group in self.tree.killed_with(group) {
            for killer in self.killed.killers(group, key.start_time, now) {
                self.kill_one(number, killer);
            }
        }
    }

    /// Kills a process for a user, but none of another user's.
    fn kill_one(&mut self, number: u64, killer: Killer) {
        let Some(known) = self.live.get_mut(number) else {
            return;
        };
        let caller = Caller {
            uid: killer.uid,
            gid: 0,
            pid: 0,
        };
        let user = (!self.tree.is_root(caller)).then_some(killer.uid);
        let (pid, uid) = (known.key.pid, known.uid());
        let signal = signal(killer);
        let killed = known.kill_for(user, signal);
        let what = match signal {
            Signal::SIGKILL => "killed",
            _ => "terminated",
        };
        if killed.is_ok() {
            known.killer = Some(killer);
            self.activity_log.note(Event {
                what: what.to_owned(),
                pid: Some(pid),
                uid,
                text: format!("by {killer}"),
                ..Event::default()
            });
        }
        if !self.may_log_of(uid) {
            return;
        }
        match killed {
            Ok(()) => info!(
                PID = pid,
                UID = uid,
                BY_UID = killer.uid,
                "{pid} was {what}: by {killer}"
            ),
            Err(Errno::ESRCH) => {}
            Err(Errno::EPERM) => {
                info!("{pid} was not {what} by {killer}: it is another user's now");
            }
            Err(errno) => warn!("{pid} cannot be {what}: {errno}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_started_before_a_recent_kill_are_included() {
        let killed = Killed(HashMap::from([((GroupId(7), 1000), (KillCause::Lease, 100))]));
        let last = 100 + LATE_SECONDS * host::ticks_per_second();
        for (group, start_time, now, is_included) in [
            (7, 99, 100, true),
            (7, 100, 100, false),
            (7, 101, 101, false),
            (8, 1, 100, false),
            (7, 99, last, true),
            (7, 99, last + 1, false),
        ] {
            let killer = Killer {
                uid: 1000,
                cause: KillCause::Lease,
            };
            assert_eq!(
                killed.killers(GroupId(group), start_time, now),
                if is_included { vec![killer] } else { vec![] },
                "{start_time} at {now}"
            );
        }
    }
}
