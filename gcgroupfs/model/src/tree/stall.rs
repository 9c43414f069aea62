//! Pressure: the time for which threads waited, as in the kernel's PSI, of processes, groups and the root.
//!
//! A process's own clocks ([`StallClock`](gcgroup_abi::StallClock)) are read when a reader looks at the
//! process or at a directory above; only averages that are read need a timer.
//!
//! A group sees of each child, a process or a group, only how much it waited since the last look, not when.
//! States that last from one look to the next add up exactly; in between, the children are taken to wait
//! independently of each other. Writes of `compute.freeze`, moves and exits are looks, too, except at
//! directories with more than 64 processes. A process that submitted something since the last look is taken
//! to have run whenever not all of its threads waited.

mod average;
mod children;
#[cfg(test)]
mod tests;
pub(super) mod totals;

use gcgroup_abi::Pressure;

use super::peaks::MAX_LOOK;
use super::process::slots;
use super::untrusted::StallsSeen;
use super::{Directory, Entity, GroupId, Notice, ProcessId, State, Tree};
use crate::error::{Error, Result};
use average::Averages;
use children::Children;
use totals::{ProcessStalls, Stalls};

/// Shortest time between two updates of averages, nanoseconds, so that their cost does not grow with the
/// square of their number: each has a period of its own.
const LEAST_PAUSE: u64 = 500_000_000;

/// Time for which averages are kept up to date after a read, nanoseconds: those of 300 s have forgotten most
/// of what was before.
const READ_PAUSE: u64 = 600_000_000_000;

impl Tree {
    /// Returns `CLOCK_MONOTONIC` in nanoseconds, the clock of usage blocks.
    pub fn now(&self) -> u64 {
        self.state.lock().now()
    }

    /// Returns the contents of a pressure file, in the format of the kernel's PSI.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn show_pressure(&self, directory: Directory, what: Pressure) -> Result<String> {
        let mut state = self.state.lock();
        let now = state.now();
        let text = state.show_pressure(directory, what, now);
        let is_first = text.is_ok() && state.stalls.readers.insert(directory.entity, now).is_none();
        drop(state);
        if is_first {
            self.tell(&[Notice::PressureWatched]);
        }
        text
    }

    /// Brings the averages that were read lately up to date. Returns the nanoseconds until that is due again,
    /// if any were.
    pub fn average_pressure(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let now = state.now();
        state.average_pressure(now)
    }
}

impl State {
    /// Returns `CLOCK_MONOTONIC` in nanoseconds. Read under the lock, so that no clock of a process that is
    /// looked at next is far ahead.
    pub(super) fn now(&self) -> u64 {
        (self.devices.host.now)()
    }

    fn show_pressure(&mut self, directory: Directory, what: Pressure, now: u64) -> Result<String> {
        self.bring_up(directory, now)?;
        let stalls = self.stalls_of_mut(directory)?;
        let total = stalls.total[what as usize];
        Ok(stalls.average(now).show(what, total))
    }

    fn average_pressure(&mut self, now: u64) -> Option<u64> {
        self.stalls
            .readers
            .retain(|_, last| now.saturating_sub(*last) < READ_PAUSE);
        let entities: Vec<u64> = self.stalls.readers.keys().copied().collect();
        let mut next = None;
        for entity in entities {
            let directory = Directory { entity, device: None };
            let at = self.stalls_of(directory).map(|stalls| stalls.next_average());
            let at = match at {
                Ok(Some(at)) if at > now => Ok(at),
                _ => (self
                    .bring_up(directory, now)
                    .and_then(|()| self.stalls_of_mut(directory)))
                .map(|stalls| stalls.average(now).next()),
            };
            match at {
                Ok(at) => next = next.into_iter().chain([at]).min(),
                Err(_) => drop(self.stalls.readers.remove(&entity)),
            }
        }
        next.map(|next| next.saturating_sub(now).max(LEAST_PAUSE))
    }

    fn stalls_of(&self, directory: Directory) -> Result<&Stalls> {
        match directory.whose() {
            Entity::Root => Some(&self.stalls.own),
            Entity::Process(id) => self.processes.get(&id).map(|process| &process.stalls.own),
            Entity::Group(id) => self.groups.get(&id).map(|group| &group.stalls),
        }
        .ok_or(Error::Gone)
    }

    fn stalls_of_mut(&mut self, directory: Directory) -> Result<&mut Stalls> {
        match directory.whose() {
            Entity::Root => Some(&mut self.stalls.own),
            Entity::Process(id) => self.processes.get_mut(&id).map(|process| &mut process.stalls.own),
            Entity::Group(id) => self.groups.get_mut(&id).map(|group| &mut group.stalls),
        }
        .ok_or(Error::Gone)
    }

    /// Brings the totals of a directory up to `now`.
    fn bring_up(&mut self, directory: Directory, now: u64) -> Result<()> {
        match directory.whose() {
            Entity::Root => self.look_at_root(now),
            Entity::Process(id) => self.look_at_process(id, now),
            Entity::Group(id) => self.look_at_group(id, now),
        }
        self.stalls_of(directory).map(drop)
    }

    fn look_at_process(&mut self, id: ProcessId, now: u64) {
        let nr_devices = self.devices.len();
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let usage = process.blocks.usage();
        let stalls = &mut process.stalls;
        let elapsed = now.saturating_sub(stalls.own.at) / 1000;
        let time = usage.stalled(&mut stalls.seen, now, elapsed);
        let submitted = usage.nr_submitted(slots(nr_devices));
        let has_run = std::mem::replace(&mut stalls.submitted, submitted) != submitted;
        // Whole microseconds, so that none is lost between two looks.
        stalls.own.at += elapsed * 1000;
        stalls.own.add(&time, has_run);
    }

    fn look_at_group(&mut self, id: GroupId, now: u64) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let (children, members) = (group.children.values().copied().collect(), group.members.iter());
        let members = members.copied().collect();
        self.look_below(Directory::group(id), (children, members), now);
    }

    fn look_at_root(&mut self, now: u64) {
        let members = self.processes.values().filter(|process| process.group.is_none());
        let members = members.map(|process| process.id).collect();
        let children = self.top.values().copied().collect();
        self.look_below(Directory::ROOT, (children, members), now);
    }

    /// Adds up what the children of a directory have waited since the last look.
    fn look_below(
        &mut self,
        directory: Directory,
        (groups, members): (Vec<GroupId>, Vec<ProcessId>),
        now: u64,
    ) {
        for id in &groups {
            self.look_at_group(*id, now);
        }
        for id in &members {
            self.look_at_process(*id, now);
        }
        let Ok(stalls) = self.stalls_of_mut(directory) else {
            return;
        };
        let elapsed = now.saturating_sub(stalls.at) / 1000;
        if elapsed == 0 {
            return;
        }
        stalls.at += elapsed * 1000;
        let mut children = Children::new(elapsed);
        if let Some(gone) = &mut stalls.gone {
            children.add(&gone.pass());
        }
        for id in groups {
            if let Some(group) = self.groups.get_mut(&id) {
                children.add(&group.stalls.pass());
            }
        }
        for id in members {
            if let Some(process) = self.processes.get_mut(&id) {
                children.add(&process.stalls.own.pass());
            }
        }
        let times = children.times();
        if let Ok(stalls) = self.stalls_of_mut(directory) {
            stalls.add(&times, children.has_run);
        }
    }

    /// Begins to count a process. What it waited before this daemon knew it belongs to the process alone.
    pub(super) fn begin_stalls(&mut self, id: ProcessId) {
        let now = self.now();
        let (host, nr_devices) = (self.devices.host, self.devices.len());
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let usage = process.blocks.usage();
        let mut own = Stalls::new(now);
        let mut seen = StallsSeen::default();
        let time = usage.stalled(&mut seen, now, host.age_usec(process.identity.start_time));
        own.add(&time, false);
        own.passed = own.total;
        own.averages = Some(Box::new(Averages::new(now, own.total)));
        process.stalls = ProcessStalls {
            own,
            seen,
            submitted: usage.nr_submitted(slots(nr_devices)),
        };
    }

    /// Looks at a group and above because processes there begin or end to wait together, or one leaves: the
    /// totals are exact up to now. Nothing is done above the highest group with at most [`MAX_LOOK`]
    /// processes.
    pub(super) fn note_stalls(&mut self, group: Option<GroupId>) {
        let now = self.now();
        if self.processes.len() <= MAX_LOOK {
            return self.look_at_root(now);
        }
        let is_small = |id: &GroupId| {
            let group = self.groups.get(id);
            group.is_some_and(|group| group.nr_members <= MAX_LOOK)
        };
        if let Some(highest) = self.chain(group).into_iter().rfind(is_small) {
            self.look_at_group(highest, now);
        }
    }

    /// Leaves with a directory what a process has waited that is leaving it.
    pub(super) fn leave_stalls(&mut self, id: ProcessId) {
        let now = self.now();
        self.note_stalls(self.processes.get(&id).and_then(|process| process.group));
        self.look_at_process(id, now);
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let (part, above) = (process.stalls.own.pass(), Directory::of(process.group));
        if let Ok(above) = self.stalls_of_mut(above) {
            above.take_in(&part);
        }
    }

    /// Leaves with the directory above what the processes of an empty group have waited.
    pub(super) fn leave_stalls_of_group(&mut self, id: GroupId) {
        let now = self.now();
        self.look_at_group(id, now);
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let (part, above) = (group.stalls.pass(), Directory::of(group.parent));
        if let Ok(above) = self.stalls_of_mut(above) {
            above.take_in(&part);
        }
    }
}
