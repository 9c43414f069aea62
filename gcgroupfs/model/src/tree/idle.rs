//! Idle processes that leave the GPU (`gcgroup.idle`), and their return.
//!
//! A process that leaves is frozen first. Once its submitted work has completed, its movable memory is
//! requested to move out; so the library holds all submissions until that memory is back. A call that needs
//! the GPU tells the daemon (`wanted_generation`), which thaws the process. Nothing of this is stored: a new
//! daemon publishes open gates, which undoes it, and counts the time anew.

use super::idle_action::IdleRule;
use super::idle_state::{Away, Idle};
use super::process::{Process, slots};
use super::settings::{COMPUTE_FREEZE, IDLE};
use super::{Devices, Edit, Notice, ProcessId, Scope, State, Tree, View, enforce};
use crate::error::Result;

impl Process {
    /// Returns the rule in force: of its own and of those of the groups above the one with the fewest
    /// seconds.
    pub(super) fn idle_rule(&self) -> Option<IdleRule> {
        let own = self.settings.get(IDLE, None);
        IdleRule::of(IDLE.tighter.stricter(own, self.inherited.idle()).number())
    }

    /// Returns why the process cannot leave; `None` if it can.
    pub(super) fn cannot_leave(&self) -> Option<&'static str> {
        if !self.can_swap() {
            Some("the program was not started with --swap")
        } else if !self.usage().tells_wanted() {
            Some("its library is older than the daemon")
        } else {
            None
        }
    }

    /// Returns a sum that changes with each submission, and whether the process works, waits, or is
    /// frozen or suspended.
    fn work(&self, devices: &Devices) -> (u64, bool) {
        let (usage, now) = (self.usage(), (devices.host.now)());
        let mut progress = 0_u64;
        let mut works = self.freeze(None, None) || self.suspends() || self.suspension.freezes();
        for slot in slots(devices.len()) {
            progress = progress.wrapping_add(usage.progress(slot));
            works |= usage
                .device(slot)
                .is_some_and(|device| device.busy(now).1 || device.nr_waiting() > 0);
        }
        (progress, works)
    }

    /// Returns whether the process has left the GPU: its library has moved out what it can.
    pub(super) fn has_left(&self, devices: &Devices) -> bool {
        self.idle.has_left() && slots(devices.len()).all(|slot| enforce::pending_reclaim(self, slot) == 0)
    }

    fn has_movable(&self, devices: &Devices) -> bool {
        let of = |slot| {
            let total = super::claims::device_total(slot, devices);
            self.usage().device(slot).map_or(0, |usage| usage.movable(total))
        };
        slots(devices.len()).any(|slot| of(slot) > 0)
    }
}

impl Tree {
    /// Has idle processes leave the GPU, and those return that need it. Returns the time until the next one
    /// may leave, in milliseconds; `None` without any.
    pub fn judge_idle(&self) -> Option<u64> {
        self.update(State::judge_idle)
    }
}

impl State {
    fn judge_idle(&mut self, notices: &mut Vec<Notice>) -> Option<u64> {
        let concerns = |process: &Process| process.idle.is_away() || process.idle_rule().is_some();
        let all = self.processes.values();
        let ids: Vec<_> = all
            .filter(|process| concerns(process))
            .map(|process| process.id)
            .collect();
        ids.into_iter()
            .filter_map(|id| self.judge_idle_process(id, notices))
            .min()
    }

    /// Returns the time until the process may leave, in milliseconds; `None` if it is away or has no rule.
    fn judge_idle_process(&mut self, id: ProcessId, notices: &mut Vec<Notice>) -> Option<u64> {
        let now = self.since_boot();
        let process = self.processes.get_mut(&id)?;
        let Some(rule) = process.idle_rule() else {
            self.return_idle(id, notices);
            return None;
        };
        if process.idle.is_away() {
            self.step_idle(id, notices);
            return None;
        }
        let (progress, works) = process.work(&self.devices);
        let since = match process.idle.seen {
            Some((before, since)) if before == progress && !works => since,
            _ => now,
        };
        process.idle.seen = Some((progress, since));
        let left = rule
            .seconds
            .saturating_mul(1000)
            .saturating_sub(now.saturating_sub(since));
        let can_leave = process.is_hook_ok() && process.cannot_leave().is_none();
        if left > 0 || !can_leave || !process.has_movable(&self.devices) {
            return Some(left).filter(|left| *left > 0);
        }
        process.idle.away = Some(Away::Draining);
        enforce::begin_idle(process);
        enforce::setting(process, COMPUTE_FREEZE, &self.devices);
        self.ring_and_note(id, notices);
        None
    }

    /// Does the next step of a process that is away: requests its memory once it has drained, or lets it
    /// return. Does nothing for others.
    pub(super) fn step_idle(&mut self, id: ProcessId, notices: &mut Vec<Notice>) {
        let Some(process) = self
            .processes
            .get_mut(&id)
            .filter(|process| process.idle.is_away())
        else {
            return;
        };
        if enforce::is_idle_wanted(process) {
            return self.return_idle(id, notices);
        }
        if process.idle.has_left() || !process.is_frozen(None, self.devices.len()) {
            return;
        }
        process.idle.away = Some(Away::Left);
        process.whole.nr_idle += 1;
        let all: Vec<usize> = slots(self.devices.len()).collect();
        if let Some(process) = self.processes.get(&id) {
            self.reclaim(vec![process], &all, gcgroup_abi::NO_LIMIT, (None, false));
        }
        self.ring_and_note(id, notices);
    }

    /// Lets a process return; does nothing for one that is not away. Its library holds submissions until
    /// memory that has moved out is back.
    fn return_idle(&mut self, id: ProcessId, notices: &mut Vec<Notice>) {
        let Some(process) = self
            .processes
            .get_mut(&id)
            .filter(|process| process.idle.is_away())
        else {
            return;
        };
        process.idle = Idle::default();
        for slot in slots(self.devices.len()) {
            // Before the gates open: the library sees an open gate with no request left.
            enforce::cancel_reclaim(process, slot);
        }
        enforce::end_idle(process);
        enforce::setting(process, COMPUTE_FREEZE, &self.devices);
        self.ring_and_note(id, notices);
    }

    fn ring_and_note(&mut self, id: ProcessId, notices: &mut Vec<Notice>) {
        notices.push(Notice::Ring(id));
        self.note_events(id, notices);
    }
}

impl Edit<'_> {
    /// Applies `gcgroup.idle`: a process returns for which no rule is left.
    pub(super) fn apply_idle(&mut self) -> Result<()> {
        self.with_state(|state, notices| {
            state.judge_idle(notices);
        });
        Ok(())
    }
}

impl View<'_> {
    /// Returns whether the process has left the GPU because it was idle; `None` except for processes with a
    /// rule.
    pub fn is_away(&self) -> Option<bool> {
        match self.scope() {
            Scope::Process(process, _) => process
                .idle_rule()
                .map(|_| process.has_left(&self.state().devices)),
            Scope::Root | Scope::Group(..) => None,
        }
    }
}
