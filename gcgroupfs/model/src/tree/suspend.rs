//! Suspension of processes: what is requested, how far it has come, and what is charged meanwhile. The thread
//! that performs the steps is in the server (its `suspend.md` has the table of steps).

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::Kind;

use super::process::{Process, slots};
use super::settings::{COMPUTE_FREEZE, MEMORY_SWAP_MAX, SUSPEND};
use super::suspension::{Exchange, Step, Suspension};
use super::{Devices, Edit, Entity, Notice, ProcessId, Scope, State, Sums, Tree, View, enforce, usage};
use crate::error::{Error, Result};

/// First drivers (major version) that move processes: at all, with managed memory, and with CUDA IPC.
const SINCE: u32 = 570;
const SINCE_MANAGED: u32 = 580;
const SINCE_IPC: u32 = 610;

const TOO_OLD: &str = "the driver is older than 570 and cannot move processes";

/// A process whose suspension or resumption is not complete.
#[derive(Debug, Clone)]
pub struct Pending {
    pub id: ProcessId,
    pub pid: u32,
    /// User of the process.
    pub uid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_time: u64,
    /// Whether it is to be suspended; otherwise to be resumed.
    pub is_wanted: bool,
    /// Whether the driver may have locked it.
    pub is_locked: bool,
    /// Bytes by the device to which they return, if its memory is on the host.
    pub moved: Option<Vec<(usize, u64)>>,
    /// GPUs that change places when it is resumed, with their UUIDs.
    pub exchange: Option<(Exchange, [[u8; 16]; 2])>,
    /// Whether its memory is back, on another GPU on which the library does not count it yet.
    pub is_restored: bool,
    /// Bytes that would move.
    pub bytes: u64,
    pub step: Option<Step>,
    /// Whether submitted work has completed.
    pub is_drained: bool,
    /// Whether the library's helper thread makes no driver calls.
    pub is_held: bool,
    /// `compute.priority` in force.
    pub priority: u32,
}

impl Process {
    /// Returns whether the process is to be suspended, by its own setting or that of a group above.
    pub(super) fn suspends(&self) -> bool {
        self.settings.get(SUSPEND, None).is_on() || self.inherited.suspend()
    }

    /// Returns why the process cannot be suspended, as far as that is known without the driver.
    fn cannot_suspend(&self, driver: Option<u32>, devices: &Devices) -> Option<&'static str> {
        let kinds = Sums::of(self, None, devices).kinds;
        let holds = |kind: Kind| kinds.get(kind as usize).is_some_and(|bytes| *bytes > 0);
        let older = |than: u32| driver.is_some_and(|driver| driver < than);
        if older(SINCE) {
            Some(TOO_OLD)
        } else if older(SINCE_MANAGED) && holds(Kind::Managed) {
            Some("the process has managed memory, which drivers before 580 cannot move")
        } else if older(SINCE_IPC) && (holds(Kind::Ipc) || self.usage().shares_memory()) {
            Some(
                "the process shares memory with another one (CUDA IPC), which drivers before 610 cannot move",
            )
        } else if self.usage().uses_mps() {
            Some("the process is a client of MPS, which the driver cannot move")
        } else {
            None
        }
    }

    fn pending(&self, devices: &Devices) -> Option<Pending> {
        let suspension = &self.suspension;
        let is_wanted = self.suspends();
        let is_done = match is_wanted {
            true => suspension.is_suspended(),
            false => !suspension.is_locked && suspension.step.is_none(),
        };
        if is_done || suspension.failure.is_some() {
            return None;
        }
        let word = self.control().suspend_generation.load(Relaxed);
        Some(Pending {
            id: self.id,
            pid: self.identity.pid,
            uid: self.identity.uid,
            start_time: self.identity.start_time,
            is_wanted,
            is_locked: suspension.is_locked,
            moved: suspension.moved.as_deref().map(|moved| {
                let place = |slot| suspension.exchange.map_or(slot, |exchange| exchange.of(slot));
                moved.iter().map(|(slot, bytes)| (place(*slot), *bytes)).collect()
            }),
            exchange: suspension.exchange.and_then(|exchange| {
                let uuid = |slot: usize| devices.get(slot).map(|device| device.uuid);
                Some((exchange, [uuid(exchange.from)?, uuid(exchange.to)?]))
            }),
            is_restored: suspension.is_restored,
            bytes: usage::current(self, None, devices),
            step: suspension.step,
            is_drained: self.is_frozen(None, devices.len()),
            is_held: word != 0 && self.usage().suspend_generation() == word,
            priority: self.priority(None, None),
        })
    }
}

impl Edit<'_> {
    /// Checks a value of `gcgroup.suspend`. Processes in a group do not count: one that cannot be suspended
    /// fails alone.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the process, or with this driver any process, cannot be suspended.
    pub(super) fn check_suspend(&self, is_on: bool) -> Result<()> {
        let state = self.state();
        let reason = match self.directory().whose() {
            Entity::Process(id) => {
                let process = state.processes.get(&id).ok_or(Error::Gone)?;
                process.cannot_suspend(state.driver, &state.devices)
            }
            _ => state
                .driver
                .is_some_and(|driver| driver < SINCE)
                .then_some(TOO_OLD),
        };
        match reason {
            Some(reason) if is_on => Err(Error::NotSupported(reason)),
            _ => Ok(()),
        }
    }
}

impl View<'_> {
    /// Returns whether everything here is suspended, by a setting here or above.
    ///
    /// # Errors
    /// [`Error::NotFound`] at the root, which cannot be suspended.
    pub fn is_suspended(&self) -> Result<bool> {
        match self.scope() {
            Scope::Root => Err(Error::NotFound),
            Scope::Process(process, _) => Ok(process.suspension.is_suspended()),
            Scope::Group(group, _) => Ok(group.is_suspended()),
        }
    }

    /// Returns the number of suspended processes in this group and below; `None` if there are none, and
    /// except for groups.
    pub fn nr_suspended(&self) -> Option<usize> {
        match self.scope() {
            Scope::Group(group, _) => Some(group.nr_suspended).filter(|number| *number > 0),
            Scope::Root | Scope::Process(..) => None,
        }
    }

    /// Returns the step of a suspension or resumption that is under way, and the one that has failed; `None`
    /// except for processes.
    pub fn suspend_steps(&self) -> (Option<Step>, Option<Step>) {
        match self.scope() {
            Scope::Process(Process { suspension, .. }, _) => {
                (suspension.step(), suspension.failure().map(|(step, _)| step))
            }
            Scope::Root | Scope::Group(..) => (None, None),
        }
    }
}

impl State {
    /// Begins again what has failed in processes, after `gcgroup.suspend` was written for them.
    pub(super) fn suspend_again(&mut self, ids: &[ProcessId], notices: &mut Vec<Notice>) {
        for id in ids {
            if let Some(process) = self.processes.get_mut(id) {
                process.suspension.failure = None;
            }
            self.note_events(*id, notices);
        }
        notices.push(Notice::SuspendAsked);
    }

    /// Changes a process's suspension, and publishes what follows.
    fn change_suspension(
        &mut self,
        id: ProcessId,
        notices: &mut Vec<Notice>,
        change: impl FnOnce(&mut Suspension),
    ) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        change(&mut process.suspension);
        if enforce::setting(process, COMPUTE_FREEZE, &self.devices) {
            notices.push(Notice::Ring(id));
        }
        self.note_events(id, notices);
    }

    /// Charges the groups above for memory that a process has moved to the host, or for it on the devices.
    fn charge_suspended(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let on = |slot| (slot, process.suspension.moved(Some(slot)));
        let bytes: Vec<_> = slots(self.devices.len()).map(on).collect();
        for (slot, bytes) in bytes {
            self.swap_grants.set_overhead(id, slot, bytes);
        }
        self.observe(id);
    }

    /// Returns the bound that moving a process's memory to the host would exceed.
    fn exceeded_by(&self, process: &Process) -> Option<String> {
        let own = process.settings.own(MEMORY_SWAP_MAX, None);
        let bytes = usage::current(process, None, &self.devices);
        let after = usage::swapped(process, None, &self.devices).saturating_add(bytes);
        if own.is_some_and(|most| after > most.number()) {
            return Some("memory.swap.max of the process is too small".to_owned());
        }
        for id in self.chain(process.group) {
            let on = |slot: usize| usage::current(process, Some(slot), &self.devices);
            let mut slots = slots(self.devices.len());
            let is_over = self.swap_grants.room(id, None) < bytes
                || slots.any(|slot| self.swap_grants.room(id, Some(slot)) < on(slot));
            if is_over {
                return Some("memory.swap.max of a group is too small".to_owned());
            }
        }
        None
    }
}

impl Tree {
    /// Stores the major version of the driver.
    pub fn set_driver(&self, major: Option<u32>) {
        self.state.lock().driver = major;
    }

    /// Returns the processes whose suspension or resumption is not complete.
    pub fn pending_suspensions(&self) -> Vec<Pending> {
        let state = self.state.lock();
        let all = state.processes.values();
        all.filter_map(|process| process.pending(&state.devices))
            .collect()
    }

    /// Returns whether a process is to be suspended; `false` if it has left.
    pub fn is_suspend_wanted(&self, id: ProcessId) -> bool {
        let state = self.state.lock();
        state.processes.get(&id).is_some_and(|process| process.suspends())
    }

    /// Returns why a process cannot be suspended, for people: what the driver cannot move, or the bound that
    /// moving its memory to the host would exceed.
    pub fn suspend_refusal(&self, id: ProcessId) -> Option<String> {
        let state = self.state.lock();
        let process = state.processes.get(&id)?;
        let reason = process.cannot_suspend(state.driver, &state.devices);
        reason.map(str::to_owned).or_else(|| state.exceeded_by(process))
    }

    /// Notes the step that is under way.
    pub fn set_suspend_step(&self, id: ProcessId, step: Option<Step>) {
        self.update(|state, notices| {
            state.change_suspension(id, notices, |suspension| suspension.step = step);
        });
    }

    /// Notes that a step has failed. Nothing more is done until `gcgroup.suspend` is written again; if it has
    /// been since `process` was listed, the failure is of no interest.
    pub fn fail_suspension(&self, process: &Pending, step: Step, reason: String) {
        self.update(|state, notices| {
            let id = process.id;
            let suspends = state.processes.get(&id).map(|process| process.suspends());
            state.change_suspension(id, notices, |suspension| {
                suspension.step = None;
                if suspends == Some(process.is_wanted) {
                    suspension.failure = Some((step, reason));
                }
            });
        });
    }

    /// Tells the library's helper thread to make no driver calls, or to make them again.
    pub fn hold_helper(&self, id: ProcessId, is_held: bool) {
        self.update(|state, notices| {
            if let Some(process) = state.processes.get(&id) {
                enforce::hold_helper(process, is_held);
                notices.push(Notice::Ring(id));
            }
        });
    }

    /// Stores, on disk, whether the driver may have locked the process.
    pub fn set_suspend_locked(&self, id: ProcessId, is_locked: bool) {
        self.update(|state, notices| {
            state.change_suspension(id, notices, |suspension| {
                suspension.is_locked = is_locked;
                if !is_locked {
                    (suspension.step, suspension.exchange) = (None, None);
                }
            });
            if let Some(process) = state.processes.get(&id).filter(|_| !is_locked) {
                // Given anew if the process has registered again meanwhile.
                enforce::hold_helper(process, false);
                notices.push(Notice::Ring(id));
                // The library may count on other devices than before.
                state.note_users(id);
                state.grants.look(id);
            }
            notices.push(Notice::SettingsChanged(id));
        });
    }

    /// Counts a process's memory as moved to the host, and frees its charges of device memory.
    pub fn set_suspended(&self, id: ProcessId) {
        self.update(|state, notices| {
            let Some(process) = state.processes.get(&id) else {
                return;
            };
            let on = |slot| (slot, usage::current(process, Some(slot), &state.devices));
            let moved = slots(state.devices.len()).map(on);
            let moved: Box<[_]> = moved.filter(|(_, bytes)| *bytes > 0).collect();
            state.change_suspension(id, notices, |suspension| {
                suspension.is_locked = true;
                suspension.moved = Some(moved);
                suspension.step = None;
            });
            state.grants.set_suspended(id, true);
            state.charge_suspended(id);
            notices.push(Notice::Rung(id));
        });
    }

    /// Charges a process's memory on the devices to which it returns, if all groups above have room for it.
    /// Returns whether they have; `false` also if these are other devices than when `process` was listed.
    pub fn charge_resumed(&self, process: &Pending) -> bool {
        let mut state = self.state.lock();
        let State {
            processes, grants, ..
        } = &mut *state;
        let Some(known) = processes.get_mut(&process.id) else {
            return false;
        };
        let suspension = &mut known.suspension;
        if suspension.exchange != process.exchange.map(|(exchange, _)| exchange) {
            return false;
        }
        suspension.is_returning = match suspension.exchange {
            None => grants.resume(process.id),
            Some(exchange) => grants.reserve(process.id, exchange),
        };
        suspension.is_returning
    }

    /// Undoes [`charge_resumed`](Self::charge_resumed).
    pub fn uncharge_resumed(&self, id: ProcessId) {
        self.update(|state, notices| {
            if let Some(process) = state.processes.get_mut(&id) {
                (process.suspension.is_returning, process.suspension.is_restored) = (false, false);
            }
            state.grants.set_suspended(id, true);
            state.answer_requests(id, notices);
        });
    }

    /// Counts a process's memory as on the devices again, on those on which the library counts it.
    pub fn set_resumed(&self, id: ProcessId) {
        self.update(|state, notices| {
            state.exchange_devices(id);
            state.change_suspension(id, notices, |suspension| {
                suspension.moved = None;
                (suspension.is_returning, suspension.is_restored) = (false, false);
            });
            state.grants.set_suspended(id, false);
            state.charge_suspended(id);
            state.answer_requests(id, notices);
            notices.push(Notice::Rung(id));
        });
    }
}
