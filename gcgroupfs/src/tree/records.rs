//! What is on file of the tree: a record for each process, for each group, and for the root.
//!
//! What a process has counted goes from its own record to others when it ends or moves. If one of them were on file without the
//! others, a daemon that is killed then would leave it twice, or not at all. So what goes together is noted in the same step as
//! it changes, and whoever is the next to write any of it down writes all of it, as it is at one moment.

use std::collections::BTreeMap;

use super::{GroupId, Notice, Process, Saved, State, Tree};

/// What a record is of, in the order in which they are written. Of a write that is cut off what is lost is not counted; the other
/// way about it would count twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Process { pid: u32, start_time: u64 },
    Group(GroupId),
    Root,
}

impl Notice {
    /// Whether it is of a record.
    pub fn is_of_record(&self) -> bool {
        matches!(
            self,
            Self::SettingsChanged(_) | Self::GroupChanged(_) | Self::RootChanged | Self::Departed { .. }
        )
    }
}

impl Tree {
    /// From now on somebody takes [`records`](Self::records) whenever there is notice of any.
    pub fn keep_records(&self) {
        self.state.lock().unwritten.get_or_insert_default();
    }

    /// The records that these notices are of, and those that have changed together with any of the root's and the groups'. To
    /// be on file, in one write, before the next are taken.
    pub fn records(&self, notices: &[Notice]) -> Vec<(Subject, Saved)> {
        let is_process = |notice: &&Notice| matches!(notice, Notice::SettingsChanged(_));
        // Perhaps many. If one of them is not what it was when all that goes together is taken, it is among that.
        let mut all: BTreeMap<Subject, Saved> = notices
            .iter()
            .filter(is_process)
            .filter_map(|notice| self.state.lock().record(notice))
            .collect();
        let mut state = self.state.lock();
        let together = state.unwritten.as_mut().map(std::mem::take).unwrap_or_default();
        let others = notices.iter().filter(|notice| !is_process(notice));
        all.extend(others.chain(&together).filter_map(|notice| state.record(notice)));
        all.into_iter().collect()
    }

    /// What is to be kept of a group, or that it is gone.
    #[cfg(test)]
    pub fn saved_group(&self, id: GroupId) -> Saved {
        self.state.lock().saved_group(id)
    }

    /// What is to be kept of the root.
    pub fn saved_root(&self) -> Saved {
        self.state.lock().saved_root()
    }
}

impl State {
    /// What these are of goes together. Under the lock under which it has changed.
    pub(super) fn tie(&mut self, notices: &[Notice]) {
        if let Some(unwritten) = &mut self.unwritten {
            let records = notices.iter().filter(|notice| notice.is_of_record());
            unwritten.extend(records.cloned());
        }
    }

    fn record(&self, notice: &Notice) -> Option<(Subject, Saved)> {
        match notice {
            Notice::SettingsChanged(id) => Some(self.record_of(self.processes.get(id)?)),
            Notice::Departed {
                pid,
                start_time,
                saved,
            } => {
                let (pid, start_time) = (*pid, *start_time);
                let again = self.pids.get(&pid).and_then(|id| self.processes.get(id));
                let again = again.filter(|again| again.identity.start_time == start_time);
                Some(again.map_or_else(
                    || (Subject::Process { pid, start_time }, (**saved).clone()),
                    |again| self.record_of(again),
                ))
            }
            Notice::GroupChanged(id) => Some((Subject::Group(*id), self.saved_group(*id))),
            Notice::RootChanged => Some((Subject::Root, self.saved_root())),
            _ => None,
        }
    }

    fn record_of(&self, process: &Process) -> (Subject, Saved) {
        let subject = Subject::Process {
            pid: process.identity.pid,
            start_time: process.identity.start_time,
        };
        (subject, Saved::of_process(process, &self.devices))
    }

    /// What is to be kept of a group, or that it is gone.
    fn saved_group(&self, id: GroupId) -> Saved {
        let group = self.groups.get(&id);
        group.map_or_else(Saved::default, |group| Saved::of_group(group, &self.devices))
    }

    /// What is to be kept of the root.
    pub(super) fn saved_root(&self) -> Saved {
        Saved {
            settings: self.root.clone(),
            access: self.access,
            next_group: Some(self.next_group),
            ..Saved::of_root(self.departed)
        }
    }
}
