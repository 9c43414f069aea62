//! What a control file sees of the tree, and what it can change: the whole vocabulary of the file table.

use std::cell::RefCell;

use std::sync::atomic::Ordering::Relaxed;

use super::process::slots;
use super::{
    Caller, Device, Exited, Notice, Place, Process, ProcessId, Quota, Settings, State, Sums, Unmanaged,
    enforce, sums,
};
use crate::arbiter::Policy;
use crate::error::{Error, Result};

const CANNOT_SWAP: &str = "the process was not started with --swap";

/// The directory that is looked at.
#[derive(Debug, Clone, Copy)]
pub enum Scope<'a> {
    Root,
    Process(&'a Process),
    /// A process on the device of that index.
    Device(&'a Process, usize),
}

/// What there is to see from one directory.
#[derive(Debug)]
pub struct View<'a> {
    state: &'a State,
    scope: Scope<'a>,
    notices: RefCell<Vec<Notice>>,
}

impl<'a> View<'a> {
    pub(super) fn new(state: &'a State, scope: Scope<'a>) -> Self {
        Self {
            state,
            scope,
            notices: RefCell::default(),
        }
    }

    pub(super) fn into_notices(self) -> Vec<Notice> {
        self.notices.into_inner()
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

    /// The pids of the processes here.
    pub fn pids(&self) -> Vec<u32> {
        match self.process() {
            Some((process, _)) => vec![process.identity.pid],
            None => self.state.pids.keys().copied().collect(),
        }
    }

    /// Whether it is of one process, on all its devices.
    pub fn is_process(&self) -> bool {
        matches!(self.scope, Scope::Process(_))
    }

    /// Everything that is counted, at the root with the counts of those that have left.
    pub fn sums(&self) -> Sums {
        if let Some((process, device)) = self.process() {
            return Sums::of(process, device, self.devices());
        }
        let mut sums = self.state.departed;
        self.state
            .processes
            .values()
            .for_each(|process| sums += Sums::of(process, None, self.devices()));
        sums
    }

    /// Has the processes here find out which kernels have ended, those that have any left.
    pub fn ask_progress(&self) {
        let ask = |process: &Process| {
            if Sums::of(process, None, self.devices()).nr_pending() > 0 {
                enforce::ask_progress(process);
                self.notices.borrow_mut().push(Notice::Ring(process.id));
            }
        };
        match self.process() {
            Some((process, _)) => ask(process),
            None => self.state.processes.values().for_each(ask),
        }
    }

    /// Whether those that were asked have answered, or have nothing left to tell of.
    pub fn has_progress(&self) -> bool {
        let has = |process: &Process| {
            enforce::has_progress(process) || Sums::of(process, None, self.devices()).nr_pending() == 0
        };
        match self.process() {
            Some((process, _)) => has(process),
            None => self.state.processes.values().all(has),
        }
    }

    /// What may be swapped out; nothing of a process that was not started for it.
    ///
    /// # Errors
    /// At the root, which has none.
    pub fn memory_swap_max(&self) -> Result<u64> {
        let (process, _) = self.governed()?;
        let bytes = self.settings(Settings::memory_swap_max)?;
        Ok(if process.can_swap() { bytes } else { 0 })
    }

    /// Times that memory was asked to be swapped out.
    ///
    /// # Errors
    /// At the root, which has none.
    pub fn nr_reclaim(&self) -> Result<u64> {
        let (process, device) = self.governed()?;
        Ok(process.nr_reclaim(device))
    }

    /// # Errors
    /// At the root, which has none.
    pub fn memory_limit(&self) -> Result<u64> {
        self.settings(Settings::memory_limit)
    }

    /// # Errors
    /// At the root, which has none.
    pub fn priority(&self) -> Result<u32> {
        self.settings(Settings::priority)
    }

    /// # Errors
    /// At the root, which has none.
    pub fn compute_max(&self) -> Result<Quota> {
        self.settings(Settings::compute_max)
    }

    /// The policy that holds.
    pub fn policy(&self) -> Policy {
        self.state.policy()
    }

    /// Has the GPU time of the processes here measured for a while.
    pub fn watch(&self) {
        let ids = match self.process() {
            Some((process, _)) => vec![process.id],
            None => self.state.processes.keys().copied().collect(),
        };
        self.notices.borrow_mut().push(Notice::Watched(ids));
    }

    /// # Errors
    /// At the root, which has none.
    pub fn freeze(&self) -> Result<bool> {
        self.settings(Settings::freeze)
    }

    /// # Errors
    /// At the root, which has none.
    pub fn memory_peak(&self) -> Result<u64> {
        let (process, device) = self.governed()?;
        Ok(sums::peak(process, device, self.devices()))
    }

    /// Times a limit was set below usage.
    ///
    /// # Errors
    /// At the root, which has no limit.
    pub fn nr_over_limit(&self) -> Result<u64> {
        let (process, device) = self.governed()?;
        Ok(process.nr_over_limit(device))
    }

    /// How often what `gcgroup.events` shows has changed.
    ///
    /// # Errors
    /// At the root, which has none.
    pub fn nr_standing_changes(&self) -> Result<u64> {
        let (process, device) = self.governed()?;
        Ok(process.nr_standing_changes(device))
    }

    /// How often what `memory.events` shows has changed.
    ///
    /// # Errors
    /// At the root, which has none.
    pub fn nr_count_changes(&self) -> Result<u64> {
        let (process, device) = self.governed()?;
        Ok(process.nr_count_changes(device))
    }

    /// Whether what was frozen here stands still.
    ///
    /// # Errors
    /// At the root, which cannot be frozen.
    pub fn is_frozen(&self) -> Result<bool> {
        let (process, device) = self.governed()?;
        Ok(process.is_frozen(device, self.devices().len()))
    }

    /// Whether the process still answers.
    ///
    /// # Errors
    /// At the root, which is no process.
    pub fn is_hook_ok(&self) -> Result<bool> {
        Ok(self.governed()?.0.is_hook_ok())
    }

    fn settings<T>(&self, get: impl Fn(&Settings, Option<&str>) -> T) -> Result<T> {
        let (process, device) = self.governed()?;
        let uuid = device
            .and_then(|index| self.devices().get(index))
            .map(|device| device.uuid_text.as_str());
        Ok(get(&process.settings, uuid))
    }

    fn process(&self) -> Option<(&'a Process, Option<usize>)> {
        match self.scope {
            Scope::Root => None,
            Scope::Process(process) => Some((process, None)),
            Scope::Device(process, device) => Some((process, Some(device))),
        }
    }

    fn governed(&self) -> Result<(&'a Process, Option<usize>)> {
        self.process().ok_or(Error::NotFound)
    }
}

/// What can be changed in one directory, in a caller's name.
#[derive(Debug)]
pub struct Edit<'a> {
    state: &'a mut State,
    place: Place,
    by_root: bool,
    notices: Vec<Notice>,
}

impl<'a> Edit<'a> {
    pub(super) fn new(state: &'a mut State, place: Place, caller: Caller) -> Self {
        let by_root = state.is_root(caller);
        Self {
            state,
            place,
            by_root,
            notices: Vec::new(),
        }
    }

    pub(super) fn into_notices(self) -> Vec<Notice> {
        self.notices
    }

    /// # Errors
    /// `EPERM` beyond what root has set.
    pub fn set_memory_limit(&mut self, limit: u64) -> Result<()> {
        self.set(|settings, device, by_root| settings.set_memory_limit(device, limit, by_root))?;
        let (process, device, devices) = self.parts()?;
        let is_over = Sums::of(process, device, devices).current() > limit;
        if let Some(kept) = process.kept_mut(device).filter(|_| is_over) {
            kept.nr_over_limit += 1;
        }
        self.note_events()
    }

    /// # Errors
    /// `EOPNOTSUPP` for more than nothing, if the process was not started for it; `EPERM` beyond what root has set.
    pub fn set_memory_swap_max(&mut self, bytes: u64) -> Result<()> {
        let (process, ..) = self.parts()?;
        if bytes != 0 && !process.can_swap() {
            return Err(Error::NotSupported(CANNOT_SWAP));
        }
        self.set(|settings, device, by_root| settings.set_memory_swap_max(device, bytes, by_root))
    }

    /// Asks for that many bytes to be swapped out; of a process as a whole, on each device as far as it goes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the process was not started for it.
    pub fn reclaim(&mut self, bytes: u64) -> Result<()> {
        let (process, device, devices) = self.parts()?;
        if !process.can_swap() {
            return Err(Error::NotSupported(CANNOT_SWAP));
        }
        let wanted = match device {
            Some(device) => vec![device],
            None => slots(devices.len()).collect(),
        };
        let mut left = bytes;
        for device in wanted {
            let there = process
                .usage()
                .devices
                .get(device)
                .map_or(0, |usage| usage.swappable.load(Relaxed));
            // All of it is also what comes in just now.
            let some = if bytes == gcgroup_abi::NO_LIMIT {
                gcgroup_abi::NO_LIMIT
            } else {
                left.min(there)
            };
            if some != 0 {
                enforce::reclaim(process, device, some);
                left = left.saturating_sub(some);
            }
        }
        if let Some(kept) = process.kept_mut(device) {
            kept.nr_reclaim += 1;
        }
        let id = process.id;
        self.notices.push(Notice::Ring(id));
        self.note_events()
    }

    /// # Errors
    /// `EPERM` beyond what root has set.
    pub fn set_priority(&mut self, priority: u32) -> Result<()> {
        self.set(|settings, device, by_root| settings.set_priority(device, priority, by_root))
    }

    /// # Errors
    /// `EPERM` beyond what root has set.
    pub fn set_compute_max(&mut self, usec: u64, period_usec: Option<u64>) -> Result<()> {
        self.set(|settings, device, by_root| settings.set_compute_max(device, usec, period_usec, by_root))
    }

    /// Sets the policy for all GPUs.
    pub fn set_policy(&mut self, policy: Policy) {
        let mut settings = self.state.root.clone();
        settings.set_policy(policy);
        if settings != self.state.root {
            self.state.root = settings;
            self.notices.push(Notice::RootChanged);
        }
    }

    /// # Errors
    /// `EPERM` against root's freeze.
    pub fn set_freeze(&mut self, freeze: bool) -> Result<()> {
        self.set(|settings, device, by_root| settings.set_freeze(device, freeze, by_root))?;
        self.note_events()
    }

    /// Begins a new peak at what is charged now.
    ///
    /// # Errors
    /// At the root, which has none.
    pub fn reset_peak(&mut self) -> Result<()> {
        let (process, device, devices) = self.parts()?;
        let current = Sums::of(process, device, devices).current();
        enforce::reset_peak(process, device);
        if let Some(kept) = process.kept_mut(device) {
            kept.peak = current;
        }
        Ok(())
    }

    /// Changes the settings and makes them hold; tells the journal, and the process if it must act on them.
    fn set(&mut self, change: impl FnOnce(&mut Settings, Option<&str>, bool) -> Result<()>) -> Result<()> {
        let by_root = self.by_root;
        let (process, device, devices) = self.parts()?;
        let uuid = device
            .and_then(|index| devices.get(index))
            .map(|device| device.uuid_text.as_str());
        let mut settings = process.settings.clone();
        change(&mut settings, uuid, by_root)?;
        if settings == process.settings {
            return Ok(());
        }
        process.settings = settings;
        let ring = enforce::settings(process, devices);
        let id = process.id;
        self.notices.push(Notice::SettingsChanged(id));
        if ring {
            self.notices.push(Notice::Ring(id));
        }
        Ok(())
    }

    fn note_events(&mut self) -> Result<()> {
        let mut notices = Vec::new();
        let (process, _, devices) = self.parts()?;
        process.note_events(devices, &mut notices);
        self.notices.append(&mut notices);
        Ok(())
    }

    fn parts(&mut self) -> Result<(&mut Process, Option<usize>, &[Device])> {
        let State {
            processes, devices, ..
        } = &mut *self.state;
        if self.place == Place::ROOT {
            return Err(Error::NotFound);
        }
        let process = processes
            .get_mut(&ProcessId(self.place.entity))
            .ok_or(Error::Gone)?;
        Ok((process, self.place.device.map(usize::from), devices))
    }
}
