//! The truth about every process of a machine, alive or not, for whoever has the machine's directory: tests
//! compare with it what others say.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use crate::config::Config;
use crate::held::Held;
use crate::layout::{Slot, SlotDevice};
use crate::state::Machine;

/// A process that is on the machine, or was and whose place nobody has taken since.
#[derive(Clone, Debug)]
pub struct Account {
    /// Its pid, as its own pid namespace knows it.
    pub pid: u32,
    /// Whether it lives.
    pub is_alive: bool,
    /// What it has on each device, by the device's place on the machine. Of one that has died: what it had
    /// then.
    pub devices: Vec<OnDevice>,
    /// Bytes of host memory of the driver's that it has, by kind.
    pub host: Vec<(Held, u64)>,
}

/// What a process has on a device.
#[derive(Clone, Debug)]
pub struct OnDevice {
    /// Bytes of device memory.
    pub used: u64,
    /// The most that has ever been.
    pub peak: u64,
    /// The same bytes by kind; kinds of which there are none are there too.
    pub held: Vec<(Held, u64)>,
    /// Nanoseconds for which the device has run its kernels.
    pub busy_ns: u64,
    /// Nanoseconds for which the device's copy engines have worked for it, each by itself.
    pub copy_ns: u64,
    /// Kernels begun.
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
    /// Looks at the machine in `dir` without being part of it. For processes that never attach to it.
    ///
    /// # Errors
    /// The system's, and `NotFound` where there is no machine.
    pub fn observe(dir: &Path) -> io::Result<Machine> {
        let mut machine = Machine::open(dir, Config::default())?;
        let config = machine.layout().config();
        machine.set_config(config.ok_or(io::ErrorKind::NotFound)?);
        Ok(machine)
    }

    /// Every process that is on the machine, and those that have left a place that nobody has taken.
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
