//! Ends of processes: the record of each, and the list `exited`.

use std::collections::VecDeque;

use super::process::Process;
use super::refused::{Cause, Refused};
use super::{Ending, Exited, Refusal, Saved, State, Tree};

/// Number of lines of `exited`.
pub const NR_EXITED: usize = 64;

/// Adds a process that has left. If there are too many, the user with the most loses the oldest, so that no
/// user can displace all entries of others.
pub(super) fn remember(all: &mut VecDeque<Exited>, one: Exited) {
    all.push_front(one);
    if all.len() <= NR_EXITED {
        return;
    }
    let nr_of = |uid: u32| all.iter().filter(|exited| exited.identity.uid == uid).count();
    // Among users with equally many, the one with the oldest entry.
    let most = all
        .iter()
        .map(|exited| exited.identity.uid)
        .max_by_key(|uid| nr_of(*uid));
    if let Some(oldest) = all.iter().rposition(|exited| Some(exited.identity.uid) == most) {
        all.remove(oldest);
    }
}

impl State {
    /// Returns the record of a process that leaves, after its last figures have been taken.
    pub(super) fn exited(&self, process: &Process, ending: Ending) -> Exited {
        let saved = Saved::of_process(process, &self.devices);
        let (now, end) = ((self.devices.host.now)(), ending.time);
        let refusals = process.refusals.last.iter().map(|refused| Refusal {
            time: end.saturating_sub(now.saturating_sub(refused.at) / 1_000_000_000),
            count: refused.count,
            gpu: refused.device,
            bytes: refused.bytes,
            by: self.refuser(refused),
            limit: refused.limit,
            used: refused.used,
        });
        let groups = self.chain(process.group).into_iter();
        let mut groups = groups.filter_map(|id| self.groups.get(&id));
        Exited {
            refusals: refusals.collect(),
            is_in_job: groups.any(|group| group.is_job),
            ..saved.exited(self.path(process.group), ending).unwrap_or_default()
        }
    }

    fn refuser(&self, refused: &Refused) -> String {
        match refused.cause {
            Cause::Device => "gpu".to_owned(),
            Cause::Process => "process".to_owned(),
            Cause::Memory => "memory".to_owned(),
            Cause::Group(group, _) => format!("/{}", self.path(Some(group))),
        }
    }
}

impl Tree {
    /// Adds records of processes that ended under earlier daemons to `exited`, the oldest first.
    pub fn restore_exited(&self, records: impl IntoIterator<Item = Exited>) {
        let mut state = self.state.lock();
        records
            .into_iter()
            .for_each(|record| remember(&mut state.exited, record));
    }

    /// Returns the record of the last program of a process, if `exited` has it.
    pub fn exited(&self, pid: u32, start_time: u64) -> Option<Exited> {
        let state = self.state.lock();
        let is_it = |exited: &&Exited| (exited.identity.pid, exited.identity.start_time) == (pid, start_time);
        state.exited.iter().find(is_it).cloned()
    }
}
