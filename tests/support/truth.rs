//! Ground truth about processes' use of simulated GPUs, read from the machine's state without any driver or
//! library.

use std::path::Path;

use simgpu::{Account, Held, Machine, OnDevice};

/// A simulated machine, observed from outside.
#[derive(Debug)]
pub struct Truth(Machine);

impl Truth {
    /// Opens the machine in a directory (`SIMGPU_DIR`).
    ///
    /// # Panics
    /// If no process has created a machine there yet.
    #[track_caller]
    pub fn of(directory: &Path) -> Self {
        let machine = Machine::observe(directory);
        Self(machine.unwrap_or_else(|error| panic!("{}: {error}", directory.display())))
    }

    /// Creates MIG instances on the running machine, as an administrator does; `text` (as `SIMGPU_MIG`)
    /// begins with the existing instances.
    ///
    /// # Panics
    /// If the GPUs cannot be divided so.
    #[track_caller]
    pub fn divide(&self, text: &str) {
        assert!(self.0.divide(text), "{text}");
    }

    /// Returns the account of the living process with this pid, or else of the dead one seen last.
    fn account(&self, pid: i32) -> Option<Account> {
        let pid = u32::try_from(pid).ok()?;
        let mut accounts = self.0.accounts();
        accounts.retain(|account| account.pid == pid);
        accounts.into_iter().max_by_key(|account| account.is_alive)
    }

    fn on_device(&self, pid: i32, gpu: usize) -> Option<OnDevice> {
        self.account(pid)?.devices.into_iter().nth(gpu)
    }

    /// Returns the microseconds for which a GPU has run a process's kernels; for a dead process, until its
    /// slot is reused. 0 for an unknown process.
    pub fn usage_usec(&self, pid: i32, gpu: usize) -> u64 {
        self.on_device(pid, gpu).map_or(0, |here| here.busy_ns / 1000)
    }

    /// Returns the microseconds for which a GPU's copy engines have worked for a process.
    pub fn copy_usec(&self, pid: i32, gpu: usize) -> u64 {
        self.on_device(pid, gpu).map_or(0, |here| here.copy_ns / 1000)
    }

    /// Returns the number of kernels that a process has started on a GPU.
    pub fn nr_launches(&self, pid: i32, gpu: usize) -> u64 {
        self.on_device(pid, gpu).map_or(0, |here| here.nr_launches)
    }

    /// Returns the bytes of a GPU's memory that a process holds now, contexts included.
    pub fn used(&self, pid: i32, gpu: usize) -> u64 {
        let living = self.account(pid).filter(|account| account.is_alive);
        living
            .and_then(|account| Some(account.devices.get(gpu)?.used))
            .unwrap_or(0)
    }

    /// Returns the most bytes of a GPU's memory that a process has held at one moment.
    pub fn peak(&self, pid: i32, gpu: usize) -> u64 {
        self.on_device(pid, gpu).map_or(0, |here| here.peak)
    }

    /// Returns the bytes of a GPU's memory that a process has taken since it began, and at least how many of
    /// them it has given back. An allocation that is just being made may be missing.
    pub fn taken_and_freed(&self, pid: i32, gpu: usize) -> (u64, u64) {
        self.on_device(pid, gpu)
            .map_or((0, 0), |here| (here.taken, here.taken.saturating_sub(here.used)))
    }

    /// Returns the bytes of one kind that a living process holds, of the GPU's memory or, for host kinds, of
    /// host memory.
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

    /// Returns the bytes of a GPU's memory that all living processes hold at one moment. `None` if the
    /// accounts changed during the reading: concurrent frees and allocations could be counted twice.
    pub fn used_at_once(&self, gpu: usize) -> Option<u64> {
        self.at_once(|account| account.devices.get(gpu).map(|here| here.used))
    }

    /// Returns the bytes of one kind of host memory that all living processes hold at one moment; `None` if
    /// the accounts changed during the reading.
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

    /// Returns the nanoseconds of work of a GPU since the machine was created, for living and dead processes.
    pub fn busy_ns(&self, gpu: usize) -> u64 {
        self.0.device(gpu).map_or(0, |device| device.busy_ns())
    }

    /// Returns the bytes of a GPU's memory in use by living processes.
    pub fn used_by_all(&self, gpu: usize) -> u64 {
        self.0.device(gpu).map_or(0, |device| device.memory_used())
    }
}
