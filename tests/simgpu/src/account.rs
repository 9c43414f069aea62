//! Ground truth about every process of a machine, alive or dead, readable by any process with access to the
//! machine's directory. Tests compare other sources with it.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::config::Config;
use crate::held::Held;
use crate::layout::{Slot, SlotDevice};
use crate::state::Machine;

/// A process on the machine, or a dead process whose slot has not been reused.
#[derive(Clone, Debug)]
pub struct Account {
    /// The process's pid in its own pid namespace.
    pub pid: u32,
    /// Whether the process is alive.
    pub is_alive: bool,
    /// Usage per device, by device index. For a dead process: its last values.
    pub devices: Vec<OnDevice>,
    /// Bytes of the driver's host memory that the process holds, by kind.
    pub host: Vec<(Held, u64)>,
}

/// Usage of one device by one process.
#[derive(Clone, Debug)]
pub struct OnDevice {
    /// Bytes of device memory.
    pub used: u64,
    /// Peak of `used`.
    pub peak: u64,
    /// Bytes of all charges since the process began; `used` was read after it.
    pub taken: u64,
    /// `used` divided by kind. Kinds without memory are listed with 0.
    pub held: Vec<(Held, u64)>,
    /// Nanoseconds for which the device has run the process's kernels.
    pub busy_ns: u64,
    /// Nanoseconds for which the device's copy engines have worked for the process, summed over the engines.
    pub copy_ns: u64,
    /// Kernels started.
    pub nr_launches: u64,
    /// Contexts that exist.
    pub contexts: u32,
}

impl Account {
    fn new(slot: &Slot, is_alive: bool, devices: usize) -> Account {
        let kinds = |on_device| {
            Held::ALL
                .into_iter()
                .filter(move |kind| kind.is_on_device() == on_device)
        };
        let on_device = |here: &SlotDevice| OnDevice {
            taken: here.taken.load(SeqCst),
            used: here.used.load(Relaxed),
            peak: here.peak.load(Relaxed),
            held: kinds(true)
                .map(|kind| (kind, here.held[kind.index()].load(Relaxed)))
                .collect(),
            busy_ns: here.busy_ns.load(Relaxed),
            copy_ns: here.copy_ns.load(Relaxed),
            nr_launches: here.nr_launches.load(Relaxed),
            contexts: here.contexts.load(Relaxed),
        };
        Account {
            pid: slot.pid.load(Relaxed),
            is_alive,
            devices: slot.device.iter().take(devices).map(on_device).collect(),
            host: kinds(false)
                .map(|kind| (kind, slot.host[kind.index()].load(Relaxed)))
                .collect(),
        }
    }
}

impl Machine {
    /// Opens the machine in `dir` for reading. For processes that never attach to it.
    ///
    /// # Errors
    /// The system's errors; `NotFound` if there is no machine.
    pub fn observe(dir: &Path) -> io::Result<Machine> {
        let mut machine = Machine::open(dir, Config::default())?;
        let config = machine.layout().config();
        machine.set_config(config.ok_or(io::ErrorKind::NotFound)?);
        Ok(machine)
    }

    /// Returns every process on the machine, and dead processes whose slot has not been reused.
    pub fn accounts(&self) -> Vec<Account> {
        let slots = self.layout().slots().enumerate();
        let taken = slots.filter(|(_, slot)| slot.pid.load(Relaxed) != 0);
        taken
            .map(|(index, slot)| {
                let is_alive = self.locks.slot_owner(index).is_some();
                Account::new(slot, is_alive, self.places())
            })
            .collect()
    }
}
