//! Journal records of the tree: one for each process, each group, and the root.
//!
//! Counts of a process move from its own record to others when it ends or moves. If one of them were written
//! without the others, a daemon killed at that moment would leave the counts twice, or not at all. So records
//! that change together are noted under the lock of the change, and the next write of any of them contains
//! all, as of one moment.

use std::collections::BTreeMap;

use super::{GroupId, Notice, Process, Saved, State, Tree};

/// The subject of a record, in the order of writing. If lines that a full disk held back are cut off, the
/// missing part of the counts is lost; in the opposite order it would be counted twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Process { pid: u32, start_time: u64 },
    Group(GroupId),
    Root,
}

impl Notice {
    /// Returns whether the notice concerns a record.
    pub fn is_of_record(&self) -> bool {
        matches!(
            self,
            Self::Joined { .. }
                | Self::SettingsChanged(_)
                | Self::GroupChanged(_)
                | Self::RootChanged
                | Self::Departed { .. }
        )
    }
}

impl Tree {
    /// Notes changed records from now on. The caller must take them with [`records`](Self::records) at each
    /// notice of one.
    pub fn keep_records(&self) {
        self.state.lock().unwritten.get_or_insert_default();
    }

    /// Returns the records that `notices` concern, and those of groups and the root that changed together
    /// with any. They must be written in one write, before the next are taken.
    pub fn records(&self, notices: &[Notice]) -> Vec<(Subject, Saved)> {
        let is_process =
            |notice: &&Notice| matches!(notice, Notice::Joined { .. } | Notice::SettingsChanged(_));
        // Possibly many, so without a common lock. A record that changes until the lock below is taken is
        // also in `together`.
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

    /// Returns the persistent state of a group; the default if it is gone.
    #[cfg(test)]
    pub fn saved_group(&self, id: GroupId) -> Saved {
        self.state.lock().saved_group(id)
    }

    /// Returns the persistent state of the root.
    pub fn saved_root(&self) -> Saved {
        self.state.lock().saved_root()
    }
}

impl State {
    /// Notes that the records of `notices` have changed together. Must run under the lock of the change.
    pub(super) fn tie(&mut self, notices: &[Notice]) {
        if let Some(unwritten) = &mut self.unwritten {
            let records = notices.iter().filter(|notice| notice.is_of_record());
            unwritten.extend(records.cloned());
        }
    }

    fn record(&self, notice: &Notice) -> Option<(Subject, Saved)> {
        match notice {
            Notice::Joined { id, .. } | Notice::SettingsChanged(id) => {
                Some(self.record_of(self.processes.get(id)?))
            }
            Notice::Departed {
                pid,
                start_time,
                saved,
            } => {
                let (pid, start_time) = (*pid, *start_time);
                let again = self.pids.get(&pid).and_then(|id| self.processes.get(id));
                let again = again.filter(|again| again.identity.start_time == start_time);
                let mut record = again.map_or_else(
                    || (Subject::Process { pid, start_time }, (**saved).clone()),
                    |again| self.record_of(again),
                );
                record.1.exited.clone_from(&saved.exited);
                Some(record)
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

    /// Returns the persistent state of a group; the default if it is gone.
    fn saved_group(&self, id: GroupId) -> Saved {
        match self.groups.get(&id) {
            Some(group) => Saved::of_group(group, &self.devices),
            None => self.retained.of_group(id).cloned().unwrap_or_default(),
        }
    }

    /// Returns the persistent state of the root.
    pub(super) fn saved_root(&self) -> Saved {
        Saved {
            settings: self.root.clone(),
            access: self.access,
            next_group: Some(self.next_group),
            contexts: self.contexts.saved(),
            configured: self.configured.clone(),
            ..Saved::of_root(self.departed)
        }
    }
}
