//! What processes have really had of simulated GPUs, from the machine's own state and past every driver and
//! library.

use std::path::Path;

use simgpu::{Account, Held, Machine, OnDevice};

/// A machine of simulated GPUs, looked at from outside.
#[derive(Debug)]
pub struct Truth(Machine);

impl Truth {
    /// That of the machine in a directory (`SIMGPU_DIR`).
    ///
    /// # Panics
    /// When no process has made one there yet.
    #[track_caller]
    pub fn of(directory: &Path) -> Self {
        let machine = Machine::observe(directory);
        Self(machine.unwrap_or_else(|error| panic!("{}: {error}", directory.display())))
    }

    /// Makes instances on it now, as an administrator does; those that there are come first in `text`
    /// (`SIMGPU_MIG`).
    ///
    /// # Panics
    /// When the GPUs cannot be divided so.
    #[track_caller]
    pub fn divide(&self, text: &str) {
        assert!(self.0.divide(text), "{text}");
    }

    /// A process's account: the living one's of that pid, else that of the dead one seen last.
    fn account(&self, pid: i32) -> Option<Account> {
        let pid = u32::try_from(pid).ok()?;
        let mut accounts = self.0.accounts();
        accounts.retain(|account| account.pid == pid);
        accounts.into_iter().max_by_key(|account| account.is_alive)
    }

    fn on_device(&self, pid: i32, gpu: usize) -> Option<OnDevice> {
        self.account(pid)?.devices.into_iter().nth(gpu)
    }

    /// Microseconds for which a GPU has run a process's kernels; also of a process that has died, until
    /// another one comes to the machine. 0 for one that was never there.
    pub fn usage_usec(&self, pid: i32, gpu: usize) -> u64 {
        self.on_device(pid, gpu).map_or(0, |here| here.busy_ns / 1000)
    }

    /// Microseconds for which a GPU's copy engines have worked for a process.
    pub fn copy_usec(&self, pid: i32, gpu: usize) -> u64 {
        self.on_device(pid, gpu).map_or(0, |here| here.copy_ns / 1000)
    }

    /// Kernels of a process that have begun on a GPU.
    pub fn nr_launches(&self, pid: i32, gpu: usize) -> u64 {
        self.on_device(pid, gpu).map_or(0, |here| here.nr_launches)
    }

    /// Bytes of a GPU's memory that a process holds now, that of its contexts included.
    pub fn used(&self, pid: i32, gpu: usize) -> u64 {
        let living = self.account(pid).filter(|account| account.is_alive);
        living
            .and_then(|account| Some(account.devices.get(gpu)?.used))
            .unwrap_or(0)
    }

    /// Bytes of one kind that a living process holds: of that GPU's memory, or of the host's, which is no
    /// GPU's.
    pub fn held(&self, pid: i32, gpu: usize, kind: Held) -> u64 {
        let Some(account) = self.account(pid).filter(|account| account.is_alive) else {
            return 0;
        };
        let kinds = if kind.is_on_device() {
            account.devices.get(gpu).map_or(&[][..], |here| &here.held)
        } else {
            &account.host
        };
        let found = kinds.iter().find(|(known, _)| *known == kind);
        found.map_or(0, |(_, bytes)| *bytes)
    }

    /// Bytes of a GPU's memory that living processes hold at one moment. None if that has changed while it
    /// was looked at: what one frees and another allocates meanwhile would count twice.
    pub fn used_at_once(&self, gpu: usize) -> Option<u64> {
        self.at_once(|account| account.devices.get(gpu).map(|here| here.used))
    }

    /// Bytes of one kind of the host's memory that living processes hold at one moment; none, likewise.
    pub fn host_at_once(&self, kind: Held) -> Option<u64> {
        let of_kind = |account: &Account| account.host.iter().find(|(known, _)| *known == kind).copied();
        self.at_once(|account| of_kind(account).map(|(_, bytes)| bytes))
    }

    fn at_once(&self, of: impl Fn(&Account) -> Option<u64>) -> Option<u64> {
        let look = || -> Vec<(u32, u64)> {
            let living = self.0.accounts().into_iter().filter(|account| account.is_alive);
            living
                .filter_map(|account| Some((account.pid, of(&account)?)))
                .collect()
        };
        let seen = look();
        (seen == look()).then(|| seen.iter().map(|(_, bytes)| bytes).sum())
    }

    /// Nanoseconds of work that a GPU has done since the machine was made, for living and dead processes
    /// together.
    pub fn busy_ns(&self, gpu: usize) -> u64 {
        self.0.device(gpu).map_or(0, |device| device.busy_ns())
    }

    /// Bytes of a GPU's memory in use by living processes.
    pub fn used_by_all(&self, gpu: usize) -> u64 {
        self.0.device(gpu).map_or(0, |device| device.memory_used())
    }
}
