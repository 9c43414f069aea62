//! Write access of control files to the tree.

use super::kill::{KillCause, Killer};
use super::process::{Process, slots};
use super::settings::{AfterWrite, COMPUTE_PRIORITY, Check, Kind, SUSPEND, Setting, Value};
use super::{
    Action, Caller, Directory, Entity, GroupId, Notice, Origin, ProcessId, Settings, State, Sums, UserChange,
    View, enforce,
};
use crate::arbiter::Policy;
use crate::error::{Error, Result};
use crate::text::parse_size;

pub(super) const CANNOT_SWAP: &str =
    "the memory cannot be swapped; start the program with gcgroupfs run --swap";

/// Changes to one directory on behalf of a caller.
#[derive(Debug)]
pub struct Edit<'a> {
    pub(super) state: &'a mut State,
    pub(super) directory: Directory,
    pub(super) caller: Caller,
    pub(super) notices: Vec<Notice>,
}

/// The process or group that is changed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    Process(ProcessId),
    Group(GroupId),
}

impl<'a> Edit<'a> {
    pub(super) fn new(state: &'a mut State, directory: Directory, caller: Caller) -> Self {
        Self {
            state,
            directory,
            caller,
            notices: Vec::new(),
        }
    }

    /// Returns the state as seen from this directory.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn view(&self) -> Result<View<'_>> {
        Ok(View::new(self.state, self.state.scope(self.directory)?))
    }

    /// Describes the change, for the log.
    pub(crate) fn user_change(&self, action: Action) -> UserChange {
        self.state.user_change(self.caller, self.directory, action)
    }

    pub(super) fn into_notices(self) -> Vec<Notice> {
        self.notices
    }

    /// Sets a value in the format of its control file. `default` unsets one that inherits.
    ///
    /// # Errors
    /// * `EINVAL`, `ERANGE`: not a value of this setting.
    /// * `EPERM`: beyond root's setting.
    /// * Those of the setting's check.
    pub fn set(&mut self, setting: &'static Setting, text: &str) -> Result<()> {
        let uuid = self.uuid();
        if setting.inherits && text == "default" {
            return self.change(|settings, by_root| settings.unset(setting, uuid.as_deref(), by_root));
        }
        let before = self.settings()?.get(setting, uuid.as_deref());
        let parsed = setting.parse(text, before, self.memory())?;
        let value = match setting.kind {
            Kind::Seconds => self.state.lease_end(parsed),
            _ => parsed,
        };
        self.check_jobs_bound(setting, value)?;
        self.check(setting, value)?;
        self.change(|settings, by_root| settings.set(setting, uuid.as_deref(), value, by_root))?;
        let Caller { uid, pid, .. } = self.caller;
        let origin = Origin::Written { uid, pid };
        self.state.note_writer(self.directory, setting, origin);
        self.after_write(setting, value)
    }

    /// Checks that a value of a process is not made ineffective by the one of its job.
    fn check_jobs_bound(&self, setting: &'static Setting, value: Value) -> Result<()> {
        let Target::Process(id) = self.target()? else {
            return Ok(());
        };
        let group = self.state.processes.get(&id).and_then(|process| process.group);
        match self.state.jobs_bound(group, setting, self.uuid().as_deref()) {
            Some(bound) if !setting.tighter.is_within(value, bound) => Err(Error::BeyondJob {
                file: setting.name,
                bound: setting.show(bound).trim_end().to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Checks a value before it is set, as the setting's row says.
    fn check(&self, setting: &'static Setting, value: Value) -> Result<()> {
        match setting.check {
            None => Ok(()),
            Some(Check::Priority) => self.check_priority(value.priority()),
            Some(Check::Protection) => self.check_protection(setting, value.number()),
            Some(Check::Suspend) => self.check_suspend(value.is_on()),
            Some(Check::SwapMax) => self.check_swap_max(value.number()),
        }
    }

    /// Does what must be done after a write, beyond publishing, as the setting's row says.
    fn after_write(&mut self, setting: &Setting, value: Value) -> Result<()> {
        match setting.after_write {
            None => Ok(()),
            Some(AfterWrite::ApplyHigh) => self.apply_high(),
            Some(AfterWrite::ApplyIdle) => self.apply_idle(),
            Some(AfterWrite::ApplyLease) => self.note_lease(),
            Some(AfterWrite::BoundSwap) => self.bound_swap(),
            Some(AfterWrite::CountOverLimit) => self.count_over_limit(value.number()),
            Some(AfterWrite::NoteEvents) => self.note_events(),
            Some(AfterWrite::Suspend) => self.suspend_again(),
        }
    }

    /// Parses a value that is to be held here, and returns it with the UUID of this directory's device.
    ///
    /// # Errors
    /// As [`set`](Self::set), but for root's bounds: a held value can only be stricter than the one in force.
    pub(super) fn parse_held(
        &self,
        setting: &'static Setting,
        text: &str,
    ) -> Result<(Value, Option<String>)> {
        if setting.hold_option.is_none() {
            return Err(Error::NotSupported("this file's value cannot be held"));
        }
        if *setting == *SUSPEND && self.directory.device.is_some() {
            return Err(Error::NotSupported(
                "a process or group can only be suspended as a whole",
            ));
        }
        let before = self.settings()?.get(setting, self.uuid().as_deref());
        let value = setting.parse(text, before, self.memory())?;
        // The check of a setting that inherits is that of root's bounds.
        if !setting.inherits {
            self.check(setting, value)?;
        }
        Ok((value, self.uuid()))
    }

    /// Does what must be done after a write, if the value in force here differs from the one in `before`.
    pub(super) fn follow_up(&mut self, setting: &'static Setting, before: &Settings) -> Result<()> {
        let uuid = self.uuid();
        let in_force = |settings: &Settings| match self.target()? {
            Target::Process(_) => Ok(settings.get(setting, uuid.as_deref())),
            Target::Group(_) => Ok(settings.of_group(setting, uuid.as_deref())),
        };
        let (was, is): (Value, Value) = (in_force(before)?, in_force(self.settings()?)?);
        match was == is {
            true => Ok(()),
            false => self.after_write(setting, is),
        }
    }

    pub(super) fn state(&self) -> &State {
        self.state
    }

    pub(super) fn caller(&self) -> Caller {
        self.caller
    }

    pub(super) fn directory(&self) -> Directory {
        self.directory
    }

    /// Changes the state, with the notices of this edit.
    pub(super) fn with_state(&mut self, change: impl FnOnce(&mut State, &mut Vec<Notice>)) {
        change(self.state, &mut self.notices);
    }

    /// Parses bytes, `max`, or a percentage of the memory of this directory's device, in a process's or
    /// group's directory of all devices.
    ///
    /// # Errors
    /// As [`parse_size`].
    pub fn size(&self, text: &str) -> Result<u64> {
        parse_size(text, self.memory())
    }

    /// Returns the memory of this directory's device, or of all devices; `None` if it is not known.
    fn memory(&self) -> Option<u64> {
        let devices = &self.state.devices;
        let mut sizes = devices.iter().map(|device| device.total);
        let total = match self.device() {
            Some(index) => sizes.nth(index)?,
            None if sizes.clone().any(|size| size == 0) => return None,
            None => sizes.fold(0, u64::saturating_add),
        };
        Some(total).filter(|total| *total != 0)
    }

    /// Counts that `memory.limit` was set if usage is above.
    pub(super) fn count_over_limit(&mut self, limit: u64) -> Result<()> {
        let device = self.device();
        match self.target()? {
            Target::Process(id) => {
                let devices = &self.state.devices;
                let process = self.state.processes.get_mut(&id).ok_or(Error::Gone)?;
                if Sums::of(process, device, devices).current() > limit {
                    if let Some(kept) = process.kept_mut(device) {
                        kept.nr_over_limit += 1;
                    }
                    self.notices.push(Notice::SettingsChanged(id));
                }
                self.state.note_events(id, &mut self.notices);
            }
            Target::Group(id) => {
                if self.state.current_in(Some(id), device) > limit {
                    self.count_in_group(id, |sums| sums.nr_over_limit += 1);
                }
                self.state.limit_group(id, device, limit, &mut self.notices);
            }
        }
        Ok(())
    }

    /// Asks for `bytes` to be swapped out: for a process as a whole, on each device as far as needed; for a
    /// group, in the order of `protection.rs`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if no process here was started with `--swap`.
    pub fn reclaim(&mut self, bytes: u64) -> Result<()> {
        let (device, target) = (self.device(), self.target()?);
        let wanted: Vec<usize> = match device {
            Some(device) => vec![device],
            None => slots(self.state.devices.len()).collect(),
        };
        let mut processes: Vec<&Process> = match target {
            Target::Process(id) => self
                .state
                .processes
                .get(&id)
                .map(AsRef::as_ref)
                .into_iter()
                .collect(),
            Target::Group(id) => self.state.within(id),
        };
        processes.retain(|process| process.can_swap());
        if processes.is_empty() {
            return Err(Error::NotSupported(CANNOT_SWAP));
        }
        let within = match target {
            Target::Process(_) => None,
            Target::Group(id) => Some(id),
        };
        let asked = self.state.reclaim(processes, &wanted, bytes, (within, false));
        self.notices.extend(asked.into_iter().map(Notice::Ring));
        match target {
            Target::Process(id) => {
                let process = self.state.processes.get_mut(&id).ok_or(Error::Gone)?;
                if let Some(kept) = process.kept_mut(device) {
                    kept.nr_reclaim += 1;
                }
                self.notices.push(Notice::SettingsChanged(id));
                self.state.note_events(id, &mut self.notices);
            }
            Target::Group(id) => self.count_in_group(id, |sums| sums.nr_reclaim += 1),
        }
        Ok(())
    }

    /// Checks a value of `compute.priority`.
    ///
    /// # Errors
    /// `EPERM` if a user other than root sets a lower number than root has set here or above, or, where root
    /// has set none, than the default.
    pub(super) fn check_priority(&self, priority: u32) -> Result<()> {
        let above = match self.target()? {
            Target::Process(id) => self.state.processes.get(&id).and_then(|process| process.group),
            Target::Group(id) => self.state.groups.get(&id).and_then(|group| group.parent),
        };
        let least = self.state.least_priority(self.settings()?, above, self.device());
        if priority < least && !self.state.is_root(self.caller) {
            return Err(COMPUTE_PRIORITY.beyond_root(Value::Number(least.into())));
        }
        Ok(())
    }

    /// Sets the scheduling policy of all GPUs.
    pub fn set_policy(&mut self, policy: &'static Policy) {
        let mut settings = self.state.root.clone();
        settings.set_policy(Some(policy));
        if settings != self.state.root {
            self.state.root = settings;
            self.notices.push(Notice::RootChanged);
        }
    }

    /// Notes what `gcgroup.events` of a process shows after a change of `compute.freeze`, and the pressure up
    /// to then.
    pub(super) fn note_events(&mut self) -> Result<()> {
        let group = match self.target()? {
            Target::Process(id) => {
                self.state.note_events(id, &mut self.notices);
                self.state.processes.get(&id).and_then(|process| process.group)
            }
            Target::Group(id) => Some(id),
        };
        self.state.note_stalls(group);
        Ok(())
    }

    /// Begins suspensions and resumptions, again those that have failed.
    pub(super) fn suspend_again(&mut self) -> Result<()> {
        let ids: Vec<_> = self.processes()?.iter().map(|process| process.id).collect();
        self.state.suspend_again(&ids, &mut self.notices);
        Ok(())
    }

    /// Returns the process, or those in the group and below.
    pub(super) fn processes(&self) -> Result<Vec<&Process>> {
        Ok(match self.target()? {
            Target::Process(id) => vec![self.state.processes.get(&id).ok_or(Error::Gone)?],
            Target::Group(id) => self.state.within(id),
        })
    }

    /// Requests that the process, or each process in the group and below, is killed.
    ///
    /// # Errors
    /// `EINVAL` unless `text` is `1`.
    pub fn kill(&mut self, text: &str) -> Result<()> {
        let Caller { uid, pid, .. } = self.caller;
        let cause = match text {
            "1" => KillCause::Write(pid),
            "SIGTERM" => KillCause::Terminate(pid),
            _ => return Err(Error::bad("1 or SIGTERM", text)),
        };
        self.target()?;
        let killer = Killer { uid, cause };
        self.notices.push(Notice::KillAsked(self.directory, killer));
        Ok(())
    }

    /// Counts an event of a group, there and above, and has the counts written to the journal.
    fn count_in_group(&mut self, id: GroupId, count: impl Fn(&mut Sums)) {
        let device = self.device();
        self.state.count_in_group(id, device, count, &mut self.notices);
        self.notices.extend(self.state.counts_changed(id));
    }

    /// Changes the settings and applies them. Adds the notices for the journal and for processes that must be
    /// rung.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Settings, bool) -> Result<()>) -> Result<()> {
        let (target, by_root) = (self.target()?, self.state.is_root(self.caller));
        let settings = match target {
            Target::Process(id) => &mut self.state.processes.get_mut(&id).ok_or(Error::Gone)?.settings,
            Target::Group(id) => &mut self.state.groups.get_mut(&id).ok_or(Error::Gone)?.settings,
        };
        let mut changed = settings.clone();
        change(&mut changed, by_root)?;
        if changed == *settings {
            return Ok(());
        }
        *settings = changed;
        match target {
            Target::Process(id) => {
                self.state.note_quotas(id.0);
                let process = self.state.processes.get(&id).ok_or(Error::Gone)?;
                let ring = enforce::settings(process, &self.state.devices);
                self.notices.push(Notice::SettingsChanged(id));
                if ring {
                    self.notices.push(Notice::Ring(id));
                }
            }
            Target::Group(id) => {
                self.state.note_quotas(id.0);
                // Processes are told first, so that they do not wait for the disk.
                self.state.hand_down(id, &mut self.notices);
                self.notices.push(Notice::GroupChanged(id));
            }
        }
        Ok(())
    }

    pub(super) fn settings(&self) -> Result<&Settings> {
        match self.target()? {
            Target::Process(id) => Ok(&self.state.processes.get(&id).ok_or(Error::Gone)?.settings),
            Target::Group(id) => Ok(&self.state.groups.get(&id).ok_or(Error::Gone)?.settings),
        }
    }

    pub(super) fn device(&self) -> Option<usize> {
        self.directory.device.map(usize::from)
    }

    pub(super) fn uuid(&self) -> Option<String> {
        let device = self.state.devices.get(self.device()?);
        device.map(|device| device.uuid_text.clone())
    }

    pub(super) fn target(&self) -> Result<Target> {
        match self.directory.whose() {
            Entity::Root => Err(Error::NotFound),
            Entity::Process(id) => Ok(Target::Process(id)),
            Entity::Group(id) => Ok(Target::Group(id)),
        }
    }
}
