//! What the arbiter sees of the tree and can change in it: usage blocks to look at, gates to set, GPU time to charge.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{ControlDevice, Gate};

use super::{Blocks, Evidence, GroupId, Notice, Process, ProcessId, Quota, State, Tree, enforce};
use crate::arbiter::{Policy, Seen};

/// What a gate is to be, as long as nobody freezes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateOrder {
    pub gate: Gate,
    pub window_usec: u32,
    pub patience_usec: u32,
    pub wants_bell: bool,
    pub wants_end: bool,
}

impl GateOrder {
    pub const OPEN: Self = Self {
        gate: Gate::Run,
        window_usec: 0,
        patience_usec: 0,
        wants_bell: false,
        wants_end: false,
    };
}

/// Gates that hold no more: whoever waits there is to be woken once the tree's lock is released.
pub type Opened = Vec<(Arc<dyn Blocks>, usize)>;

/// The tree for one tick.
#[derive(Debug)]
pub struct Arbitration<'a> {
    state: &'a mut State,
    notices: Vec<Notice>,
    opened: Opened,
}

impl Tree {
    /// Lets the arbiter look and decide. The caller wakes those that wait at the gates returned.
    pub fn arbitrate<T>(&self, tick: impl FnOnce(&mut Arbitration<'_>) -> T) -> (T, Opened) {
        let mut state = self.state.lock();
        let mut arbitration = Arbitration {
            state: &mut state,
            notices: Vec::new(),
            opened: Vec::new(),
        };
        let result = tick(&mut arbitration);
        let Arbitration { notices, opened, .. } = arbitration;
        drop(state);
        self.tell(&notices);
        (result, opened)
    }
}

impl Arbitration<'_> {
    pub fn nr_devices(&self) -> usize {
        self.state.devices.len()
    }

    /// What `compute.policy` shows.
    pub fn policy(&self) -> Policy {
        self.state.policy()
    }

    pub fn has(&self, id: ProcessId) -> bool {
        self.state.processes.contains_key(&id)
    }

    /// Every quota there is, by the entity's number: of processes and groups, as a whole and on devices.
    pub fn quotas(&self) -> impl Iterator<Item = (u64, Option<usize>, Quota)> {
        let devices = &self.state.devices;
        let slot = move |device: Option<&str>| match device {
            None => Some(None),
            // One that is not there now may be again.
            Some(uuid) => devices
                .iter()
                .position(|device| device.uuid_text == uuid)
                .map(Some),
        };
        let processes = self.state.processes.values();
        let processes = processes.map(|process| (process.id.0, &process.settings));
        let groups = self.state.groups.values();
        let groups = groups.map(|group| (group.id.0, &group.settings));
        processes.chain(groups).flat_map(move |(entity, settings)| {
            let quotas = settings.quotas();
            quotas.filter_map(move |(device, quota)| Some((entity, slot(device)?, quota)))
        })
    }

    /// The numbers of a process and of all groups that it is in.
    pub fn entities(&self, id: ProcessId) -> impl Iterator<Item = u64> {
        let group = self.state.processes.get(&id).and_then(|process| process.group);
        let find = |id: Option<GroupId>| self.state.groups.get(&id?);
        let groups = std::iter::successors(find(group), move |group| find(group.parent));
        [id.0].into_iter().chain(groups.map(|group| group.id.0))
    }

    /// What the processes that use a device say of themselves; one whose claims are refuted does not use it. Has the daemon
    /// look for evidence of those that begin to claim that they do.
    pub fn seen(
        &mut self,
        now: u64,
        device: usize,
        is_watched: impl Fn(ProcessId) -> bool,
    ) -> Vec<Seen<ProcessId>> {
        let notices = &mut self.notices;
        let mut look = |process: &mut Process| {
            let (usage, control) = (
                process.usage().devices.get(device)?,
                process.control().devices.get(device)?,
            );
            if !usage.claims_use() {
                return None;
            }
            let (busy_nsec, is_busy) = usage.busy(now);
            let seen = Seen {
                id: process.id,
                priority: control.priority.load(Relaxed),
                busy_nsec,
                is_busy,
                submitted_nsec: usage.submitted_nsec.load(Relaxed),
                queued_until: usage.queued_until.load(Relaxed),
                nr_waiting: usage.nr_waiting.load(Relaxed),
                is_frozen: enforce::is_closed(control),
                is_watched: is_watched(process.id),
            };
            let evidence = &mut process.kept_mut(Some(device))?.evidence;
            if *evidence == Evidence::Unknown {
                *evidence = Evidence::Asked;
                notices.push(Notice::AuditAsked);
            }
            (*evidence != Evidence::Refuted).then_some(seen)
        };
        let processes = self.state.processes.values_mut();
        processes.filter_map(|process| look(process)).collect()
    }

    /// Adds GPU time to what the process has had on a device.
    pub fn charge(&mut self, id: ProcessId, device: usize, nsec: u64) {
        if let Some(process) = self.state.processes.get(&id) {
            enforce::charge(process, device, nsec);
        }
    }

    /// Sets a gate.
    pub fn order(&mut self, id: ProcessId, device: usize, order: &GateOrder) {
        let Some(process) = self.state.processes.get_mut(&id) else {
            return;
        };
        let moved = enforce::arbitrate(process, device, order);
        if moved.has_opened {
            self.opened.push((process.blocks.clone(), device));
        }
        if moved.is_news {
            self.notices.push(Notice::Ring(id));
        }
    }

    /// Opens the gates of those that have nothing on the device any more.
    pub fn open_absent(&mut self, device: usize, present: &[Seen<ProcessId>]) {
        let is_absent = |process: &Process| {
            process.gate(device) != Gate::Run
                && present.binary_search_by_key(&process.id, |one| one.id).is_err()
        };
        let absent: Vec<ProcessId> = self
            .state
            .processes
            .values()
            .filter(|process| is_absent(process))
            .map(|process| process.id)
            .collect();
        for id in absent {
            self.order(id, device, &GateOrder::OPEN);
        }
    }

    /// Opens every gate that is not frozen: there is to be no arbiter for a while.
    pub fn open_all(&mut self) {
        for device in 0..self.nr_devices() {
            self.open_absent(device, &[]);
        }
    }

    /// Stands between asking for the bell and looking once more; a process publishes, fences, and then looks whether
    /// the bell is wanted. So one of both sees the other.
    pub fn fence(&self) {
        ControlDevice::fence_bells();
    }

    /// Whether work has begun, or a thread begun to wait, since the process was seen.
    pub fn has_begun(&self, device: usize, seen: &Seen<ProcessId>) -> bool {
        let usage = self
            .state
            .processes
            .get(&seen.id)
            .and_then(|process| process.usage().devices.get(device));
        usage.is_some_and(|usage| usage.has_begun(seen.nr_waiting))
    }
}
