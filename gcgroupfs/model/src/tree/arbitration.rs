//! The arbiter's interface to the tree: reads usage blocks, sets gates, charges GPU time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{ControlDevice, Gate};

use super::enforce::GateOrder;
use super::memory_holders::holding;
use super::process::{Measured, is_closed};
use super::usage::charged_nsec;
use super::{Blocks, Evidence, GroupId, Notice, Process, ProcessId, State, Tree, enforce};
use crate::arbiter::{Place, Policy, Seen};

/// Gates that have opened, as (blocks, device): the waiting threads are to be woken once the tree's lock is
/// released.
pub type Opened = Vec<(Arc<dyn Blocks>, usize)>;

/// The tree during one tick.
#[derive(Debug)]
pub struct Arbitration<'a> {
    pub(super) state: &'a mut State,
    notices: Vec<Notice>,
    opened: Opened,
    /// Time of the tick, nanoseconds.
    now: u64,
}

impl Tree {
    /// Runs one tick of the arbiter. The caller wakes the threads waiting at the returned gates.
    pub fn arbitrate<T>(&self, tick: impl FnOnce(&mut Arbitration<'_>) -> T) -> (T, Opened) {
        let mut state = self.state.lock();
        let mut arbitration = Arbitration {
            state: &mut state,
            notices: Vec::new(),
            opened: Vec::new(),
            now: 0,
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

    /// Returns the policy that `compute.policy` shows.
    pub fn policy(&self) -> &'static Policy {
        self.state.policy()
    }

    pub fn has(&self, id: ProcessId) -> bool {
        self.state.processes.contains_key(&id)
    }

    /// Returns the numbers of a process and of all groups that it is in.
    pub fn entities(&self, id: ProcessId) -> impl Iterator<Item = u64> {
        let group = self.state.processes.get(&id).and_then(|process| process.group);
        let find = |id: Option<GroupId>| self.state.groups.get(&id?);
        let groups = std::iter::successors(find(group), move |group| find(group.parent));
        [id.0].into_iter().chain(groups.map(|group| group.id.0))
    }

    /// Returns what the processes that use a device claim, without those whose claims are refuted. Requests a
    /// scan for evidence when a process begins to claim that it uses the device. `now` is in nanoseconds.
    pub fn seen(
        &mut self,
        now: u64,
        device: usize,
        is_watched: impl Fn(ProcessId) -> bool,
    ) -> Vec<Seen<ProcessId>> {
        self.now = now;
        let steps = self.state.steps(self.state.device_users.of(device), device);
        let notices = &mut self.notices;
        let host_memory = self.state.devices.host.memory;
        let total = self.state.devices.get(device).map_or(0, |device| device.total);
        let mut look = |process: &mut Process| {
            let (usage, control) = (
                process.usage().device(device)?,
                process.control().devices.get(device)?,
            );
            if !process.concerns(device) {
                return None;
            }
            let (busy_nsec, is_busy) = usage.busy(now);
            let groups = process.group.and_then(|group| steps.get(&group));
            let seen = Seen {
                id: process.id,
                place: Place::new(groups.map_or(&[], Vec::as_slice), control.priority.load(Relaxed)),
                busy_nsec,
                is_busy,
                submitted_nsec: usage.submitted_nsec(),
                queued_until: usage.queued_until(),
                nr_waiting: usage.nr_waiting(),
                is_frozen: is_closed(control),
                is_watched: is_watched(process.id),
                is_measuring: process.usage().measures_time(),
                memory: holding(process, device, total.min(host_memory)),
            };
            let kept = process.kept_mut(Some(device))?;
            kept.measured = Measured { now, busy_nsec };
            let evidence = &mut kept.evidence;
            if *evidence == Evidence::Unknown {
                *evidence = Evidence::Asked;
                notices.push(Notice::AuditAsked);
            }
            (*evidence != Evidence::Refuted).then_some(seen)
        };
        let users = self.state.device_users.of(device);
        let processes = &mut self.state.processes;
        users.filter_map(|id| look(processes.get_mut(&id)?)).collect()
    }

    /// Charges GPU time in nanoseconds to a process on a device.
    pub fn charge(&mut self, id: ProcessId, device: usize, nsec: u64) {
        if let Some(process) = self.state.processes.get(&id) {
            enforce::charge(process, device, nsec);
        }
    }

    /// Sets the gate of a process on a device.
    pub fn order(&mut self, id: ProcessId, device: usize, order: &GateOrder) {
        let Some(process) = self.state.processes.get_mut(&id) else {
            return;
        };
        let moved = enforce::arbitrate(process, device, order);
        let waits = process
            .devices
            .get(device)
            .is_some_and(|kept| kept.waits.is_any());
        if moved.has_opened {
            self.opened.push((process.blocks.clone(), device));
        }
        if moved.is_news {
            self.notices.push(Notice::Ring(id));
        }
        if waits || order.waits_for.is_some() {
            self.state.note_wait((id, device), order.waits_for, self.now);
        }
    }

    /// Returns how many bytes of a device movable memory can have.
    pub fn capacity(&self, device: usize) -> u64 {
        self.state.movable_capacity(device)
    }

    /// Counts a memory turn of a process on a device.
    pub fn count_memory_turn(&mut self, id: ProcessId, device: usize) {
        let process = self.state.processes.get_mut(&id);
        if let Some(kept) = process.and_then(|process| process.kept_mut(Some(device))) {
            kept.nr_memory_turns += 1;
        }
    }

    /// Counts time for which a device was kept free for a process although others waited, nanoseconds.
    pub fn count_held(&mut self, id: ProcessId, device: usize, nsec: u64, now: u64) {
        let process = self.state.processes.get_mut(&id).filter(|_| nsec > 0);
        if let Some(kept) = process.and_then(|process| process.kept_mut(Some(device))) {
            kept.held.add(now, nsec);
        }
    }

    /// Opens the gates of all processes that are not among `present` on the device, which is sorted by
    /// process. Looks at every process: only for gates that another arbiter has closed.
    pub fn open_absent(&mut self, device: usize, present: &[Seen<ProcessId>]) {
        let is_absent = |process: &Process| {
            (process.gate(device) != Gate::Run || enforce::has_memory_bound(process, device))
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

    /// Opens every gate that is not frozen, because no arbiter runs for now.
    pub fn open_all(&mut self) {
        for device in 0..self.nr_devices() {
            self.open_absent(device, &[]);
        }
    }

    /// Separates storing `wants_bell` from the last look before sleeping. The process publishes, fences, and
    /// then looks at `wants_bell`, so at least one side sees the other.
    pub fn fence(&self) {
        ControlDevice::fence_bells();
    }

    /// Returns whether work has begun, or another thread waits, since the process was seen.
    pub fn has_begun(&self, device: usize, seen: &Seen<ProcessId>) -> bool {
        let usage = self
            .state
            .processes
            .get(&seen.id)
            .and_then(|process| process.usage().device(device));
        usage.is_some_and(|usage| usage.has_begun(seen.nr_waiting))
    }
}

/// GPU time of a process that has left, since the last tick.
#[derive(Debug)]
pub struct Remainder {
    pub device: usize,
    pub nsec: u64,
    /// Numbers of the groups that the process was in, the innermost first.
    pub entities: Vec<u64>,
}

/// Longest time since the last tick that is charged to a process that leaves, nanoseconds. There are ticks at
/// least every 100 ms while it works; one that has not been seen for longer may claim anything.
const MOST_REST: u64 = 1_000_000_000;

impl State {
    /// Charges the GPU time since the last tick to a process that leaves, even if its contexts are gone, and
    /// notes it for the groups that the process is in. If it does not tell its own part, time in which other
    /// processes have work too is divided equally, as by the hardware.
    pub(super) fn charge_rest(&mut self, id: ProcessId) {
        let now = self.now();
        for device in 0..self.devices.len() {
            let busy = |process: &Process| {
                let usage = process.usage().device(device)?;
                process.usage().measures_time().then(|| usage.busy(now))
            };
            let leaves = self.processes.get(&id).map(|process| &**process);
            let Some((process, (busy_nsec, _), usage)) =
                leaves.and_then(|process| Some((process, busy(process)?, process.usage().device(device)?)))
            else {
                continue;
            };
            let before = process.measured(device);
            let rest = busy_nsec
                .saturating_sub(before.busy_nsec)
                .min(now.saturating_sub(before.now))
                .min(MOST_REST);
            if before.now == 0 || rest == 0 {
                continue;
            }
            let rest = match usage.submitted_nsec() {
                0 => {
                    let others = self.device_users.of(device).filter(|other| *other != id);
                    let others = others.filter_map(|other| busy(self.processes.get(&other)?));
                    rest / (1 + others.filter(|(_, is_busy)| *is_busy).count() as u64)
                }
                nsec => rest.min(nsec.saturating_sub(charged_nsec(process, device))),
            };
            enforce::charge(process, device, rest);
            if process
                .devices
                .get(device)
                .is_some_and(|kept| kept.evidence != Evidence::Refuted)
            {
                let entities = self
                    .chain(process.group)
                    .into_iter()
                    .map(|group| group.0)
                    .collect();
                self.remainders.push(Remainder {
                    device,
                    nsec: rest,
                    entities,
                });
            }
        }
    }
}
