//! Where the processes that use a device compete for it.

use std::collections::BTreeMap;

use super::group::Group;
use super::{GroupId, Process, ProcessId, State};
use crate::arbiter::{Competitor, Place, Step, competitors};

impl State {
    /// Returns the groups that each of these processes is in, the outermost first, with their priorities on
    /// a device.
    pub(super) fn steps(
        &self,
        processes: impl Iterator<Item = ProcessId>,
        device: usize,
    ) -> BTreeMap<GroupId, Vec<Step>> {
        let mut steps = BTreeMap::new();
        let groups = processes.filter_map(|id| self.processes.get(&id)?.group);
        for group in groups {
            steps.entry(group).or_insert_with(|| self.steps_of(group, device));
        }
        steps
    }

    /// Returns a group and those above, the outermost first, with their priorities on a device.
    pub(super) fn steps_of(&self, group: GroupId, device: usize) -> Vec<Step> {
        let groups = self.chain(Some(group)).into_iter().rev();
        let step = |id: GroupId| {
            Some(Step {
                group: id.0,
                priority: self.group_priority(self.groups.get(&id)?, Some(device)),
            })
        };
        groups.filter_map(step).collect()
    }

    /// Returns where a process competes for a device with those that have lately had work: the groups and at
    /// last the process, with what each has of that above, percent, and the number of its siblings.
    pub(super) fn contest(&self, process: &Process, device: usize) -> Vec<Competitor> {
        let uuid = self.devices.get(device).map(|device| device.uuid_text.as_str());
        let users = self.device_users.of(device);
        let users = users.filter_map(|id| Some(&**self.processes.get(&id)?));
        let works = |one: &&Process| {
            let kept = one.devices.get(device);
            one.id == process.id || kept.is_some_and(|kept| kept.share_percent > 0)
        };
        let users: Vec<&Process> = users.filter(works).collect();
        let place = |one: &&Process| {
            let steps = one.group.map_or(Vec::new(), |group| self.steps_of(group, device));
            Place::new(&steps, one.priority(Some(device), uuid))
        };
        let places: Vec<Place> = users.iter().map(place).collect();
        let own = users.iter().position(|one| one.id == process.id);
        own.map_or(Vec::new(), |own| competitors(&places, own, self.policy()))
    }

    /// Returns the priority of a group among its siblings, as a whole or on a device. That of a job's group
    /// is the one of the process that was started, or else of all its processes if they have the same.
    pub(super) fn group_priority(&self, group: &Group, device: Option<usize>) -> u32 {
        let of_job = group.is_job.then(|| self.job_priority(group, device)).flatten();
        of_job.unwrap_or_else(|| group.inherited.rank(device).in_force())
    }

    fn job_priority(&self, group: &Group, device: Option<usize>) -> Option<u32> {
        let uuid = device.and_then(|device| Some(self.devices.get(device)?.uuid_text.as_str()));
        let priority = |process: &Process| process.priority(device, uuid);
        let processes = self.of_job(group);
        let is_started = |process: &&&Process| {
            let identity = &process.identity;
            let job = group.job.as_ref();
            job.is_some_and(|job| (job.pid, job.start_time) == (identity.pid, identity.start_time))
        };
        if let Some(started) = processes.iter().find(is_started) {
            return Some(priority(started));
        }
        let first = priority(processes.first()?);
        processes
            .iter()
            .all(|one| priority(one) == first)
            .then_some(first)
    }

    /// Returns the processes of a job, also those of jobs that it has started.
    fn of_job(&self, group: &Group) -> Vec<&Process> {
        let own = group.members.iter();
        let own = own.filter_map(|id| Some(&**self.processes.get(id)?));
        let below = group.children.values().filter_map(|id| self.groups.get(id));
        let below = below.filter(|group| group.is_job);
        own.chain(below.flat_map(|group| self.of_job(group))).collect()
    }
}
