//! Read access of control files to the tree. Together with `Edit` it is all that the file table can use.

use std::cell::RefCell;

use super::process::Kept;
use super::settings::{Computed, MEMORY_SWAP_MAX, MEMORY_VISIBLE, Setting, Value};
use super::waits::Wait;
use super::{
    Counter, Device, DeviceStat, Exited, Group, GroupId, Notice, Process, Settings, State, Storage, Sums,
    Unmanaged, enforce, usage,
};
use crate::arbiter::{MemoryTurn, Policy};
use crate::error::{Error, Result};

/// The directory that is read.
#[derive(Debug, Clone, Copy)]
pub enum Scope<'a> {
    Root,
    /// A process, as a whole or on the device of that index.
    Process(&'a Process, Option<usize>),
    /// A group, as a whole or on the device of that index.
    Group(&'a Group, Option<usize>),
}

/// The state as seen from one directory.
#[derive(Debug)]
pub struct View<'a> {
    state: &'a State,
    scope: Scope<'a>,
    notices: RefCell<Vec<Notice>>,
    shown: RefCell<Vec<Shown>>,
}

/// Bytes that a reader was shown as held by a group, on a device or as a whole.
pub(super) type Shown = (GroupId, Option<usize>, u64);

impl<'a> View<'a> {
    pub(super) fn new(state: &'a State, scope: Scope<'a>) -> Self {
        Self {
            state,
            scope,
            notices: RefCell::default(),
            shown: RefCell::default(),
        }
    }

    pub(super) fn into_parts(self) -> (Vec<Notice>, Vec<Shown>) {
        (self.notices.into_inner(), self.shown.into_inner())
    }

    pub(super) fn state(&self) -> &'a State {
        self.state
    }

    /// Returns the group whose own directory is read.
    pub(super) fn whole_group(&self) -> Option<&'a Group> {
        match self.scope {
            Scope::Group(group, None) => Some(group),
            _ => None,
        }
    }

    pub(super) fn scope(&self) -> Scope<'a> {
        self.scope
    }

    pub fn devices(&self) -> &[Device] {
        &self.state.devices
    }

    /// Returns the lines of `devices.stat`.
    pub fn device_stats(&self) -> impl Iterator<Item = DeviceStat> {
        self.state.device_stats()
    }

    /// Returns the processes that left last, latest first.
    pub fn exited(&self) -> impl Iterator<Item = &Exited> {
        self.state.exited.iter()
    }

    /// Returns the unmanaged processes found by the last scan.
    pub fn unmanaged(&self) -> &[Unmanaged] {
        &self.state.audit.found
    }

    /// Returns the number of processes that use a device without a hook, as found by the last scan.
    pub fn nr_unmanaged(&self) -> u64 {
        self.state.audit.nr_no_hook()
    }

    /// Requests a scan for unmanaged processes.
    pub fn ask_audit(&self) {
        self.state.audit.ask();
        self.notices.borrow_mut().push(Notice::AuditAsked);
    }

    /// Returns whether a scan has completed since the last request.
    pub fn has_audit(&self) -> bool {
        self.state.audit.is_answered()
    }

    /// Returns the pids of the processes here, sorted; of a group, those directly in it.
    pub fn pids(&self) -> Vec<u32> {
        match self.scope {
            Scope::Root => self.state.pids.keys().copied().collect(),
            Scope::Process(process, _) => vec![process.identity.pid],
            Scope::Group(group, _) => {
                let members = group.members.iter();
                let members = members.filter_map(|id| self.state.processes.get(id));
                let mut pids: Vec<u32> = members.map(|process| process.identity.pid).collect();
                pids.sort_unstable();
                pids
            }
        }
    }

    /// Returns whether this is a process's directory as a whole.
    pub fn is_process(&self) -> bool {
        matches!(self.scope, Scope::Process(_, None))
    }

    /// Returns all sums of this directory; in the root and in groups with the counts of processes that have
    /// left.
    pub fn sums(&self) -> Sums {
        match self.scope {
            Scope::Root => {
                let mut sums = self.state.departed;
                self.each(|process| sums += Sums::of(process, None, &self.state.devices));
                let (current, swapped) = (self.memory_current(), self.state.swapped_in(None, None));
                sums.bound(current, swapped, &self.state.devices.host);
                sums
            }
            Scope::Process(process, device) => Sums::of(process, device, &self.state.devices),
            Scope::Group(group, device) => self.state.group_sums(group.id, device),
        }
    }

    /// Returns the bytes held here now. Cheaper than [`sums`](Self::sums).
    pub fn memory_current(&self) -> u64 {
        match self.scope {
            Scope::Root => self.state.current_in(None, None),
            Scope::Process(process, device) => usage::current(process, device, &self.state.devices),
            Scope::Group(group, device) => {
                let current = self.state.current_in(Some(group.id), device);
                self.show_held(current);
                current
            }
        }
    }

    /// Notes that a reader was shown `bytes` as held by the group, if this is a group.
    fn show_held(&self, bytes: u64) {
        if let Scope::Group(group, device) = self.scope {
            self.shown.borrow_mut().push((group.id, device, bytes));
        }
    }

    /// Calls `look` with every process here and below.
    fn each(&self, mut look: impl FnMut(&'a Process)) {
        match self.scope {
            Scope::Root => self.state.processes.values().for_each(|process| look(process)),
            Scope::Process(process, _) => look(process),
            Scope::Group(group, _) => self.state.within(group.id).into_iter().for_each(look),
        }
    }

    /// Asks the processes here that have kernels pending to find out which have completed.
    pub fn ask_progress(&self) {
        self.each(|process| {
            if Sums::of(process, None, &self.state.devices).nr_pending() > 0 {
                enforce::ask_progress(process);
                self.notices.borrow_mut().push(Notice::Ring(process.id));
            }
        });
    }

    /// Returns whether all processes that were asked have answered or have no kernels pending.
    pub fn has_progress(&self) -> bool {
        let mut all = true;
        self.each(|process| {
            all = all
                && (enforce::has_progress(process)
                    || Sums::of(process, None, &self.state.devices).nr_pending() == 0);
        });
        all
    }

    /// Returns the value of a setting that its control file shows.
    ///
    /// # Errors
    /// [`Error::NotFound`] at the root.
    pub fn setting(&self, setting: &Setting) -> Result<Value> {
        match setting.shown {
            None => self.own(setting),
            Some(Computed::LeaseLeft) => self.lease_left(),
            Some(Computed::Priority) => self.priority(),
            Some(Computed::SwapMax) => self.memory_swap_max(),
            Some(Computed::Visible) => self.memory_visible(),
        }
    }

    /// Returns the value set for this directory.
    fn own(&self, setting: &Setting) -> Result<Value> {
        let (settings, uuid) = self.settings()?;
        Ok(match self.scope {
            Scope::Group(..) => settings.of_group(setting, uuid),
            Scope::Process(process, _) => {
                let own = settings.get(setting, uuid);
                let jobs = self.state.jobs_bound(process.group, setting, uuid);
                jobs.map_or(own, |jobs| setting.tighter.stricter(own, jobs))
            }
            Scope::Root => settings.get(setting, uuid),
        })
    }

    /// Returns `memory.swap.max`: 0 for a process not started with `--swap`.
    fn memory_swap_max(&self) -> Result<Value> {
        match self.scope {
            Scope::Process(process, _) if !process.can_swap() => Ok(Value::Number(0)),
            _ => self.own(MEMORY_SWAP_MAX),
        }
    }

    /// Returns `compute.priority` in force: of a process its own, or the nearest group's above; of a group
    /// that among its siblings.
    fn priority(&self) -> Result<Value> {
        let (_, uuid) = self.settings()?;
        let priority = match self.scope {
            Scope::Root => return Err(Error::NotFound),
            Scope::Process(process, device) => process.priority(device, uuid),
            Scope::Group(group, device) => self.state.group_priority(group, device),
        };
        Ok(Value::Number(priority.into()))
    }

    /// Returns `memory.visible` in force.
    fn memory_visible(&self) -> Result<Value> {
        let (_, uuid) = self.settings()?;
        match self.scope {
            Scope::Root => Err(Error::NotFound),
            Scope::Process(process, device) => Ok(process.visible(device, uuid)),
            Scope::Group(group, device) => {
                Ok(group.inherited.visible(device).unwrap_or(MEMORY_VISIBLE.default))
            }
        }
    }

    /// Returns the scheduling policy in force.
    pub fn policy(&self) -> &'static Policy {
        self.state.policy()
    }

    /// Requests that the GPU time of the processes here is measured for some time from now.
    pub fn watch(&self) {
        let mut ids = Vec::new();
        self.each(|process| ids.push(process.id));
        if !ids.is_empty() {
            self.notices.borrow_mut().push(Notice::Watched(ids));
        }
    }

    /// Returns `memory.peak` in bytes.
    ///
    /// # Errors
    /// [`Error::NotFound`] at the root.
    pub fn memory_peak(&self) -> Result<u64> {
        match self.scope {
            Scope::Root => Err(Error::NotFound),
            Scope::Process(process, device) => Ok(usage::peak(process, device, &self.state.devices)),
            Scope::Group(group, device) => {
                let peak = self.state.group_peak(group.id, device);
                self.show_held(peak);
                Ok(peak)
            }
        }
    }

    /// Returns how often the contents of `gcgroup.events` have changed.
    pub fn nr_standing_changes(&self) -> u64 {
        match self.scope {
            Scope::Root => self.state.storage.nr_changes + self.state.audit.nr_changes,
            Scope::Process(process, device) => process.events.nr_standing_changes(device),
            Scope::Group(group, device) => group.events.nr_standing_changes(device),
        }
    }

    /// Returns how well settings are stored; `None` except at the root.
    pub fn storage(&self) -> Option<Storage> {
        matches!(self.scope, Scope::Root).then_some(self.state.storage)
    }

    /// Returns key and number of each of the counters that `file` shows here.
    pub fn counters(
        &self,
        counters: impl IntoIterator<Item = &'static Counter>,
        file: &str,
    ) -> impl Iterator<Item = (&'static str, u64)> {
        Counter::pairs(counters, file, self.sums(), self.is_process())
    }

    /// Returns how often the contents of `memory.events` have changed.
    pub fn nr_count_changes(&self) -> u64 {
        match self.scope {
            Scope::Root => self.state.nr_count_changes,
            Scope::Process(process, device) => process.events.nr_count_changes(device),
            Scope::Group(group, device) => group.events.nr_count_changes(device),
        }
    }

    /// Returns how often a notice in `memory.notice` has begun or ended.
    pub fn nr_notice_changes(&self) -> u64 {
        match self.scope {
            Scope::Process(process, device) => process.events.nr_notice_changes(device),
            Scope::Root | Scope::Group(..) => 0,
        }
    }

    /// Returns whether there are processes here.
    pub fn is_populated(&self) -> bool {
        match self.scope {
            Scope::Root => !self.state.processes.is_empty(),
            Scope::Process(..) => true,
            Scope::Group(group, _) => group.is_populated(),
        }
    }

    /// Returns whether everything here is frozen, by a setting here or above, and drained.
    ///
    /// # Errors
    /// [`Error::NotFound`] at the root, which cannot be frozen.
    pub fn is_frozen(&self) -> Result<bool> {
        let nr_devices = self.devices().len();
        match self.scope {
            Scope::Root => Err(Error::NotFound),
            Scope::Process(process, device) => Ok(process.is_frozen(device, nr_devices)),
            Scope::Group(group, device) => {
                let mut all = group.inherited.freeze(device) && group.nr_ungoverned == 0;
                if all {
                    self.each(|process| all = all && process.is_frozen(device, nr_devices));
                }
                Ok(all)
            }
        }
    }

    /// Returns the lowest pid that has not acknowledged a freeze of this group, or that is not registered and
    /// may use the GPU; `None` if there is none or no freeze is requested.
    pub fn draining(&self) -> Option<u32> {
        let Scope::Group(group, device) = self.scope else {
            return None;
        };
        if !group.inherited.freeze(device) {
            return None;
        }
        let nr_devices = self.devices().len();
        let mut draining = (group.nr_ungoverned > 0)
            .then(|| self.state.first_ungoverned(group.id))
            .flatten();
        self.each(|process| {
            if !process.is_frozen(device, nr_devices) {
                let pid = process.identity.pid;
                draining = Some(draining.map_or(pid, |lowest: u32| lowest.min(pid)));
            }
        });
        draining
    }

    /// Returns the driver's error (CUresult) because of which a freeze cannot be known to be complete; `None`
    /// except for processes.
    pub fn drain_error(&self) -> Option<u32> {
        match self.scope {
            Scope::Process(process, device) => process.drain_error(device, self.devices().len()),
            Scope::Root | Scope::Group(..) => None,
        }
    }

    /// Returns whether the process's hook still answers; `None` except for processes.
    pub fn is_hook_ok(&self) -> Option<bool> {
        match self.scope {
            Scope::Process(process, _) => Some(process.is_hook_ok()),
            Scope::Root | Scope::Group(..) => None,
        }
    }

    /// Returns the role of the process in memory turns here, on any device if this is not one; `None` except
    /// for processes.
    pub fn memory_turn(&self) -> Option<u64> {
        let Scope::Process(process, device) = self.scope else {
            return None;
        };
        let turn = |device: &Kept| device.memory_turn;
        let turn = match device {
            Some(device) => process.devices.get(device).map(turn),
            None => process.devices.iter().map(turn).max_by_key(|turn| *turn as u64),
        };
        Some(turn.unwrap_or(MemoryTurn::None) as u64)
    }

    /// Returns for which processes the process waits or has waited; nothing except for processes.
    pub fn waits(&self) -> Vec<Wait<'_>> {
        match self.scope {
            Scope::Process(process, _) => self.state.waits_of(process),
            Scope::Root | Scope::Group(..) => Vec::new(),
        }
    }

    /// Returns what the process has of a device while all that have lately had work want it, percent: of any
    /// device the most if this is not one; `None` except for processes.
    pub fn share_percent(&self) -> Option<u64> {
        let Scope::Process(process, device) = self.scope else {
            return None;
        };
        let share = |device: &Kept| device.share_percent;
        Some(match device {
            Some(device) => process.devices.get(device).map_or(0, share),
            None => process.devices.iter().map(share).max().unwrap_or(0),
        })
    }

    /// Returns the settings of this directory, and the UUID of its device if it has one.
    pub(super) fn settings(&self) -> Result<(&'a Settings, Option<&'a str>)> {
        let (settings, device) = match self.scope {
            Scope::Root => return Err(Error::NotFound),
            Scope::Process(process, device) => (&process.settings, device),
            Scope::Group(group, device) => (&group.settings, device),
        };
        let device = device.and_then(|index| self.state.devices.get(index));
        Ok((settings, device.map(|device| device.uuid_text.as_str())))
    }
}
