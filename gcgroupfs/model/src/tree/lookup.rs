//! Lookup and listing of directories and processes.

use std::collections::BTreeMap;
#[cfg(any(test, fuzzing, feature = "fixture"))]
use std::sync::Arc;

#[cfg(any(test, fuzzing, feature = "fixture"))]
use super::Blocks;
use super::{Directory, Entity, GroupId, Identity, Level, Owner, ProcessId, Scope, State, Tree};
use crate::error::{Error, Result};

impl Tree {
    /// Returns the process's identity, or `None` if it has left.
    pub fn identity(&self, id: ProcessId) -> Option<Identity> {
        let state = self.state.lock();
        Some(state.processes.get(&id)?.identity.clone())
    }

    /// Returns the process's blocks, or `None` if it has left.
    #[cfg(any(test, fuzzing, feature = "fixture"))]
    pub fn blocks(&self, id: ProcessId) -> Option<Arc<dyn Blocks>> {
        self.state
            .lock()
            .processes
            .get(&id)
            .map(|process| process.blocks.clone())
    }

    /// Returns the process whose directory is named `pid`.
    pub fn find(&self, pid: u32) -> Option<ProcessId> {
        self.state.lock().pids.get(&pid).copied()
    }

    /// Returns all processes, by pid.
    pub fn processes(&self) -> Vec<(ProcessId, Identity)> {
        let state = self.state.lock();
        state
            .pids
            .values()
            .filter_map(|id| Some((*id, state.processes.get(id)?.identity.clone())))
            .collect()
    }

    /// Returns the kind of a directory.
    ///
    /// # Errors
    /// [`Error::Gone`] if the directory no longer exists.
    pub fn level(&self, directory: Directory) -> Result<Level> {
        self.state.lock().level(directory)
    }

    /// Returns the owner of the control files of a directory.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn owner(&self, directory: Directory) -> Result<Owner> {
        self.state.lock().files_owner(directory)
    }

    /// Returns the subdirectories of a process or a group on each device, with their names.
    pub fn on_devices(&self, directory: Directory) -> Vec<(String, Directory)> {
        self.state.lock().on_devices(directory).collect()
    }

    /// Returns the subdirectories with their names: those named by numbers first, in order.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn subdirectories(&self, directory: Directory) -> Result<Vec<(String, Directory)>> {
        let state = self.state.lock();
        let on_devices = || state.on_devices(directory);
        let groups = |groups: &BTreeMap<String, GroupId>| -> Vec<_> {
            let named = groups
                .iter()
                .map(|(name, id)| (name.clone(), Directory::group(*id)));
            named.collect()
        };
        Ok(match state.scope(directory)? {
            Scope::Root => {
                let processes = state.pids.iter();
                let processes = processes.map(|(pid, id)| (pid.to_string(), Directory::process(*id)));
                processes.chain(groups(&state.top)).collect()
            }
            Scope::Process(_, None) => on_devices().collect(),
            Scope::Group(group, None) => on_devices().chain(groups(&group.children)).collect(),
            Scope::Process(_, Some(_)) | Scope::Group(_, Some(_)) => Vec::new(),
        })
    }

    /// Returns the subdirectory `name` of a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], also if `directory` itself no longer exists.
    pub fn subdirectory(&self, directory: Directory, name: &str) -> Result<Directory> {
        let state = self.state.lock();
        let number = canonical_number(name);
        let on_device = || {
            let device = state.devices.get(number? as usize)?;
            directory.on(device.index)
        };
        match state.scope(directory).map_err(|_| Error::NotFound)? {
            Scope::Root => match number {
                Some(number) => state.pids.get(&number).map(|id| Directory::process(*id)),
                None => state.top.get(name).map(|id| Directory::group(*id)),
            },
            Scope::Process(_, None) => on_device(),
            Scope::Group(group, None) => match number {
                Some(_) => on_device(),
                None => group.children.get(name).map(|id| Directory::group(*id)),
            },
            Scope::Process(_, Some(_)) | Scope::Group(_, Some(_)) => None,
        }
        .ok_or(Error::NotFound)
    }
}

impl State {
    fn on_devices(&self, directory: Directory) -> impl Iterator<Item = (String, Directory)> {
        let devices = self.devices.iter();
        devices.filter_map(move |device| Some((device.index.to_string(), directory.on(device.index)?)))
    }

    pub(super) fn level(&self, directory: Directory) -> Result<Level> {
        Ok(match self.scope(directory)? {
            Scope::Root => Level::Root,
            Scope::Process(_, None) => Level::Process,
            Scope::Process(_, Some(_)) => Level::ProcessDevice,
            Scope::Group(_, None) => Level::Group,
            Scope::Group(_, Some(_)) => Level::GroupDevice,
        })
    }

    pub(super) fn scope(&self, directory: Directory) -> Result<Scope<'_>> {
        let device = directory.device.map(usize::from);
        if device.is_some_and(|device| device >= self.devices.len()) {
            return Err(Error::Gone);
        }
        match directory.whose() {
            Entity::Root if device.is_none() => Ok(Scope::Root),
            Entity::Root => Err(Error::Gone),
            Entity::Process(id) => {
                let process = self.processes.get(&id).ok_or(Error::Gone)?;
                Ok(Scope::Process(process, device))
            }
            Entity::Group(id) => {
                let group = self.groups.get(&id).ok_or(Error::Gone)?;
                Ok(Scope::Group(group, device))
            }
        }
    }
}

/// Returns the number if `name` is its canonical spelling; `007` names no directory.
fn canonical_number(name: &str) -> Option<u32> {
    let number: u32 = name.parse().ok()?;
    (number.to_string() == name).then_some(number)
}
