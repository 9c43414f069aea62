//! What a control file sees of the tree. With what it can change, this is the whole vocabulary of the file table.

use std::cell::RefCell;

use super::{
    Device, Exited, Group, GroupId, Notice, Process, Quota, Settings, State, Storage, Sums, Unmanaged,
    enforce, sums,
};
use crate::arbiter::Policy;
use crate::error::{Error, Result};

/// The directory that is looked at.
#[derive(Debug, Clone, Copy)]
pub enum Scope<'a> {
    Root,
    /// A process, as a whole or on the device of that index.
    Process(&'a Process, Option<usize>),
    /// A group, likewise.
    Group(&'a Group, Option<usize>),
}

/// What there is to see from one directory.
#[derive(Debug)]
pub struct View<'a> {
    state: &'a State,
    scope: Scope<'a>,
    notices: RefCell<Vec<Notice>>,
    shown: RefCell<Vec<Shown>>,
}

/// What a group was shown to hold, on a device or as a whole.
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

    pub fn devices(&self) -> &[Device] {
        &self.state.devices
    }

    /// Those that left last, the latest first.
    pub fn exited(&self) -> impl Iterator<Item = &Exited> {
        self.state.exited.iter()
    }

    /// Who uses the devices past the hooks, as of the last look.
    pub fn unmanaged(&self) -> &[Unmanaged] {
        &self.state.audit.found
    }

    /// Has somebody look who does.
    pub fn ask_audit(&self) {
        self.state.audit.ask();
        self.notices.borrow_mut().push(Notice::AuditAsked);
    }

    /// Whether it has been looked since that was asked last.
    pub fn has_audit(&self) -> bool {
        self.state.audit.is_answered()
    }

    /// The pids of the processes here; of a group, those directly in it.
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

    /// Whether it is of one process, on all its devices.
    pub fn is_process(&self) -> bool {
        matches!(self.scope, Scope::Process(_, None))
    }

    /// Everything that is counted, at the root and in a group with the counts of those that have left.
    pub fn sums(&self) -> Sums {
        match self.scope {
            Scope::Root => {
                let mut sums = self.state.departed;
                self.each(|process| sums += Sums::of(process, None, self.devices()));
                sums
            }
            Scope::Process(process, device) => Sums::of(process, device, self.devices()),
            Scope::Group(group, device) => self.state.group_sums(group.id, device),
        }
    }

    /// What is held here now, without all that [`sums`](Self::sums) adds up.
    pub fn memory_current(&self) -> u64 {
        match self.scope {
            Scope::Root => self.state.root_current(),
            Scope::Process(process, device) => sums::current(process, device, self.devices()),
            Scope::Group(group, device) => {
                let current = self.state.group_current(group.id, device);
                self.show_held(current);
                current
            }
        }
    }

    /// Of a group, somebody sees that it holds so much.
    fn show_held(&self, bytes: u64) {
        if let Scope::Group(group, device) = self.scope {
            self.shown.borrow_mut().push((group.id, device, bytes));
        }
    }

    /// Calls with every process here and below.
    fn each(&self, mut look: impl FnMut(&'a Process)) {
        match self.scope {
            Scope::Root => self.state.processes.values().for_each(|process| look(process)),
            Scope::Process(process, _) => look(process),
            Scope::Group(group, _) => self.state.within(group.id).into_iter().for_each(look),
        }
    }

    /// Has the processes here find out which kernels have ended, those that have any left.
    pub fn ask_progress(&self) {
        self.each(|process| {
            if Sums::of(process, None, self.devices()).nr_pending() > 0 {
                enforce::ask_progress(process);
                self.notices.borrow_mut().push(Notice::Ring(process.id));
            }
        });
    }

    /// Whether those that were asked have answered, or have nothing left to tell of.
    pub fn has_progress(&self) -> bool {
        let mut all = true;
        self.each(|process| {
            all = all
                && (enforce::has_progress(process)
                    || Sums::of(process, None, self.devices()).nr_pending() == 0);
        });
        all
    }

    /// What may be swapped out; nothing of a process that was not started for it, anything of a group unless set.
    ///
    /// # Errors
    /// At the root, which has none.
    pub fn memory_swap_max(&self) -> Result<u64> {
        let (settings, uuid) = self.settings()?;
        Ok(match self.scope {
            Scope::Process(process, _) if !process.can_swap() => 0,
            Scope::Group(..) => settings.group_swap_max(uuid),
            _ => settings.memory_swap_max(uuid),
        })
    }

    /// # Errors
    /// At the root, which has none.
    pub fn memory_limit(&self) -> Result<u64> {
        let (settings, uuid) = self.settings()?;
        Ok(settings.memory_limit(uuid))
    }

    /// What holds: of a process its own, or the nearest group's above.
    ///
    /// # Errors
    /// At the root, which has none.
    pub fn priority(&self) -> Result<u32> {
        let (_, uuid) = self.settings()?;
        match self.scope {
            Scope::Root => Err(Error::NotFound),
            Scope::Process(process, device) => Ok(process.priority(device, uuid)),
            Scope::Group(group, device) => Ok(group.inherited.rank(device).in_force()),
        }
    }

    /// # Errors
    /// At the root, which has none.
    pub fn compute_max(&self) -> Result<Quota> {
        let (settings, uuid) = self.settings()?;
        Ok(settings.compute_max(uuid))
    }

    /// The policy that holds.
    pub fn policy(&self) -> Policy {
        self.state.policy()
    }

    /// Has the GPU time of the processes here measured for a while.
    pub fn watch(&self) {
        let mut ids = Vec::new();
        self.each(|process| ids.push(process.id));
        self.notices.borrow_mut().push(Notice::Watched(ids));
    }

    /// What was asked of the process or the group itself.
    ///
    /// # Errors
    /// At the root, which has none.
    pub fn freeze(&self) -> Result<bool> {
        let (settings, uuid) = self.settings()?;
        Ok(settings.freeze(uuid))
    }

    /// # Errors
    /// At the root, which has none.
    pub fn memory_peak(&self) -> Result<u64> {
        match self.scope {
            Scope::Root => Err(Error::NotFound),
            Scope::Process(process, device) => Ok(sums::peak(process, device, self.devices())),
            Scope::Group(group, device) => {
                let peak = self.state.group_peak(group.id, device);
                self.show_held(peak);
                Ok(peak)
            }
        }
    }

    /// How often what `gcgroup.events` shows has changed.
    pub fn nr_standing_changes(&self) -> u64 {
        match self.scope {
            Scope::Root => self.state.storage.nr_changes,
            Scope::Process(process, device) => process.events.nr_standing_changes(device),
            Scope::Group(group, device) => group.events.nr_standing_changes(device),
        }
    }

    /// Returns how well settings are stored; at the root alone.
    pub fn storage(&self) -> Option<Storage> {
        matches!(self.scope, Scope::Root).then_some(self.state.storage)
    }

    /// How often what `memory.events` shows has changed.
    ///
    /// # Errors
    /// At the root, which has none.
    pub fn nr_count_changes(&self) -> Result<u64> {
        match self.scope {
            Scope::Root => Err(Error::NotFound),
            Scope::Process(process, device) => Ok(process.events.nr_count_changes(device)),
            Scope::Group(group, device) => Ok(group.events.nr_count_changes(device)),
        }
    }

    /// Whether there are processes here.
    pub fn is_populated(&self) -> bool {
        match self.scope {
            Scope::Root => !self.state.processes.is_empty(),
            Scope::Process(..) => true,
            Scope::Group(group, _) => group.is_populated(),
        }
    }

    /// Whether what was frozen, here or above, stands still.
    ///
    /// # Errors
    /// At the root, which cannot be frozen.
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

    /// Of a group that is to stand still and does not: the lowest pid of the processes that have not acknowledged it, or that
    /// are not registered and may use the GPU.
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

    /// The driver's error (CUresult) that keeps a process from being known to stand still; of a group there is nothing to say.
    pub fn drain_error(&self) -> Option<u32> {
        match self.scope {
            Scope::Process(process, device) => process.drain_error(device, self.devices().len()),
            Scope::Root | Scope::Group(..) => None,
        }
    }

    /// Whether the process still answers; of a group there is nothing to say.
    pub fn is_hook_ok(&self) -> Option<bool> {
        match self.scope {
            Scope::Process(process, _) => Some(process.is_hook_ok()),
            Scope::Root | Scope::Group(..) => None,
        }
    }

    /// What is asked here, and the UUID of the device that it is asked on.
    fn settings(&self) -> Result<(&'a Settings, Option<&'a str>)> {
        let (settings, device) = match self.scope {
            Scope::Root => return Err(Error::NotFound),
            Scope::Process(process, device) => (&process.settings, device),
            Scope::Group(group, device) => (&group.settings, device),
        };
        let device = device.and_then(|index| self.state.devices.get(index));
        Ok((settings, device.map(|device| device.uuid_text.as_str())))
    }
}
